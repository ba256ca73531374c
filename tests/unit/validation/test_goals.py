"""Goals of the step-time model, and the misses that a page lists."""

from __future__ import annotations

from typing import Any

from perfsim.validation.goals import goals_of, known_misses


def result(**changes: Any) -> dict[str, Any]:
    figures = {"n": 10, "median_ape": 0.04, "p90_ape": 0.2, "mape": 0.06, "bias": -0.09}
    sweep = {"family": "f", "sweep": "s", "layouts": 4, "kendall_tau": 0.5, "regret": 0.1}
    return {
        "summary": figures,
        "families": {"f": figures, "small": {**figures, "n": 7}},
        "sweeps": [{**sweep, "chosen": "a", "best": "b"}],
        "cases": [case("a", -0.2), case("b", 0.1), case("weak", 0.9, "C"), case("none", None)],
        "failed": [{"id": "none", "error": "no plan fits"}],
    } | changes


def case(name: str, error: float | None, evidence: str = "A") -> dict[str, Any]:
    return {"id": name, "family": "f", "evidence": evidence, "error": error}


def test_goals_are_met_or_missed_by_the_size_of_a_figure() -> None:
    met = {goal.what: goal.met for goal in goals_of(result())}
    assert met["median error"]
    assert not met["90th percentile"]
    assert not met["bias of f"], "a bias counts whatever its sign"
    assert not met["regret in s"]
    assert "bias of small" not in met, "too few runs"
    assert "mean error of vtrain_multi" not in met, "not in this file"


def test_known_misses_are_failures_wrong_choices_biased_families_and_far_runs() -> None:
    misses = known_misses(result(), {"a": "shared by its family (x); attention", "b": "other"})
    assert [miss.what for miss in misses] == ["none", "a chosen in s", "all of f", "a"]
    assert misses[0].cause == "no plan fits"
    assert misses[1].figure == "10.0 % slower than b"
    assert misses[2].cause == "attention", "that the family shares it explains nothing of the family"


def test_nothing_is_missed_where_all_goals_are_met() -> None:
    figures = {"n": 10, "median_ape": 0.01, "p90_ape": 0.01, "mape": 0.01, "bias": 0.01}
    good = result(summary=figures, families={"f": figures}, sweeps=[], cases=[case("a", 0.01)], failed=[])
    assert known_misses(good, {}) == []
    assert all(goal.met for goal in goals_of(good))
