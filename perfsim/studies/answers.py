"""Answers of studies and sweeps as plain values: a row for each machine at its best batch.

A candidate of a study and a point of a sweep have the same row (`Answer`): a predicted step, its time to the
target, and what a whole run takes. Reports, JSON and tables read nothing else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from statistics import geometric_mean, median
from typing import Any, TypeVar

from perfsim.base.errors import InputError, LimitError
from perfsim.base.groups import listed
from perfsim.base.text import did_you_mean, large_word
from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.convergence.uncertain import Spread, Uncertain
from perfsim.convergence.wall_clock import RunPart
from perfsim.prediction.bands import Accuracy
from perfsim.prediction.caveats import CODES, Caveat
from perfsim.prediction.prediction import Document, Prediction
from perfsim.prediction.verification import SamplingSummary
from perfsim.specs.wall_clock import ProductionRange
from perfsim.studies.batches import BatchPoint
from perfsim.studies.loading import BATCH_PATHS, VARIANT
from perfsim.studies.spec import Point
from perfsim.studies.timeline import TimelineBar

Circumstances = tuple[tuple[str, str], ...]
"""Settings other than the batch, each value as text."""
RECORD = "production.json"


@dataclass(frozen=True, slots=True)
class Production:
    """A production run's published rate over the predicted rate of its healthy steps.

    It covers what slows the steps of a long run (stragglers, other jobs on the network, data loading,
    logging) and the model's own error on these runs, but not what a wall clock describes: queue, compilation,
    restarts, lost work. All known runs are on GPUs. Every machine has the same ratio: no comparison moves.
    """

    ratio: float
    """Rate of production steps over the rate of healthy ones."""
    range: tuple[float, float]
    """Low and high; taken as a 90 % range."""
    source: str
    """Where the ratio is from."""

    @classmethod
    def of(cls, point: Point) -> Production | None:
        """The ratio of a candidate, its own or the study's; None where it is switched off."""
        given = point.study.production if point.candidate.production is None else point.candidate.production
        if given == "none":
            return None
        if given == "recorded":
            return cls.recorded()
        if isinstance(given, ProductionRange):
            return cls(given.typical, (given.low, given.high), given.source)
        return cls(float(given), (float(given), float(given)), "given by the study")

    @classmethod
    @cache
    def recorded(cls) -> Production:
        """Median and range over the recorded production runs."""
        rows = json.loads(files("perfsim.studies").joinpath(RECORD).read_text(encoding="utf-8"))
        ratios = [float(row["ratio"]) for row in rows]
        names = ", ".join(f"{row['name']} {row['ratio']:.2f}" for row in rows)
        source = f"median and range of published production rates over predicted healthy steps: {names}"
        return cls(median(ratios), (min(ratios), max(ratios)), source)

    @property
    def of_healthy(self) -> str:
        """`0.81 (0.76 to 0.88) of the rate of healthy steps, as in published production runs`."""
        of_runs = ", as in published production runs" if self == Production.recorded() else ""
        return f"{self.text} of the rate of healthy steps{of_runs}"

    def band_s(self, healthy_s: float, band_s: tuple[float, float]) -> tuple[float, float]:
        """The band of that time: band and range combine in quadrature in log time, as independent errors."""
        low, high = self.range
        middle_s = healthy_s / self.ratio
        down = math.hypot(math.log(healthy_s / band_s[0]), math.log(high / self.ratio))
        up = math.hypot(math.log(band_s[1] / healthy_s), math.log(self.ratio / low))
        return middle_s * math.exp(-down), middle_s * math.exp(up)

    @property
    def text(self) -> str:
        """`0.81 (0.76 to 0.88)`."""
        low, high = self.range
        return f"{self.ratio:.2f} ({low:.2f} to {high:.2f})" if low < high else f"{self.ratio:.2f}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer(Prediction):
    """One machine with one strategy at its best batch; what follows `production` is of a study alone."""

    time: TimeToAccuracy = field(repr=False)
    """Healthy steps to the target, with the law and the errors that their band comes from."""
    whole_run: tuple[RunPart, ...] = ()
    """The parts of the wall clock, the sum last; empty if the candidate names no wall clock."""
    production: Production | None = None
    """Ratio of production steps to healthy ones; None if it is switched off."""
    number: int = 0
    """Its number among the candidates that were asked."""
    batch_curve: tuple[BatchPoint, ...] = field(default=(), repr=False)
    timeline: tuple[TimelineBar, ...] = field(default=(), repr=False)
    timeline_devices: int = 0
    """Devices that were simulated on their own; the timeline has the lanes of some of them."""
    sampling: SamplingSummary | None = field(default=None, repr=False)
    """The matrix products of its step that were executed."""
    apart: str = ""
    """What tells it from other candidates of this machine and strategy: its given layout, or a number."""
    short: str = ""
    """What its study calls it: its machine where no other candidate has the same, else its label."""
    outcome: Outcome | None = field(default=None, repr=False)
    """What it takes on the wall, in money and in energy, from the draws of the study's decision."""

    @property
    def label(self) -> str:
        """Machine and strategy, with what tells it from others: `128 A100-80GB (16 DGX), 3d, tp=8,pp=4`."""
        return ", ".join(filter(None, [super().label, self.apart]))

    @property
    def planned_step_s(self) -> float:
        """Time of the step by which its layout was chosen: without what perturbs it."""
        return self.perturbed.unperturbed_step_time_s if self.perturbed else self.step_time_s

    @property
    def steps(self) -> float:
        """Steps to the target."""
        return self.time.steps

    @property
    def time_to_accuracy_s(self) -> float:
        """Time of healthy steps to the target."""
        return self.time.time_s

    @property
    def time_to_accuracy_band_s(self) -> tuple[float, float]:
        """90 % band of the time to the target."""
        return self.time.band_s

    @property
    def production_time_s(self) -> float | None:
        """Time to the target at the production rate."""
        return None if self.production is None else self.time.time_s / self.production.ratio

    @property
    def production_band_s(self) -> tuple[float, float] | None:
        """90 % band of the time at the production rate, from the study's draws where there are any."""
        if self.production is None:
            return None
        if self.outcome is None or self.whole_run:
            return self.production.band_s(self.time.time_s, self.time.band_s)
        return self.outcome.wall_s.band

    @property
    def wall_s(self) -> float:
        """Time on the wall: the whole run, else steps at the rate of production, else healthy steps."""
        if self.whole_run:
            return self.whole_run[-1].typical_s
        return self.production_time_s or self.time.time_s

    def document(self) -> Document:
        """The row under the names of the JSON interface; a store of finished points keeps the same."""
        return {
            **self.step_document(),
            "batch_tokens": self.time.batch_tokens,
            "steps": self.time.steps,
            "step_time_error": self.time.step_time_error,
            "unshared_error": self.time.unshared_error,
            "time_to_accuracy_s": self.time.time_s,
            "time_to_accuracy_band_s": list(self.time.band_s),
            "whole_run": [asdict(part) for part in self.whole_run],
            "production": self.production and asdict(self.production),
        }


@dataclass(frozen=True)
class PointResult(Point):
    """A point of a sweep with its answer, or with the reasons why it has no feasible plan."""

    answer: Answer | None = None
    reasons: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether it has a plan."""
        return self.answer is not None

    @property
    def prediction(self) -> Answer:
        """The step at the best batch; ValueError for a point without a feasible plan."""
        if self.answer is None:
            raise ValueError(f"{self.label} has no feasible plan")
        return self.answer

    @property
    def target_time(self) -> TimeToAccuracy:
        """The time to the target; ValueError for a point without a feasible plan."""
        return self.prediction.time

    @cached_property
    def outcome(self) -> Outcome:
        """What it takes on the wall, in energy and in money, from draws of its own."""
        from perfsim.studies.decision import POINT_DRAWS, decision_of  # which decides between such points

        return decision_of([self], POINT_DRAWS).outcomes[0]

    @property
    def variant(self) -> str:
        """The name of its variant; empty if the sweep has none."""
        return str(self.settings.get(VARIANT, ""))

    def settings_but(self, *paths: str | None) -> Circumstances:
        return tuple((path, setting_text(own)) for path, own in self.settings.items() if path not in paths)

    @property
    def circumstances(self) -> Circumstances:
        """The settings except the batch, which the trainer chooses."""
        return self.settings_but(*BATCH_PATHS)

    @property
    def named(self) -> str:
        """`16 CS-2`, with the settings that tell it from others."""
        return " with ".join(filter(None, [self.machine, settings_text(self.circumstances)]))

    @property
    def batch_text(self) -> str:
        """The global batch; without a plan the one the grid asked for, empty if it varies none."""
        if self.answer is not None:
            return setting_text(self.answer.global_batch_size)
        return next((setting_text(self.settings[path]) for path in BATCH_PATHS if path in self.settings), "")


def named(rows: Sequence[Answer]) -> tuple[Answer, ...]:
    """The candidates of a study with their short names."""
    alike = listed((row.machine, row) for row in rows)
    return tuple(replace(row, short=row.label if alike[row.machine][1:] else row.machine) for row in rows)


Called = TypeVar("Called", Answer, Point)


def called(name: str, known: Sequence[Called]) -> Called:
    """The candidate called `16 CS-2`, `16 x cs-2`, by its label or strategy; InputError unless it is one."""
    wanted = _plain(name)

    def fits(one: Answer | Point) -> bool:
        kinds: tuple[str, str] = (one.system, one.devices_noun)
        machines: list[str] = [*(f"{one.num_devices} {kind}" for kind in kinds), one.machine]
        names = [one.label, one.strategy, *machines, *(f"{own} {one.strategy}" for own in machines)]
        return wanted in map(_plain, names)

    fitting = [one for one in known if fits(one)]
    if len(fitting) != 1:
        wrong = "no candidate is called" if not fitting else "several candidates are called"
        raise InputError(f"{wrong} {name!r}", did_you_mean(name, [one.label for one in known]))
    return fitting[0]


def _plain(name: str) -> str:
    """A name without case, signs and the `x` between number and system."""
    if not isinstance(name, str):
        raise InputError(f"a candidate is named by text such as '16 cs-2', not {name!r}")
    return " ".join(re.sub(r"[^a-z0-9]+", " ", re.sub(r"\bx\b", " ", name.casefold())).split())


def leaves(value: Any, path: str = "", left_out: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Every value inside a description with its dotted path; a list is one value, a fitted record a name."""
    if not isinstance(value, Mapping):
        yield path, value
    elif "fit" in value:
        yield path, value["name"]
    else:
        for key, item in value.items():
            if key not in left_out:
                yield from leaves(item, f"{path}.{key}" if path else str(key), left_out)


def setting_text(value: Any) -> str:
    """A value of a grid as text: `4,096`, `1.5 billion`."""
    if isinstance(value, float):
        scale, word = large_word(value)
        return f"{value / scale:,.9g} {word}".strip()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {setting_text(item)}" for key, item in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def settings_text(settings: Circumstances) -> str:
    """`batch 512, software release r1.7`: settings by the last part of their paths, a variant by its name."""
    words = []
    for path, value in settings:
        name = path.rpartition(".")[2].removeprefix("global_").removesuffix("_size").replace("_", " ")
        words.append(value if path == VARIANT else f"{name} {value}")
    return ", ".join(words)


# Decisions: when, how much, how sure, and what would change it.


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a candidate takes to the target; None where an input is not given."""

    label: str
    """The candidate."""
    steps_s: Spread
    """Time of healthy steps."""
    wall_s: Spread
    """Time on the wall: with what `basis` says."""
    basis: str
    """What the time on the wall holds besides healthy steps."""
    device_hours: Spread
    energy_kwh: Spread | None
    carbon_kg: Spread | None
    """CO2 of the energy."""
    money: Spread | None
    """Price of the run."""
    first: float
    """Probability that no other candidate is at the target earlier."""
    cheapest: float | None
    """Probability that no other candidate costs less; None unless all have a price."""
    not_given: tuple[str, ...]
    """Inputs without which a figure is None."""
    ratio: Spread
    """Its time on the wall over the time of the first, from the same draws."""
    turns: float
    """Probability that another would be first where only the error of its step time is drawn."""
    energy_kwh_per_1e9_tokens: float | None
    """Typical energy of a billion tokens."""
    cost_per_1e9_tokens: float | None
    """Typical money of a billion tokens."""
    equal_power_s: float | None
    """Typical time on the wall of so many of its devices as draw the power of the first, in proportion."""
    equal_price_s: float | None
    """Typical time on the wall of so many as cost as much an hour as the first."""
    equal_time_devices: float
    """Devices that would be as fast as the first."""


@dataclass(frozen=True, slots=True)
class Lever(Uncertain):
    """An input, the ratio of times (or of money) over its 90 % range, and where the order of two flips."""

    ratio_at_low: float
    """The ratio with the input at its lower end."""
    ratio_at_high: float
    """The ratio with the input at its upper end."""
    flips_at: float | None
    """The nearest value at which both take as much; None within three standard deviations."""
    distance: float | None = None
    """How far that is from the typical value, in standard deviations of the input."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The price at which two machines cost the same, for the work of the study."""

    label: str
    """The candidate."""
    rival: str
    """The one that it is compared with."""
    device_hours_ratio: Spread
    """Device-hours of the rival for one of the candidate: what a device-hour of it may cost, in theirs."""
    price: Spread | None
    """The same in money a device-hour, where the rival's price is given."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Times, money and energy of all candidates from one set of seeded draws."""

    seed: int
    """Seed of the draws."""
    draws: int
    """Number of draws."""
    currency: str
    """Currency of all money."""
    outcomes: tuple[Outcome, ...]
    first: str
    """Label of the candidate that is first on the wall."""
    rival: str
    """The one that it is compared with; empty if there is none."""
    ratio: Spread | None
    """Time on the wall of the rival over the time of the first."""
    sure: float
    """Probability that the first is first of all."""
    turns: float
    """Probability that it would not be where only the critical batch and the tokens are drawn."""
    levers: tuple[Lever, ...]
    """The inputs that move the ratio, most first."""
    break_even: tuple[BreakEven, ...]
    money_ratio: Spread | None = None
    """Money of the rival over the money of the first; None unless both have a price."""
    money_levers: tuple[Lever, ...] = ()
    """The inputs that move the ratio of money, most first."""

    def of(self, label: str) -> Outcome:
        """What the candidate of this label takes."""
        return next(own for own in self.outcomes if own.label == label)

    def unit(self, figure: str) -> tuple[str, float]:
        """The unit of all energies or of all carbon, by their mean, and its size."""
        known = [getattr(own, figure) for own in self.outcomes]
        typical = [spread.typical for spread in known if spread is not None and spread.typical > 0]
        is_large = not typical or geometric_mean(typical) >= 1e3
        return UNITS[figure][is_large], 1e3 if is_large else 1.0


UNITS = {"energy_kwh": ("kWh", "MWh"), "carbon_kg": ("kg CO2e", "t CO2e")}
"""The small and the large unit of what a decision tells; the second is a thousand of the first."""

QUANTITIES: Mapping[str, Callable[[Answer, Outcome], float | None]] = {
    "global_batch_size": lambda row, _: row.global_batch_size,
    "step_time_s": lambda row, _: row.step_time_s,
    "mfu": lambda row, _: row.mfu,
    "peak_memory_bytes": lambda row, _: row.peak_memory_bytes,
    "steps": lambda row, _: row.steps,
    "time_to_accuracy_s": lambda row, _: row.time_to_accuracy_s,
    "low_s": lambda row, _: row.time_to_accuracy_band_s[0],
    "high_s": lambda row, _: row.time_to_accuracy_band_s[1],
    "production_time_s": lambda row, _: row.production_time_s,
    "wall_s": lambda _, taken: taken.wall_s.typical,
    "device_hours": lambda _, taken: taken.device_hours.typical,
    "energy_kwh": lambda _, taken: None if taken.energy_kwh is None else taken.energy_kwh.typical,
    "cost": lambda _, taken: None if taken.money is None else taken.money.typical,
    "tokens_per_s_per_device": lambda row, _: row.tokens_per_s / row.num_devices,
    "energy_kwh_per_1e9_tokens": lambda _, taken: taken.energy_kwh_per_1e9_tokens,
    "cost_per_1e9_tokens": lambda _, taken: taken.cost_per_1e9_tokens,
}
"""Columns of a table of answers: SI units, money in the study's currency, None for what is not given."""


def quantities(row: Answer | None, taken: Outcome | None) -> dict[str, float | None]:
    """The columns of a row; all None for a point without a plan."""
    if row is None or taken is None:
        return dict.fromkeys(QUANTITIES)
    return {name: value(row, taken) for name, value in QUANTITIES.items()}


@dataclass(frozen=True, slots=True)
class Assumption:
    """One input of the answer: its value with a unit, and its source."""

    topic: str
    """What it describes."""
    name: str
    """The input."""
    value: str
    """Its value with unit."""
    source: str
    """Where it is from."""
    kind: str
    """datasheet, fit, assumption, convention."""


@dataclass(frozen=True, slots=True)
class LawRow:
    """A candidate at its best batch by one law."""

    label: str
    """The candidate."""
    global_batch_size: int
    """Its best batch by the law."""
    time_s: float
    """Time to the target."""


@dataclass(frozen=True, slots=True)
class LawAnswer:
    """What a law of the critical batch answers."""

    law: str
    """Name of the law."""
    source: str
    """Where the law is from."""
    critical_batch_tokens: float
    """Batch at which twice the tokens are needed."""
    band_tokens: tuple[float, float]
    """90 % band of the critical batch."""
    rows: tuple[LawRow, ...]
    first: str
    """Label of the candidate that is first."""


@dataclass(frozen=True, slots=True)
class Era:
    """The first two candidates of a study on one day."""

    day: str
    """Of all candidates."""
    newest: str
    """The newest part of either."""
    first_s: float
    """Time on the wall of the one that is first in the study."""
    rival_s: float
    """Time of its rival."""
    ratio: float
    """The rival's time over the other: below 1 the rival is first on this day."""
    band: tuple[float, float]
    """90 % band of the ratio."""


@dataclass(frozen=True, slots=True)
class Eras:
    """The first two candidates of a study on equal dates, and on other days."""

    day: str
    """The equal day; empty where no day has both."""
    first: str
    """Label of the candidate that is first in the study."""
    rival: str
    """Label of the one that it is compared with."""
    sentence: str
    """What the dates change, in words."""
    turning_mfu: float | None = None
    """MFU of the rival at which both take as long; None where the study asks for no day."""
    eras: tuple[Era, ...] = ()
    """In the order of days."""


@dataclass(frozen=True, slots=True)
class SharedCaveat(Caveat):
    """A caveat of one or more answers that are compared, in the words of the worst of them."""

    systems: tuple[str, ...]
    """Systems that it is about."""
    machines: tuple[str, ...]
    """The answers by system: `1, 4 and 16 CS-2`."""
    nouns: tuple[str, ...]
    """Several devices of each system, such as `CS-2`."""
    turns: float = 0.0
    """Probability that the order of a study turns by what it is about."""


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A candidate without a feasible plan, and the reason."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A question, its candidates in the order of the study, and the sentence that answers it."""

    study: str
    """Name of the study."""
    title: str
    """Title of the page."""
    question: str
    """What is asked."""
    model: str
    """Name of the model."""
    num_parameters: float
    """Parameters of the model."""
    seq_length: int
    """Tokens of a sequence."""
    target_tokens: float
    """Tokens to the target at small batch."""
    law: str
    """The law of the critical batch."""
    critical_batch_tokens: float
    """Batch at which twice the tokens are needed; 0 for a given number of tokens."""
    critical_batch_band_tokens: tuple[float, float]
    """90 % band of the critical batch."""
    candidates: tuple[Answer, ...]
    verdict: str
    """Who is first, with what probability, when, and by how much, in one sentence."""
    decision: Decision
    """When, how much and how sure."""
    grounds: Mapping[str, str] = field(default_factory=dict)
    """Why, what it rests on, what it costs, and another reading where one differs; each a line."""
    caveats: tuple[SharedCaveat, ...] = ()
    """The caveats of all candidates, each once, those first that could turn the order."""
    infeasible: tuple[Infeasible, ...] = ()
    """Candidates without a plan, with the reason."""
    ratio_bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By candidate label: 90 % band of the ratio of its time to the fastest candidate's."""
    suggested_batch_tokens: Mapping[str, float] = field(default_factory=dict)
    """Global batch by published scaling law; these are not critical batches."""
    assumptions: tuple[Assumption, ...] = ()
    sampling: Mapping[str, SamplingSummary] = field(default_factory=dict)
    """By candidate label."""
    accuracy: tuple[Accuracy, ...] = ()
    perturbed: str = ""
    """The perturbations of the candidates' steps; empty if there are none."""
    laws: tuple[LawAnswer, ...] = ()
    """The study's law of the critical batch first, then the others."""
    loss_law: str = ""
    """The law of the losses, with its runs."""
    losses: tuple[tuple[float, float], ...] = ()
    """Shares of a run, and the loss of one that ends there; empty for a target beyond the law's runs."""
    eras: Eras | None = None
    """The first two on equal dates; None where they are hardly apart and no day was asked about."""
    command: str = ""
    """The command line that asks the same; empty where a study was not asked by name or path."""
    inputs_digest: str = ""
    """SHA-256 of the study's resolved descriptions without their prose, and of the version of the model."""
    stopped: LimitError | None = field(default=None, compare=False)
    """What ended it before all candidates were answered; no part of a document."""


# What several answers together say of their basis, once for all that have it alike.

LEAST_TURN = 0.01
"""From this probability on a caveat could turn the order."""
MOST_COUNTS = 4
"""More numbers of devices are written as a range."""


def shared_caveats(predictions: Sequence[Prediction]) -> tuple[SharedCaveat, ...]:
    """The caveats of all predictions, worst first, each code once for a system or for several that say it."""
    warnings = ((warning, step) for step in predictions for warning in step.caveats)
    groups = listed(((warning.code, step.system), (warning, step)) for warning, step in warnings)
    merged: dict[tuple[str, str], SharedCaveat] = {}
    for (code, system), said in groups.items():
        worst, _ = min(said, key=lambda pair: (pair[0].rank(), -pair[1].num_devices))
        machine = _machine(worst, said, [step for step in predictions if step.system == system])
        noun = said[0][1].devices_noun
        shared = SharedCaveat(worst.code, worst.severity, worst.text, (system,), (machine,), (noun,))
        if known := merged.get((code, worst.text)):
            shared = replace(
                min(known, shared, key=Caveat.rank),
                systems=known.systems + shared.systems,
                machines=known.machines + shared.machines,
                nouns=known.nouns + shared.nouns,
            )
        merged[code, worst.text] = shared
    return tuple(sorted(merged.values(), key=Caveat.rank))


def weighed(predictions: Sequence[Answer], decision: Decision) -> tuple[SharedCaveat, ...]:
    """The caveats of candidates by the probability that the order turns by what they are about."""
    known = []
    for caveat in shared_caveats(predictions):
        concern = CODES[caveat.code][1]
        about = [
            decision.of(row.label).turns
            for row in predictions
            if row.system in caveat.systems and caveat.code in {own.code for own in row.caveats}
        ]
        turns = {"step": max(about), "target": decision.turns, "memory": 0.0, "question": 0.0}[concern]
        known.append(replace(caveat, turns=turns))
    return tuple(sorted(known, key=lambda caveat: (-round(caveat.turns, 2), caveat.rank())))


def _machine(
    worst: Caveat, said: Sequence[tuple[Caveat, Prediction]], of_system: Sequence[Prediction]
) -> str:
    """`1, 4 and 16 CS-2`, with the strategies where others of this system are left out."""

    def names(steps: Iterable[Prediction]) -> set[str]:
        # A label is the machine and the strategy, and a layout that is named.
        return {step.label.removeprefix(f"{step.machine}, ") for step in steps}

    as_worst = [step for caveat, step in said if caveat.text == worst.text]
    named = names(as_worst)
    left_out = f", {' and '.join(sorted(named))}" if named != names(of_system) else ""
    counts = {step.num_devices for step in as_worst}
    lesser = {step.num_devices for _, step in said} - counts
    tail = f" (to a lesser degree {_counts(lesser)})" if lesser else ""
    return f"{_counts(counts)} {as_worst[0].devices_noun}{left_out}{tail}"


def _counts(numbers: Iterable[int]) -> str:
    counts = sorted(numbers)
    if len(counts) > MOST_COUNTS:
        return f"{counts[0]:,} to {counts[-1]:,}"
    return " and ".join(filter(None, [", ".join(f"{n:,}" for n in counts[:-1]), f"{counts[-1]:,}"]))


def confidence(caveats: Sequence[SharedCaveat]) -> str:
    """The worst caveat as a clause of a verdict; empty where all are for information only."""
    worst = min(caveats, key=Caveat.rank, default=None)
    if worst is None or worst.severity == "info":
        return ""
    level = "low" if worst.severity == "serious" else "limited"
    return f"{level} confidence in {' and '.join(worst.nouns)}: {worst.headline}"
