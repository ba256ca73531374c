"""How predictions are scored: the definitions in the README of the cases, on numbers to check by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.base.errors import LimitError, PerfsimError, PlanError
from perfsim.base.limits import Limits, limited
from perfsim.catalog import Catalog
from perfsim.evidence import cases, score
from perfsim.evidence.cases import CaseRows, StepCase
from perfsim.evidence.score import Scored, validate_cases
from perfsim.strategies import Plan
from perfsim.testing.toys import published_run


def scored(predicted_s: float | None, measured_s: float = 1.0, *, evidence: str = "A") -> Scored:
    return Scored("id", "f", evidence, None, "", measured_s, predicted_s)


@pytest.mark.parametrize(
    ("runs", "measures"),
    [
        ([scored(1 + error) for error in (-0.1, 0.2, 0.3, -0.4, 0.5)], (5, 0.3, 0.46, 0.3, 0.1)),
        ([scored(1.5, 2.0)], (1, 0.25, 0.25, 0.25, -0.25)),
        # A failed case counts as 1 and has no part in the bias; evidence C does not count.
        ([scored(1.1), scored(None)], (2, 0.55, 0.91, 0.55, 0.1)),
        ([scored(1.1), scored(9.0, evidence="C")], (1, 0.1, 0.1, 0.1, 0.1)),
        ([scored(9.0, evidence="C")], (0, None, None, None, None)),
    ],
)
def test_a_summary_has_figures_of_each_family(runs: list[Scored], measures: tuple[float | None, ...]) -> None:
    assert list(Scored.scores(runs).values()) == pytest.approx(list(measures))
    other = [replace(run, family="other", predicted_s=7.0) for run in runs]
    assert Scored.of_families([*runs, *other])["f"].items() >= Scored.scores(runs).items()


positive = st.floats(0.1, 10.0)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=12))
def test_the_one_constant_is_the_best_there_is(pairs: list[tuple[float, float]]) -> None:
    ideal, measured = (np.array(column) for column in zip(*pairs, strict=True))

    def mape(efficiency: float) -> float:
        return float(np.abs(ideal / efficiency / measured - 1).mean())

    runs = [replace(scored(None, real), ideal_s=best) for best, real in pairs]
    least = min(mape(float(efficiency)) for efficiency in np.geomspace(0.005, 200, 400))
    assert mape(Scored.one_constant(runs)) <= least + 1e-9


def case(name: str = "a", **changes: Any) -> StepCase:
    """A run of a small model on two wafers."""
    system = {"device": "cs-2", "num_devices": 2, "software_release": "r1.7"}
    row = published_run(id=name, system=system, strategy="weight-streaming", parallel={"data": 2}, **changes)
    return StepCase.model_validate(row)


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds by case id; a case that is not in it has no plan."""
    known: dict[str, float] = {}

    def run(plan: Plan, *_: object, **__: object) -> SimpleNamespace:
        name = plan.job.model.name
        if name not in known:
            raise PlanError("no plan fits")
        return SimpleNamespace(step_time_s=known[name], trace=SimpleNamespace(hidden_share=0.25))

    monkeypatch.setattr(cases, "evaluate", run)
    monkeypatch.setattr(score.CaseBand, "of", lambda *_: None)
    return known


def test_predictions_are_scored_next_to_the_baseline_or_1_without_one(predictions: dict[str, float]) -> None:
    """Evidence C is shown and not scored."""
    predictions |= {"a": 1.1, "b": 0.7, "c": 9.0}
    runs = [case("a"), case("b"), case("c", evidence="C"), case("d")]
    table = validate_cases(CaseRows(runs), Catalog())
    assert (table["count"], table["failed"]) == (4, [{"id": "d", "error": "no plan fits"}])
    assert table["summary"]["mape"] == pytest.approx(1.4 / 3)
    assert table["summary_predicted"]["mape"] == pytest.approx(0.2)
    assert table["summary"]["bias"] == pytest.approx(-0.1)
    assert table["summary_asked"] == {name: table["summary"][name] for name in table["summary_asked"]}
    assert table["families_asked"]["toys"] == table["summary_asked"]
    assert table["baseline"]["mape"] == pytest.approx(0.0), "three equal cases, one constant"
    assert [row["error"] for row in table["cases"]] == [*map(pytest.approx, (0.1, -0.3, 8.0)), None]
    assert [row["hidden_communication"] for row in table["cases"]] == [0.25, 0.25, 0.25, None]
    family = table["families"]["toys"]
    assert (family["n"], family["hidden_communication"]) == (3, 0.25)


Points = list[tuple[float, float | None, int]]
"""Measured and predicted seconds, and the micro-batch that is the layout."""
RIGHT: Points = [(1, 10, 1), (2, 20, 2), (3, 30, 3), (4, 40, 4)]


@pytest.mark.parametrize(
    ("points", "tau", "regret", "chosen", "best"),
    [
        (RIGHT, 1.0, 0.0, "0", "0"),
        ([(1.0, 1.4, 1), (1.2, 1.0, 2), (2, 2, 3), (3, 3, 4)], 4 / 6, 0.2, "1", "0"),
        # A tie counts neither way.
        ([(1, 10, 1), (2, 10, 2), *RIGHT[2:]], 5 / 6, 0.0, "0", "0"),
        # Repeats of a layout are averaged: the first is measured 5 and predicted fastest.
        ([(1, 10, 1), (9, 10, 1), *RIGHT[1:]], 0.0, 5 / 2 - 1, "0", "2"),
        # Three layouts are too few.
        ([*RIGHT[:3], (4, None, 4)], None, None, "", ""),
    ],
)
def test_a_sweep_has_the_right_pairs_of_layouts_the_time_lost_the_layout_chosen_and_the_best(
    predictions: dict[str, float],
    points: Points,
    tau: float | None,
    regret: float | None,
    chosen: str,
    best: str,
) -> None:
    predictions |= {str(name): predicted for name, (_, predicted, _) in enumerate(points) if predicted}
    cases = [
        case(str(name), sweep="s", measured={"step_time_s": real}, training={"micro_batch_size": micro})
        for name, (real, _, micro) in enumerate(points)
    ]
    sweeps = validate_cases(CaseRows(cases), Catalog())["sweeps"]
    expected = {"kendall_tau": pytest.approx(tau), "regret": pytest.approx(regret), "layouts": 4}
    assert [row | expected | {"chosen": chosen, "best": best} for row in sweeps] == sweeps
    assert len(sweeps) == (tau is not None)


def test_runs_on_all_cores_share_one_limit_and_a_killed_process_is_an_error_in_words() -> None:
    ten_events = "__import__('perfsim.base.limits').base.limits.present_limits().add(10)"
    with limited(Limits(max_events=390)), pytest.raises(LimitError, match="stopped after 390 events"):
        cases.mapped(eval, [ten_events] * 40)
    with pytest.raises(PerfsimError, match="its process died each time"):
        cases.mapped(eval, ["__import__('os')._exit(9)"] * 40)
