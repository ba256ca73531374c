"""Which published runs speak for a plan, and how surely its step time is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfsim.evidence.left_out import LeavingOut, LeftOut
from perfsim.evidence.record import record_of
from perfsim.evidence.score import Scored
from perfsim.prediction import bands
from perfsim.prediction.bands import Accuracy, BandWidths, Traits, alone

HERE = Traits(
    "a100",
    peak_flop_per_s=312e12,
    memory_bytes_per_s=2e12,
    precision="16-bit",
    sharded=False,
    tensor=True,
    pipeline=True,
    parameters=20e9,
    num_devices=128,
    shards=1,
    micro_batch_size=2,
)
LIKE: dict[str, Any] = {
    "constants": ["a100"],
    "peak_flop_per_s": [312e12, 312e12],
    "memory_bytes_per_s": [1.5e12, 2e12],
    "precision": ["16-bit"],
    "experts": [False],
    "sharded": [False],
    "tensor": [False, True],
    "pipeline": [True],
    "parameters": [1e9, 100e9],
    "num_devices": [64, 512],
    "shards": [1, 1],
    "micro_batch_size": [1, 8],
}
BAND = {"base": 0.2, "slope": 0.1, "unshared": 0.5, "experts": 1.5}


def family(name: str, n: int, p90: float, **changes: Any) -> dict[str, Any]:
    figures = {"family": name, "n": n, "median_ape": p90 / 2, "p90_ape": p90, "baseline_median_ape": 0.2}
    figures["held_out_p90_ape"] = 2 * p90
    return {**figures, **LIKE, **changes}


@pytest.mark.parametrize(
    ("changes", "points", "words"),
    [
        ({"constants": "h100"}, 3.0, "instead of h100"),
        ({"constants": "h100", "peak_flop_per_s": 990e12}, 3.0, "instead of h100"),
        ({"peak_flop_per_s": 624e12}, 3.0, "a100 was measured on a chip whose peak differs 2.0 times"),
        ({"memory_bytes_per_s": 20e12}, 3.0, "memory bandwidth outside its range by a factor of 10.0"),
        ({"precision": "fp8"}, 3.0, "precision fp8 only in this plan"),
        ({"shards": 100}, 2.0, "replicas that share parameters outside its range"),
        ({"micro_batch_size": 80}, 1.0, "micro-batch outside its range by a factor of 10.0"),
        ({"sharded": True}, 2.0, "sharded parameters only in this plan"),
        ({"experts": True}, 3.0, "experts only in this plan"),
        ({"pipeline": False}, 1.0, "pipeline parallelism only in the family"),
        ({"parameters": 1e12}, 1.0, "model outside its range by a factor of 10.0"),
        ({"parameters": 1e8}, 1.0, "model outside its range by a factor of 10.0"),
        ({"num_devices": 51200}, 2.0, "number of devices outside its range by a factor of 100.0"),
    ],
)
def test_each_difference_has_its_points_and_its_words(
    changes: dict[str, Any], points: float, words: str
) -> None:
    assert HERE.unlikeness(LIKE) == (0.0, ())
    found, said = replace(HERE, **changes).unlikeness(LIKE)
    assert found == pytest.approx(points)
    assert len(said) == 1
    assert words in said[0]


def test_the_only_family_on_a_device_says_less_than_one_of_several() -> None:
    families = {"first": LIKE, "second": LIKE, "newer": {**LIKE, "constants": ["h100"]}}
    assert [alone(name, families) for name in families] == [False, False, True]
    assert not alone("first", {"first": LIKE}), "one family alone shows no difference"
    assert HERE.unlikeness({**LIKE, "alone": True}) == (2.0, ("the only family of runs on a100",))


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The families on record, with the bands that all of them give, and those without `pipelines`."""
    families: list[dict[str, Any]] = []
    whole = {"system_kind": "gpu-cluster", "strategy": "3d", "family": "all", "n": 50, "band": BAND}
    left_out = [{"group": "pipelines", "band": {**BAND, "base": 0.3}}]
    entry = {**whole, "families": families, "left_out": left_out}
    monkeypatch.setattr(bands, "recorded_errors", lambda: (entry,))
    return families


PIPELINES = [family("fsdp", 20, 0.2, sharded=[True]), family("pipelines", 10, 0.05)]
EXPERTS = [family("dense", 30, 0.05), family("sparse", 20, 0.1, experts=[True])]
OTHERS = [family("pipelines", 10, 0.05), family("others", 10, 0.05, pipeline=[False])]


@pytest.mark.parametrize(
    ("families", "changes", "without", "speaks", "log_width"),
    [
        (PIPELINES, {}, "", "pipelines", 0.2),
        (PIPELINES, {"sharded": True, "pipeline": False}, "", "fsdp", math.hypot(0.2, 0.1)),
        ([family("few", 8, 0.2), family("many", 30, 0.05)], {}, "", "many", 0.2),
        ([family("small errors", 30, 0.01)], {}, "", "small errors", 0.2),
        ([family("only", 30, 0.05)], {"precision": "fp8"}, "", "only", math.hypot(0.2, 0.3)),
        (EXPERTS, {"experts": True}, "", "sparse", 1.5 * 0.2),
        (EXPERTS, {}, "", "dense", 0.2),
        (OTHERS, {}, "pipelines", "others", math.hypot(0.3, 0.1)),
    ],
)
def test_the_family_most_alike_speaks_and_unlikeness_widens_the_band(
    record: list[dict[str, Any]],
    families: list[dict[str, Any]],
    changes: dict[str, Any],
    without: str,
    speaks: str,
    log_width: float,
) -> None:
    record += families
    found = Accuracy.nearest("gpu-cluster", replace(HERE, **changes), without=without)
    assert found.family == speaks
    assert found.step_time_error == pytest.approx(math.expm1(log_width))
    assert found.unshared_error == pytest.approx(math.expm1(0.5 * log_width))


@pytest.mark.usefixtures("record")
def test_a_kind_of_system_without_runs_is_known_to_a_factor_of_two() -> None:
    bands = Accuracy.nearest("abacus", HERE)
    assert (bands.n, bands.p90_ape, bands.held_out_p90_ape) == (0, 1.0, 1.0)
    assert "abacus" in bands.likeness
    assert bands.step_time_error == bands.unshared_error == pytest.approx(1.0)


def test_the_record_has_each_family_that_was_scored() -> None:
    figures = {"n": 2, "median_ape": 0.1, "p90_ape": 0.123456, "mape": 0.1, "bias": 0.0}
    result = {
        "file": "gpu.yaml",
        "summary_predicted": figures,
        "baseline": figures,
        "families": {
            "a": {**figures, "hidden_communication": 0.123456},
            "unscored": {**figures, "n": 0},
        },
        "families_baseline": {"a": figures},
        "families_traits": {"a": LIKE},
    }
    (entry,) = record_of([result, {"file": "else.yaml"}])
    assert (entry["system_kind"], entry["p90_ape"]) == ("gpu-cluster", 0.1235)
    assert [each["family"] for each in entry["families"]] == ["a"]
    assert entry["families"][0]["parameters"] == [1e9, 100e9]
    assert entry["families"][0]["hidden_communication"] == 0.1235


@pytest.mark.parametrize("kind", ["gpu-cluster", "wafer-cluster"])
def test_no_recorded_band_is_narrower_than_the_percentile_of_runs_left_out(kind: str) -> None:
    entries = [entry for entry in bands.recorded_errors() if entry["system_kind"] == kind]
    assert entries
    for whole in entries:
        widths = BandWidths(**whole["band"])
        with_experts = any(True in family["experts"] for family in whole["families"])
        assert (widths.experts > 1.0) == with_experts
        widest = replace(widths, base=widths.base * widths.experts)
        assert widest.error(0.0) >= whole["held_out_p90_ape"] >= whole["p90_ape"]
        least = 0.9 * min(whole["held_out_p90_ape"], 0.1)
        without = [BandWidths(**row["band"]) for row in whole["left_out"]]
        assert all(math.expm1(band.base * band.experts) > least for band in without)
        dense = [family for family in whole["families"] if family["experts"] == [False]]
        runs, tails = ([family[name] for family in dense] for name in ("n", "held_out_p90_ape"))
        of_families = float(np.average(tails, weights=runs))
        assert all(band.error(0.0) > 0.9 * min(of_families, 0.1) for band in (widths, *without))
        # Each family, its parts by model and number of devices, or a wafer's release was left out once.
        assert all(row["constants"] for row in whole["left_out"])
        groups = [row["group"] for row in whole["left_out"]]
        if kind == "gpu-cluster":
            families = {family["family"] for family in whole["families"]}
            assert {group.partition(",")[0] for group in groups} == families
            continue
        assert groups == ["r1.7", "r1.8", "r2.0"]
        # Four constants from five logs: the error of the fit itself says next to nothing.
        assert whole["held_out_p90_ape"] > 2 * whole["p90_ape"]
        assert 0.19 < widths.error(0.0) < 0.3


def test_figures_of_runs_left_out_are_recorded_where_they_are_measured() -> None:
    (known,) = (entry for entry in bands.recorded_errors() if entry["system_kind"] == "wafer-cluster")
    figures = {"n": 5, "median_ape": 0.1, "p90_ape": 0.2}
    result = {
        "file": "weight_streaming.yaml",
        "summary_predicted": figures,
        "baseline": {"median_ape": 0.3},
        "families": {},
        "families_baseline": {},
        "families_traits": {},
    }
    (without,) = record_of([result])
    assert {"held_out_p90_ape", "band", "left_out"}.isdisjoint(without)
    logs = [Scored("log", "logs", "A", None, "", 1.0, 1.75, traits=HERE, left_out="r0.2")] * 8
    groups = (LeftOut("r0.2", "wafer", (), {}, {"efficiency": 0.5}),)
    outside = LeavingOut("release", groups, (*logs, replace(logs[0], predicted_s=1.74, left_out="r0.3")))
    (measured,) = record_of([result], {"weight_streaming.yaml": outside})
    assert measured["held_out_p90_ape"] == 0.75
    assert measured["band"]["base"] > known["band"]["base"]
    (row,) = measured["left_out"]
    assert (row["group"], row["constants"]) == ("r0.2", {"efficiency": 0.5})
    assert row["band"]["base"] > measured["band"]["base"]
