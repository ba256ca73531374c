"""The closed form against simulations without shared links, on published models and machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfsim.machines.placement import place
from perfsim.prediction.planner import Search, estimated
from perfsim.prediction.question import Question, question_of
from perfsim.prediction.run import Step, graph_of


def asked(model: str, system: str, devices: int, batch: int, **given: Any) -> Question:
    fields = {"model": model, "system": system, "devices": devices, "batch": batch, "strategy": "3d"}
    return replace(question_of({"recipe": "gpt3_pretraining", **fields, **given}), must_fit=False)


def error(question: Question, screened: Any = None) -> float:
    """Estimate over simulated step less 1."""
    screened = screened or estimated(question)
    placed = place(graph_of(screened.plan), question.topology, contention=False)
    return screened.estimate_s / Step(placed, question.costs).run().step_time_s - 1


@pytest.mark.parametrize("sequence_parallel", ["true", "false"])
@pytest.mark.parametrize("batch", [64, 128])
@pytest.mark.parametrize("chunks", [2, 11, 22])
def test_chunks_whose_reductions_and_received_tensors_are_exposed_are_within_two_percent(
    chunks: int, batch: int, sequence_parallel: str
) -> None:
    layout = f"tp=8,pp=2,dp=16,mbs=1,schedule=interleaved,vpp={chunks},zero=0,sp={sequence_parallel}"
    assert abs(error(asked("gpt3_20b", "dgx-a100-80gb", 256, batch, layout=layout))) <= 0.02


@pytest.mark.parametrize(("zero", "schedule"), [(0, "1f1b"), (1, "1f1b"), (2, "1f1b"), (1, "gpipe")])
@pytest.mark.parametrize("batch", [64, 256])
def test_reductions_beside_one_micro_batch_or_more_are_within_one_percent(
    batch: int, zero: int, schedule: str
) -> None:
    """ZeRO 2 reduces in every micro-batch, and few layers have buffers.

    Under gpipe the passes lose more beside the sums of their tensor group than the estimate counts.
    """
    layout = f"tp=4,pp={1 if schedule == '1f1b' else 2},dp={64 if schedule == '1f1b' else 32},mbs=1"
    layout += f",zero={zero},schedule={schedule},sp=true"
    allowed = 0.03 if schedule == "gpipe" else 0.01
    assert abs(error(asked("gpt3_20b", "dgx-a100-80gb", 256, batch, layout=layout))) <= allowed


@pytest.mark.parametrize("more", ["", ",recompute=full", ",schedule=zb1p"])
@pytest.mark.parametrize("model", ["llama31_70b", "mixtral_8x7b"])
def test_exchanges_beside_products_are_within_one_percent(model: str, more: str) -> None:
    layout = "tp=4,pp=2,dp=2,mbs=1,zero=0,sp=true" + more + (",ep=2" if model == "mixtral_8x7b" else "")
    assert abs(error(asked(model, "dgx-h100", 16, 32, layout=layout, recipe="llm_2024"))) <= 0.01


def test_a_group_of_replicas_that_straddles_nodes_sets_the_price_of_reductions() -> None:
    """Six ranks a stage: those of the first are in one node, those of the second are not."""
    assert abs(error(asked("gpt3_13b", "dgx-a100-80gb", 24, 48, layout="tp=2,pp=4,dp=3,mbs=1,zero=2"))) <= 0.1


ROWS = 40
MOST_PASSES = 2500
"""Layouts drawn for a question, and passes of a micro-batch through a layer in the graphs of these."""


@pytest.mark.slow
def test_drawn_layouts_are_within_half_a_percent_at_the_median_and_all_but_a_few_within_four() -> None:
    """From the best quarter; too slow are few micro-batches of tensor groups over nodes."""
    generator = np.random.default_rng(0)
    errors = []
    for model, system, devices, batch in (
        ("gpt3_20b", "dgx-a100-80gb", 256, 64),
        ("gpt_neox_20b", "dgx-a100-40gb", 96, 192),
        ("llama_13b", "dgx-h100", 40, 160),
    ):
        question = asked(model, system, devices, batch)
        search = Search(question)
        best = search.order[: len(search.order) // 4]
        for index in generator.choice(best, ROWS, replace=False).tolist():
            screened = search.plan(index)
            if screened.plan.num_microbatches * question.model.num_layers <= MOST_PASSES:
                estimate_s = question.chosen.estimate_s(screened.plan, question.costs)
                errors.append(error(question, replace(screened, estimate_s=estimate_s)))
    assert np.median(np.abs(errors)) <= 0.005
    assert np.quantile(np.abs(errors), 0.95) <= 0.04
    assert min(errors) >= -0.03
    assert max(errors) <= 0.11
