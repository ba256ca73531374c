"""Simulation of a priced graph: with SimPy, with a compiled core to the same times, or by its longest path."""

from __future__ import annotations

from perfsim.engine.simulate import critical_path, simulate
from perfsim.engine.tables import Beside, Flow

__all__ = ["Beside", "Flow", "critical_path", "simulate"]
