"""The recorded errors of step times, and how they are recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfsim.study import accuracy
from perfsim.study.accuracy import accuracy_of, record_of, recorded, step_time_errors, write_record


def result(file: str, median: float = 0.041235, n: int = 7) -> dict[str, Any]:
    """What `validate` gives for one file, as far as the record reads it."""
    return {
        "file": file,
        "summary": {"n": n + 1, "median_ape": 0.5, "p90_ape": 1.0},
        "summary_predicted": {"n": n, "median_ape": median, "p90_ape": 0.123456},
        "baseline": {"median_ape": 0.2},
    }


def test_the_record_speaks_of_the_cases_that_can_be_predicted() -> None:
    assert record_of([result("gpu.yaml")]) == [
        {
            "system_kind": "gpu-cluster",
            "strategy": "3d",
            "family": "studies/validation/gpu.yaml",
            "n": 7,
            "median_ape": 0.0412,
            "p90_ape": 0.1235,
            "baseline_median_ape": 0.2,
        }
    ]


def test_files_that_speak_of_no_step_time_are_not_recorded() -> None:
    assert record_of([{"file": "convergence.yaml"}, {"file": "my_own_runs.yaml"}]) == []


def test_recording_one_file_keeps_what_is_known_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "__file__", str(tmp_path / "accuracy.py"))
    path = write_record([result("gpu.yaml", median=0.25)])
    written = {entry["system_kind"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))}
    assert path.parent == tmp_path
    assert written["gpu-cluster"]["median_ape"] == 0.25
    (wafers,) = (entry for entry in recorded() if entry["system_kind"] == "wafer-cluster")
    assert written["wafer-cluster"] == wafers


def test_the_band_of_a_step_time_is_the_ninetieth_percentile_of_its_kind() -> None:
    assert step_time_errors() == {entry["system_kind"]: entry["p90_ape"] for entry in recorded()}
    assert set(step_time_errors()) == {"gpu-cluster", "wafer-cluster"}
    assert all(0 < error < 0.3 for error in step_time_errors().values())


def test_a_study_is_told_only_of_the_kinds_it_uses() -> None:
    assert [each.strategy for each in accuracy_of(["wafer-cluster"])] == ["weight-streaming"]
    assert [each.strategy for each in accuracy_of(["wafer-cluster", "gpu-cluster"])] == [
        "3d",
        "weight-streaming",
    ]
    assert accuracy_of([]) == []


def test_what_is_recorded_beats_the_baseline() -> None:
    for each in accuracy_of(["wafer-cluster", "gpu-cluster"]):
        assert each.n > 0
        assert each.median_ape < each.baseline_median_ape
        assert each.median_ape <= each.p90_ape
