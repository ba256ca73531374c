"""The longest path through a graph."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from perfsim.engine import critical_path, simulate
from perfsim.work import GraphBuilder, TaskGraph


def diamond(toys: ModuleType) -> TaskGraph:
    """a, then b and c side by side, then d."""
    builder = GraphBuilder()
    a = builder.task(toys.compute("a"), "s0").tensor
    b = builder.task(toys.compute("b"), "s0", [a]).tensor
    c = builder.task(toys.compute("c"), "s1", [a]).tensor
    builder.task(toys.compute("d"), "s0", [b, c])
    return builder.build()


def test_a_task_starts_when_the_last_one_it_waits_for_ends(toys: ModuleType) -> None:
    trace = critical_path(diamond(toys), np.array([1.0, 2.0, 5.0, 1.0]))
    assert trace.start_s.tolist() == [0.0, 1.0, 1.0, 6.0]
    assert trace.end_s.tolist() == [1.0, 3.0, 6.0, 7.0]


def test_the_number_of_durations_must_be_the_number_of_tasks(toys: ModuleType) -> None:
    for engine in (critical_path, simulate):
        with pytest.raises(ValueError, match="3 durations for 4 tasks"):
            engine(diamond(toys), np.ones(3))
