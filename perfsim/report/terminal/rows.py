"""Rows of the catalogue on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfsim.report.table import Table
from perfsim.report.terminal.layout import table_lines, terminal_width


def row_lines(rows: Sequence[Mapping[str, str]], title: str) -> list[str]:
    """A table of the rows."""
    if not rows:
        return [f"{title}: nothing"]
    columns = list(rows[0])
    table = Table(columns, [[row[name] for name in columns] for row in rows], whole=frozenset({0}))
    return table_lines(table, terminal_width())
