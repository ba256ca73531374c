from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import perfsim as ps


def test_a_sweep_has_a_row_a_point_and_computes_none_twice(
    write_sweep: Callable[[str], Path], tmp_path: Path
) -> None:
    path = write_sweep("  batch_sizes: [[8], [16]]")
    told: list[str] = []
    first = ps.sweep(path, folder=tmp_path / "kept", progress=told.append)
    frame = first.to_pandas()
    assert list(frame["global_batch_size"]) == [8, 16]
    assert list(frame["time_to_accuracy_s"]) == [point.target_time.time_s for point in first.points]
    again = ps.sweep(path, folder=tmp_path / "kept", progress=told.append)
    assert again.to_pandas().equals(frame)
    assert told[:1] == ["2 points, 0 of them stored"]
    assert not any("2 of them stored" in line for line in told)
    assert again.verdict in again._repr_html_()


def test_a_sweep_without_a_folder_keeps_nothing(
    write_sweep: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sweep("  batch_sizes: [[8]]")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    answer = ps.sweep(path)
    assert len(answer.feasible) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_validation_gives_summary_and_cases() -> None:
    (file,) = (path for path in ps.published_cases() if path.name == "weight_streaming.yaml")
    validation = ps.validate(file)
    assert validation.summary["n"] == 5
    assert validation.summary["median_ape"] < validation.baseline["median_ape"]
    frame = validation.to_pandas()
    scored = frame[frame["error"].notna()]
    assert ((scored["predicted_s"] / scored["measured_s"] - 1) - scored["error"]).abs().max() < 1e-9


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ps.PerfsimError, match="there is no such file"):
        ps.validate("absent.yaml")
