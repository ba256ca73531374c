"""What a comparison answers: one row for each run or equation, and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Value = str | float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table of plain values with its answer in words."""

    name: str
    title: str
    question: str
    verdict: str
    columns: Mapping[str, str]
    """Key of a row's value to its heading."""
    rows: tuple[Mapping[str, Value], ...]
    notes: tuple[str, ...] = ()
    """What each column is, and where it is from."""
