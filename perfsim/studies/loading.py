"""Studies and sweeps from the catalogue, from files and from mappings; a sweep is written out into points."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice, product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from perfsim.base.dates import EQUAL, LATEST
from perfsim.base.errors import CatalogError, InputError, LayoutError, PlanError, Problem, UnknownNameError
from perfsim.base.limits import present_limits
from perfsim.base.spec import CatalogSpec, FolderName, Spec, SpecT
from perfsim.base.text import did_you_mean
from perfsim.base.units import YAML_CONTEXT, Dimension, quantity_pattern
from perfsim.catalog import Catalog, LocatedMapping, default_catalog, parse_data, parse_file, reader
from perfsim.catalog.yaml_tree import Mark, Node
from perfsim.machines import build_topology, machine_of
from perfsim.network import nearest_link
from perfsim.prediction.planner import refusal_of
from perfsim.prediction.question import Asked, changes_by_root, misplaced, priced_part
from perfsim.specs.hardware import SystemSpec
from perfsim.specs.perturbations import parse_perturbations
from perfsim.specs.prices import PRICE_OF, PriceSpec
from perfsim.strategies import strategy
from perfsim.studies.batches import Target
from perfsim.studies.spec import CALLED, SHARED, Candidates, CandidateSpec, Point, StudySpec, equal_day

# The YAML form of a sweep: a study, and the fields of it that vary.


class GridSpec(Spec):
    """The fields that vary: machines under `candidates`, any other field of the study under its dotted path.

    Each path has a list of values in the form of the field itself: `recipe.global_batch_size:
    [512, 1024]`, `system.node.nic.bandwidth: [100 Gb/s, 200 Gb/s]`, `model: [gpt3_13b, gpt3_20b]`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(init=False)

    candidates: Candidates = ()
    """Replaces the study's own candidates."""


class _VariantSpec(GridSpec):
    """The changes of one variant: paths as in a grid, each with one value."""

    __pydantic_extra__: dict[str, Any] = Field(init=False)
    candidates: Candidates = ()
    """Replaces the candidates of the grid or the study in this variant."""


class SweepSpec(CatalogSpec):
    """A study asked at every point of a grid, for every variant."""

    name: FolderName
    title: str
    question: str = ""
    study: StudySpec
    """A study's name or path, or a study written here (with `extends`: only its differences)."""
    grid: GridSpec = GridSpec()
    variants: dict[str, _VariantSpec] = Field(default_factory=dict)
    """By name, the fields it changes: `twice the I/O: {system.io_ports: 24}`; the first is the base."""


class _StudyCatalog(Catalog):
    """A catalogue that also loads studies, so that a sweep can name one."""

    def load(self, kind: str, name_or_path: str, near: Path | None = None) -> Any:
        if kind == "study":
            return _read("study", StudySpec, self.find(kind, name_or_path, near), self)[0]
        return super().load(kind, name_or_path, near)


MACHINE_ROOTS = ("strategy", "system", "devices")
ROOTS = tuple(dict.fromkeys(["batch", *SHARED, "prices", *CandidateSpec.model_fields]))
"""What the paths of changes begin with."""
RECIPE_BATCHES = ("recipe.global_batch_size", "recipe.batch_size_per_device")
BATCH_PATHS = (*RECIPE_BATCHES, "batch_sizes", "batch")
"""Axes over the batch, which the trainer chooses: comparisons take the best value."""
VARIANT = "variant"
"""The setting of a point that names its variant."""
LAYOUT = "given layout"
"""The setting of a point with its candidate's fixed layout."""
RUNTIME = "runtime"
"""The setting of a point with its candidate's runtime, where its kind of machine has several."""
MOST_POINTS = 100_000
Made = TypeVar("Made")


@dataclass(frozen=True)
class _Axis:
    """One field that varies; a variant's change is an axis of one value."""

    path: str
    key: Mark
    nodes: tuple[Node, ...]
    where: str
    """The start of messages: the grid, or the variant."""

    @property
    def values(self) -> list[Any]:
        return [node.plain() for node in self.nodes]

    @property
    def of_machine(self) -> bool:
        """Whether it varies the strategy, the system or the number of devices as a whole."""
        return self.path in MACHINE_ROOTS

    def problem(self, message: str, help_text: str) -> Problem:
        return self.key.problem(f"{self.where}: {message}", help_text)


def _read_axes(mapping: LocatedMapping, spec: SweepSpec) -> tuple[dict[str, list[_Axis]], list[Problem]]:
    """The valid axes of the grid (under the empty name) and of each variant, and what is wrong in others."""
    groups: dict[str, list[_Axis]] = {}
    problems = []
    for name, part in {"": spec.grid, **spec.variants}.items():
        groups[name] = []
        where: tuple[str, ...] = ("variants", name) if name else ("grid",)
        for path in part.model_extra or {}:
            node = mapping.node
            for key in (*where, path):
                node = node.mapping[key]
            mark = mapping.node.mark_at((*where, path), of_key=True)
            axis = _Axis(path, mark, (node,) if name else tuple(node.sequence), ": ".join(where))
            known = [*([] if name else ["candidates"]), *ROOTS]
            if help_text := Asked.instead(path, known):
                problems.append(axis.problem(f"`{path}` cannot be swept", help_text))
            else:
                groups[name].append(axis)
    return groups, problems


def _wrong_values(
    axis: _Axis, study: StudySpec, candidates: Sequence[CandidateSpec], catalog: Catalog
) -> list[Problem]:
    """What is wrong in an axis: its path, which the study or one of the systems must have, or its values."""
    root, _, inner = axis.path.partition(".")
    candidate = study.candidates[0]
    if root in MACHINE_ROOTS and inner and root != "system":
        return [axis.problem(f"`{axis.path}` is not a field", f"did you mean `{root}`?")]
    if root == "system" and inner:
        if not candidates:
            return []
        candidate = max(candidates, key=lambda known: reached(known.system, inner)[0])
    if problem := _unread(axis.path, candidates):
        return [axis.problem(problem.message, problem.help)]
    owner, path = owner_of(study, candidate, axis.path)
    count, record, index, _ = reached(owner, path)
    parts = path.split(".")
    problems = []
    if count < len(parts):  # a path that leads nowhere, or to a new key such as a system without a price
        for value in axis.values:
            try:
                catalog.override(owner, {path: value})
            except CatalogError as error:
                problems += reader.placed(error.problems, axis.key, f"{axis.where}: ")
        return list(dict.fromkeys(problems))
    annotation = record.model_fields[parts[index]].annotation
    named = index == len(parts) - 1 and any(reader.is_named(member) for member in reader.members(annotation))
    for node in axis.nodes:
        try:
            if axis.path == "strategy":
                strategy(str(node.value))
            elif axis.path == "as_of" and node.value == EQUAL:
                raise InputError(f"{EQUAL!r} is one day for all points", "write `as_of: equal` in the study")
            elif named and isinstance(node.value, str):
                reader.value_at(type(owner), path, node.value, catalog)
            else:
                _must_suit(record, parts[index:], node, axis)
        except InputError as error:
            problems += reader.placed(error.problems, node.mark, f"{axis.where}: ")
    return problems


def reached(spec: BaseModel, path: str) -> tuple[int, type[BaseModel], int, Any]:
    """How many parts of a path exist, the class of the last field, its index, its value (or a new key's)."""
    parts = path.split(".")
    owner = type(spec)
    index = 0
    value: Any = spec
    for count, part in enumerate(parts):
        if isinstance(value, BaseModel) and part in type(value).model_fields:
            owner = type(value)
            index = count
            value = getattr(value, part)
        elif isinstance(value, dict) and (part in value or count == len(parts) - 1):
            value = value.get(part)
        else:
            return count, owner, index, value
    return len(parts), owner, index, value


def owner_of(study: StudySpec, candidate: CandidateSpec, path: str) -> tuple[BaseModel, str]:
    """The description that a path of a question leads into, and the path inside it."""
    root, _, inner = path.partition(".")
    if inner and root == "system":
        return candidate.system, inner
    if inner and root == "runtime":
        return study.runtime_of(candidate), inner
    return (candidate if of_candidate(path) else study), _study_path(path)


def suits(path: str, candidate: CandidateSpec, value: Any = None) -> bool:
    """Whether a candidate has the field at a path, and its machine reads it, of a layout also this text."""
    system = candidate.system
    if path == "layout" and isinstance(value, str):
        try:
            machine_of(system).parse_layout(value, candidate.devices[0])
        except LayoutError:
            return False
    root, _, inner = path.partition(".")
    if root == "system" and inner:
        return reached(system, inner)[0] == inner.count(".") + 1
    return machine_of(system).reads(system, path)


def _must_suit(owner: type[BaseModel], parts: Sequence[str], node: Node, axis: _Axis) -> None:
    """CatalogError with a field's own complaints about a value in YAML form, where quantities need units."""
    model = _model_of(owner, parts[0])
    for part in reversed(parts):
        node = Node(node.mark, {part: node})
    try:
        model.model_validate(node.plain(), context=YAML_CONTEXT)
    except ValidationError as error:
        complained = reader.complaints(error, model, node)
        said = {problem: problem.message.partition(": ")[2] or problem.message for problem in complained}
        where = f"{axis.where}: {axis.path}"
        problems = [replace(problem, message=f"{where}: {words}") for problem, words in said.items()]
        raise CatalogError(problems) from None


@cache
def _model_of(owner: type[BaseModel], field: str) -> type[BaseModel]:
    """A description of nothing but one field of another."""
    annotation: Any = owner.model_fields[field].rebuild_annotation()
    model: type[BaseModel] = create_model("Value", **{field: (annotation, ...)})  # type: ignore[call-overload]
    return model


def dimension_at(spec: BaseModel, path: str) -> Dimension | None:
    """The dimension of the quantity at a path of a description; None for a plain number or a word."""
    _, owner, index, _ = reached(spec, path)
    schema = str(_model_of(owner, path.split(".")[index]).model_json_schema())
    return next((known for known in get_args(Dimension) if repr(quantity_pattern(known)) in schema), None)


# A study with values replaced: the one reading of paths, for `--set`, grids and variants.


def _study_path(path: str) -> str:
    """Where the value at a path of a question stands in a study: `batch_sizes` for `batch`."""
    root, dot, inner = path.partition(".")
    return f"{CALLED.get(root, root)}{dot}{inner}"


@dataclass(frozen=True)
class Changer:
    """Replaces values at paths of a question; what points share is made once, by ids of what stays alive."""

    catalog: Catalog
    made: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, make: Callable[[], Made], *key: Hashable) -> Made:
        if key not in self.made:
            self.made[key] = make()
        known: Made = self.made[key]
        return known

    def study(self, base: StudySpec, changes: Mapping[str, Any]) -> StudySpec:
        """The study with values that its candidates share replaced, whole descriptions first."""
        whole = {_study_path(path): value for path, value in changes.items() if "." not in path}
        inner = {_study_path(path): value for path, value in changes.items() if "." in path}
        if isinstance(perturbed := whole.get("perturbations"), str):
            whole["perturbations"] = parse_perturbations(perturbed)
        batch = {"batch_sizes": whole.pop("batch_sizes")} if "batch_sizes" in whole else {}
        of_recipe = not inner.keys().isdisjoint(RECIPE_BATCHES)
        if batch or of_recipe:
            base = base.model_copy(update={"batch_sizes": "auto"})
        study = self.catalog.override(self.catalog.override(base, whole), inner)
        if batch and not of_recipe and study.recipe.batch_over(1):
            batch |= dict.fromkeys(RECIPE_BATCHES)
        return self.catalog.override(study, batch)

    def candidate(
        self, study: StudySpec, candidate: CandidateSpec, changes: Mapping[str, Any]
    ) -> CandidateSpec:
        """The candidate with values of its own replaced, its system and its runtime first as a whole."""
        inside = changes_by_root(changes)
        parts = {root: inside[root] for root in ("system", "runtime") if root in inside}
        outside = [path for path in changes if path in parts or path.partition(".")[0] not in parts]
        values = {_study_path(path): changes[path] for path in outside}
        key = (id(candidate), repr(values))
        changed = self.once(lambda: self.catalog.override(candidate, values), *key) if values else candidate
        for root, inner in parts.items():
            part = study.runtime_of(changed) if root == "runtime" else changed.system
            at = (id(part), repr(inner))
            if at not in self.made:
                self.made[at] = self.catalog.override_part(root, part, inner), part
            changed = changed.model_copy(update={root: self.made[at][0]})
        return changed

    def point(
        self, base: StudySpec, candidate: CandidateSpec, devices: int, changes: Mapping[str, Any]
    ) -> StudySpec:
        """The study of one point, checked without running; InputError for a wrong target or device count."""
        # What points share is checked once for all of them, and equal descriptions are in memory once.
        of_study = {path: value for path, value in changes.items() if not of_candidate(path)}
        own = {path: value for path, value in changes.items() if path not in of_study}

        def shared() -> StudySpec:
            study = self.study(base, of_study)
            parts: dict[str, Any] = {"candidates": ()}
            for name in ("model", "recipe", "convergence"):
                value = getattr(study, name)
                parts[name] = self.made.setdefault((name, value.model_dump_json()), value)
            return study.model_copy(update=parts)

        study = self.once(shared, "study", repr(of_study))
        chosen = self.candidate(study, candidate, own).model_copy(update={"devices": (devices,)})
        study = study.model_copy(update={"candidates": (chosen,)})
        system = chosen.system
        recipe = study.recipe
        self.once(
            lambda: Target.of_study(study), "target", id(study.model), id(recipe), id(study.convergence)
        )
        point = Point(study)
        question = point.question
        priced = self.once(lambda: priced_part(recipe).model_dump_json(), "priced", id(recipe))
        others = (id(question.runtime), question.as_of, chosen.strategy, id(question.cluster))
        self.once(point.checked, "prices", id(system), priced, *others)
        self.once(lambda: question.topology, "devices", id(system), devices)
        return study


def of_candidate(path: str) -> bool:
    """Whether the value at a path of a question is a candidate's own."""
    return _study_path(path).partition(".")[0] in CandidateSpec.model_fields


def changed_study(study: StudySpec, changes: Mapping[str, Any], catalog: Catalog) -> StudySpec:
    """A study with the values at paths of a question replaced, in all candidates or in what they share.

    Raises InputError for a path that leads nowhere, for a value that its field refuses, and for a change
    inside the system that no candidate's system has.
    """
    if not changes:
        return study
    problems = []
    for path, value in changes.items():
        root = _study_path(path).partition(".")[0]
        if root not in ROOTS or misplaced(path):
            help_text = Asked.instead(path, ROOTS)
            problems.append(Problem(f"{path}={value}: `{root}` cannot be changed", help=help_text))
        elif problem := _unread(path, study.candidates):
            problems.append(problem)
    if problems:
        raise InputError(problems)
    changer = Changer(catalog)
    changed = changer.study(study, {path: changes[path] for path in changes if not of_candidate(path)})
    inner = {path: value for path, value in changes.items() if of_candidate(path)}
    whole = {path: inner.pop(path) for path in list(inner) if "." not in path}
    candidates = study.candidates
    for step in (whole, *({path: value} for path, value in inner.items())):
        fitting = [
            {path: value for path, value in step.items() if suits(path, known, value)} for known in candidates
        ]
        # Each of them says why it takes none of these.
        nowhere = {path: step[path] for path in step if not any(path in own for own in fitting)}
        pairs = zip(candidates, fitting, strict=True)
        candidates = tuple(changer.candidate(changed, known, nowhere | own) for known, own in pairs)
    return changed.model_copy(update={"candidates": candidates})


def _unread(path: str, candidates: Sequence[CandidateSpec]) -> Problem | None:
    """The problem of a path that no candidate's machine reads."""
    systems = dict.fromkeys(candidate.system.name for candidate in candidates)
    if not systems or any(machine_of(known.system).reads(known.system, path) for known in candidates):
        return None
    help_text = did_you_mean(path.split(".")[2], systems) if path.startswith(PRICE_OF) else "omit it"
    return Problem(f"{path} changes nothing on {' or '.join(systems)}", help=help_text)


def priced(study: StudySpec, prices: Mapping[str, Any], systems: Iterable[str] = ()) -> StudySpec:
    """A study with these prices of a device-hour instead of all others; InputError for an impossible one."""
    known = {*systems, *(candidate.system.name for candidate in study.candidates)}
    for name, price in prices.items():
        if name not in known:
            raise UnknownNameError("system of a candidate", name, sorted(known))
        if not (isinstance(price, (int, float)) and 0 <= price < 1e12):
            raise InputError(f"price of {name}: {price!r} is not money for a device-hour, such as 2.50")
    given = {name: PriceSpec(device_hour=price) for name, price in prices.items()}
    candidates = tuple(
        own.model_copy(update={"price": given.get(own.system.name, own.price)}) for own in study.candidates
    )
    if wrong := study.prices.unknown([*known, *default_catalog().names("system")]):
        raise InputError(list(wrong.values())[:1])
    every = study.prices.model_copy(update={"machines": study.prices.machines | given})
    return study.model_copy(update={"candidates": candidates, "prices": every})


# The points of a sweep.


def _expand(spec: SweepSpec, mapping: LocatedMapping, catalog: Catalog) -> tuple[Point, ...]:
    """Every point by variant, candidate, devices, then the axes; CatalogError with all problems."""
    groups, unread = _read_axes(mapping, spec)
    grid = groups[""]
    variants = {"": _VariantSpec(), **spec.variants}
    problems: list[Problem] = []
    machines: dict[str, list[CandidateSpec]] = {}
    for name, axes in groups.items():
        given = variants[name].candidates or spec.grid.candidates or spec.study.candidates
        for axis in axes:
            if axis.of_machine:
                problems += _wrong_values(axis, spec.study, given, catalog)
        if problems:
            continue
        varied = [axis for axis in (*grid, *axes) if axis.of_machine]
        machines[name] = [machine for known in given for machine in _machines(known, varied, catalog)]
        for axis in axes:
            if not axis.of_machine and len(problems) < reader.MOST_PROBLEMS:
                problems += _wrong_values(axis, spec.study, machines[name], catalog)
    if unread or problems:
        raise CatalogError(reader.in_order([*unread, *problems]))
    changer = Changer(catalog)
    points: list[Point] = []
    for name in spec.variants or variants:
        # A fixed layout tells a candidate from others; a variant's only one of its kind needs none.
        kinds = [(known.system.name, known.strategy) for known in variants[name].candidates]
        fixed = {axis.path: axis.values[0] for axis in groups[name] if name and not axis.of_machine}
        for candidate in machines[name]:
            # A variant of a field that a system does not have omits it; an axis of the grid leaves it alone.
            if not all(suits(path, candidate) for path in fixed):
                continue
            apart = {VARIANT: name} if name else {}
            kind = (candidate.system.name, candidate.strategy)
            if candidate.layout is not None and (not kinds or kinds.count(kind) > 1):
                apart[LAYOUT] = candidate.layout_words
            alike = [known for known in machines[name] if (known.system.name, known.strategy) == kind]
            if len({spec.study.runtime_of(machine).name for machine in alike}) > 1:
                apart[RUNTIME] = spec.study.runtime_of(candidate).name
            axes = [axis for axis in grid if not axis.of_machine and suits(axis.path, candidate)]
            count = len(candidate.devices) * prod(len(axis.nodes) for axis in axes)
            if count > MOST_POINTS:
                message = f"grid: {count:,} points for one candidate; at most {MOST_POINTS:,} are answered"
                raise CatalogError([mapping.problem(("grid",), message)])
            for devices, values in product(candidate.devices, product(*(axis.values for axis in axes))):
                present_limits().in_time(lambda: "the points of the grid were being written out")
                settings = {axis.path: value for axis, value in zip(axes, values, strict=True)}
                changes = {**settings, **fixed}
                try:
                    study = changer.point(spec.study, candidate, devices, changes)
                except InputError as error:
                    said = [f"{path} {value}" for path, value in changes.items()]
                    label = ", ".join([candidate.system.machine(devices), str(candidate.strategy), *said])
                    at = mapping.node.mark_at(("variants", name) if name else ("grid",))
                    raise CatalogError(reader.placed(error.problems, at, f"{label}: ")) from None
                points.append(Point(study, {**apart, **settings}))
    if not points:
        raise CatalogError([mapping.problem(("grid",), "no strategy of the grid runs on any of its systems")])
    return tuple(points)


def _machines(candidate: CandidateSpec, axes: Sequence[_Axis], catalog: Catalog) -> Iterator[CandidateSpec]:
    """A candidate varied by axes over strategies, systems and device counts; only pairs that can run."""
    values: dict[str, list[Any]] = {axis.path: axis.values for axis in axes}
    systems: list[SystemSpec] = [catalog.system(name) for name in values.get("system", [])]
    strategies = values.get("strategy", [candidate.strategy])
    devices = candidate.devices
    if "devices" in values:
        lists = (value if isinstance(value, list) else [value] for value in values["devices"])
        devices = tuple(count for counts in lists for count in counts)
    for name, system in product(strategies, systems or [candidate.system]):
        if {strategy(candidate.strategy).system_kind, strategy(name).system_kind} == {system.kind}:
            yield candidate.model_copy(update={"strategy": name, "system": system, "devices": devices})


@dataclass(frozen=True)
class Sweep:
    """A sweep that was read and checked, with its points."""

    spec: SweepSpec
    points: tuple[Point, ...]
    asked: str = ""
    """The name or path by which it was read."""

    @classmethod
    def of(cls, study: StudySpec) -> Self:
        """The candidates of a study as points, each at its best batch; a fixed layout is a setting."""
        spec = SweepSpec(name=study.name, title=study.heading, question=study.question, study=study)
        points = []
        for point in study.points:
            layout = point.candidate.layout_words
            points.append(replace(point, settings={LAYOUT: layout} if layout else {}))
        return cls(spec, tuple(points), study.name)

    @property
    def name(self) -> str:
        return self.spec.name

    def priced(self, prices: Mapping[str, float]) -> Self:
        """The points with these prices of a device-hour, by system."""
        known = {point.system for point in self.points}
        for system in prices:
            own = [point for point in self.points if point.system == system]
            given = [point.study.prices_of(point.candidate).machines.get(system) for point in own]
            if any(price != given[0] for price in given):
                swept = f"{PRICE_OF}{system} is swept and priced by the question as well"
                raise InputError(swept, "keep one of them")
        points = (replace(point, study=priced(point.study, prices, known)) for point in self.points)
        return replace(self, points=tuple(points)) if prices else self

    def only(self, strategies: Sequence[str]) -> Self:
        """The points of these strategies, or all without names; InputError for one without points."""
        known = list(dict.fromkeys(point.candidate.strategy for point in self.points))
        for name in strategies:
            if name not in known:
                raise InputError(f"{self.name} has no point of strategy {name}; it has {', '.join(known)}")
        points = (point for point in self.points if not strategies or point.candidate.strategy in strategies)
        return replace(self, points=tuple(points))


def load_sweep(
    name_or_path: str, catalog: Catalog | None = None, changes: Mapping[str, Any] | None = None
) -> Sweep:
    """A sweep by its name in studies/ or from a file, with every point resolved.

    `changes` are values by the path of a question, which the grid and its variants may change again.
    Raises CatalogError with every problem of the file.
    """
    catalog = _StudyCatalog((catalog or default_catalog()).roots)
    spec, mapping = _read("sweep", SweepSpec, catalog.find("study", name_or_path), catalog)

    def changed(part: GridSpec) -> Any:
        study = spec.study.model_copy(update={"candidates": part.candidates})
        own = {path: value for path, value in (changes or {}).items() if of_candidate(path)}
        own = {path: value for path, value in own.items() if not _unread(path, part.candidates)}
        return part.model_copy(update={"candidates": changed_study(study, own, catalog).candidates})

    if changes:
        parts: dict[str, Any] = {
            "study": changed_study(spec.study, changes, catalog),
            "grid": changed(spec.grid),
            "variants": {name: changed(variant) for name, variant in spec.variants.items()},
        }
        spec = spec.model_copy(update=parts)
    given = chain(spec.study.candidates, *(part.candidates for part in (spec.grid, *spec.variants.values())))
    if wrong := list(_wrong_prices(spec.study, given, mapping.node.mapping["study"])):
        raise CatalogError(wrong)
    if spec.study.as_of == EQUAL:  # one day for all points
        day = equal_day(_expand(_on(spec, LATEST), mapping, catalog))
        spec = _on(spec, day)
    return Sweep(spec, _expand(spec, mapping, catalog), name_or_path)


def _on(spec: SweepSpec, day: str) -> SweepSpec:
    """A sweep as of a day."""
    return spec.model_copy(update={"study": spec.study.model_copy(update={"as_of": day})})


def kind_of_study(
    name_or_path: str, catalog: Catalog | None = None
) -> Literal["study", "sweep", "comparison"]:
    """What a file in studies/ is, by its name or path."""
    catalog = catalog or default_catalog()
    data = LocatedMapping.read(catalog.find("study", name_or_path), "study", catalog).data
    if data.keys() & {"study", "grid"}:
        return "sweep"
    return "comparison" if data.keys() & {"losses", "speeds", "equations"} else "study"


def _read(kind: str, spec: type[SpecT], path: Path, catalog: Catalog) -> tuple[SpecT, LocatedMapping]:
    """What a file in studies/ describes, and its places; CatalogError where it is of another kind."""
    mapping = LocatedMapping.read(path, "study", catalog)
    found = kind_of_study(str(path), catalog)
    if found != kind:
        said = f"this is a {found}; a {kind} is expected"
        name = path.stem if path.stem in catalog.names("study") else path
        raise CatalogError([mapping.problem((), said, f"perfsim study {name}, or ps.{found}, answers it")])
    return parse_file(path, spec, catalog), mapping


def load_study(
    name_or_path: str, catalog: Catalog | None = None, changes: Mapping[str, Any] | None = None
) -> StudySpec:
    """A study of the catalogue by name, or from a file, after `changes`; CatalogError with all problems."""
    catalog = catalog or default_catalog()
    study, mapping = _read("study", StudySpec, catalog.find("study", name_or_path), catalog)
    _check_target(study, mapping)
    wrong = [*_wrong_prices(study, study.candidates, mapping.node), *_wrong_machines(study, mapping)]
    for name in ("runs_on", "memory_limit"):
        if name in mapping.node.mapping and (problem := _unread(name, study.candidates)):
            wrong += reader.placed([problem], mapping.node.mark_at((name,), of_key=True))
    if wrong := wrong or list(_wrong_links(study, mapping)):
        raise CatalogError(reader.in_order(wrong))
    return changed_study(study, changes or {}, catalog)


def _wrong_prices(study: StudySpec, candidates: Iterable[CandidateSpec], node: Node) -> Iterator[Problem]:
    """Prices of machines that are neither the study's own nor of the catalogue, at their place in it."""
    known = [*(own.system.name for own in candidates), *default_catalog().names("system")]
    for name, wrong in study.prices.unknown(known).items():
        at = node.mark_at(("prices", "machines", name), of_key=True)
        yield at.problem(f"prices: {wrong.message}", wrong.help)


def _wrong_machines(study: StudySpec, mapping: LocatedMapping) -> Iterator[Problem]:
    """Numbers of devices that a system cannot have; layouts and lacks only where no candidate can be run."""
    layouts: list[list[Problem]] = []
    # A list of strategies in the file is several candidates.
    names = [written.get("strategy") for written in mapping.data["candidates"]]
    lines = [line for line, of in enumerate(names) for _ in (of if isinstance(of, list) else [of])]
    node = mapping.node
    points = iter(study.points)
    for line, candidate in zip(lines, study.candidates, strict=True):
        for number, point in enumerate(islice(points, len(candidate.devices))):
            try:
                question = point.question.check()
            except CatalogError as error:  # a lack of constants
                layouts.append(reader.placed(error.problems, node.mark_at(("candidates", line, "system"))))
                continue
            except InputError as error:
                devices = node.mark_at(("candidates", line, "devices", number))
                yield from reader.placed(error.problems, devices)
                continue
            layouts.append([])
            if question.given_layout is not None:
                batches = Target.of_study(study).batches(study, question)
                refused = [refusal_of(question.at(batch)) for batch in batches]
                wrong = [error for error in refused if isinstance(error, LayoutError)]
                if len(wrong) == len(refused):
                    layout = node.mark_at(("candidates", line, "layout"))
                    layouts[-1] = reader.placed(wrong[0].problems, layout)
    if all(layouts):
        yield from chain(*layouts)


def _wrong_links(study: StudySpec, mapping: LocatedMapping) -> Iterator[Problem]:
    links = study.perturbations.links if study.perturbations is not None else ()
    if not links:
        return
    topologies = [build_topology(point.candidate.system, point.num_devices) for point in study.points]
    systems = {topology.system.name for topology in topologies}
    for number, link in enumerate(links):
        where = ("perturbations", "links", number)
        addressed = [topology for topology in topologies if link.system in (None, topology.system.name)]
        if not addressed:
            help_text = did_you_mean(str(link.system), sorted(systems))
            yield mapping.problem((*where, "system"), f"no candidate is a system {link.system!r}", help_text)
        elif not any(topology.links_named(link.link) for topology in addressed):
            whose = "no candidate" if link.system is None else f"no candidate on {link.system}"
            words = f"{whose} has a link {link.link!r}"
            yield mapping.problem((*where, "link"), words, nearest_link(link.link, addressed))


def _check_target(study: StudySpec, mapping: LocatedMapping) -> None:
    """Refuse a recipe without a target, and a loss that its law does not reach, at its place in the file."""
    try:
        Target.of(study.model, study.recipe, study.convergence)
    except (InputError, PlanError) as error:
        problems = reader.placed(error.problems, mapping.node.mark_at(("recipe", "target_loss")))
        if isinstance(error, PlanError):
            raise PlanError([str(problem) for problem in problems]) from None
        raise CatalogError(problems) from None


def study_from(fields: Mapping[str, Any], catalog: Catalog) -> StudySpec:
    """A study from its fields as in YAML, or as objects and SI floats; CatalogError lists every problem."""
    return parse_data(fields, StudySpec, catalog, Path(str(fields.get("extends", "study"))).stem)
