"""Published runs as questions, and the table that is made of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfsim.base.errors import PlanError
from perfsim.catalog import Catalog
from perfsim.evidence import score as validation
from perfsim.evidence.cases import StepCase
from perfsim.evidence.score import validate_cases
from perfsim.strategies import Plan
from perfsim.testing.toys import published_run


def case(name: str = "a", **changes: Any) -> StepCase:
    """A run of a small model on two wafers."""
    system = {"device": "cs-2", "num_devices": 2, "software_release": "r1.7"}
    row = published_run(id=name, system=system, strategy="weight-streaming", parallel={"data": 2}, **changes)
    return StepCase.model_validate(row)


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds by case id; a case that is not in it has no plan."""
    known: dict[str, float] = {}

    def run(plan: Plan, _costs: object) -> SimpleNamespace:
        name = plan.job.model.name
        if name not in known:
            raise PlanError("no plan fits")
        return SimpleNamespace(step_time_s=known[name], hidden_communication_fraction=0.25)

    monkeypatch.setattr(validation, "evaluate", run)
    monkeypatch.setattr(validation, "case_band", lambda *_: None)
    return known


def test_predictions_are_scored_beside_the_baseline(predictions: dict[str, float]) -> None:
    predictions |= {"a": 1.1, "b": 0.7}
    table = validate_cases([case("a"), case("b")], Catalog())
    assert (table["count"], table["failed"]) == (2, [])
    assert table["summary"]["mape"] == pytest.approx(0.2)
    assert table["summary"]["bias"] == pytest.approx(-0.1)
    assert table["baseline"]["mape"] == pytest.approx(0.0), "two equal cases, one constant"
    assert [row["error"] for row in table["cases"]] == pytest.approx([0.1, -0.3])
    assert table["families"]["toys"]["n"] == 2


def test_a_case_without_prediction_stands_under_failed_and_counts_as_1(
    predictions: dict[str, float],
) -> None:
    predictions["a"] = 1.1
    table = validate_cases([case("a"), case("b")], Catalog())
    assert table["failed"] == [{"id": "b", "error": "no plan fits"}]
    assert table["summary"]["mape"] == pytest.approx(0.55)
    assert table["summary_predicted"]["mape"] == pytest.approx(0.1)
    assert table["cases"][1]["predicted_s"] is None
    assert [row["hidden_communication"] for row in table["cases"]] == [0.25, None]
    assert table["families"]["toys"]["hidden_communication"] == 0.25


def test_evidence_c_is_predicted_and_shown_but_not_scored(predictions: dict[str, float]) -> None:
    predictions |= {"a": 1.1, "c": 9.0}
    table = validate_cases([case("a"), case("c", evidence="C")], Catalog())
    assert table["summary"]["mape"] == pytest.approx(0.1)
    assert table["cases"][1]["error"] == pytest.approx(8.0)
