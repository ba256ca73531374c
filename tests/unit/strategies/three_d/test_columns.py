"""Layouts in columns, and their prices in components, against the same layouts one by one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfsim.prediction.question import Question, question_of
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import layer_kinds
from perfsim.strategies import strategy
from perfsim.strategies.three_d.emission import RankShare
from perfsim.strategies.three_d.expert import Which
from perfsim.strategies.three_d.layers import Layer, WeightInputs
from perfsim.strategies.three_d.prices import Passes
from perfsim.strategies.three_d.space import Columns
from perfsim.work import WAIT_OF_EXPERTS, GraphBuilder, Work
from perfsim.work.builder import InBlock

DRAWN = 24
H100 = {"system": "dgx-h100", "devices": 16}
QUESTIONS: dict[str, dict[str, Any]] = {
    "experts next to tensor groups": {"model": "mixtral_8x7b", "model.num_layers": 6, **H100},
    "shared experts, dense layers and a further token": {
        "model": "deepseek_v3",
        "model.num_layers": 5,
        **H100,
        "devices": 32,
    },
    "shared experts that DeepEP does not hide": {
        "model": "llama4_scout",
        "model.num_layers": 4,
        "runtime.dispatcher": "deepep",
        **H100,
    },
    "windows": {"model": "gpt_oss_120b", "model.num_layers": 6, **H100},
    "a further token without experts": {"model": "gpt3_xl", "model.mtp_num_layers": 1, **H100},
    "no experts": {"model": "gpt3_6p7b", "system": "dgx-a100-80gb", "devices": 16},
}


def question(name: str) -> Question:
    given = {"recipe": "llm_2024", "strategy": "3d", "batch": 48}
    return question_of(given | QUESTIONS[name])


@pytest.mark.parametrize("name", QUESTIONS)
def test_drawn_layouts_have_the_estimate_and_the_memory_of_the_layout_alone(name: str) -> None:
    query = question(name)
    chosen = strategy("3d")
    screening = chosen.screen(query.job, query.topology, query.costs)
    drawn = np.random.default_rng(0).choice(screening.feasible, DRAWN, replace=False).tolist()
    plans = [chosen.plan(query.job, query.topology, screening.layout(row)) for row in drawn]
    assert [plan.memory_share for plan in plans] == pytest.approx(screening.memory_share[drawn], rel=1e-12)
    alone = [chosen.estimate_s(plan, query.costs) for plan in plans]
    assert alone == pytest.approx(screening.closer(np.array(drawn)), rel=1e-9)
    assert len({plan.layout for plan in plans}) == DRAWN


def emitted_s(query: Question, layer: Layer, split: bool) -> tuple[float, float, float]:
    """Seconds of a layer's forward, backward (with recompute) and weight gradients as they are written."""
    seconds = []
    for which in ("forward", "dgrad" if split else "backward", *(["wgrad"] if split else [])):
        builder = GraphBuilder()
        template = builder.template()
        ports = [template.port(name) for name in ("hidden", "saved", "inputs", "kept")]
        if which == "forward":
            layer.forward(InBlock(template), ports[0])
        elif which == "wgrad":
            layer.wgrad(InBlock(template), WeightInputs(*ports[:2]))
        else:
            layer.backward(InBlock(template), which, ports[:2])
        works = [[*builder.work_ids][number] for number in template.arrays()["work"]]
        host = [work for work in works if work.name == WAIT_OF_EXPERTS]
        device = query.costs.durations_s([work for work in works if work not in host]).sum()
        shared = [work.op.rpartition(".")[2] for work in works if work.op.startswith("shared_experts")]
        device -= sum(hidden_s(query, layer, of_pass) for of_pass in shared)
        seconds.append(device + sum(late_s(query, layer, work) for work in host))
    return (*seconds, 0.0)[:3]


def hidden_s(query: Question, layer: Layer, which: Which) -> float:
    """Seconds of shared experts, with their collectives, that the way of rows to the others hides."""
    works = layer.mlp.shared_works(which), layer.mlp.to_experts
    hidden = min(float(query.costs.durations_s(some).sum()) for some in works)
    return hidden if layer.mlp.hides_shared else 0.0


def late_s(query: Question, layer: Layer, host: Work) -> float:
    """Seconds by which the host is later than the device after the router."""
    which: Which = "dgrad" if host.op.endswith(".dgrad") else "backward"
    if host.category in ("forward", "recompute"):
        which = "forward"
    parts = layer.mlp.parts(which)
    works = [*layer.mlp.to_experts, parts.experts, *layer.mlp.from_experts, *layer.mlp.shared_works(which)]
    next_to_s = query.costs.durations_s(works).sum() - hidden_s(query, layer, which)
    return max(0.0, query.costs.duration_s(host) - next_to_s)


CONTEXTS = ParallelLayout(context=2, context_exchange="all_to_all", sequence_parallel=True)
LAYOUTS = {
    "alone": ParallelLayout(data=16, micro_batch_size=2),
    "recomputed": ParallelLayout(tensor=2, data=8, sequence_parallel=True, recompute="full"),
    "the MLP again": ParallelLayout(tensor=2, data=8, sequence_parallel=True, recompute="mlp"),
    "split": ParallelLayout(tensor=4, data=2, pipeline=2, sequence_parallel=True, schedule="zb1p"),
    "contexts": replace(CONTEXTS, tensor=2, data=4),
    "experts": ParallelLayout(tensor=2, data=8, sequence_parallel=True, micro_batch_size=3, expert=4),
    "shared experts": replace(CONTEXTS, tensor=4, data=2, expert=2, expert_tensor=4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", QUESTIONS)
def test_every_kind_of_layer_is_priced_as_it_is_written(name: str, layout: str) -> None:
    """Prices know the tokens of a rank alone, a stage the tensor and context groups that divide them.

    The LM head of a layer with experts that predicts a further token is priced as a task of its own.
    """
    query = question(name)
    job = query.job
    chosen = LAYOUTS[layout]
    if job.model.experts is None:
        chosen = replace(chosen, expert=1, expert_tensor=1)
    columns = Columns.of(job, chosen)
    prices = Passes(job, columns, query.topology, query.costs).of(columns, np.array([0]))
    for number, kind in enumerate(dict.fromkeys(layer_kinds(job.model))):
        if kind.experts and kind.mtp:
            continue
        layer = RankShare(job, chosen).layer(kind, chosen.recompute, divided_below=kind.experts)
        forward, backward, weights = emitted_s(query, layer, chosen.schedule == "zb1p")
        assert prices.forward[0, number] == pytest.approx(forward, rel=1e-12)
        repeated = prices.backward[0, number] + prices.recompute[0, number]
        assert repeated == pytest.approx(backward, rel=1e-12)
        assert prices.weights[0, number] == pytest.approx(weights, rel=1e-12)
