"""Expands a grid and its variants into points, each a study of one candidate, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from perfsim.base.errors import CatalogError, InputError, Problem
from perfsim.catalog import Catalog, LocatedMapping
from perfsim.catalog.reader import MOST_PROBLEMS, in_order
from perfsim.engine.limits import present_limits
from perfsim.prediction.question import priced_part
from perfsim.specs.hardware import SystemSpec
from perfsim.strategies import strategy
from perfsim.strategies.plan import runs_on
from perfsim.studies.axes import (
    LAYOUT,
    MACHINE_ROOTS,
    VARIANT,
    Axis,
    SweepSpec,
    check_machine_axis,
    check_study_axis,
    check_system_axis,
    has_field,
    read_axes,
    read_variant,
)
from perfsim.studies.runner import check_question, question_of_candidate, target_of
from perfsim.studies.spec import CandidateSpec, StudySpec

MOST_POINTS = 100_000


@dataclass(frozen=True)
class SweepPoint:
    """One candidate at one number of devices with all other fields fixed."""

    study: StudySpec
    """With exactly one candidate and one number of devices."""
    settings: Mapping[str, Any]
    """The variant, a fixed layout, and the grid's values except strategy, system and devices."""

    @property
    def candidate(self) -> CandidateSpec:
        return self.study.candidates[0]

    @property
    def num_devices(self) -> int:
        return self.candidate.devices[0]

    @property
    def label(self) -> str:
        """`128 A100-80GB (16 DGX), 3d, recipe.global_batch_size 512`."""
        return _label(self.candidate, self.num_devices, self.settings)


def _label(candidate: CandidateSpec, devices: int, settings: Mapping[str, Any]) -> str:
    machine = f"{candidate.system.machine(devices)}, {candidate.strategy}"
    return ", ".join([machine, *(f"{path} {value}" for path, value in settings.items())])


def expand(spec: SweepSpec, mapping: LocatedMapping, catalog: Catalog) -> tuple[SweepPoint, ...]:
    """Every point of a sweep, ordered by variant, candidate, devices, then the axes of the file.

    An axis over a field that a candidate's system does not have is ignored for that candidate; a variant
    that changes such a field omits the candidate. Raises CatalogError with every problem and its line.
    """
    axes, problems = read_axes(mapping, spec.grid.model_extra or {})
    variants: list[tuple[str, list[Axis]]] = []
    for name in spec.variants:
        changes, wrong = read_variant(mapping, name)
        problems += wrong
        variants.append((name, changes))
    problems += _check_changes(spec, [("", axes), *variants], catalog)
    if problems:
        raise CatalogError(in_order(problems))
    builder = _Builder(spec.study, catalog, mapping)
    points = [
        point
        for name, changes in variants or [("", [])]
        for candidate in _candidates(spec, name, [*axes, *changes], catalog)
        for point in builder.points(
            candidate, _inner(axes), name, _inner(changes), named=_is_named(spec, name, candidate)
        )
    ]
    if not points:
        raise CatalogError([mapping.problem(("grid",), "no strategy of the grid runs on any of its systems")])
    return tuple(points)


def _inner(axes: Sequence[Axis]) -> list[Axis]:
    """The axes over fields inside a study or a system, without those over strategy, system and devices."""
    return [axis for axis in axes if axis.path not in MACHINE_ROOTS]


def _given(spec: SweepSpec, variant: str) -> Sequence[CandidateSpec]:
    """The candidates of a variant, else of the grid, else of the study."""
    own = spec.variants[variant].candidates if variant else ()
    return own or spec.grid.candidates or spec.study.candidates


def _is_named(spec: SweepSpec, variant: str, candidate: CandidateSpec) -> bool:
    """Whether a fixed layout tells a candidate from others; a variant's only one of its kind needs none."""
    own = spec.variants[variant].candidates if variant else ()
    kinds = [(other.system.name, other.strategy) for other in own]
    return not own or kinds.count((candidate.system.name, candidate.strategy)) > 1


def _candidates(spec: SweepSpec, variant: str, axes: Sequence[Axis], catalog: Catalog) -> list[CandidateSpec]:
    """The candidates of a variant, varied by the axes over machines."""
    candidates = _given(spec, variant)
    machine_axes = [axis for axis in axes if axis.path in MACHINE_ROOTS]
    return [machine for candidate in candidates for machine in _machines(candidate, machine_axes, catalog)]


def _check_changes(
    spec: SweepSpec, groups: Sequence[tuple[str, Sequence[Axis]]], catalog: Catalog
) -> list[Problem]:
    """Problems of the grid's axes (the first group) and of each variant's, combined with the grid's."""
    problems: list[Problem] = []
    for variant, axes in groups:
        for axis in axes:
            if axis.path in MACHINE_ROOTS:
                problems += check_machine_axis(axis, _given(spec, variant), catalog)
        if not problems:
            machines = _candidates(spec, variant, [*groups[0][1], *axes], catalog)
            problems += _check(_inner(axes), spec.study, machines, catalog)
    return problems


def _check(
    axes: Sequence[Axis], study: StudySpec, candidates: Sequence[CandidateSpec], catalog: Catalog
) -> list[Problem]:
    systems = [candidate.system for candidate in candidates]
    problems: list[Problem] = []
    for axis in axes:
        if len(problems) >= MOST_PROBLEMS:
            break
        if axis.root == "system":
            problems += check_system_axis(axis, systems, catalog) if systems else []
        elif axis.root in MACHINE_ROOTS:
            problems.append(
                axis.key.problem(
                    f"{axis.where}: `{axis.path}` is not a field", f"did you mean `{axis.root}`?"
                )
            )
        else:
            problems += check_study_axis(axis, study, catalog)
    return problems


def _machines(candidate: CandidateSpec, axes: Sequence[Axis], catalog: Catalog) -> Iterator[CandidateSpec]:
    """A candidate varied by axes over strategies, systems and device counts; only pairs that can run."""
    values: dict[str, list[Any]] = {axis.path: axis.values for axis in axes}
    systems: list[SystemSpec] = [catalog.system(name) for name in values.get("system", [])]
    strategies = values.get("strategy", [candidate.strategy])
    devices = candidate.devices
    if "devices" in values:
        lists = (value if isinstance(value, list) else [value] for value in values["devices"])
        devices = tuple(count for counts in lists for count in counts)
    for name, system in product(strategies, systems or [candidate.system]):
        if runs_on(strategy(candidate.strategy), system) and runs_on(strategy(name), system):
            yield candidate.model_copy(update={"strategy": name, "system": system, "devices": devices})


@dataclass(frozen=True)
class _Builder:
    """Makes points; equal changes of a study or a system are applied only once."""

    base: StudySpec
    catalog: Catalog
    mapping: LocatedMapping
    studies: dict[str, StudySpec] = field(default_factory=dict)
    systems: dict[str, SystemSpec] = field(default_factory=dict)
    probed: set[tuple[object, ...]] = field(default_factory=set)
    parts: dict[tuple[str, str], Any] = field(default_factory=dict)
    priced: dict[int, str] = field(default_factory=dict)
    """By the id of a recipe, what prices may depend on."""

    def points(
        self,
        candidate: CandidateSpec,
        axes: Sequence[Axis],
        variant: str,
        changes: Sequence[Axis],
        *,
        named: bool,
    ) -> Iterator[SweepPoint]:
        """The points of a candidate in one variant, `named` by a fixed layout; none if it lacks a field."""
        if not all(_suits(axis, candidate) for axis in changes):
            return
        relevant = [axis for axis in axes if _suits(axis, candidate)]
        count = len(candidate.devices) * prod(len(axis.nodes) for axis in relevant)
        if count > MOST_POINTS:
            message = f"grid: {count:,} points for one candidate; at most {MOST_POINTS:,} are answered"
            raise CatalogError([self.mapping.problem(("grid",), message)])
        own = {VARIANT: variant} if variant else {}
        if candidate.layout is not None and named:
            own[LAYOUT] = candidate.layout_words
        changed = {axis.path: axis.values[0] for axis in changes}
        limits = present_limits()
        for devices, values in product(candidate.devices, product(*(axis.values for axis in relevant))):
            limits.in_time(lambda: "the points of the grid were being written out")
            settings = {axis.path: value for axis, value in zip(relevant, values, strict=True)}
            study = self.changed(candidate, devices, {**settings, **changed})
            yield SweepPoint(study, {**own, **settings})

    def changed(self, candidate: CandidateSpec, devices: int, changes: dict[str, Any]) -> StudySpec:
        """The study of one candidate at one number of devices with these changes, checked without running."""
        try:
            system = self.system(candidate.system, changes)
            chosen = candidate.model_copy(update={"system": system, "devices": (devices,)})
            study = self.study(changes).model_copy(update={"candidates": (chosen,)})
            self.probe(study)
        except InputError as error:
            label = _label(candidate, devices, changes)
            raise CatalogError([self.placed(label, problem) for problem in error.problems]) from None
        return study

    def probe(self, study: StudySpec) -> None:
        """Raise InputError for bad input: a target or a device count; the run reports what a point lacks.

        What depends on the study alone, on the system with its devices, and on the system with the recipe is
        checked once for all points that share it.
        """
        candidate = study.candidates[0]
        system = candidate.system
        devices = candidate.devices[0]
        shared = id(study.model), id(study.recipe), id(study.convergence)
        if self.new("target", *shared):
            target_of(study)
        question = question_of_candidate(study, candidate, devices)
        recipe = self.priced.get(id(study.recipe)) or self.priced.setdefault(
            id(study.recipe), priced_part(study.recipe).model_dump_json()
        )
        if self.new("prices", id(system), recipe, candidate.strategy, id(candidate.cluster_calibration)):
            check_question(question)
        elif self.new("devices", id(system), devices):
            _ = question.topology

    def new(self, *shared: object) -> bool:
        """Whether this was not asked before. Ids stand for descriptions, which stay alive with the grid."""
        before = len(self.probed)
        self.probed.add(shared)
        return len(self.probed) > before

    def placed(self, label: str, problem: Problem) -> Problem:
        """The problem at the grid's line, with the label of its point, unless it has a place."""
        if problem.file:
            return problem
        return self.mapping.problem(("grid",), f"{label}: {problem.message}", problem.help)

    def system(self, system: SystemSpec, settings: Mapping[str, Any]) -> SystemSpec:
        """The system with its own changes."""
        changes = {
            path.removeprefix("system."): value
            for path, value in settings.items()
            if path.startswith("system.")
        }
        key = repr((id(system), changes))
        if key not in self.systems:
            self.systems[key] = self.catalog.override(system, changes)
        return self.systems[key]

    def study(self, settings: Mapping[str, Any]) -> StudySpec:
        """The base study with changes: whole descriptions first, then fields inside them."""
        changes = {path: value for path, value in settings.items() if not path.startswith("system.")}
        key = repr(changes)
        if key not in self.studies:
            whole = {path: value for path, value in changes.items() if "." not in path}
            inner = {path: value for path, value in changes.items() if "." in path}
            self.studies[key] = self.shared(
                self.catalog.override(self.catalog.override(self.base, whole), inner)
            )
        return self.studies[key]

    def shared(self, study: StudySpec) -> StudySpec:
        """The study with descriptions that equal an earlier one's in memory once, and without candidates."""
        parts: dict[str, Any] = {"candidates": ()}
        for name in ("model", "recipe", "convergence"):
            value = getattr(study, name)
            parts[name] = self.parts.setdefault((name, value.model_dump_json()), value)
        return study.model_copy(update=parts)


def _suits(axis: Axis, candidate: CandidateSpec) -> bool:
    """Whether a candidate has the field of an axis."""
    return axis.root != "system" or has_field(candidate.system, axis.inner)
