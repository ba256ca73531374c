"""The decision on the page, on the terminal and in JSON."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from perfsim.report.study import study_document, study_lines, study_page
from perfsim.studies.answers import BreakEven, Decision, Lever, Outcome, Spread, StudyResult

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
        )
        for number, candidate in enumerate(result.candidates)
    )
    levers = (
        Lever("critical batch", 1e7, 2.4e7, 6e7, "tokens", 1.4, 0.9, 4.8e7),
        Lever("restart of gpu-cluster", 300.0, 600.0, 1200.0, "s", 1.19, 1.21, None),
    )
    first, *_, rival = (candidate.label for candidate in result.candidates)
    even = (BreakEven(rival, first, Spread(9.6, 7.3, 13.6), None),)
    ratio = Spread(1.2, 0.9, 1.5)
    said = "It is 32 days."
    decision = Decision(7, 20_000, "EUR", said, outcomes, first, rival, ratio, 0.9, levers, even)
    return replace(result, decision=decision)


def test_every_quantity_has_a_row_and_what_is_missing_says_so(
    result: StudyResult, decided: StudyResult, factory: ModuleType
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
    assert not {"decision", "tornado", "break-even"} & factory.sections(result).keys()


def test_levers_have_their_range_in_their_unit_and_the_value_that_flips_the_order(
    decided: StudyResult, factory: ModuleType
) -> None:
    section = factory.sections(decided)["tornado"]
    first, second = section.table.shown()
    assert first[1:] == ["24 million tokens (10 million to 60 million)", "1.40", "0.900", "48 million tokens"]
    assert second[-1] == "never"
    assert "critical batch: ratio at low 1.40, ratio at high 0.900" in section.alt
    bars = section.figure.data
    assert [bar.base for bar in bars] == [(1.2, 1.2), (1.2, 1.2)]
    assert list(bars[0].x) == pytest.approx([1.4 - 1.2, 1.19 - 1.2])
    notes = {note.text: note.x for note in section.figure.layout.annotations}
    assert notes == {"1.20": 1.2, "order flips": 1.0}


def test_days_on_the_wall_stand_next_to_days_of_steps_everywhere(decided: StudyResult) -> None:
    wall = f"{1.25 * decided.candidates[0].time_to_accuracy_s / 86_400:.1f}"
    lines = study_lines(decided)
    assert next(line for line in lines if line.startswith("*128 A100")).endswith(wall)
    assert "It is 32 days." in lines
    head = study_page(decided)
    assert head.verdict.endswith("It is 32 days.")
    assert head.scale.rows[0][1].note.startswith(f"{wall} days on the wall")
    decision = study_document(decided)["decision"]
    assert decision["outcomes"][0]["wall_s"]["typical"] > 0
    assert decision["levers"][1]["flips_at"] is None


def test_with_prices_a_second_tornado_is_about_money(decided: StudyResult, factory: ModuleType) -> None:
    assert "tornado-money" not in factory.sections(decided)
    priced = replace(decided, decision=replace(decided.decision, **PRICED))
    section = factory.sections(priced)["tornado-money"]
    assert [row[0] for row in section.table.shown()] == ["price of a device-hour of cs-2"]
    assert section.table.caption.startswith("Ratio: money of")
    assert section.figure.layout.xaxis.title.text == "ratio"
    assert "Money over that of the first" in str(section.figure.layout.title.text)
