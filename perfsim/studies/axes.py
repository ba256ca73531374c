"""The axes of a grid: dotted paths with their values, checked against the fields that they change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from perfsim.base.errors import CatalogError, InputError, Problem
from perfsim.base.spec import CatalogSpec, FolderName, Spec
from perfsim.base.text import did_you_mean
from perfsim.base.units import YAML_CONTEXT
from perfsim.catalog import Catalog, LocatedMapping, parse_file
from perfsim.catalog.kinds import is_named, members
from perfsim.catalog.reader import complaints, place
from perfsim.catalog.yaml_tree import Mark, Node
from perfsim.specs.hardware import SystemSpec
from perfsim.strategies import strategy
from perfsim.studies.spec import Candidates, CandidateSpec, StudySpec

# The YAML form of a sweep: a study, and the fields of it that vary.


class GridSpec(Spec):
    """The fields that vary: machines under `candidates`, any other field of the study under its dotted path.

    Each path has a list of values in the form of the field itself: `recipe.global_batch_size:
    [512, 1024]`, `system.node.nic.bandwidth: [100 Gb/s, 200 Gb/s]`, `model: [gpt3_13b, gpt3_20b]`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    candidates: Candidates = ()
    """Replaces the study's own candidates."""


class VariantSpec(Spec):
    """The changes of one variant: paths as in a grid, each with one value."""

    model_config = ConfigDict(frozen=True, extra="allow")

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
    variants: dict[str, VariantSpec] = Field(default_factory=dict)
    """By name, the fields it changes: `twice the I/O: {system.io_ports: 24}`; the first is the base."""


class StudyCatalog(Catalog):
    """A catalogue that also loads studies, so that a sweep can name one."""

    def load(self, kind: str, name_or_path: str, beside: Path | None = None) -> Any:
        """The description of a kind, including studies."""
        if kind == "study":
            return parse_file(self.find(kind, name_or_path, beside), StudySpec, self)
        return super().load(kind, name_or_path, beside)


MACHINE_ROOTS = ("strategy", "system", "devices")
STUDY_ROOTS = ("model", "recipe", "convergence", "batch_sizes", "memory_limit")
BATCH_PATHS = ("recipe.global_batch_size", "recipe.batch_size_per_device", "batch_sizes")
"""Axes over the batch, which the trainer chooses: comparisons take the best value."""
VARIANT = "variant"
"""The setting of a point that names its variant."""
LAYOUT = "given layout"
"""The setting of a point with its candidate's fixed layout."""


@dataclass(frozen=True)
class Axis:
    """One field that varies."""

    path: str
    key: Mark
    nodes: tuple[Node, ...]
    where: str = "grid"
    """The start of messages: `grid`, or the variant."""

    @property
    def root(self) -> str:
        """The first part of the path."""
        return self.path.partition(".")[0]

    @property
    def inner(self) -> str:
        """The path after its root."""
        return self.path.partition(".")[2]

    @property
    def values(self) -> list[Any]:
        """The values as plain data."""
        return [node.plain() for node in self.nodes]


def read_axes(mapping: LocatedMapping, paths: Iterable[str]) -> tuple[list[Axis], list[Problem]]:
    """The valid axes of a file at these paths, and the problems of the others."""
    axes = []
    problems = []
    for path in paths:
        key = place(mapping.node, ("grid", path), of_key=True)
        node = mapping.node.mapping["grid"].mapping[path]
        axis = Axis(path, key, tuple(node.sequence))
        if axis.root not in (*MACHINE_ROOTS, *STUDY_ROOTS):
            problems.append(_unknown(axis, ("candidates",)))
        elif not axis.nodes:
            help_text = "write it in brackets: [100 Gb/s, 200 Gb/s]"
            problems.append(node.mark.problem(f"grid: {path}: a list of values is expected", help_text))
        else:
            axes.append(axis)
    return axes, problems


def read_variant(mapping: LocatedMapping, name: str) -> tuple[list[Axis], list[Problem]]:
    """The changes of a variant as axes of one value each, and the problems of invalid paths."""
    axes = []
    problems = []
    for path, node in mapping.node.mapping["variants"].mapping[name].mapping.items():
        if path == "candidates":
            continue
        key = place(mapping.node, ("variants", name, path), of_key=True)
        axis = Axis(str(path), key, (node,), f"variants: {name}")
        if axis.root in (*MACHINE_ROOTS, *STUDY_ROOTS):
            axes.append(axis)
        else:
            problems.append(_unknown(axis))
    return axes, problems


def _unknown(axis: Axis, more: Sequence[str] = ()) -> Problem:
    help_text = did_you_mean(axis.root, (*more, *MACHINE_ROOTS, *STUDY_ROOTS))
    return axis.key.problem(f"{axis.where}: `{axis.path}` cannot be swept", help_text)


def check_study_axis(axis: Axis, study: StudySpec, catalog: Catalog) -> list[Problem]:
    """Problems of an axis over the study's own fields."""
    return _wrong_path(axis, study, axis.path, catalog) or _wrong_values(axis, study, axis.path, catalog)


def check_system_axis(axis: Axis, systems: Sequence[SystemSpec], catalog: Catalog) -> list[Problem]:
    """Problems of an axis over fields of systems; at least one system must have the field."""
    owners = [system for system in systems if has_field(system, axis.inner)]
    if owners:
        return _wrong_values(axis, owners[0], axis.inner, catalog)
    nearest = max(systems, key=lambda system: _reached(system, axis.inner.split(".")))
    return _wrong_path(axis, nearest, axis.inner, catalog)


def check_machine_axis(axis: Axis, candidates: Sequence[CandidateSpec], catalog: Catalog) -> list[Problem]:
    """Problems of an axis over strategies, systems or device counts."""
    problems = []
    for node in axis.nodes:
        try:
            if axis.path == "strategy":
                strategy(str(node.value))
            elif axis.path == "system":
                catalog.system(str(node.value))
            else:
                problems += _refused(candidates[0], ["devices"], _listed(node), axis)
        except InputError as error:
            problems += [_placed(node.mark, axis.path, problem) for problem in error.problems]
    return problems


def _listed(node: Node) -> Node:
    """A device count as the list that a candidate has."""
    return node if node.sequence else Node(node.mark, [node])


def has_field(spec: BaseModel, path: str) -> bool:
    """Whether a description has a field at this dotted path."""
    parts = path.split(".")
    return _reached(spec, parts) == len(parts)


def _reached(spec: object, parts: Sequence[str]) -> int:
    """How many parts of a path exist; the last part may be a new key of a mapping."""
    for count, part in enumerate(parts):
        if isinstance(spec, BaseModel) and part in type(spec).model_fields:
            spec = getattr(spec, part)
        elif isinstance(spec, dict) and (part in spec or count == len(parts) - 1):
            spec = spec.get(part)
        else:
            return count
    return len(parts)


def _wrong_path(axis: Axis, spec: BaseModel, path: str, catalog: Catalog) -> list[Problem]:
    if has_field(spec, path):
        return []
    try:
        catalog.override(spec, {path: axis.values[0]})
    except CatalogError as error:
        return [_placed(axis.key, axis.where, problem) for problem in error.problems]
    return [axis.key.problem(f"{axis.where}: `{axis.path}` is not a field")]


def _wrong_values(axis: Axis, spec: BaseModel, path: str, catalog: Catalog) -> list[Problem]:
    problems = []
    parts = path.split(".")
    for node in axis.nodes:
        if isinstance(node.value, str) and _is_name(spec, parts):
            try:
                catalog.override(spec, {path: node.value})
            except CatalogError as error:
                problems += [_placed(node.mark, axis.where, problem) for problem in error.problems]
        else:
            problems += _refused(spec, parts, node, axis)
    return problems


def _placed(mark: Mark, prefix: str, problem: Problem) -> Problem:
    return problem if problem.file else mark.problem(f"{prefix}: {problem.message}", problem.help)


def _owner(spec: BaseModel, parts: Sequence[str]) -> tuple[type[BaseModel], int]:
    """The class that holds the last field of a path, and the index of that field in the path."""
    owner = type(spec)
    index = 0
    value: Any = spec
    for count, part in enumerate(parts):
        if isinstance(value, BaseModel):
            owner = type(value)
            index = count
            value = getattr(value, part)
        else:
            value = value.get(part)
    return owner, index


def _is_name(spec: BaseModel, parts: Sequence[str]) -> bool:
    owner, index = _owner(spec, parts)
    annotation = owner.model_fields[parts[index]].annotation
    return index == len(parts) - 1 and any(is_named(member) for member in members(annotation))


def _refused(spec: BaseModel, parts: Sequence[str], node: Node, axis: Axis) -> list[Problem]:
    """The field's own complaints about a value in YAML form, where quantities need units."""
    owner, index = _owner(spec, parts)
    model = _model_of(owner, parts[index])
    for part in reversed(parts[index:]):
        node = Node(node.mark, {part: node})
    try:
        model.model_validate(node.plain(), context=YAML_CONTEXT)
    except ValidationError as error:
        return [_prefixed(axis, problem) for problem in complaints(error, model, node)]
    return []


@cache
def _model_of(owner: type[BaseModel], field: str) -> type[BaseModel]:
    """A description of nothing but one field of another."""
    annotation: Any = owner.model_fields[field].rebuild_annotation()
    model: type[BaseModel] = create_model("Value", **{field: (annotation, ...)})  # type: ignore[call-overload]
    return model


def _prefixed(axis: Axis, problem: Problem) -> Problem:
    """The problem with the axis's full path in its message."""
    message = problem.message.partition(": ")[2] or problem.message
    return replace(problem, message=f"{axis.where}: {axis.path}: {message}")
