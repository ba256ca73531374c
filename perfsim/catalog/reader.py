"""Reads a file into a description: applies `extends`, resolves names, reports all errors at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from perfsim.catalog.complaints import complaints, place
from perfsim.catalog.compose import extend, without
from perfsim.catalog.kinds import kind_of
from perfsim.catalog.nearest import calibrated
from perfsim.catalog.nodes import Mark, Node, read_yaml
from perfsim.catalog.resolve import Loc, Resolver, matching
from perfsim.errors import CatalogError, Problem
from perfsim.units import YAML_CONTEXT

SpecT = TypeVar("SpecT", bound=BaseModel)


class Shelf(Protocol):
    """Finds files and loads descriptions; `Catalog` implements it."""

    def find(self, kind: str, name_or_path: str, beside: Path | None = None) -> Path:
        """The file of a name or a path; CatalogError if there is none."""

    def load(self, kind: str, name_or_path: str, beside: Path | None = None) -> Any:
        """The description in that file."""

    def names(self, kind: str) -> list[str]:
        """Every name of a kind."""


@dataclass(slots=True)
class LocatedMapping:
    """The data of a YAML file with the place of each value, after `extends`."""

    path: Path
    node: Node
    problems: list[Problem]
    """Problems that did not stop the reading: repeated keys, numbers with a leading zero, ..."""

    @property
    def data(self) -> dict[Any, Any]:
        """The file as dicts, lists and scalars."""
        data: dict[Any, Any] = self.node.plain()
        return data

    def mark(self, path: Loc = ()) -> Mark:
        """Position of the value at a path of keys and indices, or of the mapping that lacks it."""
        return place(self.node, path)

    def problem(self, path: Loc, message: str, help_text: str = "") -> Problem:
        """A problem with the value at a path of keys and indices."""
        return self.mark(path).problem(message, help_text)

    def error(self, error: ValidationError, model: type[BaseModel]) -> CatalogError:
        """All problems of the file, after pydantic refused it as a `model`."""
        return CatalogError([*self.problems, *complaints(error, model, self.node)])


def read_mapping(path: Path, kind: str, shelf: Shelf, children: tuple[Path, ...] = ()) -> LocatedMapping:
    """Read a file and merge it over what it extends; raises CatalogError if it cannot be read."""
    node, problems = read_yaml(path)
    base = node.mapping.get("extends")
    if base is None:
        return LocatedMapping(path, node, problems)
    node, more = _extended(node, kind, shelf, (*children, path.resolve()))
    return LocatedMapping(path, node, problems + more)


def _extended(node: Node, kind: str, shelf: Shelf, files: tuple[Path, ...]) -> tuple[Node, list[Problem]]:
    """Merge `node`, from the last of `files`, over what it extends; `files` guard against a cycle."""
    base = node.mapping["extends"]
    child = replace(without(node, "extends"), broken=True)  # its missing keys may be the base's
    if not isinstance(base.value, str):
        return child, [base.mark.problem("extends: the name of one other description is expected")]
    try:
        path = shelf.find(kind, base.value, files[-1].parent)
        if path.resolve() in files:
            return child, [base.mark.problem(f"extends: `{base.value}` extends this file in turn")]
        parent = read_mapping(path, kind, shelf, files)
    except CatalogError as error:
        return child, [
            problem if problem.file else base.mark.problem(f"extends: {problem.message}", problem.help)
            for problem in error.problems
        ]
    return replace(extend(child, parent.node), broken=parent.node.broken), parent.problems


@dataclass(slots=True)
class Neighbourhood:
    """Resolves the names that one file mentions; paths are relative to that file."""

    shelf: Shelf
    file: Path

    def named(self, name: str, classes: Sequence[type]) -> Any:
        """The description of that name or path."""
        return self.shelf.load(kind_of(classes[0]), name, self.file.parent)

    def inline(self, node: Node, classes: Sequence[type]) -> Any:
        """The description written inline in the file, with or without `extends`."""
        problems: list[Problem] = []
        default_name = "inline"
        if "extends" in node.mapping:
            default_name = f"{node.mapping['extends'].text} (changed)"
            node, problems = _extended(node, kind_of(classes[0]), self.shelf, (self.file.resolve(),))
        return build(LocatedMapping(self.file, node, problems), classes, self.shelf, default_name)


def build(mapping: LocatedMapping, classes: Sequence[type[SpecT]], shelf: Shelf, default_name: str) -> SpecT:
    """Build a description from a mapping; its `kind` chooses among `classes`.

    A description without a name takes `default_name`, a GPU or a link of a node without a calibration the
    nearest one (`perfsim.catalog.nearest`). Raises CatalogError with every problem.
    """
    try:
        model = matching(mapping.node, classes)
    except CatalogError as error:
        raise CatalogError(in_order([*mapping.problems, *error.problems])) from None
    resolver = Resolver(Neighbourhood(shelf, mapping.path))
    data = resolver.data(mapping.node, model)
    if "name" in model.model_fields:
        data.setdefault("name", default_name)
    problems = mapping.problems + resolver.problems
    try:
        spec = model.model_validate(data, context=YAML_CONTEXT)
    except ValidationError as error:
        problems += complaints(error, model, mapping.node, resolver.failed)
        raise CatalogError(in_order(problems)) from None
    if problems:
        raise CatalogError(in_order(problems))
    return calibrated(spec, shelf)


def in_order(problems: list[Problem]) -> list[Problem]:
    """The problems without repeats, by file, line and column."""
    files = list(dict.fromkeys(problem.file for problem in problems))
    unique = dict.fromkeys(problems)
    return sorted(unique, key=lambda problem: (files.index(problem.file), problem.line, problem.column))
