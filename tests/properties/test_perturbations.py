"""Perturbations of steps at random: they cost time or nothing, and nothing where they are none."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path, simulate
from perfsim.engine.failures import with_jitter, with_stragglers
from perfsim.machines.placement import place, place_stragglers
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
    graph = toys.graph_of(toys.plan("3d", toys.job(4 * layout.data, num_layers=4), layout))
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


@given(layouts, st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.01, 0.3]))
@settings(max_examples=20)
def test_jitter_is_the_same_for_the_same_seed_and_none_for_sigma_0(
    layout: ParallelLayout, seed: int, sigma: float
) -> None:
    graph, durations = step(layout)
    together = np.full(len(graph), layout.tensor, dtype=np.int32)
    first, again = (
        with_jitter(graph, durations, sigma, together, np.random.default_rng(seed)) for _ in range(2)
    )
    assert first.tobytes() == again.tobytes()
    assert (first.tobytes() == durations.tobytes()) == (sigma == 0.0)


@given(
    st.sampled_from([(2, 2), (2, 4), (4, 4), (4, 8)]),
    st.sampled_from([(1, 4), (2, 2), (2, 4), (4, 2)]),
    st.sampled_from(["1f1b", "gpipe"]),
    st.tuples(st.sampled_from([1, 2]), st.sampled_from([1e9, 5e9])),
    st.data(),
)
@settings(max_examples=25)
def test_one_straggler_takes_a_step_as_long_if_its_tensor_peers_are_written_with_it(
    inside: tuple[int, int],
    outside: tuple[int, int],
    schedule: str,
    nics: tuple[int, float],
    data: st.DataObject,
) -> None:
    """On links that are short, where a peer that does not wait could take another's share."""
    (tensor, gpus), (pipeline, replicas), (shared, nic_bytes_per_s) = inside, outside, nics
    layout = ParallelLayout(tensor=tensor, pipeline=pipeline, data=replicas, schedule=schedule)
    system = toys.gpu_cluster(gpus=gpus, nics=gpus // shared, nic_bytes_per_s=nic_bytes_per_s)
    job = toys.job(4 * replicas, {"overlap_grad_reduce": data.draw(st.booleans())}, num_layers=4)
    plan = toys.plan("3d", job, layout, system)
    graph = toys.graph_of(plan)
    costs = toys.ToyCosts(system)
    factors = {
        data.draw(st.integers(0, layout.num_devices - 1)): data.draw(st.sampled_from([1.05, 1.5, 3.0]))
    }
    together, apart = (
        place_stragglers(graph, plan, factors, step_only=step_only) for step_only in (True, False)
    )
    assert len(together.factors) == (tensor if together.note else 1)
    assert not apart.note
    ends_s = []
    for placed in (together, apart):
        written, ranks, links, *_ = placed
        durations = with_stragglers(written, price(written, costs), ranks, placed.factors)
        ends_s.append(simulate(written, durations, *links).step_end_s)
    assert ends_s[0] == ends_s[1]
