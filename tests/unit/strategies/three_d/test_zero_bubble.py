"""Zero-bubble schedules as graphs: what the split changes, and what it must not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy
from perfsim.strategies.schedules import least_chunks
from perfsim.strategies.three_d.emission import stages_of
from perfsim.strategies.three_d.memory import stage_memory
from perfsim.testing import toys
from perfsim.work import TaskGraph

SPLIT = ("zb1p", "zb2p", "zbv", "v-half", "v-min")
EQUAL = toys.TableCosts(
    {"attention.forward": 1.0, "attention.dgrad": 1.0, "attention.wgrad": 1.0, "attention.backward": 2.0}
)


def layout(schedule: str, **changes: Any) -> ParallelLayout:
    chunks = 2 if schedule == "interleaved" else least_chunks(schedule)
    return ParallelLayout(**({"schedule": schedule, "pipeline": 4, "virtual_pipeline": chunks} | changes))


def graph(chosen: ParallelLayout, job: Job | None = None) -> TaskGraph:
    return toys.graph_of(toys.plan("3d", job or toys.job(), chosen))


def both_s(plan: Plan) -> tuple[float, float]:
    """Seconds of a step, simulated and in closed form, where every pass of a layer takes the same."""
    written = toys.graph_of(plan)
    simulated_s = critical_path(written, price(written, EQUAL)).step_time_s
    return simulated_s, strategy("3d").estimate_s(plan, EQUAL)


def counts(written: TaskGraph) -> Counter[str]:
    return Counter(written.works[work].name for work in written.work.tolist())


# ------------------------------------------------------------------------------------- the work
@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_the_split_leaves_the_flop_of_a_step_as_they_are(schedule: str, recompute: str, tensor: int) -> None:
    whole = graph(layout("1f1b", recompute=recompute, tensor=tensor))
    split = graph(layout(schedule, recompute=recompute, tensor=tensor))
    assert split.flop / len(split.step_ends) == whole.flop


def test_what_is_made_again_is_made_before_the_input_gradients_alone() -> None:
    whole, split = (counts(graph(layout(name, recompute="full", tensor=2))) for name in ("1f1b", "zb1p"))
    same = ("attention.recompute", "mlp.recompute", "tensor.all_reduce", "pipeline.send")
    assert [split[name] for name in same] == [whole[name] for name in same]
    assert split["mlp.wgrad"] == split["mlp.dgrad"] == whole["mlp.backward"]
    assert split["mlp.backward"] == 0


# --------------------------------------------------------------------------------------- bubble
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
def test_with_equal_passes_the_step_is_its_work_and_the_published_bubble(
    schedule: str, bubble: float, microbatches: int
) -> None:
    if schedule in ("interleaved", "v-half", "v-min"):
        microbatches *= 4  # whole groups, or micro-batches for every stage
    job = toys.job(microbatches, tied_embeddings=False)
    stage_s = 2.0  # two layers a stage
    if schedule in SPLIT:
        bubble = max(bubble, 2 * 4 - 1 - microbatches)
    expected = stage_s * (3 * microbatches + bubble)
    assert both_s(toys.plan("3d", job, layout(schedule))) == pytest.approx((expected, expected))


def test_a_tied_embedding_on_two_ranks_makes_them_end_together() -> None:
    untied, tied = (
        both_s(toys.plan("3d", toys.job(16, tied_embeddings=tied), layout("zb2p"))) for tied in (False, True)
    )
    late_start_of_the_last_stage = 3 * 2.0
    assert tied == pytest.approx((untied[0] + late_start_of_the_last_stage,) * 2)
    assert untied[0] == pytest.approx(untied[1])


# ------------------------------------------------------------------------------------ placement
def test_a_v_turns_on_the_last_rank_and_keeps_embedding_and_head_on_the_first() -> None:
    stages = stages_of(toys.job(), layout("zbv"))
    assert [stage.rank for stage in stages.virtual] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert stages.virtual[3].next_ranks is stages.virtual[4].previous_ranks is None
    assert stages.virtual[4].next_ranks is not None
    written = graph(layout("zbv"))
    assert "pipeline.tied_embedding" not in counts(written), "both uses stand on one rank"
    microbatches = 32
    boundaries = 6
    steps = 2
    assert counts(written)["pipeline.send"] == 2 * microbatches * boundaries * steps
    whole = sum(replicas.num_parameters for replicas in stages_of(toys.job(), ParallelLayout()).replicas)
    assert sum(replicas.num_parameters for replicas in stages.replicas) == pytest.approx(whole)


def test_a_v_of_unequal_stages_recomputes_one_layer_in_so_many_of_a_rank() -> None:
    divided = layout("zbv", pipeline=2, layers_per_stage=(2, 3, 3, 2), recompute="full", recompute_every=2)
    written = graph(divided, toys.job(num_layers=10))
    recomputed = [task.stream for task in written.tasks() if task.work.name == "mlp.recompute"]
    passes = counts(written)["head.forward"]
    assert Counter(recomputed) == {"gpu0/compute": 2 * passes, "gpu1/compute": 3 * passes}


# --------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_memory_in_closed_form_is_what_is_alive_in_the_run(
    peak_live_bytes: Any, schedule: str, recompute: str
) -> None:
    job = toys.job(16, num_layers=64, tied_embeddings=False)
    chosen = layout(schedule, recompute=recompute)
    written = graph(chosen, job)
    live = peak_live_bytes(critical_path(written, price(written, EQUAL)), {"saved", "weight_inputs"})
    uses = stage_memory(job, chosen, toys.topology(4))
    for rank in (1, 2):  # without the embedding's gradient, which is a hidden tensor
        parts = uses[rank].parts_bytes
        planned = parts["activations"] + parts["weight gradient inputs"]
        assert live[f"gpu{rank}"] == pytest.approx(planned, rel=0.05)
