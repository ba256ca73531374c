"""A study asked backwards: at which value of one input its answer meets conditions.

Every evaluation is a point of a sweep over that input. By how much it misses a condition is the log of the
quantity over its bound, with typical inputs and in each joint draw of `studies/decision.py`; a value meets a
condition where typical inputs miss nothing, and at 90 % where this quantile of the draws misses nothing.
Values are tried outward from today's until the condition turns, then between two neighbours by interpolation,
and beyond those that meet it: of devices first a grid, since time may rise with their number. Where
the input is a batch, a coarse sweep finds every turn first. Of batches those are tried that lie around the
best one of the value before. Layouts are planned within a bound on memory; the leanest says if any is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import count, pairwise
from typing import Any, Literal, get_args, get_origin

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.base.dates import EQUAL
from perfsim.base.errors import InputError, PerfsimError, attempt
from perfsim.base.text import did_you_mean, large_word
from perfsim.base.units import DAY_S, Dimension, format_quantity, parse_quantity
from perfsim.catalog import Catalog
from perfsim.convergence.bill import HOUR_S, JOULES_A_KWH
from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.convergence.uncertain import Place, Spread, typical
from perfsim.network import FatTree
from perfsim.prediction.question import ASKED, Asked, question_of
from perfsim.specs.layout import text_of, written
from perfsim.specs.prices import PRICE_OF
from perfsim.specs.wall_clock import Range
from perfsim.strategies.three_d.strategy import ThreeD
from perfsim.studies import loading
from perfsim.studies.answers import PointResult, called
from perfsim.studies.batches import Target, counted
from perfsim.studies.decision import SEEDS, Option, option_of
from perfsim.studies.executors import IN_PROCESS, Executor, Tell
from perfsim.studies.runner import answer_point
from perfsim.studies.shortlist import plan_layouts
from perfsim.studies.spec import CALLED, CandidateSpec, Point, StudySpec
from perfsim.studies.variants import SweepResult
from perfsim.work.counts import parameters
from perfsim.work.family import scaled

# Quantities of an answer, and conditions on them.


def _amounts(point: PointResult, option: Option, at: Place) -> dict[str, Any]:
    """What conditions may be on, by name, with the inputs at their places; None where one is not given."""
    row = point.prediction
    wall_s = option.wall_s(at)
    bill = option.rates.bill(wall_s, at)
    tokens = option.time.examples_tokens + option.later_tokens
    joules = None if bill.energy_kwh is None else bill.energy_kwh * JOULES_A_KWH
    return {
        "days": wall_s / DAY_S,
        "hours": wall_s / HOUR_S,
        "cost": bill.money,
        "cost_per_1e9_tokens": None if bill.money is None else bill.money / (tokens / 1e9),
        "device_hours": bill.device_hours,
        "energy_kwh": bill.energy_kwh,
        "carbon_kg": bill.carbon_kg,
        "power": None if joules is None else joules / wall_s,
        "memory": row.peak_memory_bytes,
        "loss": _loss(point.study, point.target_time),
        **{name: getattr(row, name) for name in COLUMNS},
    }


def _loss(study: StudySpec, end: Target | TimeToAccuracy) -> float:
    """The loss at the end of a run by the study's law."""
    law = study.convergence.of_loss
    return law.loss(counted(study.model, law), end.d_min_tokens)


COLUMNS = ("step_time_s", "time_to_accuracy_s", "global_batch_size", "mfu", "steps", "tokens_per_s")
"""Columns of an answer, which no draw moves."""
WITH_UNITS: Mapping[str, tuple[Dimension, float]] = {
    "days": ("seconds", DAY_S),
    "hours": ("seconds", HOUR_S),
    "step_time_s": ("seconds", 1.0),
    "time_to_accuracy_s": ("seconds", 1.0),
    "power": ("watts", 0.0),
    "memory": ("bytes", 0.0),
}
"""Quantities whose values may have a unit, and the size of theirs; 0: a value needs one."""
NAMES = (
    *("days", "hours", "cost", "cost_per_1e9_tokens", "device_hours", "energy_kwh", "carbon_kg", "power"),
    *("memory", "loss", *COLUMNS),
)
ALSO = ("days", "cost", "loss")
"""What every solution tells, where it is known."""
_FACTORS = {"": 1.0, "%": 0.01, "kWh": 1.0, "MWh": 1e3, "GWh": 1e6, "million": 1e6, "billion": 1e9}
_WORDS = {"days": "d", "day": "d", "hours": "h", "hour": "h", "minutes": "min", "seconds": "s"}
_VALUE = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)"
_CONDITION = re.compile(rf"\s*(\w+)\s*(?:\((.+)\))?\s*(<=|>=|==)\s*(?:([a-z]\w*)\s*\((.+)\)|{_VALUE})\s*")
FORM = "write QUANTITY OP VALUE, such as 'days <= 14', or 'days(3d) == days(16 CS-2)'; OP is <=, >= or =="


@dataclass(frozen=True, slots=True)
class Condition:
    """`QUANTITY OP VALUE`, or `QUANTITY(CANDIDATE) OP QUANTITY(CANDIDATE)`."""

    quantity: str
    candidate: str
    sense: str
    bound: float = math.nan
    """nan where it is the quantity of another candidate."""
    other: str = ""
    rival: str = ""

    @classmethod
    def read(cls, text: str, currency: str) -> Condition:
        """A condition from its text. Raises InputError with what is allowed and the nearest that is."""
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise InputError(f"{text!r} is no condition", FORM)
        name, candidate, sense, other, rival, number, unit = match.groups()
        _check_quantities(name, other)
        if rival and not candidate:
            raise InputError(f"{text!r}: {name} of which candidate?", FORM)
        if rival:
            return cls(name, candidate, sense, other=other, rival=rival)
        factors = {currency: 1.0, **_FACTORS}
        if name in WITH_UNITS and (unit or not WITH_UNITS[name][1]):
            dimension, size = WITH_UNITS[name]
            given = f"{number} {_WORDS.get(unit, unit)}".strip()
            value = parse_quantity(given, dimension, _WORDS.get(name, "")) / (size or 1.0)
        elif unit in factors:
            value = float(number) * factors[unit]
        else:
            known = ", ".join(filter(None, factors))
            raise InputError(f"{text!r}: unknown unit {unit!r}", f"known: {known}")
        if not 0 < value < math.inf:
            raise InputError(f"{text!r}: the value must be above 0")
        return cls(name, candidate or "", sense, value)


def _check_quantities(*names: str) -> None:
    """Raise InputError with the nearest name for one that is no quantity."""
    if wrong := [name for name in names if name and name not in NAMES]:
        raise InputError(f"{wrong[0]!r} is no quantity", did_you_mean(wrong[0], NAMES))


FAMILY = "llama31_8b"
"""The model whose family is taken where none is given."""
SIZE = "model.num_parameters"
"""The size of the model: no field of it, but a shape of its family."""
_REACH = 1e3
"""How far from today's value a number is looked for, as a factor."""
LARGEST = 2**16
"""Devices that are tried at most, or four times today's: four times those of Llama 3 (arXiv 2407.21783)."""
STEPS = 96
"""Numbers in a power of ten that are tried."""
ENDS = ("tokens", "tokens_per_parameter", "target_loss")
"""Fields of a recipe, one of which ends a run."""
BEGIN_TOKENS = 20.0
"""A parameter, at which a search for the end of a run begins where nothing ends it: Chinchilla's rule."""
BEGIN_PARAMETERS = 2e9
"""Of a device that a search begins with: fewer devices leave states on the host, and steps are long."""


@dataclass(frozen=True)
class Unknown:
    """An input: its legal values in order, and where to begin."""

    path: str
    values: Sequence[Any]
    today: Any
    numeric: bool = True
    """Whether its values are numbers, between which a condition turns."""
    turns_back: bool = False
    """Whether quantities are known to fall and rise along it."""
    dimension: Dimension | None = None
    digits: int = 3
    clears: Sequence[str] = ()
    """Paths that exclude it."""
    span: Range[Any] | None = None
    """Today's, where a field takes nothing but ranges: its values are the typical ones."""
    grid: Sequence[int] = ()
    """Places of the values that are tried before those between them; empty: of all."""

    def text(self, value: Any) -> str:
        """A value as people write it."""
        if not self.numeric:
            return written(value)
        if self.dimension is not None:
            return format_quantity(value, self.dimension, 3)
        scale, word = large_word(value)
        whole = scale == 1.0 and isinstance(value, int)
        rounded = value if whole else float(f"{value / scale:.{self.digits}g}")
        return f"{rounded:,.12g} {word}".strip()

    def changes(self, study: StudySpec, value: Any) -> dict[str, Any]:
        """A value as values at paths of a question."""
        if self.span is not None:  # its ends keep their distance
            factor = value / self.span.typical
            return {self.path: {name: end and end * factor for name, end in self.span}}
        if self.path != SIZE:
            return {} if self.path == "devices" else {self.path: value} | dict.fromkeys(self.clears)
        own = study.model.model_dump()
        shape = scaled(study.model, value).model_dump()
        return {f"model.{name}": item for name, item in shape.items() if item != own[name]}


def _devices(path: str, point: Point) -> Unknown:
    """Powers of two and whole servers in a node, then whole nodes, first some an eighth to a fourth apart."""
    topology = point.question.topology
    node = topology.devices_per_node
    powers = [2**power for power in range((node - 1).bit_length())]
    servers = range(topology.devices_per_server, node, topology.devices_per_server)
    parts = sorted({*powers, *servers})
    grid = [*map(parts.index, powers)]
    nodes = 1
    most = max(LARGEST, 4 * point.num_devices)
    while node * nodes <= most:
        grid.append(len(parts) + nodes - 1)
        nodes += 1 << max(nodes.bit_length() - 3, 0)
    return Unknown(path, [*parts, *range(node, most + 1, node)], point.num_devices, grid=grid)


def _batch(_path: str, point: Point) -> Unknown:
    """The batches that a study with `auto` tries."""
    grid = Target.of_study(point.study).grid(point.study.recipe.seq_length, point.num_devices)
    clears = ("recipe.batch_size_per_device",)
    return Unknown("recipe.global_batch_size", grid, grid[0], turns_back=True, clears=clears)


def _layout(path: str, point: Point) -> Unknown:
    """The planner's shortlist at the best batch, and layouts that need less memory than its first."""
    question = point.question
    target = Target.of_study(point.study)
    best = target.curve(question, target.batches(point.study, question)).best
    planned = plan_layouts(question.at(best), shown=COARSE)
    leaner = list(map(planned.search.screening.layout, planned.search.leaner(COARSE)))
    if not question.machine.fragments_memory:  # the planner of wafers tries none but the largest micro-batch
        halves = range(1, leaner[0].micro_batch_size.bit_length())
        leaner += [replace(leaner[0], micro_batch_size=leaner[0].micro_batch_size >> half) for half in halves]
    texts = [entry.layout_text for entry in planned.shortlist] + list(map(text_of, leaner))
    return Unknown(path, list(dict.fromkeys(texts)), "", numeric=False)


def _size(path: str, point: Point) -> Unknown:
    """Numbers of parameters around the model's."""
    size = float(parameters(point.study.model).total)
    return Unknown(path, _numbers(size), size)


def _target(path: str, point: Point) -> Unknown:
    """One of the fields that end a run, of which one is given: today's value is what that one comes to."""
    study = point.study
    target = Target.of_study(study)
    ends = {
        "recipe.tokens": target.d_min_tokens,
        "recipe.tokens_per_parameter": target.d_min_tokens / parameters(study.model).total,
        "recipe.target_loss": _loss(study, target),
    }
    given = getattr(study.recipe, path.removeprefix("recipe."))
    today = ends[path] if given is None else given
    finer = int(path == "recipe.target_loss")  # few per cent of a loss are most of a run
    clears = [other for other in ends if other != path]
    return Unknown(path, _numbers(today, finer), today, digits=3 + finer, clears=clears)


def _field(path: str, point: Point) -> Unknown:
    """Any other field: numbers around today's, or the choices that its type names."""
    if (root := path.partition(".")[0]) not in loading.ROOTS:
        meant = Asked.instead(path, dict.fromkeys([*loading.ROOTS, *_INPUTS]))
        raise InputError(f"--find {path}: `{root}` cannot be changed", meant)
    owner, inner = loading.owner_of(point.study, point.candidate, path)
    steps = inner.split(".")
    count, record, index, value = loading.reached(owner, inner)
    if count < len(steps):
        inside = value if isinstance(value, dict) else getattr(type(value), "model_fields", ())
        names = [*inside, *([SIZE] * path.startswith("model."))]
        said = f"--find {path}: `{steps[count]}` is not a field"
        begin = f"give a number to begin with: --set {path}=VALUE" if isinstance(value, dict) else ""
        raise InputError(said, did_you_mean(steps[count], names) or begin)
    annotation = record.model_fields[steps[index]].annotation
    alone = all(isinstance(kind, type) for kind in get_args(annotation))
    span = value if isinstance(value, Range) and alone else None
    value = value.typical if isinstance(value, Range) else value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        dimension = loading.dimension_at(owner, inner)
        return Unknown(path, _numbers(value), value, dimension=dimension, span=span)
    kinds = [kind for kind in (annotation, *get_args(annotation)) if get_origin(kind) is Literal]
    choices = [False, True] if annotation is bool else [word for kind in kinds for word in get_args(kind)]
    if not choices:
        inside = ", ".join(f"{path}.{name}" for name in getattr(type(value), "model_fields", ()))
        help_text = f"known: {inside}" if inside else f"give a number to begin with: --set {path}=VALUE"
        shown = getattr(value, "name", value)
        raise InputError(f"--find {path}: {shown!r:.60} is no number and no choice", help_text)
    return Unknown(path, choices, value, numeric=False)


_INPUTS: Mapping[str, Callable[[str, Point], Unknown]] = {
    "devices": _devices,
    **dict.fromkeys(loading.BATCH_PATHS, _batch),
    "layout": _layout,
    SIZE: _size,
    **{f"recipe.{end}": _target for end in ENDS},
}
"""What may be tried at the paths that are more than a field."""


def _numbers(today: float, finer: int = 0) -> list[Any]:
    """Numbers around today's, whole ones where this is whole: 2.4 % apart, and more digits `finer`."""
    steps = STEPS * 10**finer
    ends = (round(math.log10(today * factor) * steps) for factor in (1 / _REACH, _REACH))
    known = [float(f"{10 ** (place / steps):.{3 + finer}g}") for place in range(*ends)]
    if isinstance(today, int):  # multiples of powers of two, since layouts divide lengths and widths
        units = (2 ** max(0, math.frexp(value)[1] - 6) for value in known)
        known = [max(1, round(value / unit) * unit) for value, unit in zip(known, units, strict=True)]
    return sorted({*known, today})


HALF, SURE = 0.5, 0.9
"""Shares of the joint draws; typical inputs, which a study tells, stand for half of them."""
LEAST_STEP, TWICE, MOST_STEP = math.log(1.2), math.log(2.0), math.log(16.0)
_LEAST = np.finfo(float).tiny
"""In place of 0, of which there is no log."""
NEAR = 4
"""Values on each side of the nearest one that are tried where the way to a solution ends."""
EACH = 15
"""Numbers between two of a grid that are all tried; of more half as many, then those where they turn."""
COARSE = 12
"""Values of a coarse sweep, and layouts of the planner's shortlist."""


@dataclass
class Tried:
    """One value of the unknown, with what the candidate answers."""

    value: Any
    """In SI."""
    quantities: dict[str, float] = field(default_factory=dict)
    """What the conditions are on, typical, in the units of their names."""
    bands: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Their 90 % bands."""
    share: float = 0.0
    """Of the joint draws that meet all conditions."""
    reason: str = ""
    """Why it has no answer."""
    points: tuple[PointResult, ...] = field(default=(), repr=False)
    missed: float = field(default=math.inf, repr=False)
    """The log by which typical inputs miss the worst condition; infinite without an answer."""
    misses: Floats | None = field(default=None, repr=False)
    """The same by draw; None without an answer."""

    def miss(self, level: float) -> float:
        """The same in this share of the draws."""
        if level == HALF or self.misses is None:
            return self.missed
        return float(np.quantile(self.misses, level))


@dataclass(frozen=True)
class Solution:
    """The value at which a candidate meets the conditions, or why there is none."""

    candidate: str
    """What the unknown is changed in."""
    value: Any = None
    """The value that meets the conditions with typical inputs; None where none does."""
    text: str = ""
    """The value, or else the nearest, with its unit."""
    side: str = ""
    """Which further values meet them: `or more`, `or less`, `to` or `down to` the last one."""
    surely: Any = None
    """The value that meets them in 90 % of the draws; None where none does."""
    range: tuple[float, float] | None = None
    """The values that meet them in 5 and in 95 % of the draws, interpolated; None: no draw moves them."""
    quantity: Mapping[str, float] = field(default_factory=dict)
    """What the conditions are on, at the value or else the nearest; typical, in the units of their names."""
    reason: str = ""
    """The limit that binds where there is no solution, or what else is to be known."""
    nearest: Any = None
    """Where there is no solution, the value that is nearest to one."""


@dataclass(frozen=True)
class Solved:
    """A study asked backwards, with the sweep of all values that were tried."""

    find: str
    """Path of the unknown."""
    such_that: tuple[str, ...]
    """The conditions."""
    conditions: tuple[Condition, ...] = field(repr=False)
    """The same, as they were read."""
    minimise: str
    """The quantity that the value makes least; empty for the value at which the conditions turn."""
    currency: str
    """Of all money."""
    solutions: tuple[Solution, ...]
    tried: Mapping[str, Sequence[Tried]]
    """By candidate, the values that were tried, ascending."""
    unknowns: Mapping[str, Unknown] = field(repr=False)
    """By candidate, what was to be found."""
    sweep: SweepResult = field(repr=False)
    """All points that were answered."""


@dataclass
class _Search:
    """What is to be found for one candidate."""

    study: StudySpec
    """With this candidate alone."""
    label: str
    find: str
    conditions: tuple[Condition, ...]
    minimise: str
    rivals: Mapping[str, CandidateSpec]
    """The other candidates of the conditions, by the names that these use."""
    catalog: Catalog
    tried: dict[int, Tried] = field(default_factory=dict)
    """By the number of the value."""
    batches: dict[int, int] = field(default_factory=dict)
    """By the id of a candidate, the best batch of its last answer: the next one begins there."""

    def solved(self) -> tuple[list[Solution], list[Tried], Unknown]:
        """The solutions, all that was tried, and what was to be found."""
        own = [known for known in self.conditions if not known.rival and known.candidate not in self.rivals]
        self.bounds = [known for known in own if (known.quantity, known.sense) == ("memory", "<=")]
        self.memory_bytes = min((known.bound for known in self.bounds), default=math.inf)
        self.of_memory = not self.minimise and len(self.bounds) == len(self.conditions)
        self.equal = any(condition.sense == "==" for condition in self.conditions)
        self.changer = loading.Changer(self.catalog)
        self.unknown = _INPUTS.get(self.find, _field)(self.find, Point(self._study(self.study.candidates[0])))
        self.logs = np.log(self.unknown.values) if self.unknown.numeric else np.empty(0)
        self.grid = np.asarray(self.unknown.grid or range(len(self.unknown.values)))
        if self.unknown.turns_back or not self.unknown.numeric:
            last = len(self.unknown.values) - 1
            for place in np.linspace(0, last, COARSE if self.unknown.numeric else last + 1):
                self._at(round(place))
        else:
            self._walk(HALF)
        return self._found(), [self.tried[index] for index in sorted(self.tried)], self.unknown

    def _lack(self, value: Any) -> float:
        """Log of the leanest layout's memory over its bound; nan where nothing bounds what is planned."""
        candidate = self.study.candidates[0]
        study = self._study(candidate, value, changed=True)
        question = Point(study).question
        strategy = question.chosen
        topology = question.topology
        capacity = question.system.device.memory.capacity
        if question.layout or self.memory_bytes >= capacity:
            return math.nan
        if not (isinstance(strategy, ThreeD) and isinstance(topology, FatTree)):
            return math.nan
        batches = Target.of_study(study).batches(study, question)
        near = self.batches.get(id(candidate), batches[len(batches) // 2])
        jobs = (question.at(batch).job for batch in (near, max(batches)))
        shares = (strategy.least_memory_share(job, topology) for job in jobs)
        return math.log(next(filter(math.isfinite, shares), math.nan) * capacity / self.memory_bytes)

    def _at(self, index: int, *, answered: bool = False) -> Tried:
        """What the candidate, and those that it is compared with, answer at a value.

        Where the leanest layout decides alone, nothing is planned unless it is to be `answered`.
        """
        if index not in self.tried or (answered and not self.tried[index].points):
            value = self.unknown.values[index]
            lack = attempt(lambda: self._lack(value))
            lack = lack if isinstance(lack, float) else math.nan
            if not answered and (lack > 0 or (lack <= 0 and self.of_memory)):
                least = math.exp(lack) * self.memory_bytes
                known = {"memory": least}, {"memory": (least, least)}, float(lack <= 0)
                self.tried[index] = Tried(value, *known, missed=lack, misses=np.array([lack]))
                return self.tried[index]
            points = attempt(lambda: self._points(value))
            if isinstance(points, PerfsimError):
                refused = dict.fromkeys(problem.message for problem in points.problems)
                self.tried[index] = Tried(value, reason="; ".join(refused))
            else:
                self.tried[index] = self._answered(value, points, lack)
        return self.tried[index]

    def _points(self, value: Any) -> dict[str, PointResult]:
        """The points of the candidate and its rivals. Raises InputError where the value is not legal."""
        shared = not loading.of_candidate(self.find)
        points = {"": self._point(self.study.candidates[0], value, changed=True)}
        for name, rival in self.rivals.items():
            # A rival without the input answers once.
            answered = partial(self._point, rival, value, changed=shared)
            points[name] = answered() if shared else self.changer.once(answered, "rival", name)
        return points

    def _study(self, candidate: CandidateSpec, value: Any = None, *, changed: bool = False) -> StudySpec:
        """The study of a candidate: layouts of the one that is looked at are planned within its bound."""
        devices = value if changed and self.find == "devices" else candidate.devices[0]
        changes = self.unknown.changes(self.study, value) if changed else {}
        study = self.changer.point(self.study, candidate, devices, changes)
        share = self.memory_bytes / study.candidates[0].system.device.memory.capacity
        if candidate is not self.study.candidates[0] or share >= 1:
            return study
        return study.model_copy(update={"memory_limit": min(study.memory_limit, share)})

    def _point(self, candidate: CandidateSpec, value: Any, *, changed: bool) -> PointResult:
        settings = {} if not changed or self.find in loading.MACHINE_ROOTS else {self.find: value}
        study = self._study(candidate, value, changed=changed)
        asked = None if self.find.startswith("price") else value  # a price moves the bill and no plan
        near = self.batches.get(id(candidate), 0)
        answered = partial(answer_point, Point(study), near=near)
        row = self.changer.once(partial(attempt, answered), "row", id(candidate), asked)
        if isinstance(row, PerfsimError):
            return PointResult(study, settings, reasons=tuple(known.message for known in row.problems))
        self.batches[id(candidate)] = row.global_batch_size
        return PointResult(study, settings, row)

    def _answered(self, value: Any, points: Mapping[str, PointResult], lack: float) -> Tried:
        """What the conditions say of the points of a value."""
        reasons = dict.fromkeys(reason for point in points.values() for reason in point.reasons)
        made = Tried(value, reason="; ".join(reasons), points=tuple(points.values()))
        if reasons:
            return made
        options = {name: option_of(point) for name, point in points.items()}

        def amount(name: str, of: str, at: Place) -> Any:
            of = of if of in points else ""
            found = _amounts(points[of], options[of], at)[name]
            if found is None:
                needs = "--price SYSTEM=PRICE" if name.startswith("cost") else "its power, and prices.carbon"
                raise InputError(f"{name} of {options[of].system} is not known", f"give {needs}")
            return found

        draws = options[""].draws

        def misses(place: Place) -> Iterator[Any]:
            yield np.array([-1.0] if not self.conditions else [-math.inf])
            for asked in self.conditions:
                # Candidates are compared as `decide` does: without the luck of seeds.
                at = (lambda name: 0.0 if name.startswith(SEEDS) else place(name)) if asked.rival else place
                bound = amount(asked.other, asked.rival, at) if asked.rival else asked.bound
                own = amount(asked.quantity, asked.candidate, at)
                ratio = np.log(np.maximum(own, _LEAST) / np.maximum(bound, _LEAST))
                if asked in self.bounds and (lack > 0 or (lack <= 0 and ratio <= 0)):
                    ratio = np.float64(lack)
                yield -ratio if asked.sense == ">=" else ratio

        made.missed = float(reduce(np.maximum, misses(typical)).item())
        made.misses = reduce(np.maximum, misses(draws))
        made.share = float(np.mean(made.misses <= 0))
        wanted = {*(asked.quantity for asked in self.conditions), self.minimise}
        for name, typically in _amounts(points[""], options[""], typical).items():
            if name in wanted or (name in ALSO and typically is not None):
                made.quantities[name] = float(typically)
                made.bands[name] = Spread.of(amount(name, "", draws), typically).band
        return made

    def _stepped(self, index: int, step: float) -> int:
        """The place in the grid about a step of the log away, at least the next one; at an end the last."""
        beyond = self.grid[self.grid > index] if step > 0 else self.grid[self.grid < index]
        return self._nearest(self.logs[index] + step, beyond if len(beyond) else self.grid)

    def _nearest(self, log: float, among: Ints) -> int:
        return int(among[np.argmin(np.abs(self.logs[among] - log))])

    def _between(self, one: int, other: int) -> Ints:
        """Places of the grid between two places; where it has none, all."""
        low, high = sorted((one, other))
        inside = self.grid[(self.grid > low) & (self.grid < high)]
        return inside if len(inside) else np.arange(low + 1, high)

    def _turns(self, level: float, *, refused: bool = True) -> list[tuple[int, int]]:
        """Neighbours: the first meets the conditions, the second not; `refused` ones of the grid do not."""
        counted = self.grid if refused else ()
        known = sorted(self.tried.items())
        met = {at: row.miss(level) <= 0 for at, row in known if row.misses is not None or at in counted}
        return [
            (low, high) if met[low] else (high, low) for low, high in pairwise(met) if met[low] != met[high]
        ]

    def _walk(self, level: float) -> None:
        """Try values outward until the conditions turn, or no step helps."""
        steps = (0, 1, 2, 4, -1, -2, -4)
        start = self._nearest(math.log(self.unknown.today), self.grid)
        starts = self.tried or (self._stepped(start, step) if step else start for step in steps)
        if all(self._at(index).misses is None for index in starts):
            return
        while not self._turns(level):
            known = {index: row.miss(level) for index, row in self.tried.items() if row.misses is not None}
            here = min(known, key=lambda index: abs(known[index]))
            now = known[here]
            if self.minimise and now <= 0:
                return  # the least is looked for from here on
            # A nearer value may have another plan, which hides how the quantity grows.
            far = [index for index in known if abs(self.logs[index] - self.logs[here]) > TWICE / 2]
            for part in (1, 4, 16):  # both neighbours of a loss may be beyond its law
                both = (self._stepped(here, way * TWICE / part) for way in (1, -1))
                tried = (index for index in both if index != here and self._at(index).misses is not None)
                far = far or [*tried][:1]
            there = min(far, key=lambda index: abs(index - here), default=here)
            slope = (self._at(there).miss(level) - now) / (self.logs[there] - self.logs[here] or math.inf)
            if not slope or self._turns(level) or min(now, abs(now / slope) / 10) > MOST_STEP:
                return
            way = math.copysign(1.0, -now * slope)
            edge = max(known, key=lambda index: way * index)
            step = min(max(1.05 * abs(now / slope), LEAST_STEP), MOST_STEP)
            ahead = self._stepped(edge, way * step)
            while self._at(ahead).misses is None and len(inside := self._between(edge, ahead)):
                hopeless = now * (now + slope * (self.logs[ahead] - self.logs[here])) > 0
                if hopeless and inside[0] not in self.grid:
                    break
                ahead = int(inside[(len(inside) - 1) // 2])  # up to the last value that has a plan
            ended = ahead == edge or abs(self.logs[edge] - self.logs[here]) > TWICE
            if ended or self._at(ahead).misses is None:
                # The way ends or turns back: between its neighbours there may be a value that meets all.
                place = int(np.searchsorted(self.grid, here))
                near = self.grid[max(place - NEAR, 0) : place + NEAR + 1]
                for index in near.tolist() if 0 < now < MOST_STEP else ():
                    self._at(index)
                return

    def _refine(self, met: int, not_met: int, level: float) -> int:
        """The last value that meets the conditions, between one that does and one that does not."""
        guesses = count(1)
        while len(inside := self._between(met, not_met)):
            if inside[0] not in self.grid:
                stride = 1 if len(inside) <= EACH else 1 << (len(inside).bit_length() - 3)
                some = [met, not_met, *inside[stride - 1 :: stride].tolist()]
                some.sort(reverse=met < not_met)  # from the one that does not
                met = min((index for index in some if self._at(index).miss(level) <= 0), key=some.index)
                not_met = some[some.index(met) - 1]
                continue
            low, high = self.tried[met].miss(level), self.tried[not_met].miss(level)
            halves = next(guesses) % 4 == 0 or not math.isfinite(high)
            goal = np.interp(0.5 if halves else low / (low - high), (0, 1), self.logs[[met, not_met]])
            guess = self._nearest(goal, inside)
            if self._at(guess).miss(level) <= 0:
                met = guess
            else:
                not_met = guess
        return met

    def _found(self) -> list[Solution]:
        """The solutions of this candidate; where there is none, one that says why."""
        turned = self._outer_turns() if self.unknown.numeric else []
        misses = {index: row.miss(HALF) for index, row in self.tried.items() if row.misses is not None}
        met = [index for index, miss in misses.items() if miss <= 0]
        if not misses:
            reasons = dict.fromkeys(tried.reason for tried in self.tried.values())
            return [Solution(self.label, reason="; ".join(list(reasons)[:2]))]
        if not met or (self.equal and not turned):
            return [self._nothing()]
        if self.minimise:
            return [self._least()]
        rows: list[Solution] = []
        while turned and (not rows or turned != self._turns(HALF)):  # what is tried for one may show another
            turned = self._turns(HALF)
            rows = [self._turning(*pair) for pair in turned]
        for place, (low, high) in enumerate(pairwise(rows)):
            if low.side == "or more":  # as far as the next turn
                wide = low.value != high.value
                rows[place] = replace(low, side=f"to {high.text}" if wide else "")
                rows[place + 1] = replace(high, side=f"down to {low.text}" if wide else "")
        if rows:
            first, *others = {row.value: row for row in rows}.values()
            return [self._noted(first, first=True), *map(self._noted, others)]
        if not self.unknown.numeric:
            return [self._solution(index) for index in met]
        ends = (self.unknown.text(self.unknown.values[end(met)]) for end in (min, max))
        reason = f"all values that were tried meet it, {' to '.join(ends)}"
        return [self._solution(max(met, key=misses.__getitem__), reason=reason)]

    def _outer_turns(self) -> list[tuple[int, int]]:
        """The turns, once values beyond the outermost that meet the conditions are tried, ever farther."""
        ends = not (self.equal or self.minimise) and self._turns(HALF)
        # As far as there are values where none is simulated.
        steps = range(1, 9 if self.of_memory else 4) if ends or self.of_memory else ()
        for way, outermost in ((1, max), (-1, min)):
            for step in steps:
                edge = outermost(self.tried)
                ahead = self._stepped(edge, way * step * TWICE)
                if self.tried[edge].miss(HALF) <= 0 and self._at(ahead).misses is None:
                    del self.tried[ahead]  # what has no answer turns nothing
                    break
        met = [index for index, row in self.tried.items() if row.miss(HALF) <= 0]
        if met and self.unknown.grid and self.conditions and not (self.equal or self.minimise):
            # To twice the first all of the grid that would, were they as efficient as the best.
            least = min(self.logs[index] + self.tried[index].miss(HALF) for index in met)
            logs = self.logs[self.grid]
            for index in self.grid[(least <= logs) & (logs <= self.logs[min(met)] + TWICE)].tolist():
                self._at(index)
        return self._turns(HALF)

    def _noted(self, row: Solution, *, first: bool = False) -> Solution:
        """A row with how far values were tried; the first also with which were not."""
        told = self.unknown.text
        answered = [known.value for known in self.tried.values() if known.misses is not None]
        ends = {"or more": f"to {told(max(answered))}", "or less": f"down to {told(min(answered))}"}
        notes = [f"every value tried {ends[row.side]} meets it"] if row.side in ends else []
        notes += [row.reason] if row.reason else []
        if self.unknown.grid and first:
            place = self.unknown.values.index(row.value)
            below = next(index for index in range(place, -1, -1) if index - 1 not in self.tried)
            fewer = f"below {told(self.unknown.values[below])} and " if below else ""
            notes.append(f"some numbers {fewer}between those tried remain untried")
            question = Point(self.study).question
            batches = Target.of_study(self.study).batches(self.study, question)
            if len(batches) == 1 and question.machine.fragments_memory:
                notes.append(f"numbers over which {batches[0]:,} sequences do not divide evenly may miss it")
        return replace(row, reason="; ".join(notes))

    def _turning(self, met: int, not_met: int) -> Solution:
        """The last value that meets the conditions, or the nearest where they ask for equality."""
        last = self._refine(met, not_met, HALF)
        way = 1 if not_met < met else -1
        span = self._range(last, way)
        if self.equal:
            near = [index for index in self.tried if abs(index - last) <= 1]
            best = min(near, key=lambda index: abs(self.tried[index].miss(HALF)))
            return self._solution(best, range=span)
        pair = self._turn(last, way, SURE, refused=True)
        surely = self.tried[self._refine(*pair, SURE)].value if pair else None
        told: dict[str, Any] = {"side": "or more" if way == 1 else "or less", "surely": surely, "range": span}
        beyond = [known for index, known in self.tried.items() if (index - last) * way < 0]
        if all(known.misses is None for known in beyond):
            where = "below" if way == 1 else "above"
            told["reason"] = f"none {where} it has an answer: {self.tried[last - way].reason}"
        return self._solution(last, **told)

    def _turn(self, last: int, way: int, level: float, *, refused: bool) -> tuple[int, int] | None:
        """Where the conditions turn for a share of the draws as they do at `last` for half of them.

        More draws meet them inward of `last`, fewer outward; the nearest turn of the same way is the one.
        """
        self._walk(level)
        inward = 1 if level > HALF else -1
        pairs = [
            pair
            for pair in self._turns(level, refused=refused)
            if (pair[0] - pair[1]) * way > 0 <= (pair[0] - last) * way * inward
        ]
        return min(pairs, key=lambda pair: abs(pair[0] - last), default=None)

    def _range(self, last: int, way: int) -> tuple[float, float] | None:
        """Where conditions are met in 5 and in 95 % of the draws, widened to the value that was found."""
        ends = []
        for level in (0.05, 0.95):
            pair = self._turn(last, way, level, refused=False)
            if pair is None:
                return None
            misses = [self.tried[index].miss(level) for index in pair]
            ends.append(float(np.exp(np.interp(0.0, misses, self.logs[[*pair]]))))
        value = self.tried[last].value
        return (min(*ends, value), max(*ends, value)) if ends[0] != ends[1] else None

    def _solution(self, index: int, **more: Any) -> Solution:
        """A value that meets the conditions."""
        tried = self._at(index, answered=True)
        surely = tried.value if tried.miss(SURE) <= 0 else None
        told = {"surely": surely, "quantity": tried.quantities, **more}
        return Solution(self.label, tried.value, self.unknown.text(tried.value), **told)

    def _least(self) -> Solution:
        """The value that meets the conditions and makes the quantity least."""

        def amount(index: int) -> float:
            tried = self._at(index)
            return tried.quantities[self.minimise] if tried.miss(HALF) <= 0 else math.inf

        best = self._climbed(amount)
        for pair in self._turns(HALF) if self.unknown.numeric else []:
            if best in pair:  # a condition keeps it from the values beyond
                self._refine(*pair, HALF)
        best = min(self.tried, key=amount)
        sure = [index for index in self.tried if self.tried[index].miss(SURE) <= 0]
        surely = self.tried[min(sure, key=amount)].value if sure else None
        reason = f"the least of the {len(self.tried)} numbers tried" if self.unknown.grid else ""
        if reason and best == self.grid[-1]:
            reason += f"; numbers above {self.unknown.text(self.unknown.values[best])} are not tried"
        return self._solution(best, surely=surely, reason=reason)

    def _climbed(self, amount: Callable[[int], float]) -> int:
        """The tried value of the least amount, once those of the grid around it are tried as well."""
        best = min(self.tried, key=amount)
        step = 2 if self.unknown.numeric else 0
        while step:
            before = best
            place = int(np.searchsorted(self.grid, best))
            ends = self.grid[[max(place - step, 0), min(place + step, len(self.grid) - 1)]].tolist()
            best = min((before, *ends), key=amount)
            step = step // 2 if best == before else step * 2
            step = min(step, 1) if best in self.grid[[0, -1]] else step
        return best

    def _nothing(self) -> Solution:
        """The nearest value, and the limit that binds there."""

        def distance(index: int) -> float:
            miss = self._at(index).miss(HALF)
            return abs(miss) if self.equal else miss

        tried = self._at(self._climbed(distance), answered=True)
        nearest = self.unknown.text(tried.value)
        words = f"no value meets it; nearest of the {len(self.tried)} tried: {nearest}. "
        if tried.misses is not None:
            limit, _, remedy = tried.points[0].prediction.why.sentence.partition(" Nearest remedy:")
            # A remedy by more devices is none where they are what is looked for.
            words += f"{limit} For a faster step:{remedy}" if remedy and self.find != "devices" else limit
        beyond = dict.fromkeys(known.reason for known in self.tried.values() if known.reason)
        words += f" Others have no answer: {next(iter(beyond))}" if beyond else ""
        told = {"text": nearest, "nearest": tried.value, "reason": words}
        return Solution(self.label, quantity=tried.quantities, **told)


def solve_study(
    study: StudySpec,
    find: str,
    such_that: Sequence[str],
    minimise: str,
    catalog: Catalog,
    executor: Executor = IN_PROCESS,
    progress: Tell = lambda _: None,
) -> Solved:
    """The values of `find` at which each candidate of a study meets the conditions.

    A condition between two candidates changes a candidate's own input in the first of them, or in the one
    that has it. Raises InputError for what cannot be asked, and what all candidates refuse.
    """
    if study.as_of == EQUAL:
        study = study.model_copy(update={"as_of": study.equal_day})
    conditions = tuple(Condition.read(text, study.prices.currency) for text in such_that)
    _check_quantities(minimise)
    if not (minimise or conditions):
        raise InputError("a condition is missing", FORM)
    Target.of_study(study)  # no value has an answer without one
    searches = list(_searches(study, find, conditions, minimise, catalog))
    outcomes: dict[int, Any] = {}
    with executor.answers(attempt, enumerate(search.solved for search in searches)) as finished:
        for number, outcome in finished:
            outcomes[number] = outcome
            progress(f"{len(outcomes)} of {len(searches)} candidates solved")
    solutions: list[Solution] = []
    tried: dict[str, list[Tried]] = {}
    unknowns: dict[str, Unknown] = {}
    for number, search in enumerate(searches):
        outcome = outcomes[number]
        if isinstance(outcome, PerfsimError):
            reasons = (f"{known.message}; {known.help}".strip("; ") for known in outcome.problems)
            solutions.append(Solution(search.label, reason="; ".join(reasons)))
        else:
            found, tried[search.label], unknowns[search.label] = outcome
            solutions += found
    if not tried:
        raise outcomes[0]
    answered = {id(point): point for rows in tried.values() for known in rows for point in known.points}
    points = tuple(answered.values())
    sweep = SweepResult(replace(loading.Sweep.of(study), points=points), points)
    asked = (find, tuple(such_that), conditions, minimise, study.prices.currency)
    return Solved(*asked, tuple(solutions), tried, unknowns, sweep)


def study_of(given: Mapping[str, Any], catalog: Catalog, find: str) -> StudySpec:
    """A study of one candidate from what `perfsim run` is given, with a model and devices to begin with.

    Where `find` looks for the devices, they begin where states fit them; else one node is meant.
    """
    begin = question_of({"model": FAMILY, "devices": 1, **given}, catalog, "study")
    if "devices" not in given:
        node = begin.topology.devices_per_node
        grows = find == "devices" and begin.machine.fragments_memory
        held = parameters(begin.model).total / BEGIN_PARAMETERS if grows else 1
        begin = replace(begin, devices=node * math.ceil(held / node))
    if _INPUTS.get(find) is _target and not any(getattr(begin.recipe, end) for end in ENDS):
        begin = replace(begin, recipe=begin.recipe.model_copy(update={"tokens_per_parameter": BEGIN_TOKENS}))
    values: dict[str, Any] = {"strategy": begin.chosen.name, "name": "question"}
    for asked in ASKED.values():
        if "study" in asked.by and (value := getattr(begin, asked.field)) not in (None, ""):
            values[CALLED.get(asked.name, asked.field)] = value
    own = {name: values.pop(name) for name in list(values) if name in CandidateSpec.model_fields}
    return StudySpec.model_validate({**values, "candidates": [own]})


def _searches(
    study: StudySpec, find: str, conditions: tuple[Condition, ...], minimise: str, catalog: Catalog
) -> Iterator[_Search]:
    """A search for each candidate that the conditions are on, one for those that differ in devices alone."""
    points = study.points
    names = [name for known in conditions for name in (known.candidate, known.rival) if name]
    named = {name: called(name, points).candidate for name in dict.fromkeys(names)}
    candidates = list(named.values()) or [point.candidate for point in points]
    # The first of those that the conditions name is changed; of the others all that have the field.
    chosen = [known for known in candidates if loading.suits(find, known)] or candidates
    chosen = chosen[:1] if named or not loading.suits(find, chosen[0]) else chosen
    rivals = {name: candidate for name, candidate in named.items() if candidate is not chosen[0]}
    seen: list[CandidateSpec] = []
    for candidate in chosen:
        alone = candidate.model_copy(update={"devices": ()}) if find == "devices" else candidate
        if alone not in seen:
            seen.append(alone)
            system = candidate.system
            machine = system.devices_noun if find == "devices" else system.machine(candidate.devices[0])
            label = ", ".join(filter(None, [machine, candidate.strategy, candidate.layout_words]))
            known = study.prices_of(candidate).machines.get(system.name)
            price = None if find.startswith(PRICE_OF) else known
            own = study.model_copy(update={"candidates": (candidate.model_copy(update={"price": price}),)})
            yield _Search(own, label, find, conditions, minimise, rivals, catalog)
