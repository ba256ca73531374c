"""Who is first, by how much, how surely, and what would change it: the one place that decides.

`verdict` compares times of healthy steps in closed form. `decide` draws everything that a study is not sure
of, and compares times on the wall and money. `laws_side_by_side` asks every law of the critical batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from perfsim.base.errors import PerfsimError
from perfsim.base.units import DAY_S
from perfsim.convergence.bill import Bill, Rates
from perfsim.convergence.critical_batch import LawInputs, critical_batch, steps
from perfsim.convergence.laws import KAPLAN
from perfsim.convergence.time_to_accuracy import RatioBand, TimeToAccuracy
from perfsim.convergence.uncertain import Z_90, Draws, FloatArray, Place, Uncertain, interval, one_at, typical
from perfsim.convergence.wall_clock import HealthyRun, inputs_of
from perfsim.specs.wall_clock import WallClockSpec
from perfsim.studies.answers import (
    Answer,
    BreakEven,
    Decision,
    LawAnswer,
    LawRow,
    Lever,
    Outcome,
    PointResult,
    Production,
    Spread,
)
from perfsim.studies.batches import Target, counted
from perfsim.studies.spec import Point, StudySpec
from perfsim.studies.trust import confidence, shared_caveats

Row = TypeVar("Row", bound=Answer)

# Healthy steps in closed form.


def first_and_rival(candidates: Sequence[Row]) -> tuple[Row, Row | None] | None:
    """The fastest to the target, and whom to compare it with; None where nobody arrives.

    The rival is the fastest with another strategy or system, else the fastest with another plan.
    """
    arriving = [row for row in candidates if math.isfinite(row.time.time_s)]
    if not arriving:
        return None
    first, *others = sorted(arriving, key=lambda row: row.time.time_s)
    others = [row for row in others if _plan_of(row) != _plan_of(first)]
    unlike = [row for row in others if (row.strategy, row.system) != (first.strategy, first.system)]
    return first, next(iter([*unlike, *others]), None)


def _plan_of(row: Answer) -> str:
    """What rows that run the same layout of the same machine on the same batch share."""
    return str([row.system, row.num_devices, row.global_batch_size, row.layout, row.step_time_s])


def ratio_of(row: Answer, first: Answer) -> RatioBand:
    """The 90 % band of the ratio of two times; on one system a part of the step-time error cancels."""
    if row.time is first.time or _plan_of(row) == _plan_of(first):
        return RatioBand(1.0, 1.0, 1.0)
    return row.time.ratio_to(first.time, same_machine=row.system == first.system)


def ratio_bands(candidates: Sequence[Answer]) -> dict[str, tuple[float, float]]:
    """By candidate label, the 90 % band of the ratio of its time to the fastest candidate's."""
    first = min(candidates, key=lambda row: row.time.time_s)
    bands = {row.label: ratio_of(row, first) for row in candidates}
    return {label: (band.low, band.high) for label, band in bands.items()}


def verdict(candidates: Sequence[Answer]) -> str:
    """Who is first, by how much and why, with the range of the ratio and the worst caveat."""
    pair = first_and_rival(candidates)
    if pair is None:
        return "No candidate reaches the target."
    first, rival = pair
    reach = verb(first.num_devices, "reach", "reaches")
    alike = [row.label for row in candidates if row is not first and _plan_of(row) == _plan_of(first)]
    said = f"; the same layout answers {', '.join(alike)}" if alike else ""
    trust = confidence(shared_caveats([first] if rival is None else [first, rival]))
    trust = f"; {trust}" if trust else ""
    unit, scale = time_unit(first.time.time_s)
    days = f"{first.time.time_s / scale:.1f} {unit}"
    if rival is None:
        low, high = (bound / scale for bound in first.time.band_s)
        return f"{first.label} {reach} the target in {days} ({low:.1f} to {high:.1f}){said}{trust}."
    band = ratio_of(rival, first)
    if not band.decided:
        said += "; the range includes 1, so the order is not certain"
    tokens = rival.time.examples_tokens / first.time.examples_tokens
    needed = f"{tokens:.2f} times fewer tokens" if tokens > 1 else f"{1 / tokens:.2f} times more tokens"
    return (
        f"{first.label} {reach} the target first, in {days}: {band.ratio:.2f} times ({band.low:.2f} to "
        f"{band.high:.2f}) faster than {rival.label} with {rival.time.time_s / scale:.1f} {unit}{said}"
        f"{trust}. Why: {first.tokens_per_s / rival.tokens_per_s:.2f} times its tokens a "
        f"second (MFU {100 * first.mfu:.0f} % against {100 * rival.mfu:.0f} %) and "
        f"{'as many tokens' if round(tokens, 2) == 1.0 else needed} to the target (batch "
        f"{first.time.batch_tokens / 1e6:.1f} M against {rival.time.batch_tokens / 1e6:.1f} M tokens)."
    )


# A candidate as far as its time and its bill depend on what is not known.

SEEDS = "seeds of "
"""Begins the name of the input that is a run's own luck."""
POINT_DRAWS = 1000
"""Draws for each point of a sweep, of which there may be many thousands."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A candidate, as far as time and money depend on what is not known."""

    label: str
    system: str
    plan: str
    """Label of the first option with its machine, layout and batch: options of one plan share its error."""
    time: TimeToAccuracy
    training: HealthyRun
    rates: Rates
    draws: Draws
    """Seeded places of all inputs, the same for all options of a study."""
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
    def inputs(self) -> Mapping[str, Uncertain]:
        """Everything that its times and its bill depend on, by name."""
        time = self.time
        critical = self.time.critical
        total = math.log1p(time.step_time_error)
        unshared = math.log1p(time.unshared_error)
        shared = math.exp(math.sqrt(max(total**2 - unshared**2, 0.0)))
        inputs = [
            _factor(f"step time of {self.system}, shared", shared),
            _factor(f"step time of {self.plan}", math.exp(min(unshared, total))),
            _factor("tokens to the target", 1.0 + time.d_min_error, time.d_min_tokens, "tokens"),
            Uncertain(SEEDS + self.label, math.exp(-self._luck(1)), 1.0, math.exp(self._luck(0)), "times"),
        ]
        if not critical.given_length:
            inputs.append(_factor("critical batch", critical.band_factor, critical.tokens, "tokens"))
        if self.wall_clock is not None:
            inputs += inputs_of(self.wall_clock)
        elif self.production is not None:
            inputs.append(_of_production(self.production))
        return {entry.name: entry for entry in (*inputs, *self.rates.given.values())}

    def _luck(self, end: int) -> float:
        """What the least error of the examples adds to the end of the critical batch's band, in the log."""
        if self.time.critical.given_length:
            return 0.0
        shift = abs(self.time.examples_shift(self.time.critical.band_tokens[end]))
        return math.sqrt(max(math.log1p(self.time.examples_error) ** 2 - shift**2, 0.0))

    def steps_s(self, place: Place) -> FloatArray:
        """Time of the steps with the inputs at their places."""

        def at(name: str) -> FloatArray:
            return self.inputs[name].at(place(name))

        time = self.time
        factors = at(f"step time of {self.system}, shared") * at(f"step time of {self.plan}")
        seconds = at("tokens to the target") / time.batch_tokens * time.step_time_s * factors
        if not time.critical.given_length:
            seconds = seconds * (1.0 + time.batch_tokens / at("critical batch"))
        return np.asarray(seconds * at(SEEDS + self.label) + sum(time.later_s) * factors)

    def wall_s(self, place: Place) -> FloatArray:
        """Time on the wall with the inputs at their places."""
        steps_s = self.steps_s(place)
        if self.wall_clock is not None:
            return self.training.wall_s(self.wall_clock, steps_s, place)
        if self.production is not None:
            ratio = _of_production(self.production)
            return steps_s / ratio.at(place(ratio.name))
        return steps_s

    def money(self, place: Place) -> FloatArray:
        """Money of a run with the inputs at their places; nan without a price."""
        money = self.rates.bill(self.wall_s(place), place).money
        return np.asarray(math.nan) if money is None else money

    @cached_property
    def typical_s(self) -> float:
        """Time on the wall at the typical inputs."""
        return float(self.wall_s(typical))

    @cached_property
    def expected_s(self) -> FloatArray:
        """Times on the wall without the luck of seeds, shape [draws]."""
        return self.wall_s(lambda name: 0.0 if name.startswith(SEEDS) else self.draws(name))

    @cached_property
    def drawn_s(self) -> FloatArray:
        """Times on the wall, shape [draws]."""
        return self.wall_s(self.draws)

    @cached_property
    def bill(self) -> Bill:
        """Hours, energy, carbon and money, each of shape [draws]."""
        return self.rates.bill(self.drawn_s, self.draws)

    @cached_property
    def typical_bill(self) -> Bill:
        """The same at the typical inputs."""
        return self.rates.bill(self.wall_s(typical), typical)

    def spread(self, name: str) -> Spread | None:
        """One of the bill's figures; None where an input is not given."""
        values = getattr(self.bill, name)
        return None if values is None else _spread(values, float(getattr(self.typical_bill, name)))


def option_of(point: Point, row: Answer, plan: str = "", draws: int = 0) -> Option:
    """A candidate with its row; `plan` is the label of an option with the same layout and batch."""
    study = point.study
    question = point.question
    training = point.healthy_run(row.time)
    return Option(
        label=row.label,
        system=question.system.name,
        plan=plan or row.label,
        time=row.time,
        training=training,
        rates=Rates(
            system=question.system,
            devices=question.devices,
            units=training.num_nodes,
            energy=study.energy,
            price=point.candidate.price,
            busy=max(0.0, 1.0 - (row.bubble_fraction + row.exposed_communication_fraction)),
        ),
        wall_clock=point.candidate.wall_clock,
        production=row.production,
        draws=Draws(study.uncertainty.seed, draws or study.uncertainty.draws),
    )


def decision_of(points: Sequence[Point], rows: Sequence[Answer], draws: int = 0) -> Decision:
    """The decision between candidates of a study, each with its row."""
    plans: dict[str, str] = {}
    options = [
        option_of(point, row, plans.setdefault(_plan_of(row), row.label), draws)
        for point, row in zip(points, rows, strict=True)
    ]
    return decide(options, points[0].study.currency)


def outcome_of(point: PointResult) -> Outcome:
    """What a point of a sweep takes on the wall, in energy and in money, like a candidate of a study."""
    return decision_of([point], [point.prediction], POINT_DRAWS).outcomes[0]


def _of_production(production: Production) -> Uncertain:
    name = f"rate of production over healthy steps, {production.text}"
    return Uncertain(name, production.range[0], production.ratio, production.range[1], "times")


def _factor(name: str, factor: float, middle: float = 1.0, unit: str = "times") -> Uncertain:
    return Uncertain(name, middle / factor, middle, middle * factor, unit)


# One seeded Monte Carlo over everything that a study is not sure of.
#
# An input that several candidates share is drawn once for all of them: the critical batch, the tokens of the
# target, the ratio of production, the part of the step model's error that one kind of machine has in common,
# the ranges of a wall clock, prices, power, electricity. Each candidate also has a part of the model's error
# for itself, unless two run the same plan. Chances compare expected times, without the luck of seeds, which
# is in the interval of each time. `TimeToAccuracy.ratio_to` and `band_s` are the closed forms of both.

FARTHEST = 3.0
PLACES = 1201
"""How far from its typical value an input is moved to flip the order, in standard deviations."""
MOST_LEVERS = 10


def decide(options: Sequence[Option], currency: str) -> Decision:
    """The decision between options that are candidates of one study, with the same draws."""
    first, *others = sorted(options, key=lambda option: option.typical_s)
    # The rival is the earliest of another machine, else of another plan.
    unlike = [option for option in others if option.system != first.system]
    others = [option for option in others if option.plan != first.plan]
    rival = next(iter([*unlike, *others]), None)
    earliest = np.min(np.broadcast_arrays(*(option.expected_s for option in options)), axis=0)
    priced = [option.bill.money for option in options if option.bill.money is not None]
    least = np.min(np.broadcast_arrays(*priced), axis=0) if len(priced) == len(options) else None
    outcomes = tuple(
        Outcome(
            label=option.label,
            steps_s=_spread(option.steps_s(option.draws), float(option.steps_s(typical))),
            wall_s=_spread(option.drawn_s, option.typical_s),
            basis=option.basis,
            device_hours=option.spread("device_hours") or Spread(math.nan, math.nan, math.nan),
            energy_kwh=option.spread("energy_kwh"),
            carbon_kg=option.spread("carbon_kg"),
            money=option.spread("money"),
            first=float(np.mean(option.expected_s <= earliest)),
            cheapest=None if least is None else float(np.mean(least == option.bill.money)),
            not_given=option.rates.not_given,
        )
        for option in options
    )
    best = outcomes[list(options).index(first)]
    ratio = money_ratio = None
    levers: tuple[Lever, ...] = ()
    money_levers: tuple[Lever, ...] = ()
    sure = 1.0
    if rival is not None:
        ratio = _spread(rival.expected_s / first.expected_s, rival.typical_s / first.typical_s)
        ties = float(np.mean(first.expected_s == rival.expected_s))
        sure = float(np.mean(first.expected_s < rival.expected_s)) + 0.5 * ties
        levers = _levers(first, rival, Option.wall_s)
        if first.bill.money is not None and rival.bill.money is not None:
            at_middle = float(rival.money(typical) / first.money(typical))
            money_ratio = _spread(rival.bill.money / first.bill.money, at_middle)
            money_levers = _levers(first, rival, Option.money)
    return Decision(
        seed=first.draws.seed,
        draws=first.draws.count,
        currency=currency,
        sentence=_sentence(outcomes, best, first.rates.devices, rival, sure, currency),
        outcomes=outcomes,
        first=first.label,
        rival="" if rival is None else rival.label,
        ratio=ratio,
        sure=sure,
        levers=levers,
        break_even=_break_even(options, first),
        money_ratio=money_ratio,
        money_levers=money_levers,
    )


def _spread(values: FloatArray, middle: float) -> Spread:
    return Spread(middle, *interval(np.broadcast_to(values, np.shape(values) or (1,))))


def _levers(first: Option, rival: Option, amount: Callable[[Option, Place], FloatArray]) -> tuple[Lever, ...]:
    """The inputs of two options by how far they move the ratio of the rival's amount to the first's."""
    scan = np.linspace(-FARTHEST, FARTHEST, PLACES)
    levers = []
    for name, entry in {**first.inputs, **rival.inputs}.items():
        if entry.low == entry.high or name.startswith(SEEDS):
            continue
        place = one_at(name, scan)
        moved = np.log(amount(rival, place) / amount(first, place))
        if np.ptp(np.atleast_1d(moved)) < 1e-9:
            continue
        low, high = np.exp(np.interp([-Z_90, Z_90], scan, moved))
        flips = None
        changes = np.flatnonzero(np.diff(np.sign(moved)) != 0)
        if changes.size:  # where the ratio is 1, nearest to the typical value
            left = moved[changes]
            right = moved[changes + 1]
            zeros = scan[changes] + (scan[1] - scan[0]) * left / (left - right)
            flips = float(entry.at(float(zeros[np.argmin(np.abs(zeros))])))
        values = (entry.low, entry.typical, entry.high, entry.unit)
        levers.append(Lever(name, *values, float(low), float(high), flips_at=flips))
    levers.sort(key=lambda lever: abs(math.log(lever.ratio_at_high / lever.ratio_at_low)), reverse=True)
    return tuple(levers[:MOST_LEVERS])


def _break_even(options: Sequence[Option], first: Option) -> tuple[BreakEven, ...]:
    """What a device-hour of the first machine may cost against the earliest of each other kind, both ways."""
    earliest: dict[str, Option] = {}
    for option in sorted(options, key=lambda option: option.typical_s):
        earliest.setdefault(option.system, option)
    rivals = [option for system, option in earliest.items() if system != first.system]
    even = []
    for one, other in (pair for rival in rivals for pair in ((first, rival), (rival, first))):
        hours = one.bill.device_hours
        at_middle = one.typical_bill.device_hours
        ratio = _spread(other.bill.device_hours / hours, float(other.typical_bill.device_hours / at_middle))
        price = None
        if other.bill.money is not None and other.typical_bill.money is not None:
            price = _spread(other.bill.money / hours, float(other.typical_bill.money / at_middle))
        even.append(BreakEven(one.label, other.label, ratio, price))
    return tuple(even)


def _sentence(
    outcomes: Sequence[Outcome], best: Outcome, devices: int, rival: Option | None, sure: float, currency: str
) -> str:
    """When, how much and how sure; the cheapest one where that differs; and what was not given."""
    unit, scale = time_unit(best.wall_s.typical)
    middle, low, high = (end / scale for end in (best.wall_s.typical, best.wall_s.low, best.wall_s.high))
    said = (
        f"{best.label} {verb(devices, 'are', 'is')} at the target after {middle:.3g} "
        f"{unit} on the wall ({low:.3g} to {high:.3g}; {best.basis})"
    )
    if best.money is not None:
        said += f" for {amount(best.money, currency)}"
    if rival is not None:
        said += f", before {rival.label} with a probability of {chance(sure)}"
    priced = [(outcome.money.typical, number) for number, outcome in enumerate(outcomes) if outcome.money]
    cheapest = outcomes[min(priced)[1]] if priced else best
    if cheapest is not best:
        all_priced = cheapest.cheapest is not None
        said += f"; least money{'' if all_priced else ' of those with a price'}: {cheapest.label}, "
        said += amount(cheapest.money, currency)
        if cheapest.cheapest is not None:
            said += f", the cheapest with a probability of {chance(cheapest.cheapest)}"
    if len({outcome.basis for outcome in outcomes}) > 1:
        said += "; the times on the wall hold different parts: name a wall clock for every candidate or none"
    gaps = list(dict.fromkeys(gap for outcome in outcomes for gap in outcome.not_given))
    if all(outcome.money is None and outcome.carbon_kg is None for outcome in outcomes):
        gaps = ["prices"]
    return f"{said}." + (f" Not given: {', '.join(gaps)}." if gaps else "")


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
    scales = ((1e9, "billion"), (1e6, "million"))
    scale, word = next((known for known in scales if spread.typical >= known[0]), (1.0, ""))
    texts = []
    for value in (spread.typical, spread.low, spread.high):
        rounded = float(f"{value / scale:.3g}")  # 0.9996 is 1.00
        digits = 2 - math.floor(math.log10(rounded)) if rounded > 0 else 0
        texts.append(f"{rounded:,.{max(digits, 0)}f}")
    middle, low, high = texts
    return " ".join(filter(None, [middle, word, unit, f"({low} to {high})"]))


def chance(probability: float) -> str:
    """`97 %`; never 0 or 100."""
    if probability > 0.995:
        return "more than 99 %"
    return "less than 1 %" if probability < 0.005 else f"{100 * probability:.0f} %"


# The study's own law of the critical batch next to every general law.

GENERAL = ("data_law", "bergsma_2025", "kaplan_loss")
"""Laws that need no measurement of the user's."""


def laws_side_by_side(spec: StudySpec, target: Target, candidates: Sequence[Answer]) -> tuple[LawAnswer, ...]:
    """The answers by the study's own law and by every general law; empty where the tokens are given.

    The batches that the study tried keep their step times; only the number of steps differs by law.
    """
    if target.critical.given_length or not candidates:
        return ()
    # Kaplan's law takes the loss of its own corpus at these parameters and tokens.
    loss = KAPLAN.loss(counted(spec.model, KAPLAN), target.d_min_tokens)
    inputs = LawInputs(d_min_tokens=target.d_min_tokens, loss=loss, loss_scale=KAPLAN.corpus)
    known = {target.critical.law: target.critical}
    for law in GENERAL:
        with suppress(PerfsimError):
            known.setdefault(law, critical_batch(law, inputs))
    answers = []
    for critical in known.values():
        rows = []
        for candidate in candidates:
            times = [
                (
                    steps(point.batch_tokens, target.d_min_tokens, critical.tokens) * point.step_time_s
                    + (point.time_to_accuracy_s - point.steps * point.step_time_s),
                    point,
                )
                for point in candidate.batch_curve
            ]
            time_s, best = min(times, key=lambda pair: pair[0])
            rows.append(LawRow(candidate.label, best.global_batch_size, time_s))
        first = min(rows, key=lambda row: row.time_s).label
        batches = (critical.tokens, critical.band_tokens)
        answers.append(LawAnswer(critical.law, critical.source, *batches, tuple(rows), first))
    return tuple(answers)
