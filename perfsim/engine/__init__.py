"""Simulation of a priced graph: by its critical path, or with SimPy where links are shared."""

from __future__ import annotations

from perfsim.engine.critical_path import critical_path
from perfsim.engine.simulate import simulate

__all__ = ["critical_path", "simulate"]
