"""Weight streaming as a graph: what streams when, and what waits for what."""

from dataclasses import replace

import pytest

from perfsim.base.errors import LayoutError, MemoryCapacityError
from perfsim.catalog import default_catalog
from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path
from perfsim.specs.layout import Recompute, StreamingLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy
from perfsim.testing import toys
from perfsim.work import Work

BLOCKS = 8 + 2


def planned(*, systems: int = 1, batch: int = 32, **layout: object) -> Plan:
    fields = {"micro_batch_size": batch // systems, "data": systems} | layout
    chosen = StreamingLayout(**fields)
    return toys.plan("weight-streaming", toys.job(batch), chosen, toys.wafer_cluster())


def test_weights_stream_forward_and_backward_and_gradients_leave_last_layer_first() -> None:
    graph = planned().graph()
    streams: dict[str, list[str]] = {}
    for number in range(graph.step_ends[0]):
        streams.setdefault(graph.task(number).stream, []).append(graph.task(number).work.name)
    forward = ["embedding.load", *["layer.load"] * 8, "head.load"]
    loaded = forward + forward[::-1]
    assert streams["memoryx/out"] == loaded
    assert streams["swarmx/down"] == [name.replace("load", "broadcast") for name in loaded]
    assert streams["swarmx/up"] == [name.replace("load", "reduce") for name in forward[::-1]]
    assert streams["memoryx/update"] == [name.replace("load", "update") for name in forward[::-1]]


def test_weights_are_prefetched_one_block_ahead_and_no_further() -> None:
    graph = planned().graph()
    forward = ("embedding.forward", "layer.forward", "head.forward")
    trace = critical_path(graph, price(graph, toys.TableCosts(dict.fromkeys(forward, 1.0))))
    loads = [task.id for task in graph.tasks() if task.stream == "memoryx/out"][:BLOCKS]
    forwards = [task.id for task in graph.tasks() if task.work.name in forward][:BLOCKS]
    # The load of block n starts when block n - 2 is done: block n - 1 computes meanwhile.
    assert trace.start_s[loads].tolist() == [0.0, 0.0, *trace.end_s[forwards[:-2]].tolist()]


@pytest.mark.parametrize("batch", [8, 160, 1024])
def test_a_wafer_recomputes_one_layer_at_a_time_in_the_fewest_even_micro_batches(batch: int) -> None:
    job = toys.job(batch)
    topology = toys.topology(2, toys.wafer_cluster())
    listed = list(strategy("weight-streaming").layouts(job, topology))
    kept = [layout for layout in listed if not layout.spill]
    assert {layout.recompute_layers for layout in listed} == {1}
    (size,) = {layout.micro_batch_size for layout in kept}
    parts = -(-batch // 2 // size)
    assert size == -(-batch // 2 // parts), "as even as parts can be"
    assert all(layout.data == 2 for layout in listed)


def planned_on(systems: int, batch: int, layout: StreamingLayout, **system: float) -> Plan:
    topology = toys.topology(systems, toys.wafer_cluster(**system))
    return strategy("weight-streaming").plan(toys.job(batch), topology, layout)


def test_everything_wrong_with_a_layout_is_listed() -> None:
    with pytest.raises(LayoutError) as caught:
        planned_on(4, 2, StreamingLayout(data=3))
    assert [problem.message for problem in caught.value.problems] == [
        "data 3 must equal the 4 systems",
        "global_batch_size 2 gives some of 3 systems nothing; nearest: 3 sequences, or 2 systems",
    ]


@pytest.mark.parametrize(("recompute", "layers"), [("selective", 0), ("mlp", 1), ("full", 0), ("none", 2)])
def test_a_wafer_refuses_to_recompute_other_than_whole_layers(recompute: Recompute, layers: int) -> None:
    layout = StreamingLayout(data=1, recompute=recompute, recompute_layers=layers)
    with pytest.raises(LayoutError, match=f"recompute {recompute} with recompute_layers {layers}: whole"):
        planned_on(1, 2, layout)


def test_all_resident_is_refused_where_it_does_not_fit_with_a_way_out() -> None:
    with pytest.raises(MemoryCapacityError, match=r"wafer needs .* GB of 40.0 GB; try a smaller"):
        planned_on(1, 512, StreamingLayout(micro_batch_size=512))


def test_a_sequence_that_no_policy_fits_is_refused_by_its_memory() -> None:
    topology = toys.topology(1, toys.wafer_cluster(capacity=1e8))
    (least,) = strategy("weight-streaming").layouts(toys.job(2), topology)
    assert (least.micro_batch_size, least.recompute_layers, least.spill) == (1, 1, True)
    with pytest.raises(MemoryCapacityError, match=r"try shorter sequences than 1,024 tokens"):
        planned_on(1, 2, least, capacity=1e8)


@pytest.mark.parametrize(
    ("model", "path", "value", "advice"),
    [
        ("gpt3_20b", "streaming.accumulate_at", "wafer", "gradients summed elsewhere"),
        ("gpt3_175b", "memoryx.optimizer_state_in", "dram", ".* weights_in and optimizer_state_in auto"),
    ],
)
def test_what_a_choice_of_the_system_refuses_says_so(model: str, path: str, value: str, advice: str) -> None:
    catalog = default_catalog()
    job = Job(catalog.model(model), catalog.recipe("llm_2021"), 128)
    layout = StreamingLayout(recompute="full", recompute_layers=1, spill=True)
    topology = toys.topology(1, catalog.system("cs-2", **{path: value}))
    with pytest.raises(MemoryCapacityError, match=f"needs .* try {advice}"):
        strategy("weight-streaming").plan(job, topology, layout)


@pytest.mark.parametrize(
    ("depth", "held", "chunks"), [(1, "chunk", 1), (0, "chunk", 16), (0, "layer", 1), (2, "layer", 1)]
)
def test_without_prefetch_weights_used_on_arrival_come_in_chunks(depth: int, held: str, chunks: int) -> None:
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
    system = default_catalog().override(toys.wafer_cluster(), {"streaming.accumulate_at": "wafer"})
    job = toys.job(microbatches * layout.micro_batch_size)
    plan = toys.plan("weight-streaming", job, layout, system)

    class OnlySlow(Costs):
        def duration_s(self, work: Work) -> float:
            return float(work.op == slow)

    return strategy("weight-streaming").estimate_s(plan, OnlySlow())


def test_gradients_that_are_summed_on_the_wafer_leave_it_once_a_step() -> None:
    layout = StreamingLayout(micro_batch_size=2)
    assert estimate_s("reduce", layout, 3) == estimate_s("reduce", layout, 1) >= 8.0, "8 layers"


def test_a_group_of_layers_spills_its_input_once() -> None:
    layout = StreamingLayout(micro_batch_size=2, recompute="full", spill=True)
    spilled = [estimate_s("spill", replace(layout, recompute_layers=group), 2) for group in (1, 2, 4)]
    assert spilled[0] == 2 * spilled[1] == 4 * spilled[2] > 0
