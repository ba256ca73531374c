"""3D parallelism as a graph: who computes what, in which order, and what it needs."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from perfsim.base.errors import LayoutError, MemoryCapacityError
from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy
from perfsim.strategies.schedules import least_chunks
from perfsim.strategies.three_d.memory import stage_memory
from perfsim.testing import toys
from perfsim.work import TaskGraph
from perfsim.work.counts import parameters

LARGE = ParallelLayout(micro_batch_size=16)


def graph(layout: ParallelLayout, job: Job | None = None, name: str = "3d") -> TaskGraph:
    return (toys.plan(name, job or toys.job(), layout)).graph()


def counts(graph: TaskGraph) -> Counter[str]:
    return Counter(graph.works[work].name for work in graph.work.tolist())


@pytest.mark.parametrize(("bucket", "sizes"), [(1.0, [1] * 8), (5e8, [3, 3, 2]), (1e12, [8])])
def test_gradients_are_reduced_by_buckets_of_whole_layers(bucket: float, sizes: list[int]) -> None:
    job = toys.job(8, {"overlap_grad_reduce": True, "grad_bucket": bucket}, tied_embeddings=False)
    written = graph(ParallelLayout(data=4), job)
    layer_bytes = 4.0 * (12 * 2048**2 + 13 * 2048)
    reductions = [task for task in written.tasks() if task.work.op == "all_reduce" and task.block >= 0]
    assert [len(task.reads) for task in reductions] == sizes
    assert [task.work.comm_bytes / layer_bytes for task in reductions] == pytest.approx(sizes)


@pytest.mark.parametrize(("precision", "gathered"), [("bf16", 2), ("fp8", 1), ("fp8_rowwise", 2)])
def test_tensor_ranks_gather_what_was_cast_before_and_sum_in_16_bits(precision: str, gathered: int) -> None:
    written = graph(ParallelLayout(tensor=2, sequence_parallel=True), toys.job(1, {"precision": precision}))
    large = (work for work in written.works if work.category.startswith("tensor") and work.comm_bytes > 1e6)
    moved = {(work.op, work.comm_bytes / 1024 / 2048) for work in large}
    assert moved == {("all_gather", gathered), ("reduce_scatter", 2)}


@pytest.mark.parametrize(
    ("sequence_parallel", "more"),
    [(False, {"all_reduce": 1 + 1 + 2, "all_gather": 1}), (True, {"reduce_scatter": 4, "all_gather": 6})],
)
def test_a_module_sums_its_embedding_and_gathers_its_projection(
    sequence_parallel: bool, more: dict[str, int]
) -> None:
    """Its projection reads two hidden tensors; the LM head behind it returns a gradient of one."""
    moved = Counter[str]()
    for sign, modules in ((1, 1), (-1, 0)):
        job = toys.job(1, num_layers=8 - modules, mtp_num_layers=modules)
        for task in graph(ParallelLayout(tensor=2, sequence_parallel=sequence_parallel), job).tasks():
            if task.work.category == "tensor_communication":
                moved[task.work.op] += sign * round(task.work.comm_bytes / (2 * 1024 * 2048))
    assert +moved == more


@pytest.mark.parametrize(
    ("layout", "copies"),
    [(ParallelLayout(pipeline=2), 1), (ParallelLayout(pipeline=2, virtual_pipeline=2, schedule="zbv"), 0)],
)
def test_modules_away_from_the_embedding_have_a_copy_of_it(layout: ParallelLayout, copies: int) -> None:
    """Its gradients are summed over both ends; in a V they are one rank."""
    job = toys.job(8, tied_embeddings=False, num_layers=7, mtp_num_layers=1)
    held, alone = (
        sum(use.parts_bytes["parameters"] for use in stage_memory(job, some, toys.topology(some.pipeline)))
        for some in (layout, ParallelLayout())
    )
    assert held - alone == copies * 2 * parameters(job.model).embedding
    assert counts(graph(layout, job))["pipeline.tied_embedding"] == copies


@pytest.mark.parametrize(
    ("layout", "capacity_gib", "part", "change"),
    [
        (LARGE, 16, "activations", "recompute none → full, which fits"),
        (replace(LARGE, recompute="selective"), 13, "activations", "micro_batch_size 16 → 2"),
        (ParallelLayout(data=8), 10, "optimizer", "zero_stage 0 → 1"),
        (ParallelLayout(), 10, "optimizer", "tensor 1 → 2 on 2 devices, which fits"),
        (ParallelLayout(), 0.25, "optimizer", ""),
    ],
)
def test_a_plan_that_does_not_fit_names_the_part_and_a_change(
    layout: ParallelLayout, capacity_gib: float, part: str, change: str
) -> None:
    topology = toys.topology(layout.num_devices, toys.gpu_cluster(capacity=capacity_gib * toys.GIB))
    with pytest.raises(MemoryCapacityError) as caught:
        strategy("3d").plan(toys.job(128), topology, layout)
    text = str(caught.value)
    assert text.startswith("does not fit: stage 0 needs ")
    assert f"of {capacity_gib} GiB ({part} " in text
    assert not change or f"try {change}" in text
    assert (caught.value.exit_code, caught.value.ratio > 1) == (3, True)


def test_recompute_of_modules_alone_is_tried_where_nothing_fits_without_recompute() -> None:
    long = {"attention": "flash", "dropout": False, "seq_length": 65536, "lm_head_positions": 128}
    job = toys.job(8, long)

    def fits(capacity_gib: float) -> set[str]:
        topology = toys.topology(8, toys.gpu_cluster(capacity=capacity_gib * toys.GIB))
        screening = strategy("3d").screen(job, topology, toys.ToyCosts(topology.system))
        return {screening.layout(index).recompute for index in range(screening.feasible)}

    assert fits(8) == {"none", "full"}
    assert fits(7) == {"norms", "mlp", "full"}


@pytest.mark.parametrize("capacity_gib", [4.5, 6, 8, 11])
@pytest.mark.parametrize("micro_batch_size", [1, 16])
@pytest.mark.parametrize("degrees", [{}, {"data": 8}, {"tensor": 8}, {"pipeline": 2, "data": 2}])
def test_the_advised_change_fits(degrees: dict[str, int], micro_batch_size: int, capacity_gib: float) -> None:
    system = toys.gpu_cluster(capacity=capacity_gib * toys.GIB)
    layout = ParallelLayout(**degrees, micro_batch_size=micro_batch_size)
    try:
        strategy("3d").plan(toys.job(128), toys.topology(layout.num_devices, system), layout)
        return
    except MemoryCapacityError as error:
        said = str(error)
    if "no change of one setting and one degree makes it fit, not even on more devices" in said:
        return
    assert said.endswith(", which fits")
    for name, value in re.findall(r"(\w+) \w+ → (\w+)", said):
        layout = replace(layout, **{name: int(value) if value.isdecimal() else value})
    strategy("3d").plan(toys.job(128), toys.topology(layout.num_devices, system), layout)


def test_a_strategy_of_one_zero_stage_refuses_another() -> None:
    with pytest.raises(LayoutError, match="strategy zero3 shards at ZeRO stage 3, not 1"):
        toys.plan("zero3", toys.job(8), ParallelLayout(data=4, zero_stage=1))


def test_degrees_that_are_no_powers_of_two_are_tried_before_none_is_said_to_fit() -> None:
    job = toys.job(15, num_attention_heads=15, hidden_size=1920, ffn_hidden_size=7680)
    topology = toys.topology(1, toys.gpu_cluster(capacity=5 * toys.GIB))
    with pytest.raises(MemoryCapacityError, match=r"try tensor 1 → (3|5|15).* on \1 devices, which fits$"):
        strategy("tensor").plan(job, topology, ParallelLayout())


SPLIT = ("zb1p", "zb2p", "zbv", "v-half", "v-min")
EQUAL = toys.TableCosts(
    {"attention.forward": 1.0, "attention.dgrad": 1.0, "attention.wgrad": 1.0, "attention.backward": 2.0}
)


def scheduled(schedule: str, **changes: Any) -> ParallelLayout:
    usual = {"schedule": schedule, "pipeline": 4, "virtual_pipeline": least_chunks(schedule)}
    return ParallelLayout(**(usual | changes))


def both_s(plan: Plan) -> tuple[float, float]:
    """Seconds of a step, simulated and in closed form, where every pass of a layer takes the same."""
    written = plan.graph()
    simulated_s = critical_path(written, price(written, EQUAL)).step_time_s
    return simulated_s, strategy("3d").estimate_s(plan, EQUAL)


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_the_split_leaves_the_flop_of_a_step_as_they_are(schedule: str, recompute: str, tensor: int) -> None:
    whole = graph(scheduled("1f1b", recompute=recompute, tensor=tensor))
    split = graph(scheduled(schedule, recompute=recompute, tensor=tensor))
    assert split.flop / len(split.step_ends) == whole.flop


@pytest.mark.parametrize("microbatches", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [
        ("1f1b", 3 * 3),
        ("interleaved", 3 * 3 / 2),
        ("zb1p", 3),
        ("zb2p", 0),
        ("zbv", 0),
        ("v-half", (3 * 4 - 3) / 2),
        ("v-min", (4 * 4 - 5) / 2),
    ],
)
def test_equal_passes_take_work_and_published_bubble(schedule: str, bubble: float, microbatches: int) -> None:
    if schedule in ("interleaved", "v-half", "v-min"):
        microbatches *= 4  # whole groups, or micro-batches for every stage
    job = toys.job(microbatches, tied_embeddings=False)
    stage_s = 2.0  # two layers a stage
    if schedule in SPLIT:
        bubble = max(bubble, 2 * 4 - 1 - microbatches)
    expected = stage_s * (3 * microbatches + bubble)
    assert both_s(toys.plan("3d", job, scheduled(schedule))) == pytest.approx((expected, expected))


def test_a_tied_embedding_on_two_ranks_makes_them_end_together() -> None:
    plans = (toys.plan("3d", toys.job(16, tied_embeddings=tied), scheduled("zb2p")) for tied in (False, True))
    untied, tied = map(both_s, plans)
    late_start_of_the_last_stage = 3 * 2.0
    assert tied == pytest.approx((untied[0] + late_start_of_the_last_stage,) * 2)
    assert untied[0] == pytest.approx(untied[1])


def test_a_v_of_unequal_stages_recomputes_as_many_layers_of_each() -> None:
    divided = scheduled("zbv", pipeline=2, layers_per_stage=(2, 3, 3, 2), recompute="full", recompute_every=2)
    written = graph(divided, toys.job(num_layers=10))
    recomputed = [task.stream for task in written.tasks() if task.work.name == "mlp.recompute"]
    passes = counts(written)["head.forward"]
    assert Counter(recomputed) == {"gpu0/compute": 4 * passes, "gpu1/compute": 4 * passes}


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_closed_form_of_memory_is_what_lives(peak_live_bytes: Any, schedule: str, recompute: str) -> None:
    job = toys.job(16, num_layers=64, tied_embeddings=False)
    chosen = scheduled(schedule, recompute=recompute)
    written = graph(chosen, job)
    live = peak_live_bytes(critical_path(written, price(written, EQUAL)), {"saved", "weight_inputs"})
    uses = stage_memory(job, chosen, toys.topology(4))
    for rank in (1, 2):  # without the embedding's gradient, which is a hidden tensor
        parts = uses[rank].parts_bytes
        planned = parts["activations"] + parts["weight gradient inputs"]
        assert live[f"gpu{rank}"] == pytest.approx(planned, rel=0.05)
