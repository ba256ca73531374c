"""The error table of `perfsim validate`."""

from typing import Any

import pytest

from perfsim.report.text import NONE
from perfsim.report.validation import validation_lines

FIGURES = {"n": 3, "median_ape": 0.0432, "p90_ape": 0.25, "mape": 0.1, "bias": -0.0512}


def case(name: str, error: float | None, evidence: str = "A") -> dict[str, Any]:
    predicted = None if error is None else 2.0 * (1 + error)
    return {"id": name, "evidence": evidence, "measured_s": 2.0, "predicted_s": predicted, "error": error}


@pytest.fixture
def result() -> dict[str, Any]:
    return {
        "file": "gpu.yaml",
        "kind": "step_time",
        "count": 4,
        "failed": [
            {"id": "d", "error": "no such device\nhelp: see"},
            {"id": "e", "error": "no such device"},
            {"id": "f", "error": "no plan"},
        ],
        "summary": {**FIGURES, "n": 6},
        "summary_predicted": FIGURES,
        "summary_asked": {**FIGURES, "median_ape": 0.069},
        "baseline": {**FIGURES, "median_ape": 0.1526},
        "classes": {},
        "families_asked": {},
        "families_baseline": {},
        "families": {"ranked": FIGURES, "single": {**FIGURES, "n": 0, "median_ape": None}},
        "cases": [
            case("a", 0.01),
            case("b", -0.4),
            case("c", 0.2, "C"),
            case("d", None),
            {"id": "g", "error": 0.5},
        ],
    }


def row(lines: list[str], name: str) -> list[str]:
    (line,) = (line for line in lines if line.startswith(name))
    return line[len(name) :].replace(" %", "%").split()


def test_errors_ranks_failures_and_coverage_stand_next_to_the_baselines(result: dict[str, Any]) -> None:
    lines = validation_lines(result, 0)
    assert lines[0] == "gpu.yaml: 4 cases, 3 failed"
    errors = ["4.3%", "25.0%", "10.0%", "-5.1%"]
    assert row(lines, "all runs") == ["6", *errors, NONE, "6.9%", "15.3%"]
    assert row(lines, "all that were predicted") == ["3", *errors, *[NONE] * 3]
    assert row(lines, "ranked") == ["3", *errors, *[NONE] * 3]
    assert not any(line.startswith("single") for line in lines), "none of its runs is scored"
    failed = [line for line in lines if line.startswith("failed")]
    assert failed == ["failed: 2 cases (first d): no such device", "failed: 1 case (first f): no plan"]
    result["summary"]["band_coverage"] = 0.9174
    result["families"]["ranked"] = FIGURES | {"band_coverage": 0.875}
    lines = validation_lines(result | {"failed": []}, 0)
    assert not any(line.startswith(("all that", "failed")) for line in lines), "one summary is enough"
    assert row(lines, "all runs")[-3] == "91.7%"
    assert row(lines, "ranked")[-3] == "87.5%"


@pytest.mark.parametrize(("worst", "shown"), [(0, []), (1, ["b"]), (99, ["b", "a"])])
def test_the_worst_cases_of_any_sign_are_listed(result: dict[str, Any], worst: int, shown: list[str]) -> None:
    lines = validation_lines(result, worst)
    listed = [line.split()[0] for line in lines if line[:2] in ("a ", "b ", "c ", "d ")]
    assert listed == shown
    assert ("1 run with evidence C: not scored, not listed." in lines) == bool(shown)
    assert any(line.startswith(f"worst {len(shown)} ") for line in lines) == bool(shown)


def test_a_file_without_cases_is_a_table_too(result: dict[str, Any]) -> None:
    nothing = result | {"count": 0, "failed": [], "families": {}, "cases": []}
    nothing |= dict.fromkeys(("summary", "summary_asked", "baseline"), dict.fromkeys(FIGURES) | {"n": 0})
    assert row(validation_lines(nothing, 5), "all runs") == ["0", *[NONE] * 7]
