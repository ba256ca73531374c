"""The decision on the page, on the terminal and in JSON."""

from __future__ import annotations

from dataclasses import asdict, astuple, replace
from math import isnan
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfsim.api.answers import StudyAnswer
from perfsim.base.text import number
from perfsim.report.study import study_document, study_lines, study_page
from perfsim.studies.answers import BreakEven, Decision, Lever, Outcome, Spread, StudyResult, values_of
from perfsim.studies.decision import chance, time_unit

MONEY_LEVERS = (Lever("price of a device-hour of cs-2", 30.0, 40.0, 50.0, "", 0.9, 1.5, 33.0),)
PRICED = {"money_levers": MONEY_LEVERS, "money_ratio": Spread(1.2, 1.0, 1.4)}


@pytest.fixture(scope="module")
def decided(result: StudyResult) -> StudyResult:
    """The result with a decision about its candidates."""
    outcomes = tuple(
        Outcome(
            label=candidate.label,
            steps_s=Spread(*(candidate.time_to_accuracy_s * end for end in (1.0, 0.9, 1.1))),
            wall_s=Spread(*(candidate.time_to_accuracy_s * end for end in (1.25, 1.1, 1.4))),
            basis="steps at the rate of production",
            device_hours=Spread(1e5, 9e4, 1.1e5),
            energy_kwh=Spread(7e4, 6e4, 8e4),
            carbon_kg=None,
            money=Spread(5e5, 4e5, 6e5) if number else None,
            first=0.25,
            cheapest=None,
            not_given=("carbon intensity",),
            ratio=Spread(1.0, 1.0, 1.0),
            turns=0.0,
        )
        for number, candidate in enumerate(result.candidates)
    )
    levers = (
        Lever("critical batch", 1e7, 2.4e7, 6e7, "tokens", 1.4, 0.9, 4.8e7, 1.2),
        Lever("restart of gpu-cluster", 300.0, 600.0, 1200.0, "s", 1.19, 1.21, None),
    )
    first, *_, rival = (candidate.label for candidate in result.candidates)
    even = (BreakEven(rival, first, Spread(9.6, 7.3, 13.6), None),)
    ratio = Spread(1.2, 0.9, 1.5)
    decision = Decision(7, 20_000, "EUR", outcomes, first, rival, ratio, 0.9, 0.0, levers, even)
    return replace(result, decision=decision)


def test_every_quantity_has_a_row_and_what_is_missing_says_so(
    decided: StudyResult, factory: ModuleType
) -> None:
    sections = factory.sections(decided)
    rows = {row[0]: row[1:] for row in sections["decision"].table.shown()}
    assert rows["energy"][0] == "70.0 MWh (60.0 to 80.0)"
    assert rows["carbon"] == ["not given"] * 4
    assert rows["money"][:2] == ["not given", "500,000 EUR (400,000 to 600,000)"]
    assert rows["first with a probability of"][0] == "25 %"
    # Four columns do not fit a phone.
    ((_, ratio, price),) = sections["break-even"].table.shown()
    assert ratio.startswith("9.60 (7.30 to 13.6) of ")
    assert price == "not given"


def test_like_with_like_is_time_at_equal_power_and_price_and_devices_at_equal_time(
    decided: StudyResult, factory: ModuleType
) -> None:
    rows = {row[0].value: row[1:] for row in factory.sections(decided)["like-with-like"].table.rows}
    first, *_, last = decided.candidates
    own, *_, other = decided.decision.outcomes
    slower = other.wall_s.typical / own.wall_s.typical
    assert rows["devices for equal time"][-1].number == pytest.approx(last.num_devices * slower)
    # Both take the same energy, so with as much power both are at the target at one time.
    assert rows["time at equal power"][-1].number == pytest.approx(own.wall_s.typical)
    billions = last.time.examples_tokens / 1e9
    assert rows["kWh per billion tokens"][-1].number == pytest.approx(7e4 / billions)
    assert rows["EUR per billion tokens"][-1].number == pytest.approx(5e5 / billions)
    assert isnan(rows["time at equal price"][-1].number), "the first has no price"
    assert rows["tokens/s per device"][0].number == first.tokens_per_s / 128


def test_levers_have_their_range_in_their_unit_and_the_value_that_flips_the_order(
    decided: StudyResult, factory: ModuleType
) -> None:
    section = factory.sections(decided)["tornado"]
    first, second = section.table.shown()
    typical = "24 million tokens (10 million to 60 million)"
    assert first[1:] == [typical, "1.40", "0.900", "48 million tokens", "1.2"]
    assert second[-2] == "never"
    assert "critical batch: ratio at low 1.40, ratio at high 0.900" in section.alt
    bars = section.figure.data
    assert [bar.base for bar in bars] == [(1.2, 1.2), (1.2, 1.2)]
    assert list(bars[0].x) == pytest.approx([1.4 - 1.2, 1.19 - 1.2])
    notes = {note.text: note.x for note in section.figure.layout.annotations}
    assert notes == {"1.20": 1.2, "order flips": 1.0}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(slower=st.lists(st.floats(0.2, 5.0), min_size=3, max_size=3))
def test_head_table_page_json_and_repr_have_the_same_probability_days_and_ratio(
    result: StudyResult, factory: ModuleType, slower: list[float]
) -> None:
    """Whatever the speed of each machine, and thus whoever is first."""
    rows = [
        replace(own, time=replace(own.time, step_time_s=own.step_time_s * times, step_time_error=0.2))
        for own, times in zip(result.candidates[1:], slower, strict=True)
    ]
    known = factory.of_candidates(result, result.candidates[0], *rows)
    decision = known.decision
    first = next(own for own in decision.outcomes if own.label == decision.first)
    rival = next(own for own in decision.outcomes if own.label == decision.rival)
    unit, scale = time_unit(first.wall_s.typical)
    middle, low, high = (number(end / scale) for end in astuple(first.wall_s))
    said = known.verdict
    assert len(said.split()) <= 35
    assert f"probability of {chance(first.first)}: {middle} {unit} on the wall ({low} to {high})" in said
    assert f"{rival.ratio.typical:.2f} times ({rival.ratio.low:.2f} to {rival.ratio.high:.2f}) as" in said
    lines = study_lines(known)
    assert said in " ".join(lines)
    assert next(line for line in lines if line.startswith("*")).endswith(f" {middle} ({low}-{high})")
    page = study_page(known)
    assert page.headline == said
    assert page.scale is not None
    assert page.scale.texts("Time on the wall to the target")[0] == f"{middle} {unit} ({low} to {high})"
    table = factory.sections(known)["decision"].table.shown()
    (likely,) = [row[1:] for row in table if row[0] == "first with a probability of"]
    assert likely == [chance(own.first) for own in decision.outcomes]
    (wall,) = [row[1:] for row in factory.sections(known)["verdict"].table.shown() if row[0] == "on the wall"]
    assert f"{middle} {unit} ({low} to {high})" in wall
    document = study_document(known)
    assert (document["verdict"], document["decision"]["first"]) == (said, decision.first)
    assert document["decision"]["ratio"] == asdict(rival.ratio)
    answer = StudyAnswer(**values_of(known))
    assert repr(answer) == f"<study gpt3_20b: {said}>"
    assert answer.best.label == decision.first
    assert answer.ratio(rival.label).ratio == rival.ratio.typical


def test_with_prices_a_second_tornado_is_about_money(decided: StudyResult, factory: ModuleType) -> None:
    assert "tornado-money" not in factory.sections(decided)
    priced = replace(decided, decision=replace(decided.decision, **PRICED))
    section = factory.sections(priced)["tornado-money"]
    assert [row[0] for row in section.table.shown()] == ["price of a device-hour of cs-2"]
    assert section.table.caption.startswith("Ratio: money of")
    assert section.figure.layout.xaxis.title.text == "ratio"
    assert "Money over that of the first" in str(section.figure.layout.title.text)
