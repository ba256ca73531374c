"""How text is laid out on a terminal: the one function that draws tables, and paragraphs.

Plain text without box characters, so that pipes and terminals without UTF-8 show it alike; colours are put on
where it is printed.
"""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from perfsim.report.caveats import MOST_AT_HEAD, about, split
from perfsim.report.table import Table
from perfsim.report.text import counted

if TYPE_CHECKING:
    from perfsim.prediction.result import SharedCaveat

LEAST_WIDTH, PIPE_WIDTH = 40, 100
MAX_PROSE = 100
"""Longer lines of prose are hard to read."""
MAX_WORD = 30
"""Longer words may be broken where a column is narrow."""
_BREAK = re.compile(r"\s|(?<=[^\W\d]-)(?=[^\W\d])")
"""Where `textwrap` breaks lines: at spaces, and after a hyphen between letters."""
UNITS = ("years", "days", "h", "min", "s", "ms", "\u00b5s", "%", "GB", "GiB", "billion")
_MEASURE = re.compile(rf"(?<=\d) (?=(?:{'|'.join(map(re.escape, UNITS))})(?!\w))")
"""The space between a number and its unit, at which no line is broken."""
MARK = "*"
"""Before the best cell of a column."""


def terminal_width() -> int:
    """Columns of the terminal, at least 40; 100 where the output is no terminal."""
    return max(LEAST_WIDTH, shutil.get_terminal_size((PIPE_WIDTH, 24)).columns)


def paragraph(prose: str, width: int, indent: str = "") -> list[str]:
    """The text in lines no wider than `width`; all have the indent, and no number is parted from its unit."""
    joined = _MEASURE.sub("\u00a0", prose)
    lines = textwrap.wrap(joined, min(width, MAX_PROSE), initial_indent=indent, subsequent_indent=indent)
    return [line.replace("\u00a0", " ") for line in lines]


def caveat_lines(
    caveats: Sequence[SharedCaveat], verdict: str, width: int, most: int = MOST_AT_HEAD
) -> list[str]:
    """The worst caveats, serious ones in full, and how many the report has besides."""
    shown, rest = split(caveats, verdict, most)
    lines = []
    for caveat in shown:
        said = caveat.text if caveat.severity == "serious" else caveat.headline
        lines += paragraph(f"{caveat.severity}: {about(caveat)}: {said}", width)
    if rest:
        lines.append(f"... {counted(len(rest), 'more caveat')} in the report")
    return lines


def table_lines(table: Table, width: int) -> list[str]:
    """A table: heading (names may have line feeds), rule, rows, caption; no heading without any name.

    Where it is wider than `width`, the gaps close to one space and columns of names wrap; figures do not.
    Where that is not enough either, each row becomes a few lines of names and values. A row with nothing but
    its first cell is a heading of those below it.
    """
    head, rows = _head(table), [_marked(table, index) for index in range(len(table.rows))]
    ruled = [row for row in rows if not _is_heading(row)] or rows
    widths = [max(map(len, column)) for column in zip(*head, *ruled, strict=True)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= width else 1
    _squeeze(widths, [*head, *ruled], table.numeric | table.whole, width - gap * (len(widths) - 1))
    if head and sum(widths) + gap * (len(widths) - 1) > width:
        return [*_records(table, rows, width), *paragraph(table.caption, width)]
    lines = [_line(row, widths, table.numeric, gap) for row in head]
    if lines:
        lines.append("-" * min(sum(widths) + gap * (len(widths) - 1), width))
    for row in rows:
        if _is_heading(row):
            lines += paragraph(row[0], width)
            continue
        lines += [_line(part, widths, table.numeric, gap) for part in _wrapped(row, widths)]
    return lines + paragraph(table.caption, width)


def _is_heading(row: Sequence[str]) -> bool:
    """Whether a row has nothing but its first cell."""
    return len(row) > 2 and not any(cell.strip() for cell in row[1:])


def _records(table: Table, rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Each row as its name, and below it every other cell behind the name of its column."""
    lines: list[str] = []
    for name, *cells in rows:
        values = [
            _said(of, cell.strip()) for of, cell in zip(table.columns[1:], cells, strict=True) if cell.strip()
        ]
        lines += [*paragraph(name.strip(), width), *paragraph("; ".join(values), width, "  ")]
    return lines


def _said(column: str, cell: str) -> str:
    """`step 4.59 s` for a cell below `step` and `s`, else the cell behind the words of its column."""
    name, _, unit = column.partition("\n")
    return f"{name} {cell} {unit}" if unit in UNITS else " ".join([*column.split(), cell])


def _head(table: Table) -> list[list[str]]:
    """The heading line by line, names set on its last lines."""
    if not any(table.columns):
        return []
    names = [column.split("\n") for column in table.columns]
    depth = max(map(len, names))
    marked = {column for _, column in table.best}
    padded = [[""] * (depth - len(lines)) + lines for lines in names]
    return [
        [(" " if index in marked else "") + lines[row] for index, lines in enumerate(padded)]
        for row in range(depth)
    ]


def _marked(table: Table, row: int) -> list[str]:
    """The cells of a row; in a column with marks all have room for one."""
    marked = {column for _, column in table.best}
    return [
        (MARK if (row, column) in table.best else " ") + cell if column in marked else cell
        for column, cell in enumerate(table.rows[row])
    ]


def _squeeze(widths: list[int], rows: Sequence[Sequence[str]], numeric: frozenset[int], room: int) -> None:
    """Narrow columns of names until all fit or none can give way, so that few cells have to wrap."""
    least = [
        size if index in numeric else max(map(_longest_word, column))
        for index, (size, column) in enumerate(zip(widths, zip(*rows, strict=True), strict=False))
    ]
    while sum(widths) > room:
        names = [index for index, size in enumerate(least) if widths[index] > size]
        if not names:
            return
        widths[min(names, key=lambda index: (_lines(rows, widths, index), -widths[index], -index))] -= 1


def _longest_word(cell: str) -> int:
    """Length of the longest part that cannot wrap; very long words, such as addresses, are broken."""
    indent = len(cell) - len(cell.lstrip(f"{MARK} "))
    return min(MAX_WORD, indent + max(map(len, re.split(_BREAK, cell[indent:]))))


def _lines(rows: Sequence[Sequence[str]], widths: Sequence[int], narrowed: int) -> int:
    """About how many lines the rows take with one column narrower by one."""
    sizes = [max(width - (index == narrowed), 1) for index, width in enumerate(widths)]
    return sum(
        max(math.ceil(len(cell) / size) for cell, size in zip(row, sizes, strict=True)) for row in rows
    )


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> list[tuple[str, ...]]:
    """The row line by line: further lines hold what is left of the cells that wrap."""
    cells = [_cell(cell, size) for cell, size in zip(row, widths, strict=True)]
    return list(zip_longest(*cells, fillvalue=""))


def _cell(cell: str, size: int) -> list[str]:
    """The cell in lines, further ones under the first one's text."""
    if len(cell) <= size:
        return [cell]
    indent = len(cell) - len(cell.lstrip(f"{MARK} "))
    return textwrap.wrap(cell, size, subsequent_indent=" " * indent)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: frozenset[int], gap: int) -> str:
    parts = (
        cell.rjust(size) if column in numeric else cell.ljust(size)
        for column, (cell, size) in enumerate(zip(cells, widths, strict=True))
    )
    return (" " * gap).join(parts).rstrip()
