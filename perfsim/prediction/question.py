"""The one declaration of what can be asked: options, arguments, paths of `--set` and reference follow it.

Nothing heavy is imported before a question is asked, since `perfsim --help` reads the declaration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from perfsim.base.dates import LATEST, check_day
from perfsim.base.errors import CatalogError, InputError, Problem
from perfsim.base.sizes import MEMORY_LIMIT, MOST_DEVICES, MOST_SEQUENCES
from perfsim.base.text import covering, did_you_mean
from perfsim.specs.trainers import ANY, ON_GPUS

if TYPE_CHECKING:
    from perfsim.catalog import Catalog
    from perfsim.costs.price import Costs
    from perfsim.machines import Machine
    from perfsim.network import Topology
    from perfsim.specs.calibration import ClusterCalibration
    from perfsim.specs.hardware import SystemSpec
    from perfsim.specs.layout import Layout
    from perfsim.specs.model import TransformerConfig
    from perfsim.specs.perturbations import PerturbationSpec
    from perfsim.specs.recipe import Job, Recipe
    from perfsim.specs.runtime import Runtime
    from perfsim.specs.wall_clock import WallClockSpec
    from perfsim.strategies import Strategy

Detail = Literal["layer", "chunk"]
Objective = Literal["step-time", "time-to-accuracy", "cost"]
Verify = Literal["off", "sample", "full"]
Rank = Literal["proven", "fastest"]
"""Which layouts the planner chooses from: those close to published runs (`prediction/risk.py`), or all."""
RANK: Rank = "proven"
"""The rank of questions that name none."""
Asker = Literal["run", "plan", "study"]
"""Who asks: `run` and `predict` for one step, `plan` for a shortlist, a study for the time to a target."""
DEFAULT_BATCH_PER_DEVICE = 8
"""Sequences per device and step where neither question nor recipe gives a batch."""
ERAS = (("2023-07", "llm_2024"), ("", "llm_2021"))
"""Recipes by the first month in which the models that they train were published; FlashAttention-2 (arXiv
2307.08691) parts the two. A model that does not say when is one of today."""
USUAL = "usual"
"""The runtime of a recipe that leaves the choice to the rule of `perfsim.specs.stacks`."""
_SHARDED = re.compile(r"\bzero(?:_stage)?=[23]")
_SPLIT = re.compile(r"\b(?:tp|tensor|pp|pipeline|cp|context)=(?!1\b)")


def usual_recipe(model: TransformerConfig) -> str:
    """The name of the recipe by which a model of its month is trained, where none is named."""
    month = model.released or LATEST
    return next(name for since, name in ERAS if month == LATEST or month >= since)


@dataclass(frozen=True)
class Asked:
    """How people give one field of a question, at the command line, in Python and in files."""

    help: str
    by: tuple[Asker, ...] = ("run", "plan", "study")
    short: str = ""
    """Its name for people, where the field of `Question` has a longer one."""
    synonym: str = ""
    """Another name of its option."""
    kind: str = ""
    """The kind of description of the catalogue that it names."""
    example: str = ""
    usual: str = ""
    """What is taken where nothing is given, in words, where the default does not say it."""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    field: str = ""
    annotated: str = ""
    """Its annotation. This, its name and its default (... where there is none) are read from `Question`."""
    default: Any = ...

    @property
    def name(self) -> str:
        """The name of the argument and, with dashes, of the option."""
        return self.short or self.field

    @property
    def otherwise(self) -> str:
        """What is taken where nothing is given, in brackets; empty for what is required, and for nothing."""
        value = self.usual or ("" if self.default in (..., None, "") else str(self.default))
        return f" [default: {value}]" if value else ""

    @property
    def annotation(self) -> str:
        """The type of the argument: a description may also be a name or a path."""
        named = f"str | Path | {self.annotated}" if self.kind else self.annotated
        return f"{named} | None" if self.usual and "None" not in named else named

    @property
    def number(self) -> type[int] | type[float] | None:
        """The kind of number that it is; None for all else."""
        numbers: dict[str, type[int] | type[float]] = {"int": int, "float": float}
        return numbers.get(self.annotated.removesuffix(" | None"))

    @property
    def required(self) -> bool:
        """Whether a question cannot do without it."""
        return self.default is ... and not self.usual

    @staticmethod
    def inside(name: str) -> str:
        """The path of the value of this name inside a description, such as `recipe.precision`, or nothing."""
        from perfsim.catalog import KINDS

        owners = (root for root in ("recipe", "runtime", "model") if name in KINDS[root].base.model_fields)
        return next((f"{root}.{name}" for root in owners), "")

    @classmethod
    def instead(cls, path: str, known: Iterable[str]) -> str:
        """What to write instead of a path that begins with no known name, or stands elsewhere; or nothing."""
        root = path.partition(".")[0]
        if root in known or misplaced(path):
            return misplaced(path)
        if root == "prices":
            return "prices are of a study, a sweep or perfsim solve"
        place = cls.inside(path)
        return f"write {place}" if place else did_you_mean(root, known)

    def wrong(self, value: Any) -> Iterator[Problem]:
        """What is wrong with a value, as far as the declaration tells."""
        if value is None and self.default is None:
            return
        if self.kind:
            from perfsim.catalog import KINDS

            if not isinstance(value, base := KINDS[self.kind].base):
                none = "" if self.default is not None else " or None"
                yield Problem(f"{self.name}: {type(value).__name__} is not {base.__name__}{none}")
        elif self.choices and value not in self.choices:
            help_text = did_you_mean(str(value), self.choices)
            yield Problem(f"{self.name}: {value!r} is none of {', '.join(self.choices)}", help=help_text)
        elif self.annotated == "str" and not isinstance(value, str):
            yield Problem(f"{self.name}: {value!r} is no text", help=f"such as {self.example}")
        elif self.number is not None:
            whole = self.number is int
            fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            low = -float("inf") if self.least is None else self.least
            high = float("inf") if self.most is None else self.most
            if not (fits and low <= value <= high):
                words = f"is not a {'whole ' if whole else ''}number from {low:,} to {high:,}"
                yield Problem(f"{self.name}: {value!r} {words}")


def _asked(help: str, default: Any = MISSING, **known: Any) -> Any:  # noqa: A002 (as click calls it)
    """A field that people may give."""
    metadata = {"asked": Asked(help, **known)}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One model trained on one machine; settings that are not given are chosen.

    A field with `_asked` is an option of `perfsim run` or `plan`, an argument of `perfsim.predict` or `plan`,
    a path of `--set` and a row of the reference. Values are checked at first use; `check` checks all of them.
    """

    model: TransformerConfig = _asked(
        "Name of the catalogue, a YAML file, or a file that `perfsim import` reads (config.json, ...).",
        kind="model",
    )
    system: SystemSpec = _asked("Name of the catalogue, or a YAML file.", kind="system")
    devices: int = _asked(
        "Number of GPUs, or of CS-2 systems.", synonym="num_csx", least=1, most=MOST_DEVICES
    )
    strategy: str | Strategy = _asked("How it trains.", default="", usual="the system's own")
    layout: Layout | str | None = _asked(
        "Degrees of parallelism, micro-batch, schedule and recompute.",
        default=None,
        by=("run", "study"),
        example="tp=8,pp=4,mbs=1",
        usual="chosen by the planner",
    )
    batch: int | None = _asked(
        "Global batch in sequences.",
        default=None,
        usual=f"the recipe's, else {DEFAULT_BATCH_PER_DEVICE} per device",
        least=1,
        most=MOST_SEQUENCES,
    )
    recipe: Recipe = _asked(
        "Name of the catalogue, or a YAML file.",
        kind="recipe",
        usual="llm_2021, or llm_2024 for a model published since July 2023 or without a month",
    )
    runtime: Runtime | None = _asked(
        "Training stack with its settings: a name of the catalogue, or a YAML file.",
        default=None,
        kind="runtime",
        usual="the recipe's; `usual`: by device, month, precision and sharding (docs/howto/own_model.md)",
    )
    as_of: str = _asked(
        "Take what existed on this day: the newest runtime or software release of its machine.",
        default="",
        example="2023-06",
        usual="the recipe's runtime, whatever its date; latest: the newest that was measured",
    )
    runs_on: str | None = _asked(
        "Plan what this tool runs, as it was when the runtime was measured; any: all that can be simulated.",
        default=None,
        usual="the runtime's own tool",
        choices=(*ON_GPUS, ANY),
        example="TOOL",
    )
    rank: Rank = _asked(
        "Choose among layouts close to published runs (proven), or among all that are legal (fastest).",
        default=RANK,
        choices=get_args(Rank),
    )
    memory_limit: float = _asked(
        "Share of a GPU's memory above which a planned layout is no answer unless nothing else fits.",
        default=MEMORY_LIMIT,
        least=1e-3,
        most=1,
    )
    power_cap: str = _asked(
        "Refuse devices that draw more in training, cooling left out, and say how many do not.",
        default="",
        by=("plan",),
        example="500kW",
    )
    cluster: ClusterCalibration | None = _asked(
        "Scale by this result of `calibrate steps`.", default=None, kind="calibration", example="FILE"
    )
    wall_clock: WallClockSpec | None = _asked(
        "Interruptions of a whole run: queue, compilation, checkpoints, failures.",
        default=None,
        by=("study",),
        kind="wall_clock",
    )
    perturbations: PerturbationSpec | None = _asked(
        "Perturb the step: slow ranks, jitter, dead=LINK, slow=0.5@LINK.",
        default=None,
        by=("run", "study"),
        short="perturb",
        example="straggler=1.3@rank5,jitter=0.02,seed=1",
    )
    detail: Detail = _asked(
        "Granularity in which wafers stream weights.",
        default="layer",
        by=("run",),
        choices=("layer", "chunk"),
    )
    must_fit: bool = True
    """Whether a given layout that needs too much memory is refused."""
    prices: Costs | None = field(default=None, repr=False, compare=False)
    """A cost model that replaces the machine's own."""

    @property
    def allowed_share(self) -> float:
        """`memory_limit` where devices fragment their memory; all of it where it is laid out in advance."""
        return self.memory_limit if self.machine.fragments_memory else 1.0

    @property
    def label(self) -> str:
        """`128 A100-80GB (16 DGX)`."""
        return self.system.machine(self.devices)

    @property
    def machine(self) -> Machine:
        """The kind of machine that the system is."""
        from perfsim.machines import machine_of

        return machine_of(self.system)

    @cached_property
    def chosen(self) -> Strategy:
        """The strategy; InputError where it is unknown or runs on another kind of system."""
        from perfsim.machines import strategy_for

        return strategy_for(self.strategy, self.system)

    @cached_property
    def topology(self) -> Topology:
        """The network of the devices; InputError for a number that the system cannot have."""
        return self.machine.topology(self.system, self.devices)

    @cached_property
    def costs(self) -> Costs:
        """The cost model of the step."""
        return self.prices or self.machine.costs(self.topology, self.job.recipe)

    @property
    def named_runtime(self) -> Runtime:
        """The runtime whatever the day: the question's, else the recipe's, or what the rule chooses."""
        runtime = self.runtime or self.recipe.runtime
        return _usual_runtime(self, sharded=self._is_sharded) if runtime.name == USUAL else runtime

    @property
    def _is_sharded(self) -> bool:
        """Whether it asks for ZeRO 2 or 3, which without a tool means FSDP."""
        layout = self.layout
        stage = _SHARDED.search(layout) if isinstance(layout, str) else getattr(layout, "zero_stage", 0) > 1
        fixed = getattr(self.strategy, "name", self.strategy) == "zero3"
        return not (self.runs_on or self.as_of) and bool(stage or fixed)

    @property
    def is_split(self) -> bool:
        """Whether its layout splits layers, sequences or the model's depth between GPUs."""
        layout = self.layout
        if isinstance(layout, str):
            return bool(_SPLIT.search(layout))
        return max(getattr(layout, degree, 1) for degree in ("tensor", "context", "pipeline")) > 1

    @property
    def with_sharded_runtime(self) -> Question | None:
        """The same with the runtime of ZeRO 2 and 3, where the rule chose one for ZeRO 0 and 1; else None."""
        by_rule = (self.runtime or self.recipe.runtime).name == USUAL
        chosen = by_rule and self.ran_by.zero_stages is not None
        return replace(self, runtime=_usual_runtime(self, sharded=True)) if chosen else None

    @cached_property
    def ran_by(self) -> Runtime:
        """What runs it: its runtime, else the recipe's; of a day the newest. InputError where none can."""
        runtime = self.named_runtime
        if self.as_of:
            from perfsim.prediction.dates import runtime_on

            runtime = runtime_on(self)
        tool = self.runs_on or runtime.tool
        if tool in ON_GPUS and not self.machine.reads(self.system, "runs_on"):
            raise InputError(f"runs_on: {tool} does not train on {self.system.name}, a {self.system.kind}")
        return runtime.model_copy(update={"tool": tool}) if self.runs_on else runtime

    @property
    def job(self) -> Job:
        """Model, recipe and batch together, with what runs them."""
        from perfsim.specs.recipe import Job

        batch = self.batch or self.recipe.batch_over(self.devices) or DEFAULT_BATCH_PER_DEVICE * self.devices
        recipe = self.recipe.model_copy(update={"runtime": self.ran_by})
        return Job(self.model, recipe, batch)

    @property
    def scale(self) -> float:
        """The factor of the user's cluster calibration; 1 without one."""
        return 1.0 if self.cluster is None else self.cluster.scale

    @property
    def given_layout(self) -> Layout | None:
        """The given layout; LayoutError lists the problems of its text."""
        text = self.layout
        return self.machine.parse_layout(text, self.devices) if isinstance(text, str) else text

    def at(self, batch: int | None, **changes: Any) -> Question:
        """The same question at another global batch; its topology and prices depend on none of `changes`."""
        question = replace(self, batch=batch, **changes)
        known = {"chosen": self.chosen, "ran_by": self.ran_by, "topology": self.topology, "costs": self.costs}
        question.__dict__.update(known)
        return question

    def check(self) -> Question:
        """Make all checks of values and of the system that need no planning. Raises InputError."""
        problems = list(self._wrong_objects())
        for entry in ASKED.values():
            problems += entry.wrong(getattr(self, entry.field))
        if problems:
            raise InputError(problems)
        if self.as_of:
            check_day(self.as_of, LATEST)
        _ = self.chosen, self.topology, self.costs
        return self

    def _wrong_objects(self) -> Iterator[Problem]:
        """Values that may be text or an object and are neither, and a calibration of something else."""
        from perfsim.specs.calibration import ClusterCalibration
        from perfsim.specs.hardware import SystemSpec
        from perfsim.specs.perturbations import PerturbationSpec

        if not isinstance(self.perturbations, PerturbationSpec | None):
            yield Problem(f"perturb: {type(self.perturbations).__name__} is not PerturbationSpec or None")
        if not isinstance(self.strategy, str) and not hasattr(self.strategy, "plan"):
            yield Problem(f"strategy: {type(self.strategy).__name__} is neither a name nor a strategy")
        if not isinstance(self.cluster, ClusterCalibration | None):
            yield Problem(
                f"calibration {self.cluster.name} is not of kind cluster",
                help="make one with: perfsim calibrate steps MEASURED.yaml --out FILE",
            )
        if not isinstance(self.system, SystemSpec):
            return
        if isinstance(self.cluster, ClusterCalibration) and self.cluster.device != self.system.device.name:
            yield Problem(
                f"cluster calibration {self.cluster.name} was measured on {self.cluster.device}; "
                f"{self.system.name} is built of {self.system.device.name}",
                help="measure steps on this machine, or omit the calibration",
            )
        clock = self.wall_clock
        if clock is not None and clock.system_kind not in (None, self.system.kind):
            said = f"wall clock {clock.name} is of a {clock.system_kind}; {self.system.name} is a"
            yield Problem(f"{said} {self.system.kind}", help="perfsim show wall_clocks lists all")
        layout_type = self.machine.layout_type
        if not isinstance(self.layout, str | None | layout_type):
            yield Problem(
                f"layout: {type(self.layout).__name__} is no layout of a {self.system.kind}",
                help=f"give a {layout_type.__name__}, or text such as dp={self.devices},mbs=1",
            )


ASKED: dict[str, Asked] = {}
"""What people may give, by its name for them."""
for _field in fields(Question):
    if _entry := _field.metadata.get("asked"):
        _default = ... if _field.default is MISSING else _field.default
        _entry = replace(_entry, field=_field.name, annotated=str(_field.type), default=_default)
        ASKED[_entry.name] = _entry


# From names, files and texts to a question.


def question_of(given: Mapping[str, Any], catalog: Catalog | None = None, asker: Asker = "run") -> Question:
    """The question that these names, files, texts or objects ask, checked.

    A key is the name of a field (`batch`), or the path of a value inside one (`recipe.precision`,
    `system.node.nic.bandwidth`), whose value is written as in YAML. Raises InputError for what cannot be
    asked: the key and the value, what is allowed, and the nearest that is.
    """
    from perfsim.catalog import default_catalog
    from perfsim.catalog.reader import placed
    from perfsim.catalog.yaml_tree import Mark
    from perfsim.specs.layout import text_of_fields
    from perfsim.specs.perturbations import parse_perturbations

    catalog = catalog or default_catalog()
    known = {name: entry for name, entry in ASKED.items() if asker in entry.by}
    whole = {name: value for name, value in given.items() if "." not in name and value not in (None, "")}
    _check_roots(given, known)
    if missing := [entry for entry in known.values() if entry.required and entry.name not in whole]:
        raise InputError([Problem(f"{entry.name} is missing", help=entry.help) for entry in missing])
    values = {
        known[name].field: _description_of(value, known[name].kind, catalog) if known[name].kind else value
        for name, value in whole.items()
    }
    if isinstance(layout := values.get("layout"), Mapping):
        values["layout"] = text_of_fields(layout)
    model: TransformerConfig = values["model"]
    recipe: Recipe = values.get("recipe") or catalog.recipe(usual_recipe(model))
    usual = recipe.name in dict(ERAS).values() and catalog.recipe(recipe.name)
    if usual and recipe.seq_length == usual.seq_length:  # one that is given holds
        length = min(recipe.seq_length, model.max_position_embeddings)
        recipe = recipe.model_copy(update={"seq_length": length})
    values["recipe"] = recipe
    if isinstance(perturbed := values.get("perturbations"), str):
        values["perturbations"] = parse_perturbations(perturbed)
    question = Question(**values)
    _check_read(question, [path for path in given if "." in path or path in whole])
    by_root = changes_by_root(given)
    for root in sorted(by_root, key="runtime".__eq__):  # the recipe's precision may decide which it is
        part = question.named_runtime if root == "runtime" else getattr(question, known[root].field)
        changed = catalog.override_part(root, part, by_root[root])
        question = replace(question, **{known[root].field: changed})
    try:
        return question.check()
    except CatalogError as error:
        file = given["system"]
        if not (isinstance(file, (str, Path)) and Path(file).is_file()):
            raise
        # A lack of constants is found without its place, which is the file of the system.
        raise CatalogError(placed(error.problems, Mark(str(file), 1))) from None


def _usual_runtime(question: Question, *, sharded: bool) -> Runtime:
    """The runtime that the rule of `perfsim.specs.stacks` chooses; on wafers only the month matters."""
    from perfsim.catalog import default_catalog
    from perfsim.specs.stacks import RUNTIMES, of_2021, usual_stack

    # On a day (`as_of`) the line of Megatron-LM counts, since a maker's own stack may not have existed yet.
    part = question.system.device
    device = "" if question.as_of else part.generation or part.name
    precision = question.recipe.precision
    recent = usual_recipe(question.model) == ERAS[0][1]
    fused = recent or (question.machine.has_host(question.system) and not of_2021(device))
    usually = partial(usual_stack, device, precision, fused=fused, split=question.is_split, recent=recent)
    framework = usually(sharded=sharded).framework
    catalog = default_catalog()
    # A tool that is asked for has its own runtime, where one was measured.
    tool = question.runs_on
    own = [name for name in RUNTIMES if catalog.framework(name).tool == tool] if tool else []
    framework = own[0] if own and framework not in own else framework
    usual: Runtime = catalog.load("runtime", RUNTIMES[framework])
    usual = usual.model_copy(update={"by_rule": not own})
    # A given layout of ZeRO 2 or 3 may get another runtime, and is no plan of this one then.
    apart = not sharded and framework != usually(sharded=True).framework
    if question.runs_on or question.as_of or not apart:
        return usual
    return usual.model_copy(update={"zero_stages": (0, 1)})


def changes_by_root(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The dotted paths among some keys, by the field that they change: `{"recipe": {"precision": "fp8"}}`."""
    by_root: dict[str, dict[str, Any]] = {}
    for path, value in given.items():
        root, dot, inner = path.partition(".")
        if dot:
            by_root.setdefault(root, {})[inner] = value
    return by_root


def _check_roots(given: Mapping[str, Any], known: Mapping[str, Asked]) -> None:
    """Refuse paths that begin with no field, or lead into a field without an inside."""
    problems = []
    for path, value in given.items():
        root, dot, _ = path.partition(".")
        if help_text := Asked.instead(path, known):
            problems.append(Problem(f"{path}={value}: {root!r} cannot be asked", help=help_text))
        elif dot and not known[root].kind:
            problems.append(Problem(f"{path}={value}: {root!r} is a single value", help=f"write {root}=..."))
    if problems:
        raise InputError(problems)


def _check_read(question: Question, paths: Iterable[str]) -> None:
    """Refuse paths on which nothing of the answer depends."""
    system = question.system
    machine = question.machine
    runtime = question.runtime
    # Of a runtime as a whole, what a release does not change is its framework.
    inside = {"runtime": "runtime.framework"} if runtime and not runtime.software_release else {}
    unread = [path for path in paths if not machine.reads(system, inside.get(path, path))]
    if unread:
        said = f"changes nothing on {system.name}, a {system.kind}"
        raise InputError([Problem(f"{path} {said}", help="omit it") for path in unread])


MOVED = {"recipe.runtime": "runtime", "energy": "prices", "currency": "prices.currency"}
"""Where a value stands that people look for elsewhere."""


def misplaced(path: str) -> str:
    """What to write instead of a path to a value that stands elsewhere; empty for every other path."""
    old = covering(path, MOVED)
    return f"write {MOVED[old]}{path.removeprefix(old)}" if old else ""


def _description_of(given: Any, kind: str, catalog: Catalog) -> Any:
    """The description of a kind that is given, by name, by file or as itself."""
    from perfsim.catalog import KINDS

    base = KINDS[kind].base
    if isinstance(given, base):
        return given
    if isinstance(given, (str, Path)):
        if kind == "model" and Path(given).is_file():
            from perfsim.interop import model_named  # readers of many tools

            return model_named(str(given), catalog)
        return catalog.load(kind, str(given))
    expected = "give a name of the catalogue, the path of a YAML file, or an object of Catalog()"
    raise InputError(f"{kind}: {type(given).__name__} is not {base.__name__}", expected)


# What prices of work depend on.

_UNPRICED = ("global_batch_size", "batch_size_per_device", "tokens", "tokens_per_parameter", "target_loss")
"""Fields of a recipe that price no work."""
_PROSE = {"name": "", "description": "", "sources": {}, "assumed": {}}


def priced_part(recipe: Recipe) -> Recipe:
    """The recipe without its batch and its target, on which no price of work depends."""
    return recipe.model_copy(update={**_PROSE, **dict.fromkeys(_UNPRICED)})
