"""Turning work into seconds: one price a class of work, spread over all tasks of the class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from perfsim.errors import InputError
from perfsim.graph import RankGroup, TaskGraph, Work


class Costs(ABC):
    """How long classes of work take on an idle system, and what of that a machine can tell apart."""

    zeros_saved: float = 0.0
    """Share of the time of a sparse matrix product that its zeros save."""

    @abstractmethod
    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class."""

    def movement_s(self, _work: Work, /) -> float:
        """Of the seconds of a task those in which matrix products wait for movement inside the device."""
        return 0.0

    def fixed_s(self, _work: Work, /) -> float:
        """Of the seconds of a task those that it takes whatever the number of tokens."""
        return 0.0

    def arithmetic_flop_per_s(self, work: Work, /) -> float:
        """FLOP/s that the arithmetic of a class of work reaches, movement apart where that is known."""
        return work.flop / self.duration_s(work)

    def send_s(self, _ends: RankGroup, _n_bytes: float, /) -> float:
        """Seconds of one message between two ranks; InputError where single messages have no price."""
        raise InputError("no message between two ranks has a price on this machine")


def mean_s(graph: TaskGraph, seconds: Callable[[Work], float]) -> float:
    """Seconds of all tasks of a step together, given those of a task of each class; the mean over steps."""
    per_work = np.array([seconds(work) for work in graph.works])
    return float(per_work[graph.work].sum()) / len(graph.step_ends)


def price(graph: TaskGraph, costs: Costs) -> NDArray[np.float64]:
    """Seconds of every task of `graph`, shape (tasks,)."""
    per_work = np.array([costs.duration_s(work) for work in graph.works], dtype=np.float64)
    return per_work.take(graph.work)
