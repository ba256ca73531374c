"""The scoring of convergence cases, on small made-up benchmarks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from perfsim.evidence.cases import CaseRows, ConvergenceCase
from perfsim.evidence.score import validate_convergence


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
