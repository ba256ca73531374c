"""Writes all records of `perfsim validate --record` into the package; for a checkout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsim.validation.held_out import held_out
from perfsim.validation.leave_out import LeftOut
from perfsim.validation.record_accuracy import write_record
from perfsim.validation.record_production import write_production
from perfsim.validation.record_reached import write_reached


def write_records(
    paths: Sequence[Path],
    results: Sequence[Mapping[str, Any]],
    left_out: Mapping[str, Sequence[LeftOut]],
) -> None:
    """Record the errors of `results`, with and without held-out families, and the utilisation reached.

    `left_out` has, by file, the rows of `leave_out` that are known already.
    """
    scores = {
        path.name: held_out(path, left_out.get(path.name, ()))
        for path, result in zip(paths, results, strict=True)
        if result["kind"] == "step_time"
    }
    write_record(results, scores)
    write_reached()
    write_production()
