"""The YAML form of a study: a model, a recipe, and the machines to compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from perfsim.base.dates import EQUAL, LATEST, check_day
from perfsim.base.errors import CatalogError, InputError
from perfsim.base.sizes import MEMORY_LIMIT, MOST_CHOICES
from perfsim.base.spec import PROSE, CatalogSpec, FolderName, Spec
from perfsim.base.text import did_you_mean
from perfsim.base.units import number
from perfsim.convergence.critical_batch import LAWS
from perfsim.convergence.laws import DEFAULT_LOSS_LAW, LOSS_LAWS, LossLaw
from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.convergence.wall_clock import HealthyRun
from perfsim.machines import machine_of
from perfsim.prediction.dates import measured_days
from perfsim.prediction.prediction import model_version
from perfsim.prediction.question import ASKED, MOVED, RANK, Question, Rank, misplaced
from perfsim.prediction.verification import SamplingSpec
from perfsim.specs.calibration import ClusterCalibration, ConvergenceCalibration
from perfsim.specs.hardware import Devices, SystemSpec
from perfsim.specs.layout import text_of_fields
from perfsim.specs.model import TransformerConfig
from perfsim.specs.perturbations import PerturbationSpec
from perfsim.specs.prices import Prices, PriceSpec
from perfsim.specs.recipe import Recipe, Sequences
from perfsim.specs.runtime import Runtime
from perfsim.specs.trainers import RunsOn
from perfsim.specs.wall_clock import ProductionRange, Ratio, WallClockSpec
from perfsim.strategies import STRATEGIES, strategy, strategy_names
from perfsim.work.counts import parameters


def _layout_text(layout: Any) -> Any:
    """The fields of a layout, or a layout, as text: `tensor=8,pipeline=4`; anything else as it is."""
    if is_dataclass(layout) and not isinstance(layout, type):
        layout = asdict(layout)
    return text_of_fields(layout) if isinstance(layout, Mapping) else layout


DeviceCounts = Annotated[tuple[Devices, ...], Field(min_length=1, max_length=MOST_CHOICES)]


def _in_a_list(value: Any) -> Any:
    return (value,) if isinstance(value, int | float) and not isinstance(value, bool) else value


ProductionChoice = Literal["recorded", "none"] | Ratio | ProductionRange
"""Median and range of the recorded production runs, none, a ratio, or a ratio with its range."""

if TYPE_CHECKING:
    StrategyName = str
    LayoutText = str
else:
    StrategyName = str | Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_CHOICES)]
    """As written; `Candidates` makes one candidate for each name of a list."""
    LayoutText = str | dict[str, Any]
    """As written; a candidate keeps the text."""


CALLED = {"batch": "batch_sizes", "cluster": "cluster_calibration", "perturb": "perturbations"}
"""What a study calls a field of a question that it calls otherwise."""


class CandidateSpec(Spec):
    """A strategy on a system, at one or several device counts."""

    strategy: StrategyName
    """Several strategies in a list are as many candidates, each with its own best layout."""
    system: SerializeAsAny[SystemSpec]
    devices: Annotated[
        DeviceCounts, BeforeValidator(_in_a_list, json_schema_input_type=Devices | DeviceCounts)
    ]
    """One count or several."""
    layout: Annotated[LayoutText, BeforeValidator(_layout_text)] | None = None
    """A fixed layout: `tp=8,pp=4,dp=4,mbs=1`, or its fields as a mapping; None: the fastest that fits."""
    runtime: Runtime | None = None
    """Training stack of this candidate; None: the study's."""
    runs_on: RunsOn | None = None
    """Tool whose layouts are planned, or any; None: the study's."""
    rank: Rank | None = None
    """proven: chosen among layouts close to published runs; fastest: among all; None: the study's."""
    cluster_calibration: ClusterCalibration | None = None
    """The result of `perfsim calibrate steps` for this machine; scales its step times."""
    wall_clock: WallClockSpec | None = None
    """Queue, compilation, checkpoints and failures of the whole run; None: only the steps are counted."""
    production: ProductionChoice | None = None
    """Rate of production steps over the rate of healthy steps; None: the study's."""
    price: PriceSpec | None = None
    """Rent or purchase price of the machine; None: the study's."""

    @model_validator(mode="before")
    @classmethod
    def _layout_is_quoted(cls, data: Any) -> Any:
        """In braces a comma ends a value, so an unquoted layout falls apart into keys such as `pp=4`."""
        loose = [str(key) for key in data if "=" in str(key)] if isinstance(data, Mapping) else []
        if loose:
            written = ",".join([str(data.get("layout", "")), *loose]).strip(",")
            message = f"layout: the commas end the value {data.get('layout')}"
            raise InputError(message, f'put the layout in quotes: "{written}"')
        return data

    @field_validator("strategy")
    @classmethod
    def _strategies_exist(cls, names: Any) -> Any:
        """Every name belongs to a strategy; a plug-in that fails is reported when it is asked."""
        for name in _names(names):
            if name not in STRATEGIES and name not in (known := strategy_names()):
                raise InputError(f"unknown strategy {name!r}", did_you_mean(name, known))
        return names

    @field_validator("layout")
    @classmethod
    def _layout_is_legible(cls, layout: str | None, info: ValidationInfo) -> str | None:
        system = info.data.get("system")
        devices = info.data.get("devices")
        if layout is None or system is None or not devices:
            return layout
        if isinstance(info.data.get("strategy"), tuple):
            message = "several strategies cannot share one layout"
            raise InputError(message, "write a candidate for each layout")
        machine_of(system).parse_layout(layout, devices[0])
        return layout

    @property
    def layout_words(self) -> str:
        """The fixed layout as labels show it, `tp=8 pp=4`, without layers of stages; empty without one."""
        parts = (part.strip() for part in (self.layout or "").split(","))
        return " ".join(part for part in parts if not part.startswith("layers_per_stage"))


def _one_strategy_each(candidates: tuple[CandidateSpec, ...]) -> tuple[CandidateSpec, ...]:
    return tuple(
        candidate.model_copy(update={"strategy": name})
        for candidate in candidates
        for name in _names(candidate.strategy)
    )


def _names(strategies: str | tuple[str, ...]) -> tuple[str, ...]:
    return (strategies,) if isinstance(strategies, str) else strategies


Candidates = Annotated[tuple[CandidateSpec, ...], AfterValidator(_one_strategy_each)]
"""Candidates with one strategy each."""


def _named(kind: str, known: Iterable[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in known:
            raise InputError(f"unknown {kind} {name!r}", did_you_mean(name, sorted(known)))
        return name

    return AfterValidator(check)


LossLawName = Annotated[str, _named("loss law", LOSS_LAWS)]


class RampSpec(Spec):
    """A first part of a run at a smaller batch."""

    share: Annotated[float, *number(1e-6, 1)]
    """Of the progress: of the tokens that small batches would need."""
    batch: Annotated[float, *number(1e-6, 1)]
    """As a share of the batch at the end."""
    critical_batch: Annotated[float, *number(1e-6, 1e3)] = 1.0
    """The critical batch of this part over the critical batch of the run."""


class ConvergenceSpec(Spec):
    """How the number of steps depends on the batch size."""

    law: Annotated[str, _named("critical-batch law", LAWS)] = "data_law"
    critical_batch_tokens: Annotated[float, *number(1, 1e18)] | None = None
    """For law `constant`."""
    band_factor: Annotated[float, *number(1, 1e6)] | None = None
    fit: ConvergenceCalibration | None = None
    """For law `fitted`: the result of `perfsim calibrate convergence`; its E_min is the target of a recipe
    without one."""
    loss_law: LossLawName | LossLaw = DEFAULT_LOSS_LAW
    """The law that turns `target_loss` into tokens, by name or by coefficients."""
    ramp: Annotated[tuple[RampSpec, ...], Field(max_length=MOST_CHOICES)] = ()
    """Parts of the run before the full batch, in order; the rest runs at the full batch."""
    loss_scale: str = ""
    """The corpus of `target_loss`; the loss law's own where it is not named."""

    @property
    def of_loss(self) -> LossLaw:
        return LOSS_LAWS[self.loss_law] if isinstance(self.loss_law, str) else self.loss_law

    @model_validator(mode="after")
    def _agrees(self) -> ConvergenceSpec:
        if sum(part.share for part in self.ramp) > 1 + 1e-9:
            raise ValueError("ramp: the shares sum to more than 1")
        if self.critical_batch_tokens is not None and self.law != "constant":
            raise ValueError(f"critical_batch_tokens belongs to law constant, not to {self.law}")
        if self.fit is not None and self.law != "fitted":
            raise ValueError(f"fit belongs to law fitted, not to {self.law}: write law: fitted")
        return self


class UncertaintySpec(Spec):
    """How the inputs that are not sure are drawn."""

    seed: Annotated[int, *number(0, 2**32)] = 0
    draws: Annotated[int, *number(1000, 1_000_000)] = 20_000


def _day_or_none(text: str) -> str:
    return check_day(text, LATEST, EQUAL) if text else text


BatchSizes = Annotated[tuple[Sequences, ...], Field(min_length=1, max_length=MOST_CHOICES)] | Literal["auto"]


class StudySpec(CatalogSpec):
    """A question: which machine reaches the target first."""

    moved: ClassVar[Mapping[str, str]] = {key: misplaced(key) for key in MOVED}
    name: FolderName
    title: str = ""
    """Not inherited, as the question; empty: model and machines."""
    question: str = ""
    model: TransformerConfig
    recipe: Recipe
    runtime: Runtime | None = None
    """Training stack of all candidates that name none; None: the recipe's."""
    runs_on: RunsOn | None = None
    """Tool whose layouts are planned for candidates that name none, or any; None: the runtime's own."""
    rank: Rank = RANK
    """Rank of the layouts of candidates that name none."""
    candidates: Annotated[Candidates, Field(min_length=1, max_length=MOST_CHOICES)]
    batch_sizes: Annotated[
        BatchSizes, BeforeValidator(_in_a_list, json_schema_input_type=Sequences | BatchSizes)
    ] = "auto"
    """Global batches to try, one or several, in sequences; auto: a grid around the critical batch, or for a
    given length up to the batch of DeepSeek LLM (arXiv 2401.02954)."""
    as_of: Annotated[str, AfterValidator(_day_or_none)] = ""
    """The day of all candidates, and of all points of a sweep; `latest` for the newest that was measured of
    each, or `equal`: the earliest of these dates, so that none is extrapolated. Not inherited; empty: each
    candidate's runtime as it is."""
    memory_limit: Annotated[float, *number(1e-3, 1)] = MEMORY_LIMIT
    """Share of a device's memory above which a planned layout is no answer unless nothing else fits."""
    convergence: ConvergenceSpec = ConvergenceSpec()
    production: ProductionChoice = "recorded"
    """Rate of production steps over healthy steps', for the time in production next to the answer."""
    prices: Prices = Prices()
    """Of machines and electricity, by a name or a file, or written here."""
    uncertainty: UncertaintySpec = UncertaintySpec()
    """Draws of the inputs that are not sure."""
    sampling: SamplingSpec = SamplingSpec()
    perturbations: PerturbationSpec | None = None
    """Applied to every candidate's step after its batch and layout are chosen without them."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        recipe = self.recipe
        own = recipe.global_batch_size or recipe.batch_size_per_device
        if own and self.batch_sizes not in ("auto", (recipe.global_batch_size,)):
            said = f"batch_sizes: recipe {recipe.name} has a batch of its own, {own:,}"
            raise InputError(said, "omit batch_sizes, or write `global_batch_size: null` in the recipe")
        if self.convergence.loss_scale and recipe.target_loss is None:
            raise InputError(f"convergence: loss_scale is of a target_loss; recipe {recipe.name} has none")
        return self

    @property
    def heading(self) -> str:
        """Its title, or `gpt3_xl on A100-80GB or CS-2`."""
        machines = dict.fromkeys(candidate.system.devices_noun for candidate in self.candidates)
        return self.title or f"{self.model.name} on {' or '.join(machines)}"

    @property
    def points(self) -> list[Point]:
        """Every candidate with each of its numbers of devices on the study's day, in its order."""
        study = self if self.as_of != EQUAL else self.model_copy(update={"as_of": self.equal_day})
        alone = [
            candidate.model_copy(update={"devices": (devices,)})
            for candidate in self.candidates
            for devices in candidate.devices
        ]
        return [Point(study.model_copy(update={"candidates": (candidate,)})) for candidate in alone]

    @property
    def equal_day(self) -> str:
        """The earliest of the newest measured dates on which all existed; InputError where one is unknown."""
        # Of a day, one line of runtimes counts.
        return equal_day(self.model_copy(update={"as_of": LATEST}).points)

    def runtime_of(self, candidate: CandidateSpec) -> Runtime:
        """The training stack of a candidate: its own, the study's, the recipe's, or what the rule chooses."""
        return Point(self.model_copy(update={"candidates": (candidate,)})).question.named_runtime

    def prices_of(self, candidate: CandidateSpec) -> Prices:
        """The study's prices with the candidate's own."""
        own = {} if candidate.price is None else {candidate.system.name: candidate.price}
        return self.prices.model_copy(update={"machines": self.prices.machines | own})

    def compared(self, names: Sequence[str]) -> Self:
        """The study with these strategies, others on a system that suits them; InputError without one."""
        chosen: list[CandidateSpec] = []
        for name in dict.fromkeys(names):
            wanted = strategy(name)
            same = [candidate for candidate in self.candidates if candidate.strategy == wanted.name]
            like = [candidate for candidate in self.candidates if candidate.system.kind == wanted.system_kind]
            if not same and not like:
                known = ", ".join(candidate.strategy for candidate in self.candidates)
                message = f"study {self.name} has no system for strategy {name}"
                raise InputError(message, f"it compares {known}")
            chosen += same or [like[0].model_copy(update={"strategy": wanted.name, "layout": None})]
        if not names:
            return self
        left_out = {known.system.name for known in self.candidates} - {known.system.name for known in chosen}
        day = self.equal_day if left_out and self.as_of == EQUAL else self.as_of  # no answer moves
        return self.model_copy(update={"candidates": tuple(chosen), "as_of": day})

    def with_verify(self, mode: str | None) -> Self:
        """The study with this mode of sampling; None keeps its own."""
        if mode is None:
            return self
        given = {"mode": mode, "tasks": self.sampling.tasks or SamplingSpec().tasks}
        return self.model_copy(update={"sampling": self.sampling.model_copy(update=given)})


def equal_day(points: Iterable[Point]) -> str:
    """The earliest of the newest measured dates of `latest` points on which all of them existed.

    Raises InputError where a date is unknown.
    """
    days = [measured_days(point.question) for point in points]
    return max(min(last for _, last in days), *(first for first, _ in days))


@dataclass(frozen=True)
class Point:
    """One candidate of a study at one number of devices, with all other fields fixed."""

    study: StudySpec
    """With exactly one candidate and one number of devices."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """In a sweep: the variant, a fixed layout, and the grid's values but strategy, system and devices."""

    @property
    def candidate(self) -> CandidateSpec:
        return self.study.candidates[0]

    @property
    def strategy(self) -> str:
        return self.candidate.strategy

    @property
    def system(self) -> str:
        return self.candidate.system.name

    @property
    def devices_noun(self) -> str:
        return self.candidate.system.devices_noun

    @property
    def num_devices(self) -> int:
        return self.candidate.devices[0]

    @property
    def machine(self) -> str:
        """Its devices in words: `128 A100-80GB (16 DGX)`."""
        return self.candidate.system.machine(self.num_devices)

    @property
    def label(self) -> str:
        """`128 A100-80GB (16 DGX), 3d`, with the settings of a sweep or a fixed layout behind it."""
        said = [f"{path} {value}" for path, value in self.settings.items()] or [self.candidate.layout_words]
        return ", ".join(filter(None, [self.machine, self.candidate.strategy, *said]))

    @property
    def runtime(self) -> Runtime:
        return self.question.ran_by

    @property
    def question(self) -> Question:
        """What the study asks of the candidate; the batch is open."""
        said: dict[str, Any] = {}
        system = self.candidate.system
        for asked in ASKED.values():
            name = CALLED.get(asked.name, asked.field)
            value = getattr(self.candidate, name, None)
            if value is None and machine_of(system).reads(system, asked.name):
                value = getattr(self.study, name, None)
            if "study" in asked.by and value is not None:
                said[asked.field] = value
        # A study tries several batches, and disturbs the best one afterwards.
        return Question(**said | {"devices": self.num_devices, "batch": None, "perturbations": None})

    def healthy_run(self, time: TimeToAccuracy) -> HealthyRun:
        """The steps of the candidate and the units that run them."""
        question = self.question
        topology = question.topology
        step_time_s = time.time_s / time.steps if time.later_s or time.ramp else time.step_time_s
        num_parameters = float(parameters(question.model).total)
        return HealthyRun(time.steps, step_time_s, num_parameters, topology.num_nodes, topology.num_devices)

    def checked(self) -> Question:
        """The question; InputError for bad input. A lack of prices is reported when the point is answered."""
        question = self.question
        with suppress(CatalogError):
            question.check()
        return question


# A digest of everything that affects the answer to a study.

_UNREAD = PROSE | {"title", "question", "fit", "noun"}
"""Keys that explain a value and do not affect an answer."""
SHARED = (
    "model", "recipe", "runtime", "runs_on", "rank", "as_of", "memory_limit", "convergence", "batch_sizes",
    "perturbations",
)  # fmt: skip
"""The inputs of a study besides its candidates."""


def digests(studies: Iterable[StudySpec]) -> list[str]:
    """SHA-256 of everything that affects the answer to each study, in 64 hexadecimal digits."""
    # Resolved descriptions without names, titles, sources and reasons, and the version of the model.
    known: dict[int, tuple[BaseModel, str]] = {}

    def part(value: Any) -> Any:
        if not isinstance(value, BaseModel):
            return value
        if id(value) not in known:
            digest = _digest(_without_prose(value.model_dump(mode="json")))
            known[id(value)] = value, digest  # the value keeps its id from being used again
        return known[id(value)][1]

    def digest(study: StudySpec) -> str:
        inputs = {name: part(getattr(study, name)) for name in SHARED}
        inputs["candidates"] = [
            {name: part(value) for name, value in candidate} for candidate in study.candidates
        ]
        return _digest({"inputs": inputs, "model_version": model_version()})

    return [digest(study) for study in studies]


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode("utf-8")).hexdigest()


def _without_prose(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_prose(item) for key, item in value.items() if key not in _UNREAD}
    if isinstance(value, list):
        return [_without_prose(item) for item in value]
    return value
