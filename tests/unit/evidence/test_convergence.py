"""The critical batch of one's own runs, and the scoring of benchmarks at several batch sizes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfsim.catalog import default_catalog
from perfsim.cli import main
from perfsim.convergence.critical_batch import NotIdentifiableError
from perfsim.evidence.cases import CaseRows, ConvergenceCase
from perfsim.evidence.own_runs import fit_convergence
from perfsim.evidence.score import validate_convergence

BATCHES = [32 * 2**number for number in range(8)]
EXAMPLES = [(batch, 1e6 * (1 + batch / 1000)) for batch in BATCHES]


def written(folder: Path, name: str, header: str, rows: list[tuple[float, ...]]) -> Path:
    path = folder / name
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_mlperf_reference_points_give_the_samples_of_the_four_runs_of_the_blog(tmp_path: Path) -> None:
    """Table 1 of the blog of 2022-06-22: 2.5, 3.1, 2.8 and 4.7 million samples, within 7 %."""
    points = [
        (256, 2552700), (448, 2625460), (1536, 2777590), (3072, 2768220), (4096, 2843440), (6144, 3321450),
        (6912, 3596120), (8192, 4191440), (8704, 4278140), (12288, 4470340), (13056, 4632580),
    ]  # fmt: skip
    fit = fit_convergence([written(tmp_path, "bert.csv", "batch,examples", points)], 1.0)
    for batch, samples in ((448, 2.5e6), (3072, 3.1e6), (3072, 2.8e6), (12960, 4.7e6)):
        assert fit.e_min_tokens * (1 + batch / fit.b_crit_tokens) == pytest.approx(samples, rel=0.07)


def test_what_is_identifiable_is_written_and_read_back_by_its_path(tmp_path: Path) -> None:
    flat = written(tmp_path, "flat.csv", "batch,steps", [(8, 100), (16, 50), (32, 25)])
    runs = written(tmp_path, "runs.csv", "batch,examples", EXAMPLES)
    out = tmp_path / "ours.yaml"
    for path, code, said in ((flat, 1, "not identifiable"), (runs, 0, "90 %; 8 batches")):
        result = CliRunner().invoke(main, ["calibrate", "convergence", str(path), "--out", str(out)])
        assert (result.exit_code, out.exists()) == (code, code == 0)
        assert said in " ".join(result.output.split())
    with pytest.raises(NotIdentifiableError, match="B_crit has no bound"):
        fit_convergence([flat], 1.0)
    assert default_catalog().load("calibration", str(out)).b_crit_tokens == pytest.approx(1000, rel=0.05)


MLLOG = """:::MLLOG {{"key": "global_batch_size", "value": {batch}}}
:::MLLOG {{"key": "run_start", "time_ms": 0}}
:::MLLOG {{"key": "run_stop", "time_ms": 1000, "metadata": {{"status": "success"}}}}
:::MLLOG {{"key": "trained_samples", "value": {samples}}}
"""


def test_logs_of_mlperf_are_runs_of_their_batches(tmp_path: Path) -> None:
    paths = [tmp_path / f"run{batch}.log" for batch in BATCHES]
    for path, (batch, samples) in zip(paths, EXAMPLES, strict=True):
        path.write_text(MLLOG.format(batch=batch, samples=samples))
    assert fit_convergence(paths, 1.0).b_crit_tokens == pytest.approx(1000, rel=0.05)


# The scoring of convergence cases, on small made-up benchmarks.


def case(id_: str, points: list[list[Any]], notes: str = "", family: str = "made_up") -> ConvergenceCase:
    fields = {"id": id_, "family": family, "unit": "samples", "points": points, "notes": notes}
    return ConvergenceCase.model_validate(fields)


def hyperbola(batches: Sequence[float], e_min: float = 1000.0, b_crit: float = 64.0) -> list[list[Any]]:
    return [[batch, e_min * (1 + batch / b_crit), None, 1] for batch in batches]


EXACT = case("exact", hyperbola([8, 16, 32, 64, 128]))
CLOSE = 0.02
"""What the expectation of the critical batch moves on exact points."""


def scored(*cases: ConvergenceCase) -> dict[str, Any]:
    result = validate_convergence(CaseRows(cases))
    assert json.dumps(result, allow_nan=False)
    return result


def test_an_exact_hyperbola_is_predicted_without_error_and_beats_the_baseline() -> None:
    result = scored(EXACT)
    assert result["summary"]["p90_ape"] == pytest.approx(0, abs=CLOSE)
    assert result["larger_batch"]["mape"] == pytest.approx(0, abs=CLOSE)
    assert result["baseline"]["median_ape"] > 0.2
    assert result["predictions"] == {"leave_one_out": 5, "larger_batch": 1}
    assert (result["kind"], result["count"], result["failed"], result["refused"]) == ("convergence", 1, [], 0)


def test_repeats_of_a_batch_are_one_point_and_fewer_than_four_sizes_are_not_scored() -> None:
    points = hyperbola([8, 16, 32, 64])
    split = [[8, points[0][1] * 0.5, None, 1], [8, points[0][1] * 1.5, None, 1], *points[1:]]
    result = scored(case("repeats", split), case("short", [*split[:2], *points[2:]]))
    assert [row["batch"] for row in result["cases"] if row["protocol"] == "leave_one_out"] == [8, 16, 32, 64]
    assert result["summary"]["p90_ape"] == pytest.approx(0, abs=CLOSE)
    assert result["not_scored"] == [{"id": "short", "reason": "fewer than four batch sizes"}]
    assert {row["id"] for row in result["cases"]} == {"repeats"}
    assert scored(case("alone", points[:3]))["summary"]["median_ape"] is None
