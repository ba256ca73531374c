"""When, how much, how sure, and what would change the answer: the sections of a decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from perfsim.report import text
from perfsim.report.figures import tornado as figure
from perfsim.report.sections import Section, drawn
from perfsim.report.study.answer import shortened
from perfsim.report.table import Table
from perfsim.studies.decided import BreakEven, Decision, Outcome, Spread
from perfsim.studies.decision_words import amount, chance, time_unit
from perfsim.studies.price_spec import NOT_GIVEN
from perfsim.studies.result import StudyResult


def decision_sections(result: StudyResult) -> list[Section]:
    """Table of outcomes, tornado and break-even prices; nothing for a result without a decision."""
    decision = result.decision
    if decision is None:
        return []
    labels = text.names(result.candidates)
    lead = (
        "Helps to decide when, for how much and how surely. Typical values with 90 % intervals from "
        f"{text.integer(decision.draws)} draws (seed {decision.seed}); candidates share the draws of what "
        "they have in common."
    )
    sections = [
        Section(
            "The decision", lead, table=outcome_table(decision, labels), slug="decision", short="Decision"
        )
    ]
    decision = replace(
        decision,
        rival=shortened(decision.rival, result),
        first=shortened(decision.first, result),
        levers=tuple(replace(own, name=shortened(own.name, result)) for own in decision.levers),
        money_levers=tuple(replace(own, name=shortened(own.name, result)) for own in decision.money_levers),
    )
    shown = figure.tornado, figure.tornado_table, figure.tornado_alt
    if decision.levers:
        lead = (
            "Helps to choose what to measure next: the widest bar is the input worth knowing better. A bar "
            "that crosses the dotted line flips the order within its range."
        )
        sections.append(
            drawn(
                Section("What would change the order?", lead, slug="tornado", short="Sensitivity"),
                *shown,
                decision,
            )
        )
    if decision.money_levers:
        lead = (
            "The same for money, where both have a price: the inputs that move the ratio of what the two "
            "cost, with the value at which the order flips."
        )
        section = Section(
            "What would change which costs less?", lead, slug="tornado-money", short="Sensitivity of cost"
        )
        sections.append(drawn(section, *shown, decision, of_money=True))
    return [*sections, *_break_even(decision, labels)]


def _break_even(decision: Decision, labels: Sequence[str]) -> list[Section]:
    """Prices at which two machines cost the same, where they are known."""
    lead = (
        "Shows what a machine may cost before the other is cheaper for this run, also where a price is "
        "not given: a device-hour of the first may cost so many of the second."
    )
    if not decision.break_even:
        return []
    table = break_even_table(decision, labels)
    return [Section("Break-even prices", lead, table=table, slug="break-even", level=3)]


def outcome_table(decision: Decision, labels: Sequence[str]) -> Table:
    """One column a candidate, one row a quantity; the most probable first and cheapest are marked."""
    outcomes = decision.outcomes
    unit, scale = time_unit(min(own.wall_s.typical for own in outcomes))
    rows: list[tuple[str, Callable[[Outcome], str]]] = [
        (f"{unit} of steps", lambda own: _spread(own.steps_s, 1 / scale)),
        (f"{unit} on the wall", lambda own: _spread(own.wall_s, 1 / scale)),
        ("they hold", lambda own: own.basis),
        ("first with a probability of", lambda own: chance(own.first)),
        ("device-hours", lambda own: amount(own.device_hours)),
        ("energy", lambda own: _scaled(own.energy_kwh, 1e3, "MWh")),
        ("carbon", lambda own: _scaled(own.carbon_kg, 1e3, "t CO2e")),
        (f"money, {decision.currency}", lambda own: amount(own.money)),
    ]
    if all(own.cheapest is not None for own in outcomes):
        rows.append(("cheapest with a probability of", lambda own: chance(own.cheapest or 0.0)))
    gaps = dict.fromkeys(gap for own in outcomes for gap in own.not_given)
    caption = f"Not given: {', '.join(gaps)}." if gaps else ""
    cells = [[name, *(cell(own) for own in outcomes)] for name, cell in rows]
    columns = ["", *labels]
    best = {(3, 1 + max(range(len(outcomes)), key=lambda place: outcomes[place].first))}
    return Table(columns, cells, caption, frozenset(range(1, len(columns))), frozenset(best))


def break_even_table(decision: Decision, labels: Sequence[str]) -> Table:
    """Equal-cost prices of the first machine against others and back, narrow enough for a phone."""
    short = dict(zip((own.label for own in decision.outcomes), labels, strict=True))
    columns = ("a device-hour of", "may cost as much as", decision.currency)
    rows = [
        [short[row.label], f"{_spread(row.device_hours_ratio)} of {short[row.rival]}", _price(row)]
        for row in decision.break_even
    ]
    return Table(columns, rows, "", frozenset({2}))


def _price(row: BreakEven) -> str:
    return NOT_GIVEN if row.price is None else amount(row.price)


def _scaled(spread: Spread | None, scale: float, unit: str) -> str:
    return NOT_GIVEN if spread is None else f"{_spread(spread, 1 / scale)} {unit}"


def _spread(spread: Spread, factor: float = 1.0) -> str:
    low, middle, high = (text.number(value * factor) for value in (spread.low, spread.typical, spread.high))
    return f"{middle} ({low} to {high})"
