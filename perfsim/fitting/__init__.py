"""Fits of constants to measurements for `perfsim calibrate`, one module per kind of fit."""
