"""Layouts as text, `tp=8,pp=4,dp=4,mbs=1`: settings by the fields of a layout type, or by short names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from perfsim.base.errors import LayoutError, Problem
from perfsim.base.text import did_you_mean
from perfsim.specs.layout import AXES, Layout, layers_of_stages

SHORT_NAMES = {axis.short: name for name, axis in AXES.items() if axis.short}
OTHER_NAMES = {"pipeline_layout": "layers_per_stage"}
"""Further names that texts may use."""
_STAGES = re.compile(r"[EtL|()*\d\s]+")
"""A part of `pipeline_layout`."""


def settings(text: str) -> Iterator[tuple[str, str, str]]:
    """The text, long name and value of each setting.

    Commas may also stand inside the stages of `pipeline_layout`, where Megatron-Core ignores them.
    """
    parts: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if parts and _STAGES.fullmatch(part) and _long_name(parts[-1]) == "layers_per_stage":
            parts[-1] += part
        else:
            parts.append(part)
    for item in parts:
        yield item, _long_name(item), item.partition("=")[2].strip()


def _long_name(item: str) -> str:
    name = item.partition("=")[0].strip()
    return SHORT_NAMES.get(name, OTHER_NAMES.get(name, name))


def parsed_settings(text: str, layout_type: type) -> dict[str, Any]:
    """The layout fields that a text sets; LayoutError lists all problems.

    `layers_per_stage` is written 11-11-11-11, or in Megatron-Core's notation Et*11|(t*11|)*2t*11L.
    """
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    for item, name, value in settings(text):
        try:
            parsed = _parsed(name, value, layout_type)
        except LayoutError as wrong:
            problems += [replace(p, message=f"layout {item!r}: {p.message}") for p in wrong.problems]
            continue
        if name in given:
            problems.append(Problem(f"layout names {name} twice"))
        given.setdefault(name, parsed)
    if problems:
        raise LayoutError(problems)
    return given


def text_of(layout: Layout) -> str:
    """The text that `parsed_settings` reads as this layout: replicas, and every field not at its default."""
    short = {long: name for name, long in SHORT_NAMES.items()}
    return ",".join(
        f"{short.get(field.name, field.name)}={written(value)}"
        for field in fields(layout)
        if (value := getattr(layout, field.name)) != field.default or field.name == "data"
    )


def written(value: Any) -> str:
    """The value of a setting as text: 3-4-3 for layers of stages."""
    if isinstance(value, bool):
        return str(value).lower()
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _parsed(name: str, value: str, layout_type: type) -> Any:
    """The value of a field, by its type."""
    defaults: dict[str, Any] = {field.name: field.default for field in fields(layout_type)}
    if name not in defaults:
        others = {**SHORT_NAMES, **OTHER_NAMES}
        known = [*(other for other, long in others.items() if long in defaults), *defaults]
        raise LayoutError([Problem("unknown name", help=did_you_mean(name, known))])
    kind = get_type_hints(layout_type)[name]
    if kind is str:
        return value
    if kind is bool:
        if value.lower() not in ("true", "false", "1", "0"):
            raise LayoutError([Problem(f"{value!r} is not a truth value", help="write true or false")])
        return value.lower() in ("true", "1")
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise LayoutError([Problem(f"{value!r}", help=f"allowed: {', '.join(get_args(kind))}")])
        return value
    if kind in (int, int | None):
        default = defaults[name]
        return _whole_number(value, least=1 if default is None else min(1, default))
    if not re.search("[a-zA-Z|]", value):
        return tuple(_whole_number(part, least=0) for part in value.split("-"))
    try:
        return layers_of_stages(value)
    except ValueError as error:
        advice = "write layers such as 3-4-3, or stages such as Et*3|t*4|t*3L"
        raise LayoutError([Problem(str(error), help=advice)]) from None


def _whole_number(value: str, least: int) -> int:
    try:
        number = int(value)
    except ValueError:
        raise LayoutError(
            [Problem(f"{value!r} is not a whole number", help="write for example tp=8")]
        ) from None
    if number < least:
        raise LayoutError([Problem(f"{number} is less than {least}", help=f"write {least} or more")])
    return number
