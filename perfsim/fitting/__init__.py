"""From measurements to constants: what `perfsim calibrate` does, one module a kind of fit."""
