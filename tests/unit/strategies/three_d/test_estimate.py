"""The closed form against the longest path of the graph, on published models and machines."""

from __future__ import annotations

import pytest

from perfsim.catalog import default_catalog
from perfsim.prediction.evaluation import graph_of, longest_path_s
from perfsim.prediction.planner import estimated
from perfsim.prediction.question import Question


def error_of(model: str, system: str, devices: int, batch: int, layout: str) -> float:
    """Estimate over longest path less 1."""
    catalog = default_catalog()
    question = Question(
        model=catalog.model(model),
        recipe=catalog.recipe("gpt3_pretraining"),
        system=catalog.system(system),
        devices=devices,
        strategy="3d",
        batch=batch,
        layout=layout,
        must_fit=False,
    )
    screened = estimated(question)
    return (
        screened.estimate_s / longest_path_s(graph_of(screened.plan), question.topology, question.costs) - 1
    )


@pytest.mark.parametrize("sequence_parallel", ["true", "false"])
@pytest.mark.parametrize("batch", [64, 128])
@pytest.mark.parametrize("chunks", [2, 11, 22])
def test_chunks_whose_reductions_and_received_tensors_are_exposed_are_within_two_percent(
    chunks: int, batch: int, sequence_parallel: str
) -> None:
    layout = f"tp=8,pp=2,dp=16,mbs=1,schedule=interleaved,vpp={chunks},zero=0,sp={sequence_parallel}"
    assert error_of("gpt3_20b", "dgx-a100-80gb", 256, batch, layout) == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(("zero", "schedule"), [(0, "1f1b"), (1, "1f1b"), (2, "1f1b"), (1, "gpipe")])
@pytest.mark.parametrize("batch", [64, 256])
def test_reductions_beside_one_micro_batch_or_more_are_within_one_percent(
    batch: int, zero: int, schedule: str
) -> None:
    """ZeRO 2 reduces in every micro-batch, and few layers have buffers."""
    layout = f"tp=4,pp={1 if schedule == '1f1b' else 2},dp={64 if schedule == '1f1b' else 32},mbs=1"
    layout += f",zero={zero},schedule={schedule},sp=true"
    assert error_of("gpt3_20b", "dgx-a100-80gb", 256, batch, layout) == pytest.approx(0.0, abs=0.01)


def test_a_group_of_replicas_that_straddles_nodes_sets_the_price_of_reductions() -> None:
    """Six ranks a stage: those of the first are in one node, those of the second are not."""
    layout = "tp=2,pp=4,dp=3,mbs=1,zero=2"
    assert error_of("gpt3_13b", "dgx-a100-80gb", 24, 48, layout) == pytest.approx(0.0, abs=0.08)
