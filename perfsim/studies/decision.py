"""All laws of the critical batch side by side: best batch and time of every candidate, and who is first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfsim.base.errors import PerfsimError
from perfsim.base.units import DAY_S
from perfsim.convergence.bill import Bill, Rates, bill, rates_of
from perfsim.convergence.critical_batch import CriticalBatch, LawInputs, critical_batch, steps
from perfsim.convergence.laws import KAPLAN
from perfsim.convergence.time_to_accuracy import TimeToAccuracy, examples_shift
from perfsim.convergence.uncertain import Z_90, Draws, FloatArray, Place, Uncertain, interval, one_at, typical
from perfsim.convergence.wall_clock import Training, inputs_of, wall_s
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.question import Question
from perfsim.specs.wall_clock import WallClockSpec
from perfsim.studies.batches import BatchChoice, Target, counted, training_of
from perfsim.studies.result import (
    BreakEven,
    CandidateResult,
    Decision,
    LawAnswer,
    LawRow,
    Lever,
    Outcome,
    Production,
    Spread,
    production_of,
)
from perfsim.studies.spec import CandidateSpec, StudySpec

# A candidate as far as its time and its bill depend on what is not known.

SEEDS = "seeds of "
"""Begins the name of the input that is a run's own luck."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A candidate, as far as time and money depend on what is not known."""

    label: str
    system: str
    plan: str
    """Label of the first option with its machine, layout and batch: options of one plan share its error."""
    time: TimeToAccuracy
    training: Training
    rates: Rates
    wall_clock: WallClockSpec | None = None
    production: Production | None = None

    @property
    def basis(self) -> str:
        """What the time on the wall holds besides healthy steps."""
        if self.wall_clock is not None:
            return "the whole run"
        if self.production is not None:
            return "steps at the rate of production"
        return "healthy steps alone"

    @cached_property
    def inputs(self) -> tuple[Uncertain, ...]:
        """Everything that its times and its bill depend on."""
        time = self.time
        critical = self.time.critical
        total = math.log1p(time.step_time_error)
        own = math.log1p(time.unshared_error)
        shared = math.exp(math.sqrt(max(total**2 - own**2, 0.0)))
        inputs = [
            _factor(f"step time of {self.system}, shared", shared),
            _factor(f"step time of {self.plan}", math.exp(min(own, total))),
            _factor("tokens to the target", 1.0 + time.d_min_error, time.d_min_tokens, "tokens"),
            Uncertain(SEEDS + self.label, math.exp(-self._luck(1)), 1.0, math.exp(self._luck(0)), "times"),
        ]
        if not critical.given_length:
            inputs.append(_factor("critical batch", critical.band_factor, critical.tokens, "tokens"))
        if self.wall_clock is not None:
            inputs += inputs_of(self.wall_clock)
        elif self.production is not None:
            inputs.append(_of_production(self.production))
        return (*inputs, *self.rates.inputs)

    def _luck(self, end: int) -> float:
        """What the least error of the examples adds to the end of the critical batch's band, in the log."""
        if self.time.critical.given_length:
            return 0.0
        shift = abs(examples_shift(self.time, self.time.critical.band_tokens[end]))
        return math.sqrt(max(math.log1p(self.time.examples_error) ** 2 - shift**2, 0.0))

    def steps_s(self, place: Place) -> FloatArray:
        """Time of the steps with the inputs at their places."""
        time = self.time
        known = {entry.name: entry for entry in self.inputs}

        def at(name: str) -> FloatArray:
            return known[name].at(place(name))

        factors = at(f"step time of {self.system}, shared") * at(f"step time of {self.plan}")
        seconds = at("tokens to the target") / time.batch_tokens * time.step_time_s * factors
        if not time.critical.given_length:
            seconds = seconds * (1.0 + time.batch_tokens / at("critical batch"))
        return np.asarray(seconds * at(SEEDS + self.label))

    def wall_s(self, place: Place) -> FloatArray:
        """Time on the wall with the inputs at their places."""
        steps_s = self.steps_s(place)
        if self.wall_clock is not None:
            return wall_s(self.wall_clock, self.training, steps_s, place)
        if self.production is not None:
            ratio = _of_production(self.production)
            return steps_s / ratio.at(place(ratio.name))
        return steps_s


def option_of(
    spec: StudySpec,
    candidate: CandidateSpec,
    question: Question,
    choice: BatchChoice,
    step: Prediction,
    plan: str,
) -> Option:
    """A candidate of a study at its best batch; `plan` is the label of the first that has the same plan."""
    waiting = step.bubble_fraction + step.exposed_communication_fraction
    training = training_of(question, choice)
    return Option(
        label=step.label,
        system=question.system.name,
        plan=plan,
        time=choice.answer,
        training=training,
        rates=rates_of(
            question.system,
            question.devices,
            training.num_nodes,
            candidate.price,
            spec.energy,
            busy=max(0.0, 1.0 - waiting),
        ),
        wall_clock=candidate.wall_clock,
        production=production_of(spec, candidate),
    )


def _of_production(production: Production) -> Uncertain:
    name = f"rate of production over healthy steps, {production.text}"
    return Uncertain(name, production.range[0], production.ratio, production.range[1], "times")


def _factor(name: str, factor: float, middle: float = 1.0, unit: str = "times") -> Uncertain:
    return Uncertain(name, middle / factor, middle, middle * factor, unit)


# The decision of a study in one sentence: when, how much, how sure, and what was not given.


def _sentence(
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


# One seeded Monte Carlo over everything that a study is not sure of, and the decision that follows.
#
# An input that several candidates share is drawn once for all of them: the critical batch, the tokens of
# the
# target, the ratio of production, the part of the step model's error that one kind of machine has in
# common,
# the ranges of a wall clock, prices, power, electricity. Each candidate has a part of the model's error of
# its
# own, unless two run the same plan. Chances compare expected times, without the luck of seeds, which
# is in the interval of each time. `ratio_band` and `TimeToAccuracy.band_s` are the closed forms of both.

DRAWS = 20_000
FARTHEST = 3.0
PLACES = 1201
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
    ratio = None
    sure = 1.0
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
        sentence=_sentence(outcomes, first, options[first].rates.devices, rival, sure, currency),
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
            values = getattr(own, name)
            at_middle = getattr(middle, name)
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
    left = values[changes]
    right = values[changes + 1]
    step = places[1] - places[0]
    zeros = places[changes] + step * left / (left - right)
    return float(zeros[np.argmin(np.abs(zeros))])


def _break_even(options: Sequence[Option], first: int, bills: Sequence[Bill]) -> tuple[BreakEven, ...]:
    """What a device-hour of the first machine may cost against the earliest of each other kind, both ways."""
    rows = []
    seen = {options[first].system}
    times = [float(option.wall_s(typical)) for option in options]
    for place in sorted(range(len(options)), key=lambda number: times[number]):
        if options[place].system in seen:
            continue
        seen.add(options[place].system)
        rows += [_equal_cost(options, bills, first, place), _equal_cost(options, bills, place, first)]
    return tuple(rows)


def _equal_cost(options: Sequence[Option], bills: Sequence[Bill], own: int, other: int) -> BreakEven:
    first = options[own]
    rival = options[other]
    middle = [bill(option.wall_s(typical), option.rates, typical) for option in (first, rival)]
    ratio = _spread(
        bills[other].device_hours / bills[own].device_hours,
        float(middle[1].device_hours / middle[0].device_hours),
    )
    price = None
    money = bills[other].money
    if money is not None and middle[1].money is not None:
        at_middle = float(middle[1].money / middle[0].device_hours)
        price = _spread(money / bills[own].device_hours, at_middle)
    return BreakEven(first.label, rival.label, ratio, price)


GENERAL = ("data_law", "bergsma_2025", "kaplan_loss")
"""Laws that need no measurement of the user's."""


@dataclass(frozen=True, slots=True)
class _Asked:
    law: str
    inputs: LawInputs


def laws_side_by_side(
    spec: StudySpec, target: Target, candidates: Sequence[CandidateResult]
) -> tuple[LawAnswer, ...]:
    """The answers by the study's own law and by every general law; empty where the tokens are given.

    Steps of the batches that were tried are those of the study; only the number of steps differs by law.
    """
    if target.critical.given_length or not candidates:
        return ()
    known = {target.critical.law: target.critical}
    for asked in _general(spec, target):
        try:
            known.setdefault(asked.law, critical_batch(asked.law, asked.inputs))
        except PerfsimError:
            continue
    return tuple(_answer(critical, target, candidates) for critical in known.values())


def _general(spec: StudySpec, target: Target) -> Iterator[_Asked]:
    """The general laws; Kaplan's takes the loss of its own corpus at these parameters and tokens."""
    loss = KAPLAN.loss(counted(spec.model, KAPLAN), target.d_min_tokens)
    inputs = LawInputs(d_min_tokens=target.d_min_tokens, loss=loss, loss_scale=KAPLAN.corpus)
    return (_Asked(law, inputs) for law in GENERAL)


def _answer(critical: CriticalBatch, target: Target, candidates: Sequence[CandidateResult]) -> LawAnswer:
    rows = []
    for candidate in candidates:
        times = [
            (steps(point.batch_tokens, target.d_min_tokens, critical.tokens) * point.step_time_s, point)
            for point in candidate.batch_curve
        ]
        time_s, best = min(times, key=lambda pair: pair[0])
        rows.append(LawRow(candidate.label, best.global_batch_size, time_s))
    first = min(rows, key=lambda row: row.time_s)
    return LawAnswer(
        critical.law, critical.source, critical.tokens, critical.band_tokens, tuple(rows), first.label
    )
