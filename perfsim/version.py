"""The version of perfsim."""

__version__ = "0.2.0"
