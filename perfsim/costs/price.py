"""Prices of work in seconds: one price per class of work, for all tasks of the class."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.work import TaskGraph, Work


class Shares(NamedTuple):
    """Shares of a device's compute units and of its memory bandwidth."""

    units: float
    memory: float


NONE = Shares(0.0, 0.0)
MOST_TAKEN = 0.9
"""Share of a device that communications take at most, all together."""


class Costs(ABC):
    """The cost model of a machine: seconds of classes of work on an idle system, and parts of them."""

    zeros_saved: float = 0.0
    """Share of the time of a sparse matrix product saved by its zeros."""

    @abstractmethod
    def duration_s(self, work: Work) -> float:
        """Seconds of one task of this class."""

    def durations_s(self, works: Sequence[Work]) -> NDArray[np.float64]:
        """Seconds of several classes of work, shape (works,)."""
        return np.array([self.duration_s(work) for work in works], dtype=np.float64)

    def fixed_s(self, _work: Work, /) -> float:
        """Seconds of a task that do not depend on the number of tokens."""
        return 0.0

    def parts_s(self, _work: Work, /) -> Mapping[str, float]:
        """Seconds inside a task that have a name of their own, such as rows of weights on a wafer."""
        return {}

    def arithmetic_flop_per_s(self, work: Work, /) -> float:
        """FLOP/s of a class of work, without movement where that is known."""
        return work.flop / self.duration_s(work)

    def taken(self, _work: Work, /) -> Shares:
        """What a communication takes of each device of its group while it runs alone; `NONE` for compute."""
        return NONE

    def bound(self, _work: Work, /) -> Shares:
        """Shares of a compute task's time that units and memory bandwidth limit; `NONE` for communication.

        With the shares u and h taken by others, the task takes 1 + units u/(1-u) + memory h/(1-h) times as
        long. The rest of its time, launches above all, does not get longer.
        """
        return NONE

    def latency_s(self, _work: Work, /) -> float:
        """Seconds of a communication in which it uses no link: launches and hops, before its bytes."""
        return 0.0


def slowest_of(count: int) -> float:
    """Expected maximum of so many standard normal values, within 5 %.

    Formula: the quantile of (n - 0.375) / (n + 0.25) [G. Blom, "Statistical Estimates and Transformed
    Beta-Variables", 1958].
    """
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def price(graph: TaskGraph, costs: Costs) -> NDArray[np.float64]:
    """Seconds of every task of `graph`, shape (tasks,)."""
    return costs.durations_s(graph.works).take(graph.work)
