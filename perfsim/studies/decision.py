"""One seeded Monte Carlo over everything that a study is not sure of, and the decision that follows.

An input that several candidates share is drawn once for all of them: the critical batch, the tokens of the
target, the ratio of production, the part of the step model's error that one kind of machine has in common,
the ranges of a wall clock, prices, power, electricity. Each candidate has a part of the model's error of its
own, unless two run the same plan. Chances compare expected times, without the luck of seeds, which
is in the interval of each time. `ratio_band` and `TimeToAccuracy.band_s` are the closed forms of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from perfsim.convergence.bill import Bill, bill
from perfsim.convergence.uncertain import (
    Z_90,
    Draws,
    FloatArray,
    Place,
    interval,
    one_at,
    typical,
)
from perfsim.studies.decided import BreakEven, Decision, Lever, Outcome, Spread
from perfsim.studies.decision_words import sentence
from perfsim.studies.options import SEEDS, Option

DRAWS = 20_000
FARTHEST, PLACES = 3.0, 1201
"""How far from its typical value an input is moved to flip the order, in standard deviations."""
MOST_LEVERS = 10


def decide(options: Sequence[Option], currency: str, seed: int = 0, draws: int = DRAWS) -> Decision:
    """The decision between options that are candidates of one study."""
    place = Draws(seed, draws)
    walls = [option.wall_s(_without_luck(place)) for option in options]
    bills = [bill(option.wall_s(place), option.rates, place) for option in options]
    times = [float(option.wall_s(typical)) for option in options]
    first = times.index(min(times))
    rival = _rival(options, times, first)
    outcomes = _outcomes(options, place, walls, bills)
    ratio, sure = None, 1.0
    money: tuple[Spread | None, tuple[Lever, ...]] = (None, ())
    if rival is not None:
        money = _of_money(options[first], options[rival], bills[first].money, bills[rival].money)
        ratio = _spread(walls[rival] / walls[first], times[rival] / times[first])
        sure = float(np.mean(walls[first] < walls[rival])) + 0.5 * float(
            np.mean(walls[first] == walls[rival])
        )
    return Decision(
        seed=seed,
        draws=draws,
        currency=currency,
        sentence=sentence(outcomes, first, options[first].rates.devices, rival, sure, currency),
        outcomes=outcomes,
        first=options[first].label,
        rival="" if rival is None else options[rival].label,
        ratio=ratio,
        sure=sure,
        levers=() if rival is None else _levers(options[first], options[rival], Option.wall_s),
        break_even=_break_even(options, first, bills),
        money_ratio=money[0],
        money_levers=money[1],
    )


def _of_money(
    first: Option, rival: Option, own: FloatArray | None, other: FloatArray | None
) -> tuple[Spread | None, tuple[Lever, ...]]:
    """The ratio of the rival's money to the first's, and what moves it; nothing unless both have a price."""
    if own is None or other is None:
        return None, ()
    ratio = _spread(other / own, float(_money(rival, typical) / _money(first, typical)))
    return ratio, _levers(first, rival, _money)


def _money(option: Option, place: Place) -> FloatArray:
    """Money of a run with the inputs at their places; nan without a price."""
    money = bill(option.wall_s(place), option.rates, place).money
    return np.asarray(math.nan) if money is None else money


def _without_luck(place: Place) -> Place:
    return lambda name: 0.0 if name.startswith(SEEDS) else place(name)


def _spread(values: FloatArray, middle: float) -> Spread:
    return Spread(middle, *interval(np.broadcast_to(values, np.shape(values) or (1,))))


def _rival(options: Sequence[Option], times: Sequence[float], first: int) -> int | None:
    """The earliest option of another machine or number of devices, else of another plan."""
    order = sorted(range(len(options)), key=lambda place: times[place])
    own = options[first]
    unlike = [place for place in order if options[place].system != own.system]
    others = [place for place in order if options[place].plan != own.plan]
    return next(iter(unlike + others), None)


def _outcomes(
    options: Sequence[Option], place: Draws, walls: Sequence[FloatArray], bills: Sequence[Bill]
) -> tuple[Outcome, ...]:
    earliest = np.min(np.broadcast_arrays(*walls), axis=0)
    priced = [own.money for own in bills if own.money is not None]
    least = np.min(np.broadcast_arrays(*priced), axis=0) if len(priced) == len(bills) else None
    outcomes = []
    for option, wall, own in zip(options, walls, bills, strict=True):
        middle = bill(option.wall_s(typical), option.rates, typical)

        def spread(name: str, own: Bill = own, middle: Bill = middle) -> Spread | None:
            values, at_middle = getattr(own, name), getattr(middle, name)
            return None if values is None else _spread(values, float(at_middle))

        hours = spread("device_hours")
        outcomes.append(
            Outcome(
                label=option.label,
                steps_s=_spread(option.steps_s(place), float(option.steps_s(typical))),
                wall_s=_spread(option.wall_s(place), float(option.wall_s(typical))),
                basis=option.basis,
                device_hours=hours or Spread(math.nan, math.nan, math.nan),
                energy_kwh=spread("energy_kwh"),
                carbon_kg=spread("carbon_kg"),
                money=spread("money"),
                first=float(np.mean(wall <= earliest)),
                cheapest=None if least is None else float(np.mean(least == own.money)),
                not_given=option.rates.not_given,
            )
        )
    return tuple(outcomes)


def _levers(first: Option, rival: Option, amount: Callable[[Option, Place], FloatArray]) -> tuple[Lever, ...]:
    """The inputs of two options by how far they move the ratio of the rival's amount to the first's."""
    inputs = {entry.name: entry for option in (first, rival) for entry in option.inputs}
    scan = np.linspace(-FARTHEST, FARTHEST, PLACES)

    def log_ratio(name: str, places: FloatArray | float) -> FloatArray:
        place = one_at(name, places)
        return np.log(amount(rival, place) / amount(first, place))

    levers = []
    for name, entry in inputs.items():
        if entry.certain or name.startswith(SEEDS):
            continue
        moved = log_ratio(name, scan)
        if np.ptp(np.atleast_1d(moved)) < 1e-9:
            continue
        low, high = np.exp(np.interp([-Z_90, Z_90], scan, moved))
        flips = _nearest_zero(scan, moved)
        levers.append(
            Lever(
                name,
                entry.low,
                entry.typical,
                entry.high,
                entry.unit,
                ratio_at_low=float(low),
                ratio_at_high=float(high),
                flips_at=None if flips is None else float(entry.at(flips)),
            )
        )
    levers.sort(key=lambda lever: abs(math.log(lever.ratio_at_high / lever.ratio_at_low)), reverse=True)
    return tuple(levers[:MOST_LEVERS])


def _nearest_zero(places: FloatArray, values: FloatArray) -> float | None:
    """The place nearest to 0 at which the values change their sign."""
    changes = np.flatnonzero(np.diff(np.sign(values)) != 0)
    if not changes.size:
        return None
    left, right = values[changes], values[changes + 1]
    step = places[1] - places[0]
    zeros = places[changes] + step * left / (left - right)
    return float(zeros[np.argmin(np.abs(zeros))])


def _break_even(options: Sequence[Option], first: int, bills: Sequence[Bill]) -> tuple[BreakEven, ...]:
    """What a device-hour of the first machine may cost against the earliest of each other kind, both ways."""
    rows, seen = [], {options[first].system}
    times = [float(option.wall_s(typical)) for option in options]
    for place in sorted(range(len(options)), key=lambda number: times[number]):
        if options[place].system in seen:
            continue
        seen.add(options[place].system)
        rows += [_equal_cost(options, bills, first, place), _equal_cost(options, bills, place, first)]
    return tuple(rows)


def _equal_cost(options: Sequence[Option], bills: Sequence[Bill], own: int, other: int) -> BreakEven:
    first, rival = options[own], options[other]
    middle = [bill(option.wall_s(typical), option.rates, typical) for option in (first, rival)]
    ratio = _spread(
        bills[other].device_hours / bills[own].device_hours,
        float(middle[1].device_hours / middle[0].device_hours),
    )
    price, money = None, bills[other].money
    if money is not None and middle[1].money is not None:
        at_middle = float(middle[1].money / middle[0].device_hours)
        price = _spread(money / bills[own].device_hours, at_middle)
    return BreakEven(first.label, rival.label, ratio, price)
