"""The decision of a study in one sentence: when, how much, how sure, and what was not given."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfsim.studies.decided import Outcome, Spread
from perfsim.units import DAY_S


def sentence(
    outcomes: Sequence[Outcome], first: int, devices: int, rival: int | None, sure: float, currency: str
) -> str:
    """One sentence: who is first on the wall, of so many devices, and the cheapest one where that differs."""
    own = outcomes[first]
    unit, scale = time_unit(own.wall_s.typical)
    low, high = (f"{end / scale:.3g}" for end in (own.wall_s.low, own.wall_s.high))
    said = (
        f"{own.label} {verb(devices, 'are', 'is')} at the target after {own.wall_s.typical / scale:.3g} "
        f"{unit} on the wall ({low} to {high}; {own.basis})"
    )
    if own.money is not None:
        said += f" for {amount(own.money, currency)}"
    if rival is not None:
        said += f", before {outcomes[rival].label} with a probability of {chance(sure)}"
    return f"{said}{_cheapest(outcomes, own, currency)}{_unlike(outcomes)}.{_gaps(outcomes)}"


def _unlike(outcomes: Sequence[Outcome]) -> str:
    """A warning where times on the wall hold different parts."""
    if len({outcome.basis for outcome in outcomes}) == 1:
        return ""
    return (
        "; the times on the wall hold different parts, so name a wall clock for every candidate or for none"
    )


def _cheapest(outcomes: Sequence[Outcome], first: Outcome, currency: str) -> str:
    """The candidate of least money, where it is not the first."""
    priced = [outcome for outcome in outcomes if outcome.money is not None]
    if not priced:
        return ""
    least = min(priced, key=lambda outcome: outcome.money.typical if outcome.money else 0.0)
    if least is first:
        return ""
    of_all = (
        "" if least.cheapest is None else f", the cheapest with a probability of {chance(least.cheapest)}"
    )
    known = "least money" if least.cheapest is not None else "least money of those with a price"
    return f"; {known}: {least.label}, {amount(least.money, currency)}{of_all}"


def _gaps(outcomes: Sequence[Outcome]) -> str:
    """What was not given, over all candidates."""
    gaps = list(dict.fromkeys(gap for outcome in outcomes for gap in outcome.not_given))
    if all(outcome.money is None and outcome.carbon_kg is None for outcome in outcomes):
        gaps = ["prices"]
    return f" Not given: {', '.join(gaps)}." if gaps else ""


def verb(devices: int, many: str, single: str) -> str:
    """The form of a verb after a number of devices: `16 CS-2` take, `1 CS-2` takes."""
    return single if devices == 1 else many


def time_unit(seconds: float) -> tuple[str, float]:
    """Days, hours, minutes or seconds, the largest of which there are two, with their seconds."""
    units = (("days", DAY_S), ("hours", 3600.0), ("minutes", 60.0))
    return next((unit for unit in units if seconds >= 2 * unit[1]), ("seconds", 1.0))


def amount(spread: Spread | None, unit: str = "") -> str:
    """`1.23 million USD (0.98 to 1.6)`."""
    if spread is None:
        return "not given"
    scale, word = next(
        ((scale, word) for scale, word in ((1e9, "billion"), (1e6, "million")) if spread.typical >= scale),
        (1.0, ""),
    )
    middle, low, high = (_number(value / scale) for value in (spread.typical, spread.low, spread.high))
    return " ".join(filter(None, [middle, word, unit, f"({low} to {high})"]))


def _number(value: float) -> str:
    """Three digits without an exponent."""
    value = float(f"{value:.3g}")  # 0.9996 is 1.00
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:,.{max(digits, 0)}f}"


def chance(probability: float) -> str:
    """`97 %`; never 0 or 100."""
    if probability > 0.995:
        return "more than 99 %"
    return "less than 1 %" if probability < 0.005 else f"{100 * probability:.0f} %"
