"""From a run to plain values: layouts by name, metrics that add up, timelines of bars."""

from __future__ import annotations

from itertools import pairwise

import pytest

import perfsim as ps
from perfsim.base.errors import InputError
from perfsim.prediction.prediction import document_of, prediction_of, run_document
from perfsim.prediction.run import Evaluation
from perfsim.studies.timeline import timeline

GPUS = {
    "model": "gpt3_xl",
    "system": "dgx-a100-80gb",
    "devices": 8,
    "strategy": "3d",
    "layout": "tp=2,pp=2,dp=2,mbs=1,sp=true,zero=1,recompute=full",
    "batch": 16,
}
WAFERS = {"model": "gpt3_xl", "system": "cs-2", "devices": 2, "strategy": "weight-streaming", "batch": 64}


@pytest.fixture(scope="module")
def gpus() -> Evaluation:
    return ps.predict(**GPUS).run


@pytest.fixture(scope="module")
def wafers() -> Evaluation:
    return ps.predict(**WAFERS).run


@pytest.fixture(params=["gpus", "wafers"])
def run(request: pytest.FixtureRequest) -> Evaluation:
    evaluation: Evaluation = request.getfixturevalue(request.param)
    return evaluation


# --------------------------------------------------------------------------------------- layouts
def test_a_gpu_layout_has_the_names_of_the_yaml(gpus: Evaluation) -> None:
    assert gpus.plan.layout.as_dict(8) == {
        "tensor": 2,
        "pipeline": 2,
        "data": 2,
        "micro_batch_size": 1,
        "num_microbatches": 8,
        "recompute": "full",
        "recompute_every": 1,
        "virtual_pipeline": 1,
        "sequence_parallel": True,
        "zero_stage": 1,
        "schedule": "1f1b",
        "layers_per_stage": None,
    }


def test_a_wafer_layout_says_nothing_of_what_wafers_have_not(wafers: Evaluation) -> None:
    fields = wafers.plan.layout.as_dict(wafers.plan.num_microbatches)
    of_all = {"data", "micro_batch_size", "num_microbatches", "recompute"}
    assert set(fields) == of_all | {"recompute_layers", "spill"}
    assert fields["data"] * fields["micro_batch_size"] * fields["num_microbatches"] >= 64


# --------------------------------------------------------------------------------------- metrics


def test_mfu_is_model_flops_over_what_the_peak_could_do(run: Evaluation) -> None:
    could = run.step_time_s * run.peak_flop_per_s
    assert document_of(prediction_of(run))["mfu"] * could == pytest.approx(run.model_flop)


def test_recompute_counts_in_hfu_only(gpus: Evaluation) -> None:
    assert gpus.plan.layout.recompute != "none"
    assert gpus.hfu > gpus.mfu


# -------------------------------------------------------------------------------------- timeline
def test_bars_lie_in_the_step_in_order_of_start(run: Evaluation) -> None:
    bars = timeline(run)
    assert bars
    assert [bar.start_s for bar in bars] == sorted(bar.start_s for bar in bars)
    for bar in bars:
        assert 0 <= bar.start_s < bar.end_s <= run.step_time_s * (1 + 1e-9)


def test_bars_of_one_lane_do_not_overlap(gpus: Evaluation) -> None:
    bars = timeline(gpus)
    for lane in {bar.lane for bar in bars if bar.lane.endswith("/compute")}:
        mine = [bar for bar in bars if bar.lane == lane]
        for before, after in pairwise(mine):
            assert before.end_s <= after.start_s + 1e-9


def test_bars_keep_the_busy_time_of_a_lane(gpus: Evaluation) -> None:
    """Joining neighbours neither loses nor invents work: busy time is what the breakdown has."""
    bars = timeline(gpus)
    lanes = {bar.lane for bar in bars if bar.lane.endswith("/compute")}
    for lane in lanes:
        busy = sum(bar.end_s - bar.start_s for bar in bars if bar.lane == lane)
        seconds = gpus.trace.device_breakdowns()[lane.split("/", 1)[0]]
        work = [
            category for category in seconds if category in {bar.category for bar in bars if bar.lane == lane}
        ]
        assert busy == pytest.approx(sum(seconds[category] for category in work), rel=1e-6)


# ------------------------------------------------------------------------------------------ peak
@pytest.mark.parametrize("system", ["cs-2-peak", "cs-2"])
def test_a_system_at_peak_is_called_an_upper_bound_wherever_its_name_stands(system: str) -> None:
    prediction = ps.predict(**{**WAFERS, "system": system})
    answer = run_document(prediction)
    bound = system == "cs-2-peak"
    assert answer["system"] == (f"{system} at peak (upper bound, never observed)" if bound else system)
    assert any(caveat["code"] == "release-peak" for caveat in answer["caveats"]) == bound


# ---------------------------------------------------------------------------------------- detail
def test_a_point_in_chunks_is_no_longer_and_nearly_as_long(wafers: Evaluation) -> None:
    answer = run_document(ps.predict(**{**WAFERS, "detail": "chunk"}))
    assert answer["layout"]["stream_chunks"] == 16
    assert "stream_chunks" not in wafers.plan.layout.as_dict(wafers.plan.num_microbatches)
    assert 0.98 * wafers.step_time_s < answer["step_time_s"] <= wafers.step_time_s


def test_a_layout_may_spill() -> None:
    point = {**WAFERS, "layout": "mbs=8,spill=true,recompute_layers=2"}
    prediction = ps.predict(**point)
    answer = run_document(prediction)
    evaluation = prediction.run
    assert answer["layout"]["spill"]
    assert "inputs spilled" in evaluation.plan.notes[0]
    assert "fetch" in {work.op for work in evaluation.graph.works}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"detail": "chunk"}, "no weights are streamed on a gpu-cluster"),
        ({"layout": "tp=8,spill=true,stream_chunks=4"}, "'stream_chunks=4': unknown name"),
    ],
)
def test_what_only_wafers_have_is_refused_on_gpus(asked: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ps.predict(**{**GPUS, **asked})  # type: ignore[arg-type]
