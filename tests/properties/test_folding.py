"""Folded, partly unfolded and unfolded graphs give one answer, strategy by strategy, at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.costs.price import price
from perfsim.costs.wafer import WaferCosts
from perfsim.engine import critical_path, simulate
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks, rank_classes
from perfsim.specs.layout import ParallelLayout, StreamingLayout
from perfsim.strategies import Plan
from perfsim.testing import toys
from perfsim.work import TaskGraph, peer_classes, unfold
from perfsim.work.graph import rank_of
from perfsim.work.unfold import as_slowest_peers, meeting_of

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
    layout = StreamingLayout(data=systems, micro_batch_size=2, recompute_layers=recompute)
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


@given(gpu_plans)
@settings(max_examples=40)
def test_every_rank_runs_as_the_written_one(plan: Plan) -> None:
    graph = toys.graph_of(plan)
    folded = critical_path(graph, prices(plan, graph))
    unfolded = unfold(graph)
    run = critical_path(unfolded.graph, prices(plan, unfolded.graph))
    assert run.start_s.tobytes() == folded.start_s[unfolded.task].tobytes()
    assert run.end_s.tobytes() == folded.end_s[unfolded.task].tobytes()
    assert unfolded.graph.flop == pytest.approx(graph.flop, rel=1e-12)
    spent = run.device_breakdowns()
    for device, seconds in folded.device_breakdowns().items():
        base = int(device.removeprefix("gpu"))
        for peer in range(graph.width):
            assert spent[f"gpu{base + peer}"] == pytest.approx(seconds, rel=1e-9, abs=1e-12)


@given(gpu_layouts(), st.sampled_from([1, 2, 4]), st.data())
@settings(max_examples=40)
def test_ranks_that_share_links_run_as_the_written_one(
    layout: dict[str, Any], gpus: int, data: st.DataObject
) -> None:
    system = toys.gpu_cluster(gpus=gpus, nics=gpus, nic_bytes_per_s=data.draw(st.sampled_from([1e9, 25e9])))
    chosen = ParallelLayout(**layout)
    plan = toys.plan("3d", toys.job(4 * chosen.data, {"overlap_grad_reduce": True}), chosen, system)
    graph = toys.graph_of(plan)
    duration_s = price(graph, toys.ToyCosts(system))
    classes = rank_classes(graph, network_of(plan.topology))
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
def test_stragglers_unfold_only_their_classes_and_nothing_else_changes(
    plans: st.SearchStrategy[Plan], data: st.DataObject
) -> None:
    """Every copy ends as it does alone, whether all are written or each class."""
    plan = data.draw(plans)
    graph = toys.graph_of(plan)
    factors = drawn_factors(plan, [1.25, 2.0, 0.5], 3, data)
    each_s = perturbed(graph, on_a_grid(plan, graph), factors)
    slow = slow_ends(graph, each_s)
    for classes in (None, peer_classes(graph, factors)):
        assert (run_classes(graph, each_s, classes) == slow).all()


@given(gpu_plans, st.data())
@settings(max_examples=40)
def test_a_step_with_one_straggler_is_as_long_if_its_tensor_peers_act_with_it(
    plan: Plan, data: st.DataObject
) -> None:
    graph = toys.graph_of(plan)
    factors = drawn_factors(plan, [1.25, 2.0], 2, data)
    alike = as_slowest_peers(graph, factors)
    on_grid = on_a_grid(plan, graph)
    exact, quick = (
        run_classes(graph, perturbed(graph, on_grid, slow), peer_classes(graph, slow))
        for slow in (factors, alike)
    )
    assert (exact <= quick).all()
    assert exact.max() == quick.max() or len(factors) > 1
