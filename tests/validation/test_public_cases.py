"""Published runs predicted from their description alone: the accuracy that perfsim states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfsim.catalog import default_catalog, parse_file
from perfsim.evidence.cases import CaseFile, public_cases
from perfsim.evidence.record import record_of

PATHS = {path.name: path for path in public_cases()}


@pytest.fixture(scope="module")
def wafers(scores: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    return scores(PATHS["weight_streaming.yaml"])


@pytest.fixture(scope="module")
def gpus(scores: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    return scores(PATHS["gpu.yaml"])


def test_every_scored_wafer_run_is_met_within_15_percent(wafers: dict[str, Any]) -> None:
    scored = {case["id"]: case["error"] for case in wafers["cases"] if case["evidence"] == "A"}
    assert wafers["failed"] == []
    assert len(scored) == 5
    assert {name: error for name, error in scored.items() if abs(error) > 0.15} == {}
    assert wafers["summary"]["mape"] < 0.08
    assert wafers["without_release"]["r1.8"]["mape"] < 0.08


def test_wafer_runs_of_weaker_evidence_are_shown_and_not_scored(wafers: dict[str, Any]) -> None:
    shown = [case for case in wafers["cases"] if case["evidence"] == "C"]
    assert len(shown) == 1
    assert shown[0]["predicted_s"] > 0
    assert wafers["summary"]["n"] == 5


def test_wafer_runs_beat_one_constant(wafers: dict[str, Any]) -> None:
    for figure in ("median_ape", "p90_ape", "mape"):
        assert wafers["summary"][figure] < wafers["baseline"][figure]


def test_what_is_recorded_of_wafers_is_what_is_met(
    wafers: dict[str, Any], must_be_recorded: Callable[[list[dict[str, Any]]], None]
) -> None:
    """Stale after a change of the model: run `perfsim validate --record`."""
    must_be_recorded(record_of([wafers]))


def test_published_ratios_stand_beside_the_logs_and_change_no_score(wafers: dict[str, Any]) -> None:
    assert {"runs", "efficiencies", "explanations", "source"} == set(wafers["scaling"])
    assert wafers["count"] == 6


def test_every_case_names_its_source() -> None:
    for name in ("gpu.yaml", "modern.yaml", "weight_streaming.yaml"):
        cases = parse_file(PATHS[name], CaseFile, default_catalog()).cases
        assert len({case.id for case in cases}) == len(cases)
        assert all(case.source.get("title") or case.source.get("url") for case in cases)


@pytest.mark.slow
def test_all_public_gpu_runs_are_answered_and_scored(gpus: dict[str, Any]) -> None:
    assert gpus["count"] == 126
    assert gpus["failed"] == []


@pytest.mark.slow
def test_gpu_runs_are_met_within_12_percent_in_the_median_and_beat_one_constant(gpus: dict[str, Any]) -> None:
    assert gpus["summary"]["median_ape"] < 0.12
    for figure in ("median_ape", "p90_ape", "mape"):
        assert gpus["summary"][figure] < gpus["baseline"][figure]
    assert abs(gpus["summary"]["bias"]) < 0.05


@pytest.mark.slow
def test_layouts_of_each_sweep_are_ranked_better_than_by_chance(gpus: dict[str, Any]) -> None:
    assert len(gpus["sweeps"]) >= 4
    assert [row["sweep"] for row in gpus["sweeps"] if row["kendall_tau"] <= 0] == []
