"""Who is first, by how much, how surely, and what would change it: the one place that decides.

`decide` draws everything that a study is not sure of, and compares times on the wall and money. Next to it
`laws_side_by_side` asks every law of the critical batch, `eras_of` the first two again on equal dates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.dates import EQUAL, LATEST, existed, months_apart
from perfsim.base.errors import LimitError, PerfsimError
from perfsim.base.text import large_word, number
from perfsim.base.units import TIME_UNITS
from perfsim.convergence.bill import Bill, Rates
from perfsim.convergence.critical_batch import LawInputs, critical_batch
from perfsim.convergence.laws import KAPLAN
from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.convergence.uncertain import Z_90, Draws, Place, Spread, Uncertain, Values, one_at, typical
from perfsim.convergence.wall_clock import HealthyRun, inputs_of
from perfsim.machines.machine import Part
from perfsim.prediction.dates import choices, measured_days, newest_part
from perfsim.prediction.question import Question
from perfsim.specs.wall_clock import WallClockSpec
from perfsim.studies.answers import (
    Answer,
    BreakEven,
    Decision,
    Era,
    Eras,
    LawAnswer,
    LawRow,
    Lever,
    Outcome,
    PointResult,
    Production,
)
from perfsim.studies.batches import Target, counted
from perfsim.studies.spec import Point, StudySpec


def _plan_of(row: Answer) -> str:
    """What rows that run the same layout of the same machine on the same batch share."""
    return str([row.system, row.num_devices, row.global_batch_size, row.layout, row.step_time_s])


def ratio_of(row: Answer, first: Answer) -> Spread:
    """The 90 % band of the ratio of two times; on one kind of device a part of their errors cancels."""
    if row.time is first.time or _plan_of(row) == _plan_of(first):
        return Spread(1.0, 1.0, 1.0)
    return row.time.ratio_to(first.time, same_machine=row.device == first.device)


# A candidate as far as its time and its bill depend on what is not known.

SEEDS = "seeds of "
"""Begins the name of the input that is a run's own luck."""
SPEED = "step time of "
"""Begins the name of an error of a step time."""
_OF_TARGET = ("tokens to the target", "critical batch")
POINT_DRAWS = 1000
"""Draws for each point of a sweep, of which there may be many thousands."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A candidate, as far as time and money depend on what is not known."""

    label: str
    system: str
    device: str
    plan: str
    """Label of the first option with its machine, layout and batch: options of one plan share its error."""
    time: TimeToAccuracy
    later_tokens: float = 0.0
    """Of later phases, which are no tokens to the target."""
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

    @property
    def of_speed(self) -> tuple[str, str]:
        """The names of its inputs that are errors of the step time: of its kind of device, and its own."""
        return f"{SPEED}{self.device}, shared", f"{SPEED}{self.plan}"

    @cached_property
    def inputs(self) -> Mapping[str, Uncertain]:
        """Everything that its times and its bill depend on, by name."""
        time = self.time
        critical = self.time.critical
        total = math.log1p(time.step_time_error)
        unshared = math.log1p(time.unshared_error)
        shared = math.exp(math.sqrt(max(total**2 - unshared**2, 0.0)))
        inputs = [
            _factor(self.of_speed[0], shared),
            _factor(self.of_speed[1], math.exp(min(unshared, total))),
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
        shift = abs(self.time.shift(self.time.critical.band_tokens[end]))
        return math.sqrt(max(math.log1p(self.time.examples_error) ** 2 - shift**2, 0.0))

    def steps_s(self, place: Place) -> Floats:
        """Time of the steps with the inputs at their places."""

        def at(name: str) -> Floats:
            return self.inputs[name].at(place(name))

        time = self.time
        factors = at(self.of_speed[0]) * at(self.of_speed[1])
        b_crit = time.critical.tokens if time.critical.given_length else at("critical batch")
        seconds = time.steps_s(at("tokens to the target"), b_crit) * at(SEEDS + self.label)
        return np.asarray((seconds + sum(time.later_s)) * factors)

    def wall_s(self, place: Place) -> Floats:
        """Time on the wall with the inputs at their places."""
        steps_s = self.steps_s(place)
        if self.wall_clock is not None:
            return self.training.wall_s(self.wall_clock, steps_s, place)
        if self.production is not None:
            ratio = _of_production(self.production)
            return steps_s / ratio.at(place(ratio.name))
        return steps_s

    def money(self, place: Place) -> Floats:
        """Money of a run with the inputs at their places; nan without a price."""
        money = self.rates.bill(self.wall_s(place), place).money
        return np.asarray(math.nan) if money is None else money

    @cached_property
    def typical_s(self) -> float:
        """Time on the wall at the typical inputs."""
        return float(self.wall_s(typical))

    @cached_property
    def expected_s(self) -> Floats:
        """Times on the wall without the luck of seeds, shape [draws]."""
        return self.wall_s(lambda name: 0.0 if name.startswith(SEEDS) else self.draws(name))

    @cached_property
    def drawn_s(self) -> Floats:
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

    def like(self, first: Option) -> dict[str, float | None]:
        """What a billion tokens take, and the time at the power and at the price of the first."""

        def over(name: str, reference: Values | None) -> float | None:
            own = getattr(self.typical_bill, name)
            return None if own is None or reference is None else float(own / reference)

        bill = first.typical_bill
        tokens = (self.time.examples_tokens + self.later_tokens) / 1e9
        power = None if bill.energy_kwh is None else bill.energy_kwh / first.typical_s
        rent = None if bill.money is None else bill.money / first.typical_s
        return {
            "energy_kwh_per_1e9_tokens": over("energy_kwh", tokens),
            "cost_per_1e9_tokens": over("money", tokens),
            "equal_power_s": over("energy_kwh", power),
            "equal_price_s": over("money", rent),
        }

    def spread(self, name: str) -> Spread | None:
        """One of the bill's figures; None where an input is not given."""
        values = getattr(self.bill, name)
        return None if values is None else Spread.of(values, float(getattr(self.typical_bill, name)))


def option_of(point: PointResult, plan: str = "", draws: int = 0) -> Option:
    """A candidate that has an answer; `plan` is the label of an option with the same layout and batch."""
    study = point.study
    question = point.question
    row = point.prediction
    system = question.system
    prices = study.prices_of(point.candidate)
    busy = max(0.0, 1.0 - (row.bubble_fraction + row.exposed_communication_fraction))
    filled = question.topology.filled_nodes
    rates = Rates(system=system, devices=question.devices, units=filled, prices=prices, busy=busy)
    return Option(
        label=row.label,
        system=system.name,
        device=row.device,
        plan=plan or row.label,
        time=row.time,
        later_tokens=sum(phase.tokens for phase in study.recipe.later),
        training=point.healthy_run(row.time),
        rates=rates,
        wall_clock=point.candidate.wall_clock,
        production=row.production,
        draws=Draws(study.uncertainty.seed, draws or study.uncertainty.draws),
    )


def decision_of(points: Sequence[PointResult], draws: int = 0) -> Decision:
    """The decision between candidates of a study, all with answers."""
    plans: dict[str, str] = {}
    labels = [plans.setdefault(_plan_of(point.prediction), point.prediction.label) for point in points]
    options = [option_of(point, label, draws) for point, label in zip(points, labels, strict=True)]
    return decide(options, points[0].study.prices.currency)


def _of_production(production: Production) -> Uncertain:
    name = f"rate of production over healthy steps, {production.text}"
    return Uncertain(name, production.range[0], production.ratio, production.range[1], "times")


def _factor(name: str, factor: float, middle: float = 1.0, unit: str = "times") -> Uncertain:
    return Uncertain(name, middle / factor, middle, middle * factor, unit)


# One seeded Monte Carlo over everything that a study is not sure of.
#
# An input that several candidates share (`Option.inputs`) is drawn once for all of them. Chances compare
# expected times, without the luck of seeds, which is in the interval of each time.
# `TimeToAccuracy.ratio_to` and `band_s` are the closed forms of both.

FARTHEST = 3.0
PLACES = 1201
"""How far from its typical value an input is moved to flip the order, in standard deviations."""
MOST_LEVERS = 10


def decide(options: Sequence[Option], currency: str) -> Decision:
    """The decision between options that are candidates of one study, with the same draws."""
    first, *others = sorted(options, key=lambda option: option.typical_s)
    # The rival is the earliest of another machine, else of another plan.
    unlike = [option for option in others if option.system != first.system]
    against = [option for option in others if option.plan != first.plan]
    rival = next(iter([*unlike, *against]), None)
    earliest = np.min(np.broadcast_arrays(*(option.expected_s for option in options)), axis=0)
    priced = [option.bill.money for option in options if option.bill.money is not None]
    least = np.min(np.broadcast_arrays(*priced), axis=0) if len(priced) == len(options) else None
    outcomes = tuple(
        Outcome(
            label=option.label,
            steps_s=Spread.of(option.steps_s(option.draws), float(option.steps_s(typical))),
            wall_s=Spread.of(option.drawn_s, option.typical_s),
            basis=option.basis,
            device_hours=option.spread("device_hours") or Spread(math.nan, math.nan, math.nan),
            energy_kwh=option.spread("energy_kwh"),
            carbon_kg=option.spread("carbon_kg"),
            money=option.spread("money"),
            first=float(np.mean(option.expected_s <= earliest)),
            cheapest=None if least is None else float(np.mean(least == option.bill.money)),
            not_given=option.rates.not_given,
            ratio=_wall_ratio(option, first),
            turns=_turning(first, against, option.of_speed, first.draws),
            equal_time_devices=option.rates.devices * option.typical_s / first.typical_s,
            **option.like(first),
        )
        for option in options
    )
    ratio = money_ratio = None
    levers = money_levers = tuple[Lever, ...]()
    if rival is not None:
        ratio = _wall_ratio(rival, first)
        levers = _levers(first, rival, Option.wall_s)
        if first.bill.money is not None and rival.bill.money is not None:
            at_middle = float(rival.money(typical) / first.money(typical))
            money_ratio = Spread.of(rival.bill.money / first.bill.money, at_middle)
            money_levers = _levers(first, rival, Option.money)
    return Decision(
        seed=first.draws.seed,
        draws=first.draws.count,
        currency=currency,
        outcomes=outcomes,
        first=first.label,
        rival="" if rival is None else rival.label,
        ratio=ratio,
        sure=outcomes[list(options).index(first)].first,
        turns=_turning(first, against, _OF_TARGET, first.draws),
        levers=levers,
        break_even=_break_even(options, first),
        money_ratio=money_ratio,
        money_levers=money_levers,
    )


def _wall_ratio(option: Option, first: Option) -> Spread:
    """The time on the wall of one option over the time of another, without the luck of seeds."""
    if option.plan == first.plan:
        return Spread(1.0, 1.0, 1.0)
    return Spread.of(option.expected_s / first.expected_s, option.typical_s / first.typical_s)


def _turning(first: Option, against: Sequence[Option], names: Sequence[str], draws: Draws) -> float:
    """The probability that the first is not first where these inputs alone are drawn."""

    def place(name: str) -> Values:
        return draws(name) if name in names else 0.0

    earlier = [option.wall_s(place) < first.wall_s(place) for option in against]
    return float(np.mean(np.any(np.broadcast_arrays(*earlier), axis=0))) if earlier else 0.0


def _levers(first: Option, rival: Option, amount: Callable[[Option, Place], Floats]) -> tuple[Lever, ...]:
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
        flips = distance = None
        changes = np.flatnonzero(np.diff(np.sign(moved)) != 0)
        if changes.size:  # where the ratio is 1, nearest to the typical value
            left = moved[changes]
            right = moved[changes + 1]
            zeros = scan[changes] + (scan[1] - scan[0]) * left / (left - right)
            distance = float(zeros[np.argmin(np.abs(zeros))])
            flips = float(entry.at(distance))
        values = (entry.low, entry.typical, entry.high, entry.unit)
        levers.append(Lever(name, *values, float(low), float(high), flips_at=flips, distance=distance))
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
        ratio = Spread.of(other.bill.device_hours / hours, float(other.typical_bill.device_hours / at_middle))
        price = None
        if other.bill.money is not None and other.typical_bill.money is not None:
            price = Spread.of(other.bill.money / hours, float(other.typical_bill.money / at_middle))
        even.append(BreakEven(one.label, other.label, ratio, price))
    return tuple(even)


def verb(devices: int, many: str, single: str) -> str:
    """The form of a verb after a number of devices: `16 CS-2` take, `1 CS-2` takes."""
    return single if devices == 1 else many


def duration(seconds: float, band_s: tuple[float, float] | None = None) -> str:
    """`25.7 days`, and with a band `25.7 days on the wall (20.1 to 32.4)`."""
    word, size = next((unit[1:3] for unit in TIME_UNITS if seconds >= unit[3]), ("seconds", 1.0))
    band = f" on the wall ({' to '.join(number(end / size) for end in band_s)})" if band_s else ""
    return f"{number(seconds / size)} {word}{band}"


def amount(spread: Spread | None, unit: str = "") -> str:
    """`1.23 million USD (0.98 to 1.6)`."""
    if spread is None:
        return "not given"
    scale, word = large_word(spread.typical)
    middle, low, high = (number(value / scale) for value in (spread.typical, spread.low, spread.high))
    band = f"({low} to {high})" if low != high else ""
    return " ".join(filter(None, [middle, word, unit, band]))


def times(ratio: float) -> str:
    """`1.24`, and from ten on three digits, `78.4`."""
    return f"{ratio:.2f}" if ratio < 10 else number(ratio)


def chance(probability: float) -> str:
    """`97 %`; never 0 or 100."""
    if probability > 0.995:
        return "more than 99 %"
    return "less than 1 %" if probability < 0.005 else f"{100 * probability:.0f} %"


# The study's own law of the critical batch next to every general law.

GENERAL = ("data_law", "bergsma_2025", "kaplan_loss", "kaplan_over_run")
"""Laws that need no measurement of the user's."""


def laws_side_by_side(spec: StudySpec, target: Target, candidates: Sequence[Answer]) -> tuple[LawAnswer, ...]:
    """Answers by the study's own and every general law, at the batches tried; empty for given tokens."""
    if target.critical.given_length or not candidates:
        return ()
    d_min = target.d_min_tokens
    params = counted(spec.model, KAPLAN)
    loss = KAPLAN.loss(params, d_min)
    inputs = LawInputs(d_min_tokens=d_min, loss=loss, loss_scale=KAPLAN.corpus, params=params)
    known = {target.critical.law: target.critical}
    for law in GENERAL:
        with suppress(PerfsimError):
            known.setdefault(law, critical_batch(law, inputs))
    answers = []
    for critical in known.values():
        rows = []
        for candidate in candidates:
            times_s = []
            for own in candidate.batch_curve:
                size = own.batch_tokens
                time = replace(candidate.time, batch_tokens=size, step_time_s=own.step_time_s, ramp=own.ramp)
                by_own_s = time.steps_s(d_min, target.critical.tokens)
                more_s = time.steps_s(d_min, critical.tokens) - by_own_s
                times_s.append((own.time_to_accuracy_s + more_s, own.global_batch_size))
            time_s, batch = min(times_s, key=itemgetter(0))
            rows.append(LawRow(candidate.label, batch, time_s))
        first = min(rows, key=lambda row: row.time_s).label
        batches = (critical.tokens, critical.band_tokens)
        answers.append(LawAnswer(critical.law, critical.source, *batches, tuple(rows), first))
    return tuple(answers)


# The first two candidates on equal dates: who was first when, and where the order turns.

MOST_MONTHS = 12
"""Candidates whose newest parts are further apart are compared on one day as well."""


def far_apart(pair: Sequence[PointResult]) -> str:
    """That no day was asked, and the newest parts of two machines are far apart; empty where it is not so."""
    parts = [newest_part(point.question) for point in pair]
    if {point.study.as_of for point in pair} - {"", LATEST} or not all(part.date for part in parts):
        return ""
    months = months_apart(*(part.date for part in parts))
    named = " and ".join(f"{part.name} of {part.date}" for part in parts)
    return (
        f"The newest parts of two machines are {months} months apart ({named})"
        if months > MOST_MONTHS
        else ""
    )


def eras_of(study: StudySpec, pair: Sequence[PointResult], ask: Callable[[Point], Answer]) -> Eras | None:
    """The first on the wall and its rival on equal dates.

    None where they are at most `MOST_MONTHS` apart, or where the day changes neither.
    """
    if len(pair) < 2:
        return None
    first, rival = (point.prediction for point in pair)
    asked = _Asked(pair, ask)
    if study.as_of == EQUAL:  # also on every day from which one of the two has something new
        return _over_dates(study.equal_day, asked)
    said = far_apart(pair)
    if not said:
        return None
    try:
        eras = (asked.on(study.equal_day),)
    except PerfsimError as error:
        said += f", and no day has both: {error.problems[0].message}."
        return Eras("", first.label, rival.label, said)
    if not asked.known:  # the day changes neither
        return None
    take = f"{rival.machine} {verb(rival.num_devices, 'take', 'takes')} {times(eras[0].ratio)} times as long"
    said += f": on equal dates ({eras[0].day}) {take} as {first.machine}."
    return Eras(eras[0].day, first.label, rival.label, said, eras=eras)


@dataclass(frozen=True)
class _Asked:
    """Two candidates that are asked again on other days, at the batches of their answers."""

    pair: Sequence[PointResult]
    ask: Callable[[Point], Answer]
    known: dict[tuple[str, str], Answer] = field(default_factory=dict)

    def on(self, day: str) -> Era:
        """Both on a day; PerfsimError where one of them did not exist, or has no plan."""
        questions = [replace(point.question, as_of=day) for point in self.pair]
        newest = max((newest_part(question) for question in questions), key=lambda part: part.date)
        first, rival = map(option_of, map(self._answered, self.pair, questions))
        ratio = _wall_ratio(rival, first)
        times_s = (first.typical_s, rival.typical_s)
        return Era(day, newest.name, *times_s, ratio.typical, ratio.band)

    def _answered(self, point: PointResult, question: Question) -> PointResult:
        """A candidate as it answers on the day of a question, asked once for each of its runtimes."""
        runs, ran = (one.machine.software(one.system, one.ran_by).name for one in (question, point.question))
        if runs == ran:
            return point
        row = point.prediction
        if (row.label, runs) not in self.known:
            changes = {"as_of": question.as_of, "batch_sizes": (row.global_batch_size,)}
            self.known[row.label, runs] = self.ask(Point(point.study.model_copy(update=changes)))
        return replace(point, answer=self.known[row.label, runs])


def _over_dates(day: str, asked: _Asked) -> Eras:
    """Every day that changed something, and the ratio by either choice of day; a limit keeps earlier ones."""
    first, rival = (point.prediction for point in asked.pair)
    questions = [point.question for point in asked.pair]
    late = max(measured_days(question)[1] for question in questions)
    days = {day, late}
    parts: list[Part] = []
    for question in questions:
        runs = [question.machine.software(question.system, runtime) for runtime in choices(question)]
        parts += question.machine.parts(question.system)
        days |= {part.date for part in (*parts, *runs)}
    eras: list[Era] = []
    stopped: LimitError | None = None
    for date in sorted(on for on in days if all(existed(part.date, on) for part in parts)):
        try:
            eras.append(asked.on(date))
        except LimitError as limit:
            stopped = limit
        except PerfsimError:  # one of them did not exist yet
            continue
    ratios = {era.day: era.ratio for era in eras}
    if late not in ratios or day not in ratios:
        reason = f": {stopped.problems[0].message}" if stopped else ""
        sentence = (
            f"All as of {day}. {late}, the day of the newest of what was measured, has no answer{reason}."
        )
        return Eras(day, first.label, rival.label, sentence, eras=tuple(eras))
    if late == day:
        return Eras(day, first.label, rival.label, "", eras=tuple(eras))
    turn = next((era for era in eras if era.day > day and (era.ratio < 1) is (ratios[day] >= 1)), None)
    turned = f"; the order turns on {turn.day}, with {turn.newest}" if turn else ", so the order stays"
    sentence = (
        f"All as of {day}, the earliest date of what was measured of each. As of {late}, the newest, "
        f"{rival.machine} {verb(rival.num_devices, 'take', 'takes')} {times(ratios[late])} times as long as "
        f"{first.machine}{turned}."
    )
    return Eras(day, first.label, rival.label, sentence, rival.mfu * ratios[day], tuple(eras))
