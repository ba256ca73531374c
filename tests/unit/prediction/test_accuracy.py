"""Which published runs speak for a plan, and how surely its step time is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfsim.prediction import accuracy
from perfsim.prediction.accuracy import nearest
from perfsim.prediction.likeness import Traits, unlikeness
from perfsim.validation.record_accuracy import record_of, write_record

HERE = Traits("a100", sharded=False, tensor=True, pipeline=True, parameters=20e9, num_devices=128)
LIKE: dict[str, Any] = {
    "constants": ["a100"],
    "sharded": [False],
    "tensor": [False, True],
    "pipeline": [True],
    "parameters": [1e9, 100e9],
    "num_devices": [64, 512],
}


def family(name: str, n: int, p90: float, **changes: Any) -> dict[str, Any]:
    figures = {"family": name, "n": n, "median_ape": p90 / 2, "p90_ape": p90, "baseline_median_ape": 0.2}
    figures["held_out_p90_ape"] = 2 * p90
    return {**figures, **LIKE, **changes}


def test_a_family_that_holds_such_runs_is_not_unlike() -> None:
    assert unlikeness(HERE, LIKE) == (0.0, ())


@pytest.mark.parametrize(
    ("changes", "points", "words"),
    [
        ({"constants": "h100"}, 3.0, "instead of h100"),
        ({"sharded": True}, 2.0, "sharded parameters only in this plan"),
        ({"pipeline": False}, 1.0, "pipeline parallelism only in the family"),
        ({"parameters": 1e12}, 1.0, "model outside its range by a factor of 10.0"),
        ({"parameters": 1e8}, 1.0, "model outside its range by a factor of 10.0"),
        ({"num_devices": 51200}, 2.0, "number of devices outside its range by a factor of 100.0"),
    ],
)
def test_each_difference_has_its_points_and_its_words(
    changes: dict[str, Any], points: float, words: str
) -> None:
    found, said = unlikeness(replace(HERE, **changes), LIKE)
    assert found == pytest.approx(points)
    assert len(said) == 1
    assert words in said[0]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The families on record; all runs together have 0.10 at the 90th percentile."""
    families: list[dict[str, Any]] = []
    whole = {"system_kind": "gpu-cluster", "strategy": "3d", "family": "all", "n": 50, "p90_ape": 0.10}
    whole["held_out_p90_ape"] = 0.2
    monkeypatch.setattr(accuracy, "recorded", lambda: ({**whole, "families": families},))
    return families


def test_the_family_most_alike_speaks_for_a_plan(record: list[dict[str, Any]]) -> None:
    record += [family("fsdp", 20, 0.2, sharded=[True]), family("pipelines", 10, 0.05)]
    assert nearest("gpu-cluster", HERE).family == "pipelines"
    assert nearest("gpu-cluster", replace(HERE, sharded=True, pipeline=True)).family == "fsdp"


def test_of_families_as_much_alike_the_one_with_more_runs_speaks(record: list[dict[str, Any]]) -> None:
    record += [family("few", 8, 0.2), family("many", 30, 0.05)]
    assert nearest("gpu-cluster", HERE).family == "many"


@pytest.mark.parametrize(("n", "band"), [(7, 0.10), (8, 0.03)])
def test_few_runs_do_not_make_a_narrow_band(record: list[dict[str, Any]], n: int, band: float) -> None:
    record.append(family("narrow", n, 0.03))
    found = nearest("gpu-cluster", HERE)
    assert found.p90_ape == band
    assert ("few runs" in found.likeness) == (n < 8)


def test_few_runs_may_make_a_wide_band(record: list[dict[str, Any]]) -> None:
    record.append(family("wide", 3, 0.3))
    assert nearest("gpu-cluster", HERE).p90_ape == 0.3


@pytest.mark.usefixtures("record")
def test_a_kind_of_system_without_runs_is_known_to_a_factor_of_two() -> None:
    accuracy = nearest("abacus", HERE)
    assert (accuracy.n, accuracy.p90_ape, accuracy.held_out_p90_ape) == (0, 1.0, 1.0)
    assert "abacus" in accuracy.likeness


def test_the_record_has_each_family_that_was_scored() -> None:
    figures = {"n": 2, "median_ape": 0.1, "p90_ape": 0.123456, "mape": 0.1, "bias": 0.0}
    result = {
        "file": "gpu.yaml",
        "summary_predicted": figures,
        "baseline": figures,
        "families": {"a": figures, "unscored": {**figures, "n": 0}},
        "families_baseline": {"a": figures},
        "families_traits": {"a": LIKE},
    }
    (entry,) = record_of([result, {"file": "else.yaml"}])
    assert (entry["system_kind"], entry["p90_ape"]) == ("gpu-cluster", 0.1235)
    assert [each["family"] for each in entry["families"]] == ["a"]
    assert entry["families"][0]["parameters"] == [1e9, 100e9]


def test_recording_one_file_keeps_what_is_known_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "__file__", str(tmp_path / "accuracy.py"))
    figures = {"n": 7, "median_ape": 0.25, "p90_ape": 0.5}
    result = {
        "file": "gpu.yaml",
        "summary_predicted": figures,
        "baseline": {"median_ape": 0.3},
        "families": {},
        "families_baseline": {},
        "families_traits": {},
    }
    before = {entry["system_kind"]: entry for entry in accuracy.recorded()}
    path = write_record([result])
    written = {entry["system_kind"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))}
    assert written["gpu-cluster"]["median_ape"] == 0.25
    assert written["wafer-cluster"] == before["wafer-cluster"]


def test_a_band_is_made_of_the_worse_of_in_the_fit_and_left_out_of_it() -> None:
    for kind in ("gpu-cluster", "wafer-cluster"):
        (whole,) = (entry for entry in accuracy.recorded() if entry["system_kind"] == kind)
        assert whole["held_out_p90_ape"] >= whole["p90_ape"]
    (wafers,) = (entry for entry in accuracy.recorded() if entry["system_kind"] == "wafer-cluster")
    # Four constants from five logs: the error of the fit itself says next to nothing.
    assert wafers["held_out_p90_ape"] > 2 * wafers["p90_ape"]


def test_figures_of_runs_left_out_are_kept_until_they_are_measured_anew() -> None:
    (known,) = (entry for entry in accuracy.recorded() if entry["system_kind"] == "wafer-cluster")
    figures = {"n": 5, "median_ape": 0.1, "p90_ape": 0.2}
    result = {
        "file": "weight_streaming.yaml",
        "summary_predicted": figures,
        "baseline": {"median_ape": 0.3},
        "families": {},
        "families_baseline": {},
        "families_traits": {},
    }
    (kept,) = record_of([result])
    assert kept["held_out_p90_ape"] == known["held_out_p90_ape"]
    outside = {"weight_streaming.yaml": {"all runs": {"median_ape": 0.25, "p90_ape": 0.75}}}
    (measured,) = record_of([result], outside)
    assert measured["held_out_p90_ape"] == 0.75
