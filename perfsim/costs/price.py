"""Turning work into seconds: one price a class of work, spread over all tasks of the class."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import TaskGraph, Work


class Costs(Protocol):
    """Something that knows how long a class of work takes on an idle system."""

    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class."""


def price(graph: TaskGraph, costs: Costs) -> NDArray[np.float64]:
    """Seconds of every task of `graph`, shape (tasks,)."""
    per_work = np.array([costs.duration_s(work) for work in graph.works], dtype=np.float64)
    return per_work.take(graph.work)
