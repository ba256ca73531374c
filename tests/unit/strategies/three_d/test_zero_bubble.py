"""Zero-bubble schedules as graphs: what the split changes, and what it must not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.engine.trace import Trace
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.strategies.schedules import least_chunks
from perfsim.strategies.three_d.emission import stages_of
from perfsim.strategies.three_d.memory import stage_memory
from perfsim.work import TaskGraph

SPLIT = ("zb1p", "zb2p", "zbv", "v-half", "v-min")
EQUAL = {
    "attention.forward": 1.0,
    "attention.dgrad": 1.0,
    "attention.wgrad": 1.0,
    "attention.backward": 2.0,
}
"""Seconds by work: every pass of a layer takes the same."""


def layout(schedule: str, **changes: Any) -> ParallelLayout:
    chunks = 2 if schedule == "interleaved" else least_chunks(schedule)
    return ParallelLayout(**({"schedule": schedule, "pipeline": 4, "virtual_pipeline": chunks} | changes))


def graph(toys: ModuleType, chosen: ParallelLayout, job: Job | None = None) -> TaskGraph:
    return toys.graph_of(toys.plan("3d", job or toys.job(), chosen))


def run(toys: ModuleType, written: TaskGraph, seconds: Mapping[str, float]) -> Trace:
    return critical_path(written, price(written, toys.TableCosts(seconds)))


def counts(written: TaskGraph) -> Counter[str]:
    return Counter(written.works[work].name for work in written.work.tolist())


# ------------------------------------------------------------------------------------- the work
@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_the_split_leaves_the_flop_of_a_step_as_they_are(
    toys: ModuleType, schedule: str, recompute: str, tensor: int
) -> None:
    whole = graph(toys, layout("1f1b", recompute=recompute, tensor=tensor))
    split = graph(toys, layout(schedule, recompute=recompute, tensor=tensor))
    assert split.flop / len(split.step_ends) == whole.flop


def test_what_is_made_again_is_made_before_the_input_gradients_alone(toys: ModuleType) -> None:
    whole, split = (
        counts(graph(toys, layout(name, recompute="full", tensor=2))) for name in ("1f1b", "zb1p")
    )
    same = ("attention.recompute", "mlp.recompute", "tensor.all_reduce", "pipeline.send")
    assert [split[name] for name in same] == [whole[name] for name in same]
    assert split["mlp.wgrad"] == split["mlp.dgrad"] == whole["mlp.backward"]
    assert split["mlp.backward"] == 0


@pytest.mark.parametrize("schedule", SPLIT)
def test_weight_gradients_wait_for_their_input_gradients_and_nobody_else_for_them(
    toys: ModuleType, schedule: str
) -> None:
    written = graph(toys, layout(schedule))
    of_compute = {"mlp.wgrad": "mlp.dgrad", "attention.wgrad": "attention.dgrad", "head.wgrad": "head.dgrad"}
    readers = set()
    for task in written.tasks():
        for read in task.reads:
            source = written.task(int(written.writer[read]))
            if task.work.name in of_compute and source.work.name != "mlp.wgrad":
                assert source.work.name == of_compute[task.work.name]
                assert source.tag == task.tag
            if source.work.name.endswith(".wgrad"):
                readers.add(task.work.name)
    assert readers <= {"attention.wgrad", "gradients.norm", "optimizer", "pipeline.tied_embedding"}


# --------------------------------------------------------------------------------------- bubble
@pytest.mark.parametrize("microbatches", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [("1f1b", 3 * 3), ("interleaved", 3 * 3 / 2), ("zb1p", 3), ("zb2p", 0), ("zbv", 0)],
)
def test_with_equal_passes_the_step_is_its_work_and_the_published_bubble(
    toys: ModuleType, schedule: str, bubble: float, microbatches: int
) -> None:
    if schedule == "interleaved":
        microbatches *= 4  # whole groups
    job = toys.job(microbatches, tied_embeddings=False)
    plan = toys.plan("3d", job, layout(schedule))
    stage_s = 2.0  # two layers a stage
    if schedule in SPLIT:
        bubble = max(bubble, 2 * 4 - 1 - microbatches)
    expected = stage_s * (3 * microbatches + bubble)
    assert run(toys, toys.graph_of(plan), EQUAL).step_time_s == pytest.approx(expected)
    estimate = strategy("3d").estimate_s(plan, toys.TableCosts(EQUAL))
    assert estimate == pytest.approx(expected)


@pytest.mark.parametrize("microbatches", [4, 8, 16])
@pytest.mark.parametrize(("schedule", "units"), [("v-half", 3 * 4 - 3), ("v-min", 4 * 4 - 5)])
def test_controlled_memory_costs_its_bubble_in_passes_of_one_layer(
    toys: ModuleType, schedule: str, units: int, microbatches: int
) -> None:
    plan = toys.plan("3d", toys.job(microbatches, tied_embeddings=False), layout(schedule))
    expected = pytest.approx(3 * 2.0 * microbatches + units)
    assert run(toys, toys.graph_of(plan), EQUAL).step_time_s == expected
    assert strategy("3d").estimate_s(plan, toys.TableCosts(EQUAL)) == expected


def test_a_tied_embedding_on_two_ranks_makes_them_end_together(toys: ModuleType) -> None:
    steps = {}
    for tied in (False, True):
        plan = toys.plan("3d", toys.job(16, tied_embeddings=tied), layout("zb2p"))
        steps[tied] = run(toys, toys.graph_of(plan), EQUAL).step_time_s
        estimate = strategy("3d").estimate_s(plan, toys.TableCosts(EQUAL))
        assert estimate == pytest.approx(steps[tied])
    late_start_of_the_last_stage = 3 * 2.0
    assert steps[True] - steps[False] == pytest.approx(late_start_of_the_last_stage)


# ------------------------------------------------------------------------------------ placement
def test_a_v_turns_on_the_last_rank_and_keeps_embedding_and_head_on_the_first(toys: ModuleType) -> None:
    stages = stages_of(toys.job(), layout("zbv"))
    assert [stage.rank for stage in stages.virtual] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert stages.virtual[3].next_ranks is stages.virtual[4].previous_ranks is None
    assert stages.virtual[4].next_ranks is not None
    written = graph(toys, layout("zbv"))
    assert "pipeline.tied_embedding" not in counts(written), "both uses stand on one rank"
    microbatches = 32
    boundaries = 6
    steps = 2
    assert counts(written)["pipeline.send"] == 2 * microbatches * boundaries * steps
    whole = sum(each.num_parameters for each in stages_of(toys.job(), ParallelLayout()).replicas)
    assert sum(each.num_parameters for each in stages.replicas) == pytest.approx(whole)


def test_a_v_of_unequal_stages_recomputes_one_layer_in_so_many_of_a_rank(toys: ModuleType) -> None:
    divided = layout("zbv", pipeline=2, layers_per_stage=(2, 3, 3, 2), recompute="full", recompute_every=2)
    written = graph(toys, divided, toys.job(num_layers=10))
    recomputed = [task.stream for task in written.tasks() if task.work.name == "mlp.recompute"]
    passes = counts(written)["head.forward"]
    assert Counter(recomputed) == {"gpu0/compute": 2 * passes, "gpu1/compute": 3 * passes}


@pytest.mark.parametrize("schedule", ["1f1b", "zb1p", "zbv"])
def test_stages_without_layers_hand_on_what_they_are_given(toys: ModuleType, schedule: str) -> None:
    layers = (0, 3, 0, 0, 0, 5, 0, 0) if schedule == "zbv" else (0, 3, 0, 5)
    chosen = layout(schedule, layers_per_stage=layers)
    written = graph(toys, chosen, toys.job(4))
    assert written.flop / len(written.step_ends) == graph(toys, ParallelLayout(), toys.job(4)).flop
    assert run(toys, written, EQUAL).step_time_s >= 4 * 3 * 5


# ------------------------------------------------------------------------------------ gradients
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("schedule", SPLIT)
def test_gradients_are_reduced_and_applied_after_the_last_weight_gradients(
    toys: ModuleType, schedule: str, overlap: bool
) -> None:
    job = toys.job(16, {"overlap_grad_reduce": overlap}, tied_embeddings=False)
    chosen = layout(schedule, pipeline=2, data=2, zero_stage=1)
    written = graph(toys, chosen, job)
    trace = run(toys, written, EQUAL | {"data.reduce_scatter": 0.1, "optimizer": 0.1, "data.all_gather": 0.1})
    wgrad_end: dict[str, float] = {}
    for task in written.tasks():
        device = task.stream.split("/")[0]
        start = trace.start_s[task.id]
        if task.work.name.endswith(".wgrad"):
            wgrad_end[device] = float(trace.end_s[task.id])
        if task.work.name == "optimizer":
            assert start >= wgrad_end[device] + 0.1 - 1e-9
        if task.work.name == "data.reduce_scatter" and not overlap:
            assert start >= wgrad_end[device]
    held = sum(each.num_parameters for each in stages_of(job, chosen).replicas)
    works = [written.works[number] for number in written.work.tolist()]
    reduced = sum(work.comm_bytes for work in works if work.name == "data.reduce_scatter")
    assert reduced == pytest.approx(4 * held * len(written.step_ends))


def test_the_next_step_waits_for_the_parameters_that_are_gathered(toys: ModuleType) -> None:
    job = toys.job(16, tied_embeddings=False)
    written = graph(toys, layout("zb2p", pipeline=2, data=2, zero_stage=1), job)
    alone = run(toys, written, EQUAL).step_time_s
    assert run(toys, written, EQUAL | {"data.all_gather": 5.0}).step_time_s == pytest.approx(alone + 5.0)


def test_a_tied_table_waits_for_the_weight_gradients_of_both_ends(toys: ModuleType) -> None:
    written = graph(toys, layout("zb1p"))
    tie = next(task for task in written.tasks() if task.work.name == "pipeline.tied_embedding")
    waited = {written.task(int(written.writer[read])).work.name for read in tie.reads}
    assert waited == {"embedding.backward", "attention.wgrad"}


# --------------------------------------------------------------------------------------- memory
def live_bytes(written: TaskGraph, trace: Trace, device: str) -> float:
    """Most bytes alive of what waits for a backward or for weight gradients, on one device.

    A tensor is alive from the end of its writer to the end of its last reader.
    """
    until = np.zeros(written.num_tensors)
    np.maximum.at(until, written.reads.values, trace.end_s[written.reads.row_of_value])
    changes = []
    for task in written.tasks():
        for tensor, kind in zip(task.writes, task.work.writes, strict=True):
            if kind.name in ("saved", "weight_inputs") and task.stream.startswith(f"{device}/"):
                changes += [(trace.end_s[task.id], kind.n_bytes), (until[tensor], -kind.n_bytes)]
    return float(np.max(np.cumsum([n_bytes for _, n_bytes in sorted(changes)])))


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_memory_in_closed_form_is_what_is_alive_in_the_run(
    toys: ModuleType, schedule: str, recompute: str
) -> None:
    job = toys.job(16, num_layers=64, tied_embeddings=False)
    chosen = layout(schedule, recompute=recompute)
    written = graph(toys, chosen, job)
    trace = run(toys, written, EQUAL)
    uses = stage_memory(job, chosen, toys.topology(4))
    for rank in (1, 2):  # without the embedding's gradient, which is a hidden tensor
        parts = uses[rank].parts_bytes
        planned = parts["activations"] + parts["weight gradient inputs"]
        assert live_bytes(written, trace, f"gpu{rank}") == pytest.approx(planned, rel=0.05)
