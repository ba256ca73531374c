"""The decision on the page, on the terminal and in JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfsim.report.page import Section
from perfsim.report.study import study_document, study_lines, study_page
from perfsim.studies.answers import BreakEven, Decision, Lever, Outcome, Spread, StudyResult

DAY_S = 86_400.0


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
    ratio = Spread(1.2, 0.9, 1.5)
    first = result.candidates[0].label
    rival = result.candidates[3].label
    break_even = (BreakEven(rival, first, Spread(9.6, 7.3, 13.6), None),)
    decision = Decision(
        7, 20_000, "EUR", "It is 32 days.", outcomes, first, rival, ratio, 0.9, levers, break_even
    )
    return replace(result, decision=decision)


def sections_of(result: StudyResult) -> dict[str, Section]:
    return {section.anchor: section for section in study_page(result).sections}


def test_every_quantity_has_a_row_and_what_is_missing_says_so(result: StudyResult) -> None:
    sections = sections_of(decided(result))
    table = sections["decision"].table
    rows = {row[0]: row[1:] for row in table.shown()}
    assert rows["energy"][0] == "70.0 MWh (60.0 to 80.0)"
    assert rows["carbon"] == ["not given"] * 4
    assert rows["money"][:2] == ["not given", "500,000 EUR (400,000 to 600,000)"]
    assert rows["first with a probability of"][0] == "25 %"
    break_even = sections["break-even"].table
    assert len(break_even.columns) == 3  # four do not fit a phone
    ((_, ratio, price),) = break_even.shown()
    assert ratio.startswith("9.60 (7.30 to 13.6) of ")
    assert price == "not given"
    assert not {"decision", "tornado", "break-even"} & sections_of(result).keys()


def test_levers_have_their_range_in_their_unit_and_the_value_that_flips_the_order(
    result: StudyResult,
) -> None:
    section = sections_of(decided(result))["tornado"]
    first, second = section.table.shown()
    assert first[1:] == ["24 million tokens (10 million to 60 million)", "1.40", "0.900", "48 million tokens"]
    assert second[5 - 1] == "never"
    assert "critical batch: ratio at low 1.40, ratio at high 0.900" in section.alt
    bars = section.figure.data
    assert [bar.base for bar in bars] == [(1.2, 1.2), (1.2, 1.2)]
    assert list(bars[0].x) == pytest.approx([1.4 - 1.2, 1.19 - 1.2])
    notes = {note.text: note.x for note in section.figure.layout.annotations}
    assert notes == {"1.20": 1.2, "order flips": 1.0}


def test_days_on_the_wall_stand_beside_days_of_steps_everywhere(result: StudyResult) -> None:
    shown = decided(result)
    wall = f"{1.25 * result.candidates[0].time_to_accuracy_s / DAY_S:.1f}"
    lines = study_lines(shown)
    assert next(line for line in lines if line.startswith("*128 A100")).endswith(wall)
    assert "It is 32 days." in lines
    head = study_page(shown)
    assert head.verdict.endswith("It is 32 days.")
    assert head.scale.rows[0][1].note.startswith(f"{wall} days on the wall")
    document = study_document(shown)
    assert document["decision"]["outcomes"][0]["wall_s"]["typical"] > 0
    assert document["decision"]["levers"][1]["flips_at"] is None


def test_with_prices_a_second_tornado_is_about_money(result: StudyResult) -> None:
    plain = decided(result)
    levers = (Lever("price of a device-hour of cs-2", 30.0, 40.0, 50.0, "", 0.9, 1.5, 33.0),)
    priced = replace(plain.decision, money_levers=levers, money_ratio=Spread(1.2, 1.0, 1.4))
    assert "tornado-money" not in sections_of(plain)
    section = sections_of(replace(plain, decision=priced))["tornado-money"]
    assert [row[0] for row in section.table.shown()] == ["price of a device-hour of cs-2"]
    assert section.table.caption.startswith("Ratio: money of")
    assert section.figure.layout.xaxis.title.text == "ratio"
    assert "Money over that of the first" in str(section.figure.layout.title.text)
