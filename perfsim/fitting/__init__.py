"""Fits constants to measurements (`perfsim calibrate`), one module per kind of fit."""
