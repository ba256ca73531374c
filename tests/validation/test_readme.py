"""What README and reports say of the accuracy is what it reaches now; minutes of work.

If a test here fails, run the command that `perfsim.report.validation.COMMAND` holds, or this file with
`PERFSIM_README=1`, look at what changed, and commit it.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfsim.catalog import Catalog, data_root
from perfsim.evidence.ablation import StepAccuracy
from perfsim.evidence.production import production_record
from perfsim.evidence.record import KINDS, record_of
from perfsim.prediction.bands import Accuracy, recorded_errors
from perfsim.report.validation import COMMAND, write_validation
from perfsim.studies.answers import RECORD

README = Path(__file__).parents[2] / "README.md"
GROUPS = {
    "studies/validation/gpu.yaml": "A100 and H100, 2021 to 2023",
    "studies/validation/modern.yaml": "H100 to GB300, 2024 to 2026",
    "studies/validation/weight_streaming.yaml": "CS-2 (a model left out)",
}


SHARES = ("held_out_median", "held_out_p90", "asked_median", "baseline_median")


def check(part: str, expected: str) -> None:
    """What stands between the marks of a part, apart from empty lines at its ends."""
    start = f"<!-- {part}:start -->\n"
    before, _, after = README.read_text("utf-8").partition(start)
    shown, end, rest = after.partition(f"<!-- {part}:end -->")
    if os.environ.get("PERFSIM_README"):
        README.write_text(before + start + expected + end + rest, "utf-8")
    else:
        assert shown.strip() == expected.strip(), "run this test with PERFSIM_README=1"


def row(record: Mapping[str, Any]) -> str:
    shares = (record[f"{name}_ape"] for name in SHARES)
    name = GROUPS.get(record["family"], record["family"])
    return f"| {name} | {record['n']} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |"


def test_the_accuracy_in_the_readme_is_the_recorded_one() -> None:
    head = [
        "| published runs | scored | median error | nine in ten within | as asked | baseline |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    check("accuracy", "\n".join([*head, *map(row, recorded_errors())]) + "\n")


@pytest.mark.slow
def test_the_sample_in_the_readme_is_what_its_command_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perfsim", "study", "gpt3_20b", "--compare", "3d,weight-streaming"]
    # Without an environment of its own a child inherits the COLUMNS that the readline library sets.
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    check("sample", f"```\n{done.stdout.strip()}\n```\n")


@pytest.mark.slow
def test_recorded_errors_are_those_of_the_public_runs(
    results: list[dict[str, Any]], must_be_recorded: Callable[[list[dict[str, Any]]], None]
) -> None:
    """Stale after a change of the model: run the command of the page."""
    entries = record_of(results)
    must_be_recorded(entries)
    assert [entry["family"] for entry in entries] == [entry["family"] for entry in recorded_errors()]


@pytest.mark.slow
def test_recorded_bands_are_of_runs_left_out(results: list[dict[str, Any]], page: list[StepAccuracy]) -> None:
    leaving = {step.result["file"]: step.leaving[-1] for step in page if step.result["file"] in KINDS}
    for entry, known in zip(record_of(results, leaving), recorded_errors(), strict=True):
        assert _flat(entry["band"]) == pytest.approx(_flat(known["band"]), rel=0.01), f"run {COMMAND}"
        for row, kept in zip(entry["left_out"], known["left_out"], strict=True):
            assert row["constants"] == pytest.approx(kept["constants"], rel=0.01), f"run {COMMAND}"
            assert _flat(row["band"]) == pytest.approx(_flat(kept["band"]), rel=0.02), f"run {COMMAND}"


def _flat(band: Mapping[str, Any]) -> dict[str, float]:
    return {**band, **band["classes"], "classes": 0.0}


@pytest.mark.slow
def test_about_90_percent_of_runs_of_every_class_lie_in_their_bands(results: list[dict[str, Any]]) -> None:
    by_file = {result["file"]: result for result in results}
    for file in ("gpu.yaml", "modern.yaml"):
        assert 0.88 <= by_file[file]["summary"]["band_coverage"] <= 0.94, file
        assert 0.88 <= by_file[file]["summary_asked"]["band_coverage"] <= 0.94, file
        assert by_file[file]["summary"]["interval_score"] < 0.36, "0.37 with one width for all classes"
        classes = by_file[file]["classes"]
        assert all(
            0.87 <= classes[name]["band_coverage"] <= 0.96 for name in {"dense", "experts"} & {*classes}
        )
        assert all(row["band_coverage"] >= 0.75 for row in classes.values() if row["n"] > 10)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, 5, 10])
def test_own_steps_have_the_next_in_the_band_nine_in_ten(results: list[dict[str, Any]], steps: int) -> None:
    """Each published family in turn is the user's own cluster: `Accuracy.among`."""
    families: dict[str, list[tuple[float, float]]] = {}
    rows = [row for result in results if result["kind"] == "step_time" for row in result["cases"]]
    for case in (row for row in rows if row["evidence"] != "C" and row["band_s"]):
        low_s, high_s = case["band_s"]
        late = math.log(case["measured_s"] / math.sqrt(low_s * high_s))
        families.setdefault(case["family"], []).append((late, math.sqrt(high_s / low_s) - 1))
    rng = np.random.default_rng(0)
    held = []
    for runs in (runs for runs in families.values() if len(runs) > steps):
        for *own, (late, error) in (rng.permutation(runs)[: steps + 1] for _ in range(100)):
            middle = sum(known for known, _ in own) / steps
            published = Accuracy("3d", "own", steps, *[0.1] * 4, step_time_error=error)
            among = published.among([math.expm1(known - middle) for known, _ in own])
            held.append(abs(late - middle) <= math.log1p(among.step_time_error))
    assert 0.87 <= sum(held) / len(held) <= 0.95


@pytest.mark.slow
def test_the_accuracy_page_is_what_its_command_writes(
    page: list[StepAccuracy], results: list[dict[str, Any]], repository: Path, tmp_path: Path
) -> None:
    convergence = [result for result in results if result["kind"] == "convergence"]
    _, written = write_validation(page, convergence, tmp_path)
    kept = (repository / "reports" / "validation.md").read_text(encoding="utf-8")
    assert written.read_text(encoding="utf-8") == kept, f"run {COMMAND}"
    families = {row["family"]: row for entry in recorded_errors() for row in entry["families"]}
    for row in (row for step in page for row in step.left_out if row.family in families):
        noted = families[row.family]["held_out_p90_ape"]
        assert noted == pytest.approx(row.outside["p90_ape"], abs=1e-4), f"run {COMMAND}"


def test_recorded_production_ratios_are_those_of_the_published_runs() -> None:
    kept = json.loads(files("perfsim.studies").joinpath(RECORD).read_text(encoding="utf-8"))
    rows = production_record(Catalog([data_root()]))
    assert [row["name"] for row in rows] == [row["name"] for row in kept]
    for row, old in zip(rows, kept, strict=True):
        assert row["ratio"] == pytest.approx(old["ratio"], rel=1e-3), "run perfsim validate --record"
        assert row["published_tokens_per_s_per_device"] == old["published_tokens_per_s_per_device"]
