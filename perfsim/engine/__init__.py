"""Simulation of a priced graph, with SimPy or with a compiled core that gives the same times to the bit."""

from perfsim.engine.simulate import critical_path, simulate
from perfsim.engine.tables import Flow, Slowdown

__all__ = ["Flow", "Slowdown", "critical_path", "simulate"]
