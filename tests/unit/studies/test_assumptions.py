"""What an answer says it rests on."""

from __future__ import annotations

import re

import pytest

from perfsim.specs.calibration import GpuCalibration
from perfsim.studies.answers import Assumption
from perfsim.studies.assumptions import assumptions_of
from perfsim.studies.batches import Target
from perfsim.studies.loading import load_study
from perfsim.studies.spec import StudySpec


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    return load_study("gpt3_20b")


@pytest.fixture(scope="module")
def assumptions(spec: StudySpec) -> tuple[Assumption, ...]:
    return assumptions_of(spec)


TOPICS = {
    *("convergence", "model gpt3_20b", "recipe gpt3_20b_chinchilla"),
    *("system dgx-a100-80gb", "system cs-2", "device a100-sxm4-80gb", "device wse-2"),
    *("calibration a100-sxm4", "calibration wse-2", "calibration nvlink3"),
    *("calibration infiniband-hdr", "calibration fsdp-2023"),
}


def test_each_input_of_each_part_is_accounted_for(assumptions: tuple[Assumption, ...]) -> None:
    assert {row.topic for row in assumptions} >= TOPICS
    for row in assumptions:
        assert all([row.name, row.value, row.source.strip()]), row
        assert row.kind in ("datasheet", "fit", "assumption")


def test_a_fit_tells_its_error_its_points_and_how_to_repeat_it(assumptions: tuple[Assumption, ...]) -> None:
    fits = [row for row in assumptions if row.topic.startswith("calibration ") and row.kind == "fit"]
    assert len(fits) > 8
    for row in fits:
        assert re.search(r"median error .* points", row.value)
        assert any(command in row.source for command in ("perfsim calibrate", "pytest ")), row


def constant(assumptions: tuple[Assumption, ...], topic: str, name: str) -> Assumption:
    (entry,) = (row for row in assumptions if (row.topic, row.name) == (f"calibration {topic}", name))
    return entry


def test_constants_have_errors_and_sources(spec: StudySpec, assumptions: tuple[Assumption, ...]) -> None:
    calibration = spec.candidates[0].system.device.calibration
    assert isinstance(calibration, GpuCalibration)
    sustained = constant(assumptions, "a100-sxm4", "sustained_fraction")
    error = calibration.fit["sustained_fraction"].standard_errors["sustained_fraction"]
    assert sustained.value.startswith(
        f"{calibration.sustained_fraction:.4g} (standard error {100 * error:.1f} %); median error"
    )
    assert "studies/validation/gpu.yaml" in sustained.source
    host = constant(assumptions, "fsdp-2023", "host_s_per_kernel").value
    assert re.match(r"[\d.]+ us \(standard error [\d.]+ %\)", host), "a time has its unit"
    wafer = constant(assumptions, "wse-2", "product_efficiency").value
    assert re.match(r"0\.\d+ \(standard error [\d.]+ %\)", wafer)
    gemm = constant(assumptions, "a100-sxm4", "gemm").value
    assert "[shape 256, 128; efficiency 0." in gemm
    assert re.search(r"split_traffic 0\.\d+ \(standard error [\d.]+ %\)", gemm)
    assert re.search(r"standard errors [\d.]+ to [\d.]+ %$", gemm)
    assert constant(assumptions, "a100-sxm4", "memory.fraction").kind == "datasheet"
    guessed = constant(assumptions, "a100-sxm4", "wgrad_factor")
    assert (guessed.value, guessed.kind) == ("1", "assumption")
    assert guessed.source.startswith("assumed: ")


def test_the_critical_batch_has_its_band(spec: StudySpec, assumptions: tuple[Assumption, ...]) -> None:
    critical = Target.of_study(spec).critical
    (entry,) = (row for row in assumptions if row.name == "critical batch" and row.kind == "fit")
    assert entry.value.startswith(f"{critical.tokens / 1e6:.1f} M tokens (")
    assert entry.source == critical.source


def test_a_study_of_gpus_alone_says_nothing_of_wafers(spec: StudySpec) -> None:
    gpus = spec.model_copy(update={"candidates": spec.candidates[:1]})
    topics = {row.topic for row in assumptions_of(gpus)}
    assert "device a100-sxm4-80gb" in topics
    assert not topics & {"system cs-2", "device wse-2", "calibration wse-2"}


def test_a_model_written_inside_the_study_is_the_studys_own_assumption(spec: StudySpec) -> None:
    changed = spec.model_copy(update={"model": spec.model.model_copy(update={"name": "mine"})})
    mine = Assumption("model", "mine", "defined inside the study", "the study's own file", "assumption")
    assert mine in assumptions_of(changed)


GUESSED = """
memoryx.servers memoryx.server.dram.bandwidth memoryx.server.arithmetic memoryx.placement memoryx.weights_in
memoryx.optimizer_state_in activation_servers.bandwidth activation_servers.bytes_per_token
streaming.prefetch_depth streaming.weights_held streaming.accumulate_at streaming.sparse_index_overhead
streaming.sparse_harvest swarmx.duplex swarmx.hop_latency
"""


def test_what_is_unpublished_of_wafers_is_listed(assumptions: tuple[Assumption, ...]) -> None:
    rows = {row.name: row for row in assumptions if row.topic == "system cs-2"}
    for name in GUESSED.split():
        assert rows[name].kind == "assumption"
        assert len(rows[name].source) > 20
