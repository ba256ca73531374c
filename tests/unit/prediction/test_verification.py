"""A step verified against its model: what is right passes, and every fault turns it red."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import perfsim as ps
from perfsim.base.errors import VerificationError
from perfsim.catalog import default_catalog
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import question_of
from perfsim.prediction.verification import SamplingSpec, SamplingSummary, must_be_right, sample_step, verify
from perfsim.strategies import Plan
from perfsim.work import Kind, TaskGraph, Work
from perfsim.work.kernels import Kernel

TP2 = {"system": "dgx-h100", "devices": 16, "batch": 16}
AGAIN = "split backward, recompute"
Change = Callable[[Kernel], Iterable[Kernel]]
STEPS: dict[str, dict[str, Any]] = {
    "dense": {"model": "gpt3_xl", **TP2, "layout": "tp=2,pp=2,dp=4,mbs=1,sp=true,zero=1"},
    AGAIN: {"model": "gpt3_xl", **TP2, "layout": "tp=2,pp=2,dp=4,mbs=1,schedule=zb1p,recompute=full"},
    "context ranks": {"model": "llama_7b", **TP2, "layout": "tp=2,cp=2,dp=4,mbs=1,zero=3,recompute=full"},
    "heads exchanged": {"model": "llama_7b", **TP2, "layout": "tp=2,cp=2,dp=4,context_exchange=all_to_all"},
    "experts": {"model": "mixtral_8x7b", **TP2, "layout": "tp=2,dp=8,ep=4,etp=2,sp=true,zero=1,mbs=1"},
    "latent attention": {"model": "deepseek_v3", **TP2, "layout": "dp=16,ep=8,zero=1,mbs=1"},
    "latents on every rank": {"model": "deepseek_v3", **TP2, "layout": "tp=2,dp=8,zero=1,mbs=1"},
    "shared experts": {"model": "deepseek_v3", **TP2, "layout": "tp=2,dp=8,ep=8,sp=true,zero=1,mbs=1"},
    "windows": {"model": "gpt_oss_120b", **TP2, "layout": "dp=16,ep=8,zero=1,mbs=1"},
    "both directions": {"model": "bert_large", **TP2, "layout": "tp=2,dp=8,mbs=2"},
    "wafers": {"model": "gpt3_xl", "system": "cs-2", "devices": 2, "batch": 96, "layout": "mbs=24"},
    "wafers that recompute": {
        "model": "llama_7b",
        "system": "cs-2",
        "devices": 1,
        "batch": 16,
        "layout": "mbs=8,recompute_layers=4,recompute=full",
    },
}


class Step(NamedTuple):
    """A plan, whether it fits or not, and its graph."""

    plan: Plan
    graph: TaskGraph


@cache
def step_of(name: str) -> Step:
    catalog = default_catalog()
    fields = dict(STEPS[name])
    model = catalog.model(fields.pop("model"))
    if name == "latents on every rank":
        model = model.model_copy(update={"experts": None, "mtp_num_layers": 0})
    attention = "standard" if model.name == "gpt3_xl" else "flash"
    given = {"recipe": "gpt3_pretraining", "model": model, **fields}
    if given["system"] != "cs-2":
        given["runtime.attention"] = attention
    plan = plan_of(replace(question_of(given), must_fit=False))
    return Step(plan, plan.graph())


@pytest.fixture
def dense() -> Step:
    return step_of("dense")


def judged(step: Step, graph: TaskGraph | None = None, **spec: Any) -> SamplingSummary:
    """The verification of a step, or of another graph in its place."""
    chosen = step.graph if graph is None else graph
    return verify(chosen, step.plan.job, step.plan.layout, SamplingSpec(**spec))


def with_works(graph: TaskGraph, change: Callable[[Work], Work]) -> TaskGraph:
    return replace(graph, works=tuple(change(work) for work in graph.works))


def with_kernels(graph: TaskGraph, change: Change, category: str = "") -> TaskGraph:
    """The graph with other kernels in its works, or in those whose category begins like this."""

    def changed(work: Work) -> Work:
        kernels = tuple(new for kernel in work.kernels for new in change(kernel))
        return replace(work, kernels=kernels) if work.category.startswith(category) else work

    return with_works(graph, changed)


@pytest.mark.parametrize("name", STEPS)
def test_a_right_step_passes_and_says_what_was_compared_and_executed(name: str) -> None:
    step = step_of(name)
    summary = judged(step, mode="full")
    assert (summary.passed, summary.failed) == (True, ())
    assert 0 < summary.worst_relative_error <= summary.bound
    assert summary.tasks_sampled == sum(summary.by_partition.values()) > 12
    assert summary.tasks_total > summary.tasks_sampled
    assert 0.7 < summary.flop_share <= 1.0, "fused attention is compared, not executed"
    assert ("mtp_joint" in summary.not_summed) == (name == "shared experts"), "as DeepSeek-V3's"
    few = judged(step, tasks=4)
    assert (few.tasks_sampled, few.tasks_total) == (4, summary.tasks_total)


def scaled(name: str, *, n: float = 1, k: float = 1, rows: int = 0, **changes: Any) -> Change:
    """The kernel of a name with another shape, and FLOPs to match, or those of some rows more."""

    def change(kernel: Kernel) -> Iterable[Kernel]:
        if kernel.name != name:
            return (kernel,)
        flop = kernel.flop * n * k + 2.0 * rows * kernel.n * kernel.k
        sizes = {"n": int(kernel.n * n), "k": int(kernel.k * k), "flop": flop}
        return (kernel._replace(**sizes, **changes),)

    return change


def without_weight_gradients(kernel: Kernel) -> Iterable[Kernel]:
    return () if kernel.weight_gradient else (kernel,)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("dense", scaled("qkv", n=0.5), "qkv (forward) is 2048 x 3072 in all parts, the model's is 2048 x"),
        ("dense", scaled("fc1", k=3), "fc1 (forward) has 3 times the model's FLOPs"),
        ("dense", scaled("fc1", partition="row"), "fc1 (forward) is 4096 x 4096 in all parts"),
        ("dense", scaled("fc2", parts=4), "the columns of fc1 are divided unlike the rows of fc2 in 24 la"),
        ("dense", scaled("fc1.dgrad", n=0.5), "fc1 (dgrad) is 1024 x 8192"),
        ("dense", without_weight_gradients, "lm_head (wgrad) is missing in LM head"),
        ("dense", scaled("fc2", k=0.5), "fc2 (forward): row in 2 parts came out wrong"),
        ("dense", scaled("fc1.dgrad", k=0.5), "fc1 (dgrad): column in 2 parts came out wrong"),
        ("dense", lambda one: (one._replace(m=one.m and one.m + 1),), "has FLOPs unlike its shape"),
        (
            "dense",
            lambda kernel: (kernel._replace(name=kernel.name.replace("fc1", "fc3")),),
            "fc3 (forward) is no product of the model",
        ),
        ("experts", scaled("expert_fc2", rows=-1), "expert_fc2 (forward) has 0.99"),
        (AGAIN, scaled("fc1", n=0.5, k=2), "fc1 is not computed again as it was in 24 layers"),
    ],
)
def test_products_unlike_the_models_are_named(name: str, change: Change, words: str) -> None:
    step = step_of(name)
    category = "recompute" if name == AGAIN else ""
    summary = judged(step, with_kernels(step.graph, change, category), mode="full")
    assert not summary.passed
    assert any(words in failed for failed in summary.failed), summary.failed


def test_kernels_of_another_work_are_named_and_a_recomputation_that_stops_early_is_right(dense: Step) -> None:
    mlp = next(work for work in dense.graph.works if work.name == "mlp.forward")
    failed = judged(dense, changed_work(dense, "attention.forward", kernels=mlp.kernels)).failed
    assert "qkv (forward) is missing in 24 layers" in failed
    assert "fc1 (forward) has 2 times the model's FLOPs in 24 layers" in failed
    step = step_of(AGAIN)
    again = next(work for work in step.graph.works if work.name == "mlp.recompute")
    assert judged(step, changed_work(step, again.name, kernels=again.kernels[:-2])).passed
    half = judged(step, changed_work(step, again.name, share=0.5)).failed
    assert any("is not computed again as it was" in words for words in half)


def changed_work(step: Step, name: str, **changes: Any) -> TaskGraph:
    return with_works(step.graph, lambda work: replace(work, **changes) if work.name == name else work)


@pytest.mark.parametrize("other", [None, {"size": 4}, {"start": 1}])
def test_parts_of_a_sum_that_no_collective_adds_are_named(dense: Step, other: dict[str, int] | None) -> None:
    """Without tensor collectives, with more ranks, and with other ranks."""

    def change(work: Work) -> Work:
        if work.category != "tensor_communication" or work.group is None:
            return work
        if other is None:
            return replace(work, kind=Kind.COMP, op="nothing", group=None)
        moved = {"start": work.group.start + other["start"]} if "start" in other else {}
        return replace(work, group=work.group._replace(**{**other, **moved}))

    failed = judged(dense, with_works(dense.graph, change)).failed
    assert "mlp.forward is not summed over 2 ranks in 24 layers" in failed
    assert "attention.backward is not summed over 2 ranks in 24 layers" in failed
    assert not [words for words in failed if "summed" not in words]


def test_sums_of_shared_experts_are_compared() -> None:
    step = step_of("shared experts")

    def unsummed(work: Work) -> Work:
        scatters = work.category == "tensor_communication" and work.op == "reduce_scatter"
        return replace(work, kind=Kind.COMP, op="nothing", group=None) if scatters else work

    failed = " ".join(judged(step, with_works(step.graph, unsummed)).failed)
    assert "shared_experts.forward is not summed over 2 ranks" in failed
    assert "shared_experts.backward is not summed over 2 ranks" in failed


def test_one_missing_sum_is_enough(dense: Step) -> None:
    """What one MLP made is read by nothing, and what came before it is read in its place."""
    graph = dense.graph
    of_mlp = next(task for task in graph.tasks() if task.work.name == "mlp.forward")
    values = np.where(graph.reads.values == of_mlp.writes[0], 0, graph.reads.values)
    unread = replace(graph, reads=graph.reads._replace(values=values))
    assert judged(dense, unread).failed == (
        f"mlp.forward is not summed over 2 ranks in layer {of_mlp.block}",
    )


def test_a_failure_ends_a_verb_with_its_words_and_the_same_seed_draws_the_same(dense: Step) -> None:
    wrong = judged(dense, with_kernels(dense.graph, without_weight_gradients))
    with pytest.raises(VerificationError, match=r"does not compute the model: .*fc1 \(wgrad\) is missing"):
        must_be_right([wrong])
    must_be_right([replace(wrong, failed=())])
    first, again, other = (judged(dense, tasks=3, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_prediction_is_verified_unless_it_is_off() -> None:
    prediction = ps.predict(model="gpt3_xl", system="cs-2", devices=1, batch=16)
    assert sample_step(prediction.run, SamplingSpec(mode="off")) is None
    assert sample_step(prediction.run, SamplingSpec(tasks=0)) is None
    assert sample_step(prediction.run, SamplingSpec()).passed
