"""Logs of MLPerf Training: samples to the target by batch, over all runs that reached it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfsim.base.errors import InputError
from perfsim.catalog import parse_file
from perfsim.evidence.cases import ConvergenceFile
from perfsim.interop.formats import Imported, import_file
from perfsim.interop.tool import Step


def event(key: str, value: Any, time_ms: int = 0, **metadata: Any) -> str:
    fields = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return (
        ":::MLLOG " + json.dumps({**fields, "metadata": {"file": "run.py", "lineno": 1, **metadata}}) + "\n"
    )


def run(batch: int, samples: int, seconds: int, status: str = "success") -> str:
    return (
        "NCCL INFO ready\n"
        + event("submission_benchmark", "bert")
        + event("global_batch_size", batch)
        + event("run_start", None, 1000)
        + event("eval_accuracy", 0.72, 2000, epoch_num=samples)
        + event("run_stop", None, 1000 + 1000 * seconds, status=status, samples_count=samples)
    )


def test_runs_are_points_with_mean_spread_and_number(tmp_path: Path) -> None:
    paths = []
    for number, (samples, status) in enumerate([(4480, "success"), (5376, "success"), (9999, "aborted")]):
        paths.append(tmp_path / f"result_{number}.txt")
        paths[-1].write_text(run(448, samples, samples // 448, status), encoding="utf-8")
    result = import_file(paths[0], more=paths[1:])
    assert (result.format, result.kind, result.parameters) == ("mllog", "convergence", None)
    (case,) = result.document["cases"]
    assert case["points"] == [[448.0, 4928.0, pytest.approx(633.57, rel=1e-4), 2.0]]
    assert result.steps == (Step(448, pytest.approx(1.0), 22),)
    path = tmp_path / "convergence.yaml"
    path.write_text(result.text(), encoding="utf-8")
    assert parse_file(path, ConvergenceFile).cases[0].points[0][:2] == (448.0, 4928.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (run(448, 1, 1, "aborted"), "none of 1 runs reached its target"),
        (event("seed", 1), "no run: there is no line with run_start"),
        (run(448, 1, 1) + ":::MLLOG {broken\n", r"r.txt:7: malformed line of MLLOG"),
        (run(0, 1, 1), "a run without global_batch_size"),
        (run(448, 0, 1), "no run tells its samples"),
    ],
)
def test_logs_without_result_are_refused(imported: Callable[..., Imported], text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported(text, "r.txt")


def test_only_logs_of_mlperf_may_be_several(imported: Callable[..., Imported], tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"b.json: several files can only be logs"):
        imported(run(448, 1, 1), "a.txt", more=[tmp_path / "b.json"])
