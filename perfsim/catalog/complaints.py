"""Pydantic's validation errors as problems, with the file's own keys and places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from perfsim.catalog.annotations import element, is_record, known_fields, members
from perfsim.catalog.nodes import Mark, Node
from perfsim.catalog.resolve import Loc, dotted
from perfsim.errors import MOST_SHOWN, Problem, refused_value
from perfsim.suggest import did_you_mean

_MISSING = {"missing", "missing_argument", "missing_keyword_only_argument"}
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
_NOT_A_MAPPING = {"model_type", "dataclass_type", "dict_type", "model_attributes_type", "mapping_type"}

_NOT_A_LIST = {"list_type", "tuple_type"}


def complaints(
    error: ValidationError, model: type[BaseModel], node: Node, reported: Sequence[Loc] = ()
) -> list[Problem]:
    """One problem for each validation error, except those at or below a path in `reported`."""
    problems: dict[Problem, None] = {}
    known = set(reported)
    all_details = [(details, _path(details, node)) for details in error.errors(include_url=False)]
    otherwise = {path for details, path in all_details if details["type"] not in _NOT_A_MAPPING}
    unlisted = {path for details, path in all_details if details["type"] in _NOT_A_LIST}
    inner = {path[:length] for _, path in all_details for length in range(len(path))}
    for details, path in all_details:
        if details["type"] in _NOT_A_MAPPING and path in otherwise:
            continue  # a number or a mapping is accepted, and the number has a complaint of its own
        if details["type"] == "literal_error" and (path in inner or path in unlisted):
            continue  # a word or a list is accepted; the list or its entries have a complaint of their own
        if any(path[:length] in known for length in range(len(path) + 1)):
            continue
        if node.broken and details["type"] in _MISSING:
            continue  # the base that could not be read may set the missing key
        if details["type"] == "too_short" and details["ctx"]["actual_length"] < len(details["input"]):
            continue  # entries that were refused are not counted, and have complaints of their own
        problems[_problem(details, model, node, path, with_help=len(problems) < MOST_SHOWN)] = None
    return list(problems)


def place(node: Node, path: Loc, *, of_key: bool = False) -> Mark:
    """Position of the value (or key) at a path; of the innermost mapping around it where it is absent."""
    mark = node.mark
    for part in path:
        child = _child(node, part)
        if child is None:
            return mark
        mark = node.keys.get(part, child.mark)  # type: ignore[call-overload]
        if not of_key and not child.mapping:
            mark = child.mark
        node = child
    return mark


def _child(node: Node, part: object) -> Node | None:
    if node.is_mapping:
        return node.mapping.get(part)  # type: ignore[call-overload, no-any-return]
    if isinstance(part, int) and part < len(node.sequence):
        return node.sequence[part]
    return None


def _path(details: ErrorDetails, node: Node) -> Loc:
    """The error's location without pydantic's own parts: names of union members, `[key]`."""
    parts: list[object] = []
    location = details["loc"]
    for index, part in enumerate(location):
        child = _child(node, part)
        absent = index == len(location) - 1 and details["type"] in _MISSING
        if child is not None:
            node = child
        if child is not None or absent:
            parts.append(part)
    return tuple(parts)


def _problem(
    details: ErrorDetails, model: type[BaseModel], node: Node, path: Loc, *, with_help: bool
) -> Problem:
    kind = details["type"]
    parent, name = path[:-1], str(path[-1]) if path else ""
    inside = f" in {dotted(parent)}" if parent else ""
    if kind in _MISSING:
        return place(node, path).problem(f"`{name}` is missing{inside}")
    if kind in _UNKNOWN:
        help_text = did_you_mean(name, _known_keys(model, parent)) if with_help else ""
        return place(node, path, of_key=True).problem(f"unknown key {_shown(name)}{inside}", help_text)
    of_key = details["loc"][-1:] == ("[key]",)
    message, help_text = _explain(details)
    prefix = f"{dotted(path)}: " if path else ""
    return place(node, path, of_key=of_key).problem(prefix + message, help_text)


def _explain(details: ErrorDetails) -> tuple[str, str]:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if {"message", "help"} <= context.keys():
        return str(context["message"]), str(context["help"])
    if kind == "value_error":
        return refused_value(details), ""
    if kind in {"literal_error", "enum"}:
        allowed = re.findall(r"'([^']*)'", str(context["expected"])) or [str(context["expected"])]
        return f"{_shown(value)} is not one of {', '.join(allowed)}", did_you_mean(str(value), allowed)
    if kind in _NOT_A_MAPPING:
        return f"{_shown(value)} stands where a mapping (key: value) is expected", ""
    if kind in _NOT_A_LIST:
        number = re.match(r"\s*(\d+)\s*\D", value) if isinstance(value, str) else None
        help_text = f"write the number alone: {number[1]}" if number else "write it in brackets: [...]"
        return f"{_shown(value)} stands where a list is expected", help_text
    if kind == "string_type" and isinstance(value, int | float):
        return f"{_shown(value)} is a number, a text is expected", f'put it in quotes: "{value}"'
    limit = next((context[key] for key in ("ge", "le") if key in context), None)
    help_text = "" if limit is None else f"the nearest possible value is {limit:g}"
    return f"{refused_value(details)}, not {_shown(value)}", help_text


def _shown(value: Any) -> str:
    text = f"`{value}`" if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _known_keys(model: type[BaseModel], path: Loc) -> list[str]:
    """The keys that a mapping at `path` accepts."""
    alternatives: list[Any] = [model]
    for part in path:
        alternatives = [inner for outer in alternatives for inner in element(outer, part)]
    records = [member for annotation in alternatives for member in members(annotation) if is_record(member)]
    return list(dict.fromkeys(key for record in records for key in known_fields(record)))
