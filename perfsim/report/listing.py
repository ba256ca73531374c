"""Rows of the catalogue as a table on a terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence

LEAST_WIDTH = 80


def listing(rows: Sequence[Mapping[str, str]], title: str) -> str:
    """Columns as wide as their content; the last one wraps to the terminal's width."""
    if not rows:
        return f"{title}: nothing"
    names = list(rows[0])
    *first, last = names
    widths = [max(len(name), *(len(row[name]) for row in rows)) for name in first]
    used = sum(widths) + 2 * len(widths)
    room = max(LEAST_WIDTH, shutil.get_terminal_size((100, 24)).columns) - used
    lines = [_line(names, widths)]
    for row in rows:
        wrapped = textwrap.wrap(row[last], max(room, 30)) or [""]
        lines.append(_line([*(row[name] for name in first), wrapped[0]], widths))
        lines += [" " * used + rest for rest in wrapped[1:]]
    return "\n".join(line.rstrip() for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
    return "  ".join([*padded, cells[-1]])
