"""A layout as the command line writes it, and one point from question to metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from perfsim.errors import InputError, LayoutError
from perfsim.prediction.documents import run_document
from perfsim.prediction.predict import predict
from perfsim.prediction.question import parse_layout, question_named
from perfsim.workload import ParallelLayout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp=8,pp=4,dp=4,mbs=1", ParallelLayout(tensor=8, pipeline=4, data=4)),
        ("tensor=8, pipeline=4 ,data=4", ParallelLayout(tensor=8, pipeline=4, data=4)),
        ("tp=8,pp=4", ParallelLayout(tensor=8, pipeline=4, data=4)),
        ("", ParallelLayout(data=128)),
        ("pp=4,vpp=2,dp=32", ParallelLayout(pipeline=4, data=32, virtual_pipeline=2, schedule="interleaved")),
        (
            "pp=2,vpp=2,dp=64,schedule=1f1b",
            ParallelLayout(pipeline=2, data=64, virtual_pipeline=2),
        ),
        (
            "dp=128,sp=True,zero=1,recompute=selective",
            ParallelLayout(data=128, sequence_parallel=True, zero_stage=1, recompute="selective"),
        ),
        (
            "pp=4,dp=32,layers_per_stage=10-12-12-10",
            ParallelLayout(pipeline=4, data=32, layers_per_stage=(10, 12, 12, 10)),
        ),
        (
            "pp=4,dp=32,schedule=zbv",
            ParallelLayout(pipeline=4, data=32, virtual_pipeline=2, schedule="zbv"),
        ),
        ("pp=4,dp=32,schedule=zb1p", ParallelLayout(pipeline=4, data=32, schedule="zb1p")),
        ("dp=128,recompute_layers=2", ParallelLayout(data=128, recompute_layers=2, recompute="full")),
    ],
)
def test_short_and_long_names_give_a_layout(text: str, expected: ParallelLayout) -> None:
    assert parse_layout(text, 128) == expected


def test_a_missing_data_degree_is_what_the_devices_leave() -> None:
    assert parse_layout("tp=8", 100).data == 12
    assert parse_layout("tp=8,pp=100", 128).data == 1, "the plan will refuse it with the device count"


def test_everything_wrong_is_listed_with_a_mend() -> None:
    with pytest.raises(LayoutError) as caught:
        parse_layout("tpp=8,pp=four,mbs=0,sp=maybe,recompute=some,dp=2,data=3", 8)
    messages = [(problem.message, problem.help) for problem in caught.value.problems]
    assert messages == [
        ("--layout 'tpp=8': unknown name", "did you mean 'tp'?"),
        ("--layout 'pp=four': 'four' is not a whole number", "write for example tp=8"),
        ("--layout 'mbs=0': 0 is less than 1", "write 1 or more"),
        ("--layout 'sp=maybe': 'maybe' is not a truth value", "write true or false"),
        ("--layout 'recompute=some': 'some'", "allowed: none, selective, full"),
        ("--layout names data twice", ""),
    ]


@pytest.mark.parametrize("text", ["tp", "tp=", "layers_per_stage=4--4", "zero=-1", "q=1"])
def test_what_cannot_be_read_is_refused_not_guessed(text: str) -> None:
    with pytest.raises(LayoutError):
        parse_layout(text, 8)


# -------------------------------------------------------------------------------------- a point
WAFERS = {"model": "gpt3_xl", "system": "cs-2", "devices": 2, "strategy": "weight-streaming", "batch": 64}
INTERFACE = {
    "model",
    "strategy",
    "system",
    "num_devices",
    "layout",
    "global_batch_size",
    "step_time_s",
    "tokens_per_s",
    "mfu",
    "bubble_fraction",
    "exposed_communication_fraction",
    "peak_memory_bytes",
}


def test_a_point_answers_with_the_metrics_of_the_interface() -> None:
    prediction = predict(question_named(**WAFERS))
    metrics, evaluation = run_document(prediction), prediction.run
    assert set(metrics) >= INTERFACE
    assert metrics["num_devices"] == 2
    assert metrics["tokens_per_s"] == pytest.approx(64 * 2048 / metrics["step_time_s"])
    assert metrics["step_time_s"] == evaluation.step_time_s
    assert sum(metrics["step_breakdown_s"].values()) == pytest.approx(metrics["step_time_s"])
    assert 0 < metrics["mfu"] <= metrics["hfu"] < 1


def test_a_given_layout_is_taken_as_it_is() -> None:
    metrics = run_document(predict(question_named(**{**WAFERS, "layout": "dp=2,mbs=16,recompute_layers=1"})))
    layout: Mapping[str, object] = metrics["layout"]
    assert (layout["micro_batch_size"], layout["num_microbatches"], layout["recompute_layers"]) == (16, 2, 1)


def test_the_same_point_gives_the_same_numbers_again() -> None:
    assert run_document(predict(question_named(**WAFERS))) == run_document(predict(question_named(**WAFERS)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "gpt3_20bb"}, "gpt3_20b"),
        ({"system": "cs2"}, "cs-2"),
        ({"strategy": "3d"}, "runs on GPU clusters"),
        ({"strategy": "weight"}, "weight-streaming"),
        ({"devices": 1000}, "at most 192 systems"),
        ({"layout": "dp=3"}, "data 3 must equal the 2 systems"),
    ],
)
def test_a_question_that_makes_no_sense_ends_in_words(change: dict[str, object], message: str) -> None:
    point = WAFERS._replace(**({"layout": "dp=2,mbs=8"} | change))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        predict(question_named(**point))


THIN = """\
name: thin
description: a leaf for each node, with so many NICs to an uplink
extends: dgx-a100-80gb
fabric:
  nodes_per_leaf: 1
  oversubscription: {ratio}
assumed:
  fabric.nodes_per_leaf: a test
  fabric.oversubscription: a test
"""


def test_oversubscription_in_a_systems_file_slows_a_step_by_what_crosses_leaves(tmp_path: Path) -> None:
    """Eight messages on two uplinks: both sends, and the sum of the tied embedding, take 4 times as long."""
    steps = {}
    for ratio in (1.0, 4.0):
        path = tmp_path / f"thin{ratio:g}.yaml"
        path.write_text(THIN.format(ratio=ratio), encoding="utf-8")
        point = {
            "model": "gpt3_xl",
            "system": str(path),
            "devices": 16,
            "strategy": "3d",
            "layout": "tp=8,pp=2,dp=1,mbs=1",
            "batch": 1,
        }
        prediction = predict(question_named(**point))
        answer, evaluation = run_document(prediction), prediction.run
        steps[ratio] = answer["step_time_s"]
    across = [
        work for work in evaluation.graph.works if work.group is not None and work.group.stride in (8, -8)
    ]
    assert len(across) == 3
    assert steps[4.0] - steps[1.0] == pytest.approx(
        3 * sum(map(evaluation.costs.duration_s, across)), rel=1e-6
    )
