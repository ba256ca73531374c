"""Folded and unfolded steps on shared links: one answer where peers are alike, never a shorter one."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path, simulate
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks, place
from perfsim.network import Topology
from perfsim.prediction.run import Step, evaluate
from perfsim.specs.hardware import FatTreeSpec, GpuClusterSpec
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import Plan
from perfsim.testing import toys
from perfsim.testing.toys import ToyCosts
from perfsim.work import TaskGraph, Work, unfold

layouts = st.builds(
    ParallelLayout,
    tensor=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([2, 4]),
    pipeline=st.sampled_from([2, 4]),
    schedule=st.sampled_from(["1f1b", "gpipe", "zb1p"]),
    zero_stage=st.integers(0, 2),
)
gpus_per_node = st.sampled_from([1, 2, 4])


def network(layout: ParallelLayout, gpus: int, nics: int, leaf: int, thin: float) -> Topology:
    fabric = FatTreeSpec(nodes_per_leaf=leaf, oversubscription=thin, switch_latency=1e-7)
    system = toys.gpu_cluster(gpus=gpus, nics=nics, nic_bytes_per_s=2e9)
    return toys.topology(layout.num_devices, system.model_copy(update={"fabric": fabric}))


class Steps(NamedTuple):
    """Step times of one plan."""

    free_s: float
    """Without contention."""
    folded_s: float
    written_s: float
    """With those peers written out that the network parts."""
    full_s: float
    """Of all ranks."""


def steps(layout: ParallelLayout, topology: Topology) -> Steps:
    job = toys.job(4 * layout.data, {"overlap_grad_reduce": True}, num_layers=4)
    graph = toys.graph_of(toys.plan("3d", job, layout, topology.system))
    costs = toys.ToyCosts(topology.system)
    durations = price(graph, costs)
    every = unfold(graph)
    apart = place(graph, topology)
    links = SharedLinks.of(every.graph, network_of(topology), peers=np.arange(graph.width))
    return Steps(
        critical_path(graph, durations).step_time_s,
        simulate(graph, durations, *SharedLinks.of(graph, network_of(topology))).step_time_s,
        simulate(apart.graph, price(apart.graph, costs), *apart.links).step_time_s,
        simulate(every.graph, durations[every.task], *links).step_time_s,
    )


@given(layouts, gpus_per_node, st.booleans())
@settings(max_examples=25)
def test_on_a_non_blocking_fabric_every_rank_takes_as_long_as_the_written_one_to_the_bit(
    layout: ParallelLayout, gpus: int, shared: bool
) -> None:
    topology = network(layout, gpus, max(1, gpus // 2) if shared else gpus, leaf=2, thin=1.0)
    answer = steps(layout, topology)
    assert answer.free_s <= answer.folded_s == answer.full_s == answer.written_s


@given(layouts, gpus_per_node, st.sampled_from([1, 2, 3]), st.sampled_from([2.0, 4.0]))
@settings(max_examples=25)
def test_on_thin_uplinks_peers_that_leaves_part_are_written_out_and_nothing_else_is_needed(
    layout: ParallelLayout, gpus: int, leaf: int, thin: float
) -> None:
    topology = network(layout, gpus, gpus, leaf, thin)
    answer = steps(layout, topology)
    assert answer.free_s <= answer.folded_s
    assert answer.written_s == pytest.approx(answer.full_s, rel=1e-9)
    assert answer.folded_s == pytest.approx(answer.full_s, rel=0.1), "folded is near, not right"


def uncontended_s(graph: TaskGraph, topology: Topology, costs: Costs) -> float:
    return Step(place(graph, topology, contention=False), costs).run(contention=False).step_time_s


def uneven_plan(layout: ParallelLayout, system: GpuClusterSpec) -> Plan:
    model = {"num_attention_heads": 12, "hidden_size": 768, "ffn_hidden_size": 3072, "vocab_size": 49152}
    job = toys.job(2 * layout.data, {"overlap_grad_reduce": True}, num_layers=4, **model)
    return toys.plan("3d", job, layout, system)


uneven = st.tuples(
    st.builds(
        ParallelLayout,
        tensor=st.sampled_from([1, 2, 3, 6]),
        data=st.sampled_from([2, 3, 4, 5, 7]),
        pipeline=st.sampled_from([1, 2, 4]),
        zero_stage=st.integers(0, 2),
    ),
    st.sampled_from([3, 4, 6, 7, 8]),
).filter(lambda drawn: drawn[0].num_devices % drawn[1] == 0)
"""Layouts on full nodes, over which many of their groups lie unlike."""


class CostsOfShapes(ToyCosts):
    """Prices that depend on all that is known of how a group lies over nodes."""

    def duration_s(self, work: Work) -> float:
        """Seconds of a task."""
        seconds = super().duration_s(work)
        if work.group is not None:
            on_node = Counter(rank // self.system.node.devices for rank in work.group.ranks).values()
            seconds += 1e-4 * len(on_node) + 1e-5 * max(on_node) + 1e-3 / min(on_node)
        return seconds


@given(uneven, st.sampled_from([2e9, 25e9]))
@settings(max_examples=40)
def test_an_evaluation_takes_as_long_as_all_ranks_written_out_and_to_the_bit_where_it_is_folded(
    drawn: tuple[ParallelLayout, int], nic_bytes_per_s: float
) -> None:
    layout, gpus = drawn
    system = toys.gpu_cluster(gpus=gpus, nics=gpus, nic_bytes_per_s=nic_bytes_per_s)
    plan = uneven_plan(layout, system)
    costs = CostsOfShapes(system)
    every = unfold(toys.graph_of(plan)).graph
    durations = price(every, costs)
    path_s = critical_path(every, durations).step_time_s
    assert uncontended_s(toys.graph_of(plan), plan.topology, costs) == path_s
    answer = evaluate(plan, costs)
    links = SharedLinks.of(every, network_of(plan.topology), peers=np.arange(layout.tensor * layout.data))
    full_s = simulate(every, durations, *links).step_time_s
    assert answer.step_time_s == pytest.approx(full_s, rel=1e-9)
    if answer.trace.graph is answer.graph:
        assert answer.step_time_s == full_s
        assert not any("kinds" in note for note in answer.plan.notes)
    else:
        assert "kinds of ranks are simulated" in answer.plan.notes[-1]


@given(uneven)
@settings(max_examples=25)
def test_too_many_kinds_of_peers_take_at_least_as_long_folded_as_written_out(
    drawn: tuple[ParallelLayout, int],
) -> None:
    layout, gpus = drawn
    topology = network(layout, gpus, gpus, leaf=8, thin=1.0)
    graph = toys.graph_of(uneven_plan(layout, topology.system))
    costs = ToyCosts(topology.system)
    written_s = uncontended_s(graph, topology, costs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perfsim.machines.placement.MOST_UNEVEN_TASKS", 0)
        folded = place(graph, topology, contention=False)
        folded_s = uncontended_s(graph, topology, costs)
    assert len(folded.graph) == len(graph)
    assert folded_s >= written_s * (1 - 1e-12)
    if folded.graph is graph:
        assert not folded.note
        assert folded_s == written_s
    else:
        assert "takes what it takes the ranks whose group lies worst" in folded.note
