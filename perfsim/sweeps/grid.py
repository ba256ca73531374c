"""A grid and its variants become points, each a study of one candidate, resolved before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from perfsim.catalog import Catalog, LocatedMapping
from perfsim.catalog.reader import in_order
from perfsim.errors import CatalogError, InputError, PlanError, Problem
from perfsim.hardware import SystemSpec
from perfsim.strategies import strategy
from perfsim.strategies.plan import runs_on
from perfsim.studies.runner import question_of, target_of
from perfsim.studies.spec import CandidateSpec, StudySpec
from perfsim.sweeps.axes import (
    MACHINE_ROOTS,
    VARIANT,
    Axis,
    check_machine_axis,
    check_study_axis,
    check_system_axis,
    has_field,
    read_axes,
    read_variant,
)
from perfsim.sweeps.spec import SweepSpec

MOST_POINTS = 100_000
Settings = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class SweepPoint:
    """One candidate at one number of devices, everything else fixed."""

    study: StudySpec
    """With this candidate and this number of devices only."""
    settings: Mapping[str, Any]
    """The variant, and the values of the grid that made this point, as written, without the machine's."""

    @property
    def candidate(self) -> CandidateSpec:
        return self.study.candidates[0]

    @property
    def num_devices(self) -> int:
        return self.candidate.devices[0]

    @property
    def label(self) -> str:
        """`128 x dgx-a100-80gb, 3d, recipe.global_batch_size 512`."""
        machine = f"{self.num_devices} x {self.candidate.system.name}, {self.candidate.strategy}"
        return ", ".join([machine, *(f"{path} {value}" for path, value in self.settings.items())])

    @property
    def variant(self) -> str:
        """The name of its variant; empty where there are none."""
        return str(self.settings.get(VARIANT, ""))


def expand(spec: SweepSpec, mapping: LocatedMapping, catalog: Catalog) -> tuple[SweepPoint, ...]:
    """Every point of a sweep in its order: variants, candidates, devices, then the axes as written.

    An axis over a field that a candidate's system does not have leaves that candidate alone; a variant of
    such a field leaves it out. Raises CatalogError with all that is wrong, at its lines.
    """
    axes, problems = read_axes(mapping, spec.grid.model_extra or {})
    parts: list[tuple[str, list[Axis]]] = []
    for name in spec.variants:
        changes, wrong = read_variant(mapping, name)
        problems += wrong
        parts.append((name, changes))
    problems += _check_changes(spec, [axes, *(changes for _, changes in parts)], catalog)
    if problems:
        raise CatalogError(in_order(problems))
    builder = _Builder(spec.study, catalog, mapping, {}, {})
    points = [
        point
        for name, changes in parts or [("", [])]
        for candidate in _candidates(spec, [*axes, *changes], catalog)
        for point in builder.points(candidate, _inner(axes), name, _inner(changes))
    ]
    if not points:
        raise CatalogError([mapping.problem(("grid",), "no strategy of the grid runs on one of its systems")])
    return tuple(points)


def _inner(axes: Sequence[Axis]) -> list[Axis]:
    """The axes that change what lies in a study or a system, not which machine it is."""
    return [axis for axis in axes if axis.path not in MACHINE_ROOTS]


def _candidates(spec: SweepSpec, axes: Sequence[Axis], catalog: Catalog) -> list[CandidateSpec]:
    """The candidates of the grid, or of the study, with the machines that axes put in their place."""
    candidates: Sequence[CandidateSpec] = spec.grid.candidates or spec.study.candidates
    whole = [axis for axis in axes if axis.path in MACHINE_ROOTS]
    return [each for one in candidates for each in _machines(one, whole, catalog)]


def _check_changes(spec: SweepSpec, groups: Sequence[Sequence[Axis]], catalog: Catalog) -> list[Problem]:
    """What is wrong with the axes of the grid, and with those of each variant beside them."""
    candidates: Sequence[CandidateSpec] = spec.grid.candidates or spec.study.candidates
    problems: list[Problem] = []
    for axes in groups:
        for axis in axes:
            if axis.path in MACHINE_ROOTS:
                problems += check_machine_axis(axis, candidates, catalog)
        if not problems:
            machines = _candidates(spec, [*groups[0], *axes], catalog)
            problems += _check(_inner(axes), spec.study, machines, catalog)
    return problems


def _check(
    axes: Sequence[Axis], study: StudySpec, candidates: Sequence[CandidateSpec], catalog: Catalog
) -> list[Problem]:
    systems = [candidate.system for candidate in candidates]
    problems = []
    for axis in axes:
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
    """A candidate with the strategies, systems and device counts that an axis puts in its place."""
    given: dict[str, list[Any]] = {axis.path: axis.values for axis in axes}
    systems: list[SystemSpec] = [catalog.system(name) for name in given.get("system", [])]
    strategies = given.get("strategy", [candidate.strategy])
    devices = candidate.devices
    if "devices" in given:
        devices = tuple(
            n for value in given["devices"] for n in (value if isinstance(value, list) else [value])
        )
    for name, system in product(strategies, systems or [candidate.system]):
        own, wanted = strategy(candidate.strategy), strategy(name)
        if runs_on(own, system) and runs_on(wanted, system):
            yield candidate.model_copy(update={"strategy": name, "system": system, "devices": devices})


@dataclass(frozen=True)
class _Builder:
    """Makes points; studies and systems that were changed in the same way are made once."""

    base: StudySpec
    catalog: Catalog
    mapping: LocatedMapping
    studies: dict[str, StudySpec]
    systems: dict[str, SystemSpec]

    def points(
        self, candidate: CandidateSpec, axes: Sequence[Axis], variant: str, changes: Sequence[Axis]
    ) -> Iterator[SweepPoint]:
        if not all(_suits(axis, candidate) for axis in changes):
            return
        own = [axis for axis in axes if _suits(axis, candidate)]
        count = len(candidate.devices) * prod(len(axis.nodes) for axis in own)
        if count > MOST_POINTS:
            message = f"grid: {count:,} points for one candidate; at most {MOST_POINTS:,} are answered"
            raise CatalogError([self.mapping.problem(("grid",), message)])
        named = {VARIANT: variant} if variant else {}
        changed = {axis.path: axis.values[0] for axis in changes}
        for devices, values in product(candidate.devices, product(*(axis.values for axis in own))):
            settings = {axis.path: value for axis, value in zip(own, values, strict=True)}
            study = self.changed(candidate, devices, {**settings, **changed})
            yield SweepPoint(study, {**named, **settings})

    def changed(self, candidate: CandidateSpec, devices: int, changes: dict[str, Any]) -> StudySpec:
        """The study of one candidate at one number of devices with these values."""
        try:
            system = self.system(candidate.system, changes)
            chosen = candidate.model_copy(update={"system": system, "devices": (devices,)})
            study = self.study(changes).model_copy(update={"candidates": (chosen,)})
            _probe(study)
        except InputError as error:
            where = f"{devices} x {candidate.system.name}, {candidate.strategy}"
            for path, value in changes.items():
                where += f", {path} {value}"
            raise CatalogError([self.placed(where, problem) for problem in error.problems]) from None
        return study

    def placed(self, where: str, problem: Problem) -> Problem:
        if problem.file:
            return problem
        return self.mapping.problem(("grid",), f"{where}: {problem.message}", problem.help)

    def system(self, system: SystemSpec, settings: Mapping[str, Any]) -> SystemSpec:
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
        """The base with its own changes, whole descriptions first and then what lies in them."""
        changes = {path: value for path, value in settings.items() if not path.startswith("system.")}
        key = repr(changes)
        if key not in self.studies:
            whole = {path: value for path, value in changes.items() if "." not in path}
            inner = {path: value for path, value in changes.items() if "." in path}
            self.studies[key] = self.catalog.override(self.catalog.override(self.base, whole), inner)
        return self.studies[key]


def _suits(axis: Axis, candidate: CandidateSpec) -> bool:
    """Whether a candidate has what an axis changes."""
    return axis.root != "system" or has_field(candidate.system, axis.inner)


def _probe(study: StudySpec) -> None:
    """Ask all that can be refused without running: target, device count, prices. InputError says what."""
    candidate = study.candidates[0]
    try:
        target_of(study)
        question_of(study, candidate, candidate.devices[0]).check()
    except PlanError:
        return  # no plan is an answer, and the run will give it
