"""Resolves the names in a file's tree to descriptions, giving the data that pydantic validates.

A field whose annotation is a description with its own file (DeviceSpec, LinkSpec, a
calibration, a model, a recipe) is written as that file's name, as a path, or as a mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, Protocol, TypeVar

from perfsim.catalog.annotations import (
    element,
    is_named,
    is_record,
    kinds_of,
    known_fields,
    members,
    takes_boolean,
)
from perfsim.catalog.nodes import Node
from perfsim.errors import CatalogError, Problem
from perfsim.suggest import did_you_mean

MOST_PROBLEMS = 1000
"""Of one file; then no more names are looked up."""
Loc = tuple[object, ...]
"""Keys and indices that lead to a value."""

RecordT = TypeVar("RecordT")


class Library(Protocol):
    """Supplies named and inline descriptions."""

    def named(self, name: str, classes: Sequence[type]) -> Any:
        """The description of that name or path; CatalogError where there is none."""

    def inline(self, node: Node, classes: Sequence[type]) -> Any:
        """The description that another file writes inline."""


@dataclass(slots=True)
class Resolver:
    """Walks a tree along an annotation and collects its problems."""

    library: Library
    problems: list[Problem] = field(default_factory=list)
    failed: list[Loc] = field(default_factory=list)
    """Paths with a reported problem: pydantic's errors on them are dropped."""
    references: list[tuple[Loc, Any]] = field(default_factory=list)
    """Every named description, with the path of the field that names it."""

    def data(self, node: Node, annotation: Any, path: Loc = ()) -> Any:
        """The data to validate for `node`; None where a problem was reported."""
        alternatives = members(annotation) if annotation is not None else []
        named = [member for member in alternatives if is_named(member)]
        if node.broken and not node.is_mapping:
            self.failed.append(path)
            return None
        # An empty path is the file itself, which is never a reference.
        if path and named and isinstance(node.value, str):
            return self._load(node, path, named, lambda: self.library.named(node.text, named))
        if path and named and node.is_mapping:
            return self._load(node, path, named, lambda: self.library.inline(node, named))
        if node.is_mapping:
            return self._mapping(node, alternatives, path)
        if isinstance(node.value, list):
            return [
                self.data(child, _joined(alternatives, index), (*path, index))
                for index, child in enumerate(node.value)
            ]
        if isinstance(node.value, bool) and alternatives and not takes_boolean(alternatives):
            self._fail(node, path, f"{node.text} is not a number or a text", "quotes make it text")
            return None
        return node.value

    def _mapping(self, node: Node, alternatives: list[Any], path: Loc) -> dict[Any, Any]:
        records = [member for member in alternatives if is_record(member)]
        chosen: list[Any] = [member for member in alternatives if not is_record(member)]
        if records:
            chosen.append(_best(node, records))
        return {
            key: self.data(child, _joined(chosen, key), (*path, key)) for key, child in node.mapping.items()
        }

    def _load(self, node: Node, path: Loc, named: Sequence[type], load: Callable[[], Any]) -> Any:
        if len(self.problems) >= MOST_PROBLEMS:
            self.failed.append(path)
            return None
        try:
            loaded = load()
        except CatalogError as error:
            self.failed.append(path)
            self.problems += [
                problem if problem.file else node.mark.problem(problem.message, problem.help)
                for problem in error.problems
            ]
            return None
        if not isinstance(loaded, tuple(named)):
            expected = " or ".join(name for cls in named for name in kinds_of(cls)) or named[0].__name__
            kind = getattr(loaded, "kind", type(loaded).__name__)
            self._fail(node, path, f"`{node.text}` is of kind {kind}; {expected} is expected here")
            return None
        self.references.append((path, loaded))
        return loaded

    def _fail(self, node: Node, path: Loc, message: str, help_text: str = "") -> None:
        self.failed.append(path)
        self.problems.append(node.mark.problem(f"{dotted(path)}: {message}", help_text))


def dotted(path: Loc) -> str:
    """A path as messages print it: `memory.capacity`, `candidates[2].system`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def matching(node: Node, classes: Sequence[type[RecordT]]) -> type[RecordT]:
    """The class that the mapping's key `kind` chooses; a single class needs no such key.

    Raises CatalogError if `kind` is missing or names none of them.
    """
    if len(classes) == 1:
        return classes[0]
    kinds = {str(kind): cls for cls in classes for kind in kinds_of(cls)}
    kind_node = node.mapping.get("kind")
    if kind_node is None:
        raise CatalogError([node.mark.problem("`kind` is missing", f"one of {', '.join(kinds)}")])
    if kind_node.text not in kinds:
        message = f"kind: `{kind_node.text}` is not one of {', '.join(kinds)}"
        raise CatalogError([kind_node.mark.problem(message, did_you_mean(kind_node.text, kinds))])
    return kinds[kind_node.text]


def _best(node: Node, records: Sequence[type]) -> type:
    """The record that fits a mapping: by its `kind`, else by the most shared keys."""
    kind = node.mapping.get("kind")
    of_kind = [record for record in records if kind and kind.value in kinds_of(record)]
    shared = [len(known_fields(record).keys() & node.mapping.keys()) for record in records]
    return of_kind[0] if of_kind else records[shared.index(max(shared))]


def _joined(alternatives: list[Any], part: object) -> Any:
    """The annotation under a key or index as one union; None if it is unknown."""
    accepted: list[Any] = []
    for member in alternatives:
        accepted += element(member, part)
    return reduce(or_, accepted) if accepted else None
