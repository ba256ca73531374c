"""A question: a model, a recipe and a machine, and as much of the layout as is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import ascii_lowercase
from types import NoneType
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from perfsim.base.errors import InputError, Problem, refused_values
from perfsim.base.sizes import MOST_DEVICES, MOST_SEQUENCES
from perfsim.base.spec import Spec
from perfsim.base.text import did_you_mean
from perfsim.base.units import Seconds, number, parse_quantity, quantity
from perfsim.catalog import Catalog
from perfsim.costs.price import Costs
from perfsim.machines import build_topology, costs_for, machine_of, strategy_for
from perfsim.machines.layout_text import settings
from perfsim.network import Topology
from perfsim.specs.calibration import ClusterCalibration
from perfsim.specs.hardware import SystemSpec
from perfsim.specs.layout import Layout
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Job, TrainingRecipe
from perfsim.specs.wall_clock import WallClockSpec
from perfsim.strategies import Strategy
from perfsim.strategies.plan import check_runs_on

# Perturbations in the YAML of a study, or in the text of `perfsim run --perturb`.

Factor = Annotated[float, *number(1, 1000)]
Share = Annotated[float, *number(0, 1)]
Rank = Annotated[int, *number(0, MOST_DEVICES)]


class StragglerSpec(Spec):
    """A rank (GPU or wafer) whose computation takes `factor` times as long, always."""

    rank: Rank
    factor: Factor


class StepStragglersSpec(Spec):
    """Ranks that are slow for one step, each with probability `share`; drawn for every step."""

    share: Share
    factor: Factor


class LinkSpecLeft(Spec):
    """The remaining bandwidth share of a link, named by its ends (`leaf0-spine3`); 0 is dead."""

    link: str
    left: Share
    system: str | None = None
    """The system of the link in a study of several systems; None: every candidate that has the link."""


class FailureSpec(Spec):
    """Failures of the job, at a time or by the mean time between them; the last checkpoint is restored."""

    at: Seconds | None = None
    mttf: Annotated[float, *quantity("seconds", least=1e-6)] | None = None
    """Mean time between failures of the whole job; see `convergence.goodput` for rates of clusters."""
    checkpoint: Annotated[float, *quantity("seconds", least=1e-6)]
    """Training time between two checkpoints."""
    restart: Seconds
    """Time from a failure until training continues from the last checkpoint."""
    write: Seconds = 0.0
    """Time that training stops to write one checkpoint."""
    steps: Annotated[int, *number(1, 1e9)] = 10_000

    @model_validator(mode="after")
    def _one_cause(self) -> FailureSpec:
        if (self.at is None) == (self.mttf is None):
            raise ValueError("failures need either a time (`at`) or a mean time between them (`mttf`)")
        return self


class ResilienceSpec(Spec):
    """Step time against the severity of one straggler, a figure for every candidate of a study."""

    rank: Rank = 0
    """The slow GPU or wafer; the last rank of a machine with fewer."""
    severities: Annotated[tuple[Factor, ...], Field(min_length=1, max_length=16)] = (1.1, 1.25, 1.5, 2.0)


class PerturbationSpec(Spec):
    """Perturbations of a step or a run; the same seed gives identical results."""

    seed: Annotated[int, *number(0, 2**32 - 1)] = 0
    stragglers: tuple[StragglerSpec, ...] = ()
    step_stragglers: StepStragglersSpec | None = None
    jitter: Share = 0.0
    """Sigma of lognormal noise, mean 1, on every computation of every rank."""
    links: tuple[LinkSpecLeft, ...] = ()
    draws: Annotated[int, *number(1, 64)] = 3
    """Number of draws where something is random; the draw with the median step time is the result."""
    failure: FailureSpec | None = None

    @model_validator(mode="after")
    def _unique_links(self) -> PerturbationSpec:
        seen: dict[frozenset[str], set[str | None]] = {}
        for link in self.links:
            systems = seen.setdefault(frozenset(link.link.split("-")), set())
            if link.system in systems or None in systems or (systems and link.system is None):
                raise ValueError(f"link {link.link} is given twice; keep one entry")
            systems.add(link.system)
        return self

    @property
    def is_random(self) -> bool:
        """Whether draws differ."""
        return bool(self.jitter) or self.step_stragglers is not None


EXAMPLE = "straggler=1.3@rank5,jitter=0.02,seed=1"
_PLAIN = ("jitter", "seed", "draws")
_FAILURE = ("at", "mttf", "checkpoint", "restart", "write", "steps")
_USUAL = {"at": "h", "mttf": "h", "checkpoint": "h", "restart": "min", "write": "min"}
"""The unit that is suggested for a time without one."""
_SEVERAL = ("straggler", "slow", "dead")
"""Keys that may be repeated, for different ranks or links."""
_AT = {
    "straggler": "1.3@rank5",
    "step-straggler": "1.3@0.01",
    "slow": "0.5@leaf0-spine3",
    "dead": "leaf0-spine3",
}


def parse_perturbations(text: str) -> PerturbationSpec:
    """The specification of `straggler=1.3@rank5,jitter=0.02,seed=1`; InputError lists all problems."""
    given: dict[str, Any] = {"stragglers": [], "links": []}
    problems = []
    seen: set[str] = set()
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in item.partition("="))
        try:
            if key in seen and key not in _SEVERAL:
                raise InputError([Problem(f"{key} is given twice", help="keep one entry")])
            seen.add(key)
            _read(given, key, value)
        except InputError as error:
            problems += [replace(p, message=f"--perturb {item!r}: {p.message}") for p in error.problems]
        except ValueError as error:
            problems.append(Problem(f"--perturb {item!r}: {error}", help=_help(key)))
    if problems:
        raise InputError(problems)
    try:
        return PerturbationSpec.model_validate(given)
    except ValidationError as error:
        lines = refused_values(error.errors())
        raise InputError([Problem(f"--perturb {text!r}: {line}") for line in lines]) from None


def _read(given: dict[str, Any], key: str, value: str) -> None:
    amount, _, where = value.partition("@")
    if key == "straggler":
        rank = _whole(where.lstrip(ascii_lowercase))
        given["stragglers"].append({"rank": rank, "factor": _number(amount)})
    elif key == "step-straggler":
        given["step_stragglers"] = {"factor": _number(amount), "share": _number(where)}
    elif key == "slow":
        given["links"].append({"link": where, "left": _number(amount)})
    elif key == "dead":
        given["links"].append({"link": value, "left": 0.0})
    elif key in _PLAIN:
        given[key] = _number(value) if key == "jitter" else _whole(value)
    elif key in _FAILURE:
        seconds = _whole(value) if key == "steps" else parse_quantity(value, "seconds", _USUAL[key])
        given.setdefault("failure", {})[key] = seconds
    else:
        raise ValueError("unknown name")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number" if text else "a whole number is missing") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number" if text else "a number is missing") from None


def _help(key: str) -> str:
    if key in _AT:
        return f"write for example {key}={_AT[key]}"
    if key in _FAILURE:
        return "write for example mttf=8h,checkpoint=1h,restart=10min"
    known = [*_AT, *_PLAIN, *_FAILURE]
    return f"write for example {EXAMPLE}" if key in known else did_you_mean(key, known)


# A user's calibration of a cluster: looked up, checked against the machine, and noted in answers.
#
# `perfsim.fitting.cluster_fit` fits it.

WIDE_SPREAD = 0.10
"""Spread of the cases after scaling above which a single factor does not describe the cluster."""


def wide(calibration: ClusterCalibration) -> bool:
    """Whether the cases are too far apart for a single factor."""
    return calibration.spread > WIDE_SPREAD


def spread_warning(calibration: ClusterCalibration) -> str:
    """The warning about cases that are too far apart."""
    worst = max(calibration.cases, key=lambda case: abs(case.residual))
    return (
        f"after scaling the cases are still {100 * calibration.spread:.1f} % apart (case {worst.id} is "
        f"{100 * worst.residual:+.1f} % off): one factor does not describe this cluster"
    )


def cluster_named(name_or_path: str, catalog: Catalog) -> ClusterCalibration:
    """A cluster's calibration by name or path. Raises InputError for a calibration of another kind."""
    calibration = catalog.calibration(name_or_path)
    if not isinstance(calibration, ClusterCalibration):
        help_text = "make one with: perfsim calibrate steps MEASURED.yaml --out FILE"
        raise InputError([Problem(f"calibration {calibration.name} is not of kind cluster", help=help_text)])
    return calibration


def scale_of(calibration: ClusterCalibration | None) -> float:
    """The factor by which step times are multiplied; 1 without a calibration."""
    return 1.0 if calibration is None else calibration.scale


def _check_device(calibration: ClusterCalibration | None, system: SystemSpec) -> None:
    """Raises InputError for a calibration that was measured on another device than the system's."""
    if calibration is not None and calibration.device != system.device.name:
        message = (
            f"cluster calibration {calibration.name} was measured on {calibration.device}; "
            f"{system.name} is built of {system.device.name}"
        )
        raise InputError([Problem(message, help="measure steps on this machine, or omit the calibration")])


def cluster_note(calibration: ClusterCalibration) -> str:
    """The note of every answer that uses the calibration."""
    note = (
        f"step times multiplied by {calibration.scale:g}: cluster calibration {calibration.name}, "
        f"{len(calibration.cases)} measured steps, {100 * calibration.spread:.1f} % apart after scaling"
    )
    return note + (" (too far apart for a single factor)" if wide(calibration) else "")


Detail = Literal["layer", "chunk"]
DEFAULT_BATCH_PER_DEVICE = 8
"""Sequences per device and step where neither question nor recipe gives a batch."""
MEMORY_LIMIT = 0.94
"""assumed: fragmentation of the allocator takes about 6 % of a device's memory."""


def allowed_share(system: SystemSpec, memory_limit: float) -> float:
    """Share of a device's memory that a planned layout may use: the limit where memory fragments."""
    return memory_limit if machine_of(system).fragments_memory else 1.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """One model trained on one machine; settings that are not given are chosen.

    Parts of a question are checked at first use; `check` checks all of them.
    """

    model: TransformerConfig
    recipe: TrainingRecipe
    system: SystemSpec
    devices: int
    strategy: str | Strategy
    batch: int | None = None
    """Sequences per step over all devices; None: the recipe's, else `DEFAULT_BATCH_PER_DEVICE` per device."""
    layout: Layout | str | None = None
    """A layout, or its text (`tp=8,pp=4`); None: the planner chooses."""
    must_fit: bool = True
    """Whether a given layout that needs too much memory is refused."""
    memory_limit: float = MEMORY_LIMIT
    """Share of a GPU's memory that planned layouts may use, unless nothing else fits."""
    cluster: ClusterCalibration | None = None
    """Calibration of the user's own cluster; its scale multiplies step times."""
    wall_clock: WallClockSpec | None = None
    """Interruptions of a whole run besides its steps."""
    detail: Detail = "layer"
    """How finely a wafer cluster streams: a layer as a whole, or in chunks."""
    expand: str = ""
    """Collectives to expand into steps, in the syntax of `expansion.parse_expansion`."""
    perturbations: PerturbationSpec | None = None
    """Perturbations of the step."""
    prices: Costs | None = field(default=None, repr=False, compare=False)
    """A cost model that replaces the machine's own."""

    @property
    def allowed_share(self) -> float:
        """`memory_limit` where devices fragment their memory; all of it where it is laid out in advance."""
        return allowed_share(self.system, self.memory_limit)

    @property
    def label(self) -> str:
        """`128 A100-80GB (16 DGX)`."""
        return self.system.machine(self.devices)

    @cached_property
    def chosen(self) -> Strategy:
        """The strategy; InputError where it is unknown or runs on another kind of system."""
        if isinstance(self.strategy, str):
            return strategy_for(self.strategy, self.system)
        check_runs_on(self.strategy, self.system)
        return self.strategy

    @cached_property
    def topology(self) -> Topology:
        """The network of the devices; InputError for a number that the system cannot have."""
        return build_topology(self.system, self.devices)

    @cached_property
    def costs(self) -> Costs:
        """The cost model of the step."""
        return costs_for(self.topology, self.recipe) if self.prices is None else self.prices

    @property
    def job(self) -> Job:
        """Model, recipe and batch together."""
        batch = self.batch or self.recipe.batch_over(self.devices) or DEFAULT_BATCH_PER_DEVICE * self.devices
        return Job(self.model, self.recipe, batch)

    @property
    def scale(self) -> float:
        """The factor of the user's cluster calibration; 1 without one."""
        return scale_of(self.cluster)

    @property
    def given_layout(self) -> Layout | None:
        """The given layout; LayoutError lists the problems of its text."""
        if isinstance(self.layout, str):
            return machine_of(self.system).parse_layout(self.layout, self.devices)
        return self.layout

    @property
    def named_settings(self) -> list[str] | None:
        """The settings that the text of a layout names; None where the layout is not text."""
        return [name for _, name, _ in settings(self.layout)] if isinstance(self.layout, str) else None

    def at(self, batch: int) -> Question:
        """The same question at another global batch, on the same topology and prices."""
        question = replace(self, batch=batch)
        question.__dict__.update(chosen=self.chosen, topology=self.topology, costs=self.costs)
        return question

    def check(self) -> Question:
        """Make all checks that need no planning. Raises InputError.

        It refuses values of a wrong type or outside their range, a strategy of another kind of system, a
        number of devices that the system cannot have, a cluster calibration of another device, and a device
        without the constants that prices need.
        """
        if problems := list(self._wrong_values()):
            raise InputError(problems)
        _check_device(self.cluster, self.system)
        _ = self.chosen, self.topology, self.costs
        return self

    def _wrong_values(self) -> Iterator[Problem]:
        """Values of a wrong type, or outside their range."""
        types: tuple[tuple[str, Any, type | tuple[type, ...]], ...] = (
            ("model", self.model, TransformerConfig),
            ("recipe", self.recipe, TrainingRecipe),
            ("system", self.system, SystemSpec),
            ("cluster", self.cluster, (ClusterCalibration, NoneType)),
            ("perturbations", self.perturbations, (PerturbationSpec, NoneType)),
            ("expand", self.expand, str),
        )
        for name, value, wanted in types:
            if not isinstance(value, wanted):
                names = wanted if isinstance(wanted, tuple) else (wanted,)
                words = " or ".join(kind.__name__.replace("NoneType", "None") for kind in names)
                yield Problem(f"{name}: {type(value).__name__} is not {words}")
        for name, value, most in (
            ("devices", self.devices, MOST_DEVICES),
            ("batch", self.batch, MOST_SEQUENCES),
        ):
            whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
            if not whole and (name == "devices" or value is not None):
                yield Problem(f"{name}: {value!r} is not a whole number from 1 to {most:,}")
        if not 0 < self.memory_limit <= 1:
            yield Problem(f"memory_limit: {self.memory_limit!r} is not a share of memory above 0, at most 1")
        if not isinstance(self.strategy, str) and not hasattr(self.strategy, "plan"):
            yield Problem(f"strategy: {type(self.strategy).__name__} is neither a name nor a strategy")
        if self.detail not in get_args(Detail):
            yield Problem(f"detail: {self.detail!r} is none of {', '.join(get_args(Detail))}")
        if isinstance(self.system, SystemSpec):
            own = machine_of(self.system).layout_type
            if not isinstance(self.layout, (str, NoneType, own)):
                yield Problem(
                    f"layout: {type(self.layout).__name__} is no layout of a {self.system.kind}",
                    help=f"give a {own.__name__}, or text such as dp={self.devices},mbs=1",
                )


# Networks and prices that consecutive questions share, so that they are not built for each.

KEPT = 4
"""Machines whose prices are kept."""
MOST_LENT = 64
"""Questions after which prices are built anew, since each question adds shapes to them."""
_UNPRICED = (
    "global_batch_size",
    "batch_size_per_device",
    "tokens",
    "tokens_per_parameter",
    "target_loss",
)
"""Fields of a recipe that price no work."""
_PROSE = {"name": "", "description": "", "sources": {}, "assumed": {}}


def priced_part(recipe: TrainingRecipe) -> TrainingRecipe:
    """The recipe without its batch and its target, on which no price of work depends."""
    return recipe.model_copy(update={**_PROSE, **dict.fromkeys(_UNPRICED)})


@dataclass
class _Machine:
    system: SystemSpec
    devices: int
    recipe: TrainingRecipe
    topology: Topology
    costs: Costs
    lent: int = 0

    def suits(self, question: Question, recipe: TrainingRecipe) -> bool:
        """Whether its prices are those of a question."""
        return self.devices == question.devices and self.recipe == recipe and self.system == question.system


class PriceTables:
    """The networks and prices of the last few machines."""

    def __init__(self) -> None:
        self._machines: list[_Machine] = []

    def lend(self, question: Question) -> None:
        """Give a question the network and prices of an earlier one on the same machine, or keep its own."""
        recipe = priced_part(question.recipe)
        machine = next((known for known in self._machines if known.suits(question, recipe)), None)
        if machine is None:
            machine = _Machine(question.system, question.devices, recipe, question.topology, question.costs)
            self._machines = [*self._machines[1 - KEPT :], machine]
        question.__dict__.update(topology=machine.topology, costs=machine.costs)
        machine.lent += 1
        if machine.lent == MOST_LENT:
            self._machines = [known for known in self._machines if known is not machine]
