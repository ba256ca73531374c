"""A description with some values changed, as sweeps and the command line request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from perfsim.catalog.annotations import element, is_named, is_record, known_fields, members
from perfsim.catalog.complaints import complaints
from perfsim.catalog.kinds import kind_of
from perfsim.catalog.nodes import Mark, Node
from perfsim.catalog.reader import Shelf
from perfsim.errors import CatalogError, Problem
from perfsim.suggest import did_you_mean

SpecT = TypeVar("SpecT", bound=BaseModel)

REASON = "set by the question"
"""The assumption recorded for a changed value."""


def overridden(spec: SpecT, changes: Mapping[str, Any], shelf: Shelf) -> SpecT:
    """A copy of `spec` with the value at each dotted path replaced.

    A value is written as in YAML (a quantity string, a name) or is a float in SI. Raises
    CatalogError for an unknown path and for a value that the description refuses.
    """
    model = type(spec)
    data = spec.model_dump()
    problems = [
        problem for path, value in changes.items() for problem in _set(data, path, value, model, shelf)
    ]
    if problems:
        raise CatalogError(problems)
    if "assumed" in model.model_fields:
        data["assumed"] = {**data["assumed"], **dict.fromkeys(changes, REASON)}
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise CatalogError(complaints_of(error, model, data)) from None


def complaints_of(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """What pydantic refuses of Python data, in words that name the path of each value."""
    return complaints(error, model, _unplaced(data))


def _set(data: dict[str, Any], path: str, value: Any, model: type[BaseModel], shelf: Shelf) -> list[Problem]:
    """Set the value at a dotted path of `data`; returns the problems that prevent it."""
    *parents, last = path.split(".")
    # First along the types, which know every field; then along the data, where an optional part is None.
    alternatives: list[Any] = [model]
    for part in (*parents, last):
        records = [member for outer in alternatives for member in members(outer) if is_record(member)]
        fields = list(dict.fromkeys(key for record in records for key in known_fields(record)))
        if fields and part not in fields:
            return [Problem(f"{path}: `{part}` is not a field", help=did_you_mean(part, fields))]
        alternatives = [inner for outer in alternatives for inner in element(outer, part)]
        if not alternatives:
            return [Problem(f"{path}: `{part}` is not a field")]
    for part in parents:
        inner = data.get(part)
        if not isinstance(inner, dict):
            return [Problem(f"{path}: `{part}` is not set, so nothing in it can be changed")]
        data = inner
    named = [cls for cls in alternatives if is_named(cls)]
    try:
        data[last] = shelf.load(kind_of(named[0]), value) if named and isinstance(value, str) else value
    except CatalogError as error:
        return [Problem(f"{path}: {problem.message}", help=problem.help) for problem in error.problems]
    return []


def _unplaced(data: Any) -> Node:
    """Python data as nodes without positions, so that problems can name their paths."""
    if isinstance(data, dict):
        return Node(Mark(""), {key: _unplaced(value) for key, value in data.items()})
    if isinstance(data, list | tuple):
        return Node(Mark(""), [_unplaced(value) for value in data])
    return Node(Mark(""), None, str(data))
