"""perfsim: how to train a model, on what, and how long until it is good."""

__version__ = "0.1.0"
