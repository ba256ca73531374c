"""The version of perfsim."""

__version__ = "0.1.0"
