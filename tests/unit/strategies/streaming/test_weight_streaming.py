"""Weight streaming as a graph: what streams when, and what waits for what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfsim.base.errors import LayoutError, MemoryCapacityError
from perfsim.catalog import default_catalog
from perfsim.costs.price import Costs, price
from perfsim.costs.wafer import WaferCosts
from perfsim.engine import critical_path
from perfsim.engine.trace import Trace
from perfsim.specs.layout import StreamingLayout
from perfsim.strategies import Plan, strategy
from perfsim.testing import toys
from perfsim.work import TaskGraph, Work

BLOCKS = 8 + 2


def planned(*, systems: int = 1, batch: int = 32, **layout: object) -> Plan:
    fields = {"micro_batch_size": batch // systems, "data": systems} | layout
    chosen = StreamingLayout(**fields)
    return toys.plan("weight-streaming", toys.job(batch), chosen, toys.wafer_cluster())


def names(graph: TaskGraph, stream: str, step: int = 0) -> list[str]:
    """Names of the tasks of a stream in one step, without their micro-batch."""
    bounds = (0, *graph.step_ends)
    tasks = [graph.task(number) for number in range(bounds[step], bounds[step + 1])]
    return [task.work.name for task in tasks if task.stream == stream]


def run(plan: Plan, seconds: dict[str, float]) -> Trace:
    graph = toys.graph_of(plan)
    return critical_path(graph, price(graph, toys.TableCosts(seconds)))


def test_weights_stream_forward_and_backward_and_gradients_leave_last_layer_first() -> None:
    graph = toys.graph_of(planned())
    forward = ["embedding.load", *["layer.load"] * 8, "head.load"]
    assert names(graph, "memoryx/out") == forward + forward[::-1]
    assert names(graph, "swarmx/down") == [
        name.replace("load", "broadcast") for name in forward + forward[::-1]
    ]
    reduced = ["head.reduce", *["layer.reduce"] * 8, "embedding.reduce"]
    assert names(graph, "swarmx/up") == reduced
    assert names(graph, "memoryx/update") == [name.replace("reduce", "update") for name in reduced]


def test_weights_are_prefetched_one_block_ahead_and_no_further() -> None:
    seconds = {"layer.forward": 1.0, "embedding.forward": 1.0, "head.forward": 1.0}
    trace = run(planned(), seconds)
    graph = trace.graph
    loads = [task.id for task in graph.tasks() if task.stream == "memoryx/out"]
    forwards = [task.id for task in graph.tasks() if task.work.name.endswith(".forward")]
    first_step = slice(2, BLOCKS)
    # The load of block n starts when block n - 2 is done: block n - 1 computes meanwhile.
    freed = trace.end_s[forwards[:BLOCKS]][:-2]
    assert trace.start_s[loads[first_step]].tolist() == freed.tolist()
    assert trace.start_s[loads[:2]].tolist() == [0.0, 0.0]


def test_matrices_are_streamed_and_attention_is_not_a_weight() -> None:
    graph = toys.graph_of(planned())
    kernels = {kernel.name: kernel for work in graph.works for kernel in work.kernels}
    assert kernels["fc1"].partition == kernels["lm_head"].partition == "streamed"
    assert kernels["scores"].partition == kernels["context"].partition == "none"


def test_the_second_step_is_the_steady_state() -> None:
    plan = planned()
    graph = toys.graph_of(plan)
    trace = critical_path(graph, price(graph, WaferCosts(plan.topology, plan.job.recipe)))
    first, second = np.diff([0.0, *trace.step_end_s])
    assert second == trace.step_time_s
    assert second == pytest.approx(first, rel=0.2)


# ------------------------------------------------------------------------------------- layouts
@pytest.mark.parametrize(("batch", "policies"), [(8, [0, 1, 2, 4]), (160, [1, 2, 4]), (1024, [1])])
def test_a_batch_is_split_no_further_than_some_policy_needs(batch: int, policies: list[int]) -> None:
    """Keeping everything takes the most room, so with the batch its turn passes first."""
    job = toys.job(batch)
    topology = toys.topology(2, toys.wafer_cluster())
    listed = list(strategy("weight-streaming").layouts(job, topology))
    kept = [layout for layout in listed if not layout.spill]
    assert [layout.recompute_layers for layout in kept] == policies
    (size,) = {layout.micro_batch_size for layout in kept}
    parts = -(-batch // 2 // size)
    assert size == -(-batch // 2 // parts), "as even as parts can be"
    assert all(layout.data == 2 for layout in listed)


def test_everything_wrong_with_a_layout_is_listed() -> None:
    topology = toys.topology(4, toys.wafer_cluster())
    with pytest.raises(LayoutError) as caught:
        strategy("weight-streaming").plan(toys.job(2), topology, StreamingLayout(data=3))
    assert [problem.message for problem in caught.value.problems] == [
        "data 3 must equal the 4 systems",
        "global_batch_size 2 gives some of 3 systems nothing",
    ]


def test_all_resident_is_refused_where_it_does_not_fit_with_a_way_out() -> None:
    topology = toys.topology(1, toys.wafer_cluster())
    layout = StreamingLayout(micro_batch_size=512)
    with pytest.raises(MemoryCapacityError, match=r"wafer needs .* GB of 40.0 GB; try a smaller"):
        strategy("weight-streaming").plan(toys.job(512), topology, layout)


def test_a_sequence_that_no_policy_fits_is_refused_by_its_memory() -> None:
    job = toys.job(2)
    topology = toys.topology(1, toys.wafer_cluster(capacity=1e8))
    (least,) = strategy("weight-streaming").layouts(job, topology)
    assert (least.micro_batch_size, least.recompute_layers, least.spill) == (1, 1, True)
    with pytest.raises(MemoryCapacityError, match=r"try shorter sequences than 1,024 tokens"):
        strategy("weight-streaming").plan(job, topology, least)


@pytest.mark.parametrize(
    ("layout", "policy"),
    [
        ({"micro_batch_size": 16}, "resident, split in 2 micro-batches"),
        ({}, "resident"),
        ({"recompute_layers": 2}, "recompute every 2 layers"),
        ({"recompute_layers": 1, "spill": True}, "recompute every 1 layers, inputs spilled"),
        ({"spill": True, "micro_batch_size": 8}, "spill, split in 4 micro-batches"),
    ],
)
def test_the_plan_says_which_policy_it_follows(layout: dict[str, object], policy: str) -> None:
    assert planned(**layout).notes == (
        f"wafer memory policy: {policy}",
        "MemoryX holds 1.02 GB of weights in DRAM and 8.16 GB of optimizer state in DRAM",
    )


@pytest.mark.parametrize(
    ("depth", "held", "chunks"), [(1, "chunk", 1), (0, "chunk", 16), (0, "layer", 1), (2, "layer", 1)]
)
def test_without_prefetch_weights_that_are_used_as_they_arrive_are_planned_in_chunks(
    depth: int, held: str, chunks: int
) -> None:
    """A layer's weights would come before its computation as a whole, which only holding them does."""
    changes = {"streaming.prefetch_depth": depth, "streaming.weights_held": held}
    system = default_catalog().override(toys.wafer_cluster(), changes)
    listed = strategy("weight-streaming").layouts(toys.job(8), toys.topology(1, system))
    assert {layout.stream_chunks for layout in listed} == {chunks}
    plan = toys.plan("weight-streaming", toys.job(8), StreamingLayout(stream_chunks=chunks), system)
    assert any("chunks" in note for note in plan.notes) is (chunks > 1)
    whole = toys.plan("weight-streaming", toys.job(8), StreamingLayout(), system)
    assert any("--detail chunk" in note for note in whole.notes) is (chunks > 1)


def estimate_s(slow: str, layout: StreamingLayout, microbatches: int) -> float:
    """The closed form where one kind of transfer takes a second a block and all else nothing."""
    system = toys.wafer_cluster()
    streaming = system.streaming.model_copy(update={"accumulate_at": "wafer"})
    system = system.model_copy(update={"streaming": streaming})
    job = toys.job(microbatches * layout.micro_batch_size)
    plan = toys.plan("weight-streaming", job, layout, system)

    class OnlySlow(Costs):
        def duration_s(self, work: Work) -> float:
            return float(work.op == slow)

    return strategy("weight-streaming").estimate_s(plan, OnlySlow())


def test_gradients_that_are_summed_on_the_wafer_leave_it_once_a_step() -> None:
    layout = StreamingLayout(data=1, micro_batch_size=2, recompute="none")
    assert estimate_s("reduce", layout, 1) >= 8.0, "a second for each of 8 layers"
    assert estimate_s("reduce", layout, 3) == estimate_s("reduce", layout, 1)


def test_a_group_of_layers_spills_its_input_once() -> None:
    layout = StreamingLayout(data=1, micro_batch_size=2, recompute="full", spill=True)
    grouped = (replace(layout, recompute_layers=group) for group in (1, 2, 4))
    spilled = [estimate_s("spill", layout, 2) for layout in grouped]
    assert spilled[0] == 2 * spilled[1] == 4 * spilled[2] > 0


def test_a_plan_says_how_many_weights_are_zero() -> None:
    layout = StreamingLayout(data=1, micro_batch_size=2)
    plan = toys.plan("weight-streaming", toys.job(2, {"weight_sparsity": 0.75}), layout, toys.wafer_cluster())
    assert any(note.startswith("75 % of the layers' weights are zero") for note in plan.notes)
