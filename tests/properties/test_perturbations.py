"""Perturbations of steps at random: they cost time or nothing, and nothing where they are none."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path
from perfsim.engine.failures import with_stragglers
from perfsim.machines.placement import place
from perfsim.specs.layout import ParallelLayout
from perfsim.testing import toys
from perfsim.work import TaskGraph

COSTS = toys.ToyCosts(toys.gpu_cluster())
layouts = st.builds(
    ParallelLayout,
    tensor=st.sampled_from([1, 2]),
    data=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 4]),
    schedule=st.sampled_from(["1f1b", "gpipe", "zb1p"]),
)


def on_a_grid(graph: TaskGraph, costs: Costs) -> np.ndarray:
    """Prices that add up without rounding."""
    return np.ldexp(np.rint(np.ldexp(price(graph, costs), 36)), -36)


def step(layout: ParallelLayout) -> tuple[TaskGraph, np.ndarray]:
    graph = toys.plan("3d", toys.job(4 * layout.data, num_layers=4), layout).graph()
    return graph, on_a_grid(graph, COSTS)


@given(layouts, st.data())
@settings(max_examples=30)
def test_a_straggler_never_makes_a_step_faster_and_a_worse_one_never_less_slow(
    layout: ParallelLayout, data: st.DataObject
) -> None:
    """On a fixed schedule without contention: with it, more work may be less waiting."""
    graph, durations = step(layout)
    rank = data.draw(st.integers(0, layout.num_devices - 1))
    folded_s = critical_path(graph, durations).step_time_s
    placed = place(graph, toys.topology(layout.num_devices), marks={rank: "slow"})
    written = placed.graph
    durations = on_a_grid(written, COSTS)
    times = [
        critical_path(written, with_stragglers(written, durations, placed.rank, {rank: factor})).step_time_s
        for factor in (1.0, 1.25, 1.5, 2.0)
    ]
    assert times[0] == folded_s, "severity 1 is the step itself, to the bit"
    assert times == sorted(times)
    assert times[-1] <= 2.0 * folded_s
