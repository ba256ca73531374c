from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from perfsim.machines.placement import place
from perfsim.prediction.run import Step
from perfsim.specs.layout import ParallelLayout


@pytest.fixture
def step(toys: ModuleType) -> Step:
    plan = toys.plan("3d", toys.job(), ParallelLayout(tensor=2, pipeline=2, data=2))
    return Step(place(toys.graph_of(plan), plan.topology), toys.ToyCosts(plan.system))


def test_a_run_takes_the_given_durations_in_place_of_the_prices(step: Step) -> None:
    assert step.run(2 * step.duration_s).step_time_s == pytest.approx(2 * step.run().step_time_s)


def test_scale_stretches_a_run_and_leaves_the_prices(step: Step) -> None:
    scaled = replace(step, scale=1.5)
    assert np.array_equal(scaled.duration_s, step.duration_s)
    assert scaled.run().step_time_s == pytest.approx(1.5 * step.run().step_time_s, rel=1e-12)


def test_without_contention_a_run_is_the_longest_path(step: Step) -> None:
    uncontended = step.run(contention=False)
    assert uncontended.step_time_s <= step.run().step_time_s
    assert np.array_equal(uncontended.end_s - uncontended.start_s > 0, step.duration_s > 0)
