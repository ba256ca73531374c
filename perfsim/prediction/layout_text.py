"""A layout as people write it: `tp=8,pp=4,dp=4,mbs=1`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from perfsim.errors import LayoutError, Problem
from perfsim.strategies.schedules import least_chunks
from perfsim.workload import ParallelLayout

SHORT_NAMES = {
    "tp": "tensor",
    "pp": "pipeline",
    "dp": "data",
    "vpp": "virtual_pipeline",
    "mbs": "micro_batch_size",
    "sp": "sequence_parallel",
    "zero": "zero_stage",
}


def names_in(text: str) -> list[str]:
    """The long names of the settings that a layout's text sets."""
    return [name for _, name, _ in _items(text)]


def parse_layout(text: str, devices: int) -> ParallelLayout:
    """`tp=8,pp=4,dp=4,mbs=1` as a layout; long names work too. LayoutError lists all that is wrong.

    A missing `dp` is what the devices leave; `layers_per_stage` is written 11-11-11-11.
    """
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    for item, name, value in _items(text):
        parsed, problem = _parse_value(name, value)
        if problem:
            problems.append(Problem(f"--layout {item!r}: {problem[0]}", help=problem[1]))
        elif name in given:
            problems.append(Problem(f"--layout names {name} twice"))
        else:
            given[name] = parsed
    if problems:
        raise LayoutError(problems)
    layout = ParallelLayout(**given)
    if layout.virtual_pipeline > 1 and "schedule" not in given:
        layout = replace(layout, schedule="interleaved")
    if "virtual_pipeline" not in given:
        layout = replace(layout, virtual_pipeline=least_chunks(layout.schedule))
    if layout.recompute_layers and "recompute" not in given:
        layout = replace(layout, recompute="full")
    if "data" not in given:
        used = layout.tensor * layout.pipeline
        layout = replace(layout, data=max(1, devices // used))
    return layout


def _items(text: str) -> Iterator[tuple[str, str, str]]:
    """Each setting in a layout's text as it stands, its long name, and its value."""
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = item.partition("=")
        yield item, SHORT_NAMES.get(key.strip(), key.strip()), value.strip()


_KINDS: dict[str, Any] = {field.name: field.type for field in fields(ParallelLayout)}


def _parse_value(name: str, value: str) -> tuple[Any, tuple[str, str] | None]:
    """A field's value, or what is wrong with it and the nearest mend."""
    if name not in _KINDS:
        known = [*SHORT_NAMES, *_KINDS]
        nearest = difflib.get_close_matches(name, known, 1)
        help_text = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
        return None, ("unknown name", help_text)
    if name in ("sequence_parallel", "spill"):
        if value.lower() not in ("true", "false", "1", "0"):
            return None, (f"{value!r} is not a truth value", "write true or false")
        return value.lower() in ("true", "1"), None
    if name == "recompute":
        allowed = ("none", "selective", "full")
        return (value, None) if value in allowed else (None, (f"{value!r}", f"allowed: {', '.join(allowed)}"))
    if name in ("schedule", "order"):
        return value, None
    try:
        if name == "layers_per_stage":
            return tuple(int(part) for part in value.split("-")), None
        number = int(value)
    except ValueError:
        return None, (f"{value!r} is not a whole number", "write for example tp=8")
    least = 0 if name in ("zero_stage", "recompute_layers") else 1
    if number < least:
        return None, (f"{number} is less than {least}", f"write {least} or more")
    return number, None
