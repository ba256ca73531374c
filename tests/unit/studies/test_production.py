"""Time in production beside the time of healthy steps: recorded, given, or switched off."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from perfsim.api.studying import study
from perfsim.base.errors import CatalogError
from perfsim.catalog import default_catalog
from perfsim.evidence.production import production_runs
from perfsim.report.study import study_lines
from perfsim.report.study_page import study_page
from perfsim.studies.answers import COVERED_ONCE, Production, recorded
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.studies.spec import StudySpec

HEAD = """\
name: produced
title: In production
question: How long does it take?
model: gpt3_xl
recipe: gpt3_20b_chinchilla
batch_sizes: [32]
sampling: {mode: "off"}
"""
GPUS = "strategy: 3d, system: dgx-a100-80gb, devices: [8]"
WAFER = "strategy: weight-streaming, system: cs-2, devices: [1]"


def loaded(folder: Path, *candidates: str, study: str = "") -> StudySpec:
    path = folder / "produced.yaml"
    rows = "".join(f"  - {{{row}}}\n" for row in candidates)
    path.write_text(f"{HEAD}{study}\ncandidates:\n{rows}", encoding="utf-8")
    return load_study(str(path))


def test_the_record_is_of_the_three_published_runs_and_no_others() -> None:
    runs = production_runs(default_catalog())
    assert [run.name for run in runs] == ["GPT-NeoX-20B", "OPT-175B", "LLaMA-65B"]
    assert all(run.source for run in runs)
    production = recorded()
    low, high = production.range
    assert 0.5 < low <= production.ratio <= high < 1.1
    assert all(run.name in production.source for run in runs)


def test_the_recorded_ratio_is_the_default_of_every_machine_and_moves_no_comparison(tmp_path: Path) -> None:
    answer = study(loaded(tmp_path, GPUS, WAFER))
    without = study(loaded(tmp_path, GPUS, WAFER, study="production: none"))
    assert answer.ratio_bands == without.ratio_bands
    for candidate, plain in zip(answer.candidates, without.candidates, strict=True):
        assert candidate.production == recorded()
        assert candidate.time_to_accuracy_s == plain.time_to_accuracy_s
        time_s = candidate.time_to_accuracy_s / recorded().ratio
        assert candidate.production_time_s == pytest.approx(time_s, rel=1e-12)
        assert plain.production is plain.production_time_s is plain.production_band_s is None
        assert candidate.production_band_s is not None
        low_s, high_s = candidate.production_band_s
        healthy_low_s, healthy_high_s = candidate.time_to_accuracy_band_s
        assert low_s < time_s < high_s
        assert high_s / low_s > healthy_high_s / healthy_low_s


def test_it_stands_beside_the_healthy_days_at_every_outlet(tmp_path: Path) -> None:
    answer = study(loaded(tmp_path, GPUS, WAFER))
    document = json.loads(json.dumps(answer.document()))
    assert len(document["inputs_digest"]) == 64
    for row, candidate in zip(document["candidates"], answer.candidates, strict=True):
        assert set(row["production"]) == {"ratio", "range", "source"}
        assert row["production_time_s"] == pytest.approx(candidate.production_time_s, rel=1e-9)
        assert len(row["production_band_s"]) == 2
    for row, outcome in zip(document["candidates"], document["decision"]["outcomes"], strict=True):
        assert row["production_band_s"] == [outcome["wall_s"]["low"], outcome["wall_s"]["high"]]
    assert answer.rows()[0]["production_time_s"] == answer.candidates[0].production_time_s
    text = recorded().text
    said = " ".join(study_lines(answer))
    assert f"on the wall: at {text} of the rate of healthy steps, as in published production runs" in said
    _, sections, head = study_page(answer)
    verdict = next(section for section in sections if section.slug == "verdict")
    assert text in head.cards_note
    assert verdict.table is not None
    assert [row[0].value for row in verdict.table.rows[:2]] == ["time", "time in production"]
    assert [item.kind for item in answer.assumptions if item.topic == "production"] == ["fit", "assumption"]


def test_switched_off_no_outlet_names_it(tmp_path: Path) -> None:
    answer = study(loaded(tmp_path, GPUS, study="production: none"))
    assert "of the rate" not in " ".join(study_lines(answer))
    assert not [item for item in answer.assumptions if item.topic == "production"]


@pytest.mark.parametrize(
    ("given", "ratio", "ends"),
    [
        ("0.5", 0.5, (0.5, 0.5)),
        ("{low: 0.6, typical: 0.7, high: 0.9}", 0.7, (0.6, 0.9)),
    ],
)
def test_a_candidate_may_state_its_own_ratio(
    tmp_path: Path, given: str, ratio: float, ends: tuple[float, float]
) -> None:
    spec = loaded(tmp_path, f"{GPUS}, production: {given}", WAFER)
    first, second = run_study(spec).result.candidates
    assert first.production == Production(ratio, ends, "given by the study")
    assert first.production_time_s == pytest.approx(first.time_to_accuracy_s / ratio, rel=1e-12)
    assert second.production == recorded()


@pytest.mark.parametrize("given", ["0", "-1", "fast", "{low: 0.9, typical: 0.7, high: 1}"])
def test_a_wrong_ratio_is_refused_at_its_line(tmp_path: Path, given: str) -> None:
    with pytest.raises(CatalogError, match=r"produced.yaml:10:.*candidates\[0\].production"):
        loaded(tmp_path, f"{GPUS}, production: {given}")


def test_band_and_range_combine_as_independent_errors() -> None:
    production = Production(0.8, (0.8 / 1.1, 0.8 * 1.1), "a test")
    low_s, high_s = production.band_s(100.0, (100 / 1.2, 100 * 1.2))
    half = math.exp(math.hypot(math.log(1.2), math.log(1.1)))
    assert (low_s, high_s) == pytest.approx((125 / half, 125 * half), rel=1e-12)


def test_slow_steps_are_counted_once_where_a_wall_clock_is_named(tmp_path: Path) -> None:
    clocked = f"{GPUS}, wall_clock: gpu-cluster"
    (candidate,) = run_study(loaded(tmp_path, clocked)).result.candidates
    (plain,) = run_study(loaded(tmp_path, clocked, study="production: none")).result.candidates
    assert candidate.whole_run == plain.whole_run
    assert COVERED_ONCE in candidate.notes
    assert COVERED_ONCE not in plain.notes
