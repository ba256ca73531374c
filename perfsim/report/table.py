"""`Table`: the form in which results hand their figures to a page, to Markdown and to a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of finished text under named columns.

    `numeric` lists the columns set flush right, `whole` those whose names never wrap; `best` the (row,
    column) cells to be marked.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    numeric: frozenset[int] = field(default_factory=frozenset)
    best: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    whole: frozenset[int] = field(default_factory=frozenset)
