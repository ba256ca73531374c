"""Folded, partly unfolded and unfolded graphs give one answer, with and without shared links, at random."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.costs.price import Costs, price
from perfsim.costs.wafer import WaferCosts
from perfsim.engine import critical_path, simulate
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks, place, rank_classes
from perfsim.network import Topology
from perfsim.prediction.run import Step, evaluate
from perfsim.specs.hardware import FatTreeSpec, GpuClusterSpec
from perfsim.specs.layout import ParallelLayout, StreamingLayout
from perfsim.strategies import Plan
from perfsim.testing import toys
from perfsim.testing.toys import ToyCosts
from perfsim.work import TaskGraph, Work, peer_classes, unfold
from perfsim.work.graph import rank_of
from perfsim.work.unfold import meeting_of

SCHEDULES = {"1f1b": 1, "gpipe": 1, "interleaved": 2, "zb1p": 1, "zb2p": 1, "zbv": 2, "v-half": 2, "v-min": 2}


@st.composite
def gpu_layouts(draw: st.DrawFn) -> dict[str, Any]:
    """3D layouts of up to 32 ranks, ZeRO 0 to 2, every schedule; or ZeRO 3."""
    zero = draw(st.integers(0, 3))
    if zero == 3:
        return {"data": draw(st.sampled_from([2, 4, 8])), "zero_stage": 3}
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    tensor = draw(st.sampled_from([1, 2, 4]))
    return {
        "tensor": tensor,
        "data": draw(st.sampled_from([1, 2, 4])),
        "pipeline": draw(st.sampled_from([2, 4]) if SCHEDULES[schedule] > 1 else st.sampled_from([1, 2])),
        "zero_stage": zero,
        "schedule": schedule,
        "virtual_pipeline": SCHEDULES[schedule],
        "sequence_parallel": draw(st.booleans()) and tensor > 1,
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
    }


def gpu_plan(layout: dict[str, Any], overlap: bool, tied: bool = True) -> Plan:
    chosen = ParallelLayout(**layout)
    job = toys.job(4 * chosen.data, {"overlap_grad_reduce": overlap}, tied_embeddings=tied)
    return toys.plan("3d", job, chosen)


def wafer_plan(systems: int, recompute: int) -> Plan:
    layout = StreamingLayout(systems, 2, "full" if recompute else "none", recompute)
    return toys.plan("weight-streaming", toys.job(4 * systems), layout, toys.wafer_cluster())


gpu_plans = st.builds(gpu_plan, gpu_layouts(), st.booleans(), st.booleans())
wafer_plans = st.builds(wafer_plan, st.integers(1, 6), st.integers(0, 2))


def prices(plan: Plan, graph: TaskGraph) -> np.ndarray:
    if plan.strategy == "weight-streaming":
        return price(graph, WaferCosts(plan.topology, plan.job.recipe))
    return price(graph, toys.ToyCosts(plan.system))


def slow_ends(graph: TaskGraph, duration_s: np.ndarray) -> np.ndarray:
    """Ends of every rank's copy of every folded task, shape (tasks, width), one copy at a time.

    A collective begins, for all of its members at once, when the last of them has its inputs and its
    stream free. `duration_s` has the shape of the result; that of a collective is its first member's.
    """
    width = graph.width
    ends = np.zeros((len(graph), width))
    last: dict[str, int] = {}
    for task in graph.tasks():
        waits_for = {int(graph.writer[tensor]) for tensor in task.reads} | set(task.after)
        waits_for |= {last[task.stream]} if task.stream in last else set()
        shared = rank_of(task.stream) is None
        meeting = meeting_of(task.work, width)
        for peer in range(width):
            members = range(width) if shared else meeting.offsets(peer)
            ready = max((ends[other, member] for other in waits_for for member in members), default=0.0)
            ends[task.id, peer] = ready + duration_s[task.id, members[0]]
        last[task.stream] = task.id
    return ends


def perturbed(graph: TaskGraph, duration_s: np.ndarray, factors: dict[int, float]) -> np.ndarray:
    """Durations of every rank's copy: compute of rank r takes factors[r] times as long."""
    copies_s = np.repeat(duration_s[:, None], graph.width, axis=1)
    ranks = np.array([-1 if (rank := rank_of(name)) is None else rank for name in graph.streams])
    computes = np.array([not work.kind.is_communication for work in graph.works])[graph.work]
    for task in np.flatnonzero(computes & (ranks[graph.stream] >= 0)):
        for peer in range(graph.width):
            copies_s[task, peer] *= factors.get(int(ranks[graph.stream[task]]) + peer, 1.0)
    return copies_s


def run_classes(graph: TaskGraph, each_s: np.ndarray, classes: np.ndarray | None) -> np.ndarray:
    """Ends of every rank's copy, from the graph in which these classes are written."""
    unfolded = unfold(graph, classes)
    first = (
        np.maximum(unfolded.rank, 0)
        - np.array([max(rank_of(name) or 0, 0) for name in graph.streams])[graph.stream[unfolded.task]]
    )
    first[unfolded.rank < 0] = 0
    end_s = critical_path(unfolded.graph, each_s[unfolded.task, first]).end_s
    ends = np.zeros_like(each_s)
    for peer in range(each_s.shape[1]):
        ends[:, peer] = end_s[unfolded.of_peer(peer)]
    return ends


@given(gpu_layouts(), st.sampled_from([1, 2, 4]), st.data())
@settings(max_examples=40)
def test_ranks_that_share_links_run_alike(layout: dict[str, Any], gpus: int, data: st.DataObject) -> None:
    nics = data.draw(st.sampled_from([gpus, max(1, gpus // 2)]))
    rate = data.draw(st.sampled_from([1e9, 25e9]))
    system = toys.gpu_cluster(gpus=gpus, nics=nics, nic_bytes_per_s=rate)
    chosen = ParallelLayout(**layout)
    plan = toys.plan("3d", toys.job(4 * chosen.data, {"overlap_grad_reduce": True}), chosen, system)
    graph = plan.graph()
    duration_s = price(graph, toys.ToyCosts(system))
    classes = rank_classes(graph, network_of(plan.topology), {}, shares_links=True)
    unfolded = unfold(graph)
    partly = unfold(graph, classes)
    if classes.any():
        return  # the groups of this layout lie unlike over the nodes: it may not be folded
    links = SharedLinks.of(graph, network_of(plan.topology), peers=classes)
    folded = simulate(graph, duration_s, links.flows, links.capacities)
    links = SharedLinks.of(unfolded.graph, network_of(plan.topology))
    run = simulate(unfolded.graph, duration_s[unfolded.task], links.flows, links.capacities)
    assert partly.graph.digest() == graph.digest()
    assert run.end_s.tobytes() == folded.end_s[unfolded.task].tobytes()


def on_a_grid(plan: Plan, graph: TaskGraph) -> np.ndarray:
    """Prices that add up without rounding."""
    return np.ldexp(np.rint(np.ldexp(prices(plan, graph), 36)), -36)


def drawn_factors(plan: Plan, factors: list[float], most: int, data: st.DataObject) -> dict[int, float]:
    """By how many times as long some ranks compute."""
    ranks = st.integers(0, plan.layout.num_devices - 1)
    return data.draw(st.dictionaries(ranks, st.sampled_from(factors), max_size=most))


@pytest.mark.parametrize("plans", [gpu_plans, wafer_plans], ids=["GPUs", "wafers"])
@given(st.data())
@settings(max_examples=40)
def test_stragglers_unfold_only_their_classes(plans: st.SearchStrategy[Plan], data: st.DataObject) -> None:
    """Every copy ends as it does alone, whether all are written or each class."""
    plan = data.draw(plans)
    graph = plan.graph()
    factors = drawn_factors(plan, [1.25, 2.0, 0.5], 3, data)
    each_s = perturbed(graph, on_a_grid(plan, graph), factors)
    slow = slow_ends(graph, each_s)
    for classes in (None, peer_classes(graph, factors)):
        assert (run_classes(graph, each_s, classes) == slow).all()


layouts = st.builds(
    ParallelLayout,
    tensor=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([2, 4]),
    pipeline=st.sampled_from([2, 4]),
    schedule=st.sampled_from(["1f1b", "gpipe", "zb1p"]),
    zero_stage=st.integers(0, 2),
)
gpus_per_node = st.sampled_from([1, 2, 4])


def network(layout: ParallelLayout, gpus: int, leaf: int, thin: float) -> Topology:
    fabric = FatTreeSpec(nodes_per_leaf=leaf, oversubscription=thin, switch_latency=1e-7)
    system = toys.gpu_cluster(gpus=gpus, nics=gpus, nic_bytes_per_s=2e9)
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
    graph = toys.plan("3d", job, layout, topology.system).graph()
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


@given(layouts, gpus_per_node, st.sampled_from([1, 2, 3]), st.sampled_from([2.0, 4.0]))
@settings(max_examples=25)
def test_on_thin_uplinks_peers_that_leaves_part_are_written_out_and_nothing_else_is_needed(
    layout: ParallelLayout, gpus: int, leaf: int, thin: float
) -> None:
    topology = network(layout, gpus, leaf, thin)
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
    every = unfold(plan.graph()).graph
    durations = price(every, costs)
    path_s = critical_path(every, durations).step_time_s
    assert uncontended_s(plan.graph(), plan.topology, costs) == path_s
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
def test_too_many_kinds_of_peers_take_no_less_folded_than_written(drawn: tuple[ParallelLayout, int]) -> None:
    layout, gpus = drawn
    topology = network(layout, gpus, leaf=8, thin=1.0)
    graph = uneven_plan(layout, topology.system).graph()
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
