"""The decision on the page, on the terminal and in JSON."""

from __future__ import annotations

from dataclasses import replace

from perfsim.report.figures.time import tornado, tornado_table
from perfsim.report.study import decision_sections, study_page
from perfsim.report.study_files import study_document
from perfsim.report.terminal_study import study_lines
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


def test_every_quantity_has_a_row_and_what_is_missing_says_so(result: StudyResult) -> None:
    sections = {section.slug: section for section in decision_sections(decided(result))}
    assert list(sections) == ["decision", "tornado", "break-even"]
    table = sections["decision"].table
    assert table is not None
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["energy"][0] == "70.0 (60.0 to 80.0) MWh"
    assert rows["carbon"] == ["not given"] * 4
    assert rows["money, EUR"][:2] == ["not given", "500,000 (400,000 to 600,000)"]
    assert rows["first with a probability of"][0] == "25 %"
    break_even = sections["break-even"].table
    assert break_even is not None
    assert len(break_even.columns) == 3  # four do not fit a phone
    assert break_even.rows[0][1].startswith("9.60 (7.30 to 13.6) of ")
    assert break_even.rows[0][2] == "not given"
    assert decision_sections(result) == []


def test_levers_have_their_range_in_their_unit_and_the_value_that_flips_the_order(
    result: StudyResult,
) -> None:
    decision = decided(result).decision
    assert decision is not None
    rows = tornado_table(decision).rows
    assert rows[0][1:] == [
        "24 million tokens",
        "10 million tokens to 60 million tokens",
        "1.40",
        "0.900",
        "48 million tokens",
    ]
    assert rows[1][5] == "never"
    bars = tornado(decision).data
    assert [bar.base for bar in bars] == [1.2, 1.2]
    assert list(bars[0].x) == [1.19 - 1.2, 1.4 - 1.2]


def test_days_on_the_wall_stand_beside_days_of_steps_everywhere(result: StudyResult) -> None:
    shown = decided(result)
    wall = f"{1.25 * result.candidates[0].time_to_accuracy_s / DAY_S:.1f}"
    lines = study_lines(shown)
    assert next(line for line in lines if line.startswith("*128 A100")).endswith(wall)
    assert "It is 32 days." in lines
    _, _, head = study_page(shown)
    assert head.verdict.endswith("It is 32 days.")
    assert head.scale is not None
    assert head.scale.rows[0].extra.startswith(f"{wall} days on the wall")
    document = study_document(shown)
    assert document["decision"]["outcomes"][0]["wall_s"]["typical"] > 0
    assert document["decision"]["levers"][1]["flips_at"] is None


def test_with_prices_a_second_tornado_is_about_money(result: StudyResult) -> None:
    plain = decided(result)
    assert plain.decision is not None
    levers = (Lever("price of a device-hour of cs-2", 30.0, 40.0, 50.0, "", 0.9, 1.5, 33.0),)
    priced = replace(plain.decision, money_levers=levers, money_ratio=Spread(1.2, 1.0, 1.4))
    sections = {own.slug: own for own in decision_sections(replace(plain, decision=priced))}
    assert "tornado-money" not in {own.slug for own in decision_sections(plain)}
    table = sections["tornado-money"].table
    assert table is not None
    assert [row[0] for row in table.rows] == ["price of a device-hour of cs-2"]
    assert table.caption.startswith("Ratio: money of")
    assert sections["tornado-money"].figure.layout.xaxis.title.text == "ratio"
    assert "Money over that of the first" in str(sections["tornado-money"].figure.layout.title.text)


def test_a_tornado_names_its_two_lines(result: StudyResult) -> None:
    decision = decided(result).decision
    assert decision is not None
    notes = {note.text: note.x for note in tornado(decision).layout.annotations}
    assert notes == {"1.20": 1.2, "order flips": 1.0}


def test_levers_and_the_sentence_below_the_answer_have_short_names(result: StudyResult) -> None:
    shown = decided(result)
    assert shown.decision is not None
    first = result.candidates[0].label
    lever = replace(shown.decision.levers[0], name=f"step time of {first}")
    decision = replace(shown.decision, levers=(lever,), sentence=f"{first} is first.")
    _, sections, head = study_page(replace(shown, decision=decision))
    tornado_section = next(own for own in sections if own.slug == "tornado")
    assert tornado_section.table is not None
    assert tornado_section.table.rows[0][0] == "step time of 128 A100-80GB (16 DGX)"
    assert head.verdict == "128 A100-80GB (16 DGX) is first."
