"""One typed table: values with unit, band, mark and note. Terminal, page, Markdown and files write it."""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic_core import to_jsonable_python

from perfsim.base.errors import InputError, PerfsimError
from perfsim.base.files import write_file
from perfsim.base.groups import listed
from perfsim.report.text import BREAK, NONE, NUMBER, Unit, esc, paragraphs, terminal_width
from perfsim.specs.prices import NOT_GIVEN

if TYPE_CHECKING:
    from perfsim.convergence.uncertain import Spread

Item = TypeVar("Item")
Value = str | float | None
Columns = Mapping[str, Unit | None] | Sequence[str]
MARK = "*"
"""Before a marked cell on a terminal."""
_MAX_WORD = 30
"""Longer words may be broken where a column of a terminal is narrow."""
_BREAK = re.compile(r"(\s+|(?<=[^\W\d]-)(?=[^\W\d])|(?<=,)(?=[^\W\d]))")
"""Where cells break: at spaces, after a hyphen between letters, after a comma before one (`tp=4,dp=2`)."""
_FOUR_DIGITS = re.compile(r"\b(?<!,)(\d),(\d{3})\b(?!,)")


@dataclass(frozen=True, slots=True)
class Cell:
    """A value (None: there is none) and what stands next to it."""

    value: Value
    band: tuple[float, float] | None = None
    """Its 90 % band."""
    note: str = ""
    """Words behind the value."""
    mark: bool = False
    """Whether it is the best of those that it is compared with."""
    unit: Unit | None = None
    """Where it differs from the unit of the column."""

    @classmethod
    def of(cls, spread: Spread | None, note: str = "", mark: bool = False, unit: Unit | None = None) -> Cell:
        """A typical value with its band; None: an input of it is not given."""
        return cls(spread.typical, spread.band, note, mark, unit) if spread else cls(NOT_GIVEN)

    @property
    def number(self) -> float:
        """The value of a cell that holds a number."""
        if isinstance(self.value, (int, float)):
            return float(self.value)
        raise TypeError(f"{self.value!r} is no number")


Field = tuple[Unit | None, str | Callable[[Item], Cell | Value]]
"""A column of a table of items: its unit, and what a cell holds of an item."""


class _Column(NamedTuple):
    """A name, and the unit of its values; words have none, and stand flush left."""

    name: str
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns."""

    columns: Sequence[_Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    @classmethod
    def of(cls, columns: Columns, rows: Iterable[Iterable[Cell | Value]], caption: str = "") -> Table:
        """A table of cells or bare values; `columns` maps each name to the unit of its values or None."""
        named = columns if isinstance(columns, Mapping) else dict.fromkeys(columns)
        return cls(
            [_Column(name, unit) for name, unit in named.items()],
            [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows],
            caption,
        )

    @classmethod
    def each(cls, items: Iterable[Item], columns: Mapping[str, Field[Item]], caption: str = "") -> Table:
        """A row for each item; `columns` maps each name to its unit (None: words) and what a cell holds.

        That is a function of the item, or the name of an attribute or a key of it, such as `score.mape`.
        """
        units = {name: unit for name, (unit, _) in columns.items()}
        return cls.of(units, ([_held(item, of) for _, of in columns.values()] for item in items), caption)

    def only(self, *names: str) -> Table:
        """The columns of these names, in this order."""
        indices = [self._index(name) for name in names]
        rows = [[row[index] for index in indices] for row in self.rows]
        return replace(self, columns=[self.columns[index] for index in indices], rows=rows)

    def known(self) -> Table:
        """Without the columns in which all cells are None or NaN."""
        values = {column.name: [cell.value for cell in self.column(column.name)] for column in self.columns}
        return self.only(*(name for name in values if any(v is not None and v == v for v in values[name])))

    def grouped(self) -> Table:
        """Each value of the first column as a heading above its rows, which the second column names."""
        rows: list[Sequence[Cell]] = []
        before: Value = None
        for first, second, *others in self.rows:
            if first.value != before:
                rows.append([first, *[Cell("")] * len(others)])
            before = first.value
            rows.append([replace(second, value=f"  {second.value}"), *others])
        return replace(self, columns=self.columns[1:], rows=rows)

    def column(self, name: str) -> list[Cell]:
        index = self._index(name)
        return [row[index] for row in self.rows]

    def texts(self, name: str) -> list[str]:
        """The same as text, with their units."""
        column = self.columns[self._index(name)]
        return [self.text(cell, column) for cell in self.column(name)]

    def hovers(self, *names: str) -> list[str]:
        """What each row says at the pointer: its first cell, and these columns (or all) with their units."""
        lines = [[f"<b>{esc(row[0].value)}</b>"] for row in self.rows]
        for name in names or [column.name for column in self.columns[1:]]:
            for line, words in zip(lines, self.texts(name), strict=True):
                line += [esc(f"{name}: {words}")] if words not in ("", NONE) else []
        return [BREAK.join(line) for line in lines]

    def unit(self, name: str) -> Unit:
        """The unit of the column of this name; `NUMBER` where it has none."""
        return self.columns[self._index(name)].unit or NUMBER

    def values(self, name: str) -> list[float]:
        """The numbers of the column of this name in its unit, 0 where there is none."""
        scale = self.unit(name).scale
        return [cell.number / scale if cell.value is not None else 0.0 for cell in self.column(name)]

    def bands(self, name: str) -> list[tuple[float, float]]:
        """Low and high end of each band in the unit of the column; the number itself where there is none."""
        scale = self.unit(name).scale
        ends = [cell.band or (cell.number, cell.number) for cell in self.column(name)]
        return [(low / scale, high / scale) for low, high in ends]

    def by(self, name: str) -> dict[str, Table]:
        """A table for each value of the column of this name, in the order of first sight."""
        groups = listed((str(row[self._index(name)].value), row) for row in self.rows)
        return {value: replace(self, rows=rows) for value, rows in groups.items()}

    def sorted(self, name: str) -> Table:
        """The rows by the numbers of the column of this name."""
        index = self._index(name)
        return replace(self, rows=sorted(self.rows, key=lambda row: row[index].number))

    def _index(self, name: str) -> int:
        return [column.name for column in self.columns].index(name)

    def turned(self) -> Table:
        """Rows as columns of figures, named by the first column; every cell keeps its unit."""
        names = [self.text(row[0], self.columns[0]) for row in self.rows]
        rows = [
            [
                Cell(column.name),
                *(replace(row[index], unit=row[index].unit or column.unit) for row in self.rows),
            ]
            for index, column in enumerate(self.columns)
            if index
        ]
        return replace(self, columns=[_Column(""), *(_Column(name, Unit()) for name in names)], rows=rows)

    def text(self, cell: Cell, column: _Column, to: str = " to ", *, bare: bool = False) -> str:
        """A cell as text; `bare` leaves out the unit, which is then in the heading."""
        unit = cell.unit or column.unit
        if cell.value is None or cell.value == "":
            words = "" if cell.note or cell.value == "" else NONE
        elif isinstance(cell.value, str) or unit is None:
            words = str(cell.value)
        elif bare and cell.unit is None:
            words = replace(unit, name="").text(cell.value, cell.band, to)
        else:
            words = unit.text(cell.value, cell.band, to)
        return f"{words} {cell.note}".strip() if cell.note else words

    def shown(self) -> list[list[str]]:
        """Every cell as text, with units in the headings."""
        return [
            [self.text(cell, column, bare=True) for cell, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    def heads(self) -> list[str]:
        """The names of the columns with their units."""
        named = [(name, unit.name if unit else "") for name, unit in self.columns]
        return [f"{name} ({unit})" if name and unit else name or unit for name, unit in named]

    def words(self, *names: str, most: int = 12) -> str:
        """The rows in words, `128 A100: compute 71.0 %, bubble 7.0 %; ...`: what a figure shows.

        A row is named by the words that it begins with; of it the columns of these names are told. Where
        some are marked, only those rows are told, else the first ones.
        """
        lead = next((index for index, column in enumerate(self.columns) if column.unit), 1)
        told = {name: self._index(name) for name in names}
        rows = [row for row in self.rows if any(row[index].mark for index in told.values())] or self.rows
        words = []
        for row in rows[:most]:
            values = ", ".join(
                f"{name if len(told) > 1 else ''} {self.text(row[index], self.columns[index])}".strip()
                for name, index in told.items()
                if row[index].value is not None
            )
            words.append(f"{', '.join(map(self.text, row[:lead], self.columns))}: {values}")
        return "; ".join([*words, *([f"and {len(rows) - most} more"] if len(rows) > most else [])])

    def markdown(self) -> str:
        """A pipe table with its caption below."""
        rules = ["---:" if column.unit else "---" for column in self.columns]
        heads, *rows = (
            [markdown_text(cell).replace("|", "\\|") for cell in row] for row in (self.heads(), *self.shown())
        )
        lines = [f"| {' | '.join(row)} |" for row in (heads, rules, *rows)]
        return "\n".join([*lines, *(["", markdown_text(self.caption)] if self.caption else [])])

    def lines(self, width: int = 0, *, whole_names: bool = False) -> list[str]:
        """As plain text: names with units below them, rule, rows, caption; no heading without any name.

        Where it is wider than `width` (0: the terminal), the gaps close to one space and columns of words
        wrap; figures do not, nor does the first column with `whole_names`. Where that is not enough either,
        each row becomes a few lines of names and values. A row with nothing but its first cell is a heading.
        """
        width = width or terminal_width()
        marked = [any(row[index].mark for row in self.rows) for index in range(len(self.columns))]

        def narrow(cell: Cell, column: _Column) -> str:
            """A band as narrow as it can be: `1450 (1430-1520)`; more digits stay apart."""
            words = self.text(cell, column, "-", bare=True)
            return _FOUR_DIGITS.sub(r"\1\2", words) if cell.band else words

        rows = [
            [
                (MARK if cell.mark else " ") * has_marks + narrow(cell, column)
                for cell, column, has_marks in zip(row, self.columns, marked, strict=True)
            ]
            for row in self.rows
        ]
        ruled = [row for row in rows if not _is_heading(row)] or rows
        head = self._head(ruled, marked)
        columns = list(zip(*head, *ruled, strict=True))
        flush = [column.unit is not None for column in self.columns]
        widths = [max(map(len, cells)) for cells in columns]
        least = [
            size if right or (whole_names and not index) else max(map(_longest_word, cells))
            for index, (size, right, cells) in enumerate(zip(widths, flush, columns, strict=False))
        ]
        gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= width else 1
        room = width - gap * (len(widths) - 1)
        while sum(widths) > room and any(map(int.__lt__, least, widths)):
            _, widest = max((size, index) for index, size in enumerate(widths) if size > least[index])
            widths[widest] -= 1
        if head and sum(widths) > room:
            return [*self._records(rows, width), *paragraphs(self.caption, width=width)]

        def line(cells: Sequence[str]) -> str:
            sized = zip(cells, widths, flush, strict=True)
            padded = [cell.rjust(size) if right else cell.ljust(size) for cell, size, right in sized]
            return (" " * gap).join(padded).rstrip()

        lines = [line(row) for row in head]
        if head:
            lines.append("-" * (sum(widths) + gap * (len(widths) - 1)))
        for row in rows:
            if _is_heading(row):
                lines += paragraphs(row[0], width=width)
            else:
                lines += map(line, zip_longest(*map(_cell_lines, row, widths), fillvalue=""))
        return lines + paragraphs(self.caption, width=width)

    def _head(self, rows: Sequence[Sequence[str]], marked: Sequence[bool]) -> list[tuple[str, ...]]:
        """The heading line by line: names of figures wrap above their units; words stand on the last."""
        if not any(column.name.strip() for column in self.columns):
            return []
        names = []
        for index, column in enumerate(self.columns):
            banded = any(row[index].band for row in self.rows)
            unit = " ".join(filter(None, [column.unit.name if column.unit else "", "(band)" * banded]))
            room = max([len(unit), *(len(row[index]) for row in rows), *map(len, column.name.split())])
            lines = [column.name] if column.unit is None else textwrap.wrap(column.name, room)
            lines += [unit] if unit else []
            names.append([" " * marked[index] + line for line in lines])
        return list(zip_longest(*(lines[::-1] for lines in names), fillvalue=""))[::-1]

    def _records(self, rows: Sequence[Sequence[str]], width: int) -> list[str]:
        """Each row as its name, and below it every other cell behind the name of its column."""
        lines: list[str] = []
        for name, *cells in rows:
            values = [
                " ".join(filter(None, [column.name, cell.strip(), column.unit.name if column.unit else ""]))
                for column, cell in zip(self.columns[1:], cells, strict=True)
                if cell.strip()
            ]
            lines += paragraphs(name.strip(), width=width)
            lines += paragraphs("; ".join(values), width=width, indent="  ")
        return lines


def _held(item: Any, of: Any) -> Any:
    if callable(of):
        return of(item)
    for name in of.split("."):
        if item is not None:
            item = item.get(name) if isinstance(item, Mapping) else getattr(item, name)
    return item


def _is_heading(row: Sequence[str]) -> bool:
    return len(row) > 2 and not any(cell.strip() for cell in row[1:])


def _longest_word(cell: str) -> int:
    """Length of the longest part that cannot wrap; very long words, such as addresses, are broken."""
    indent = len(cell) - len(cell.lstrip(f"{MARK} "))
    return min(_MAX_WORD, indent + max(map(len, re.split(_BREAK, cell[indent:]))))


def _cell_lines(cell: str, size: int) -> list[str]:
    """The cell in lines, further ones under the first one's text."""
    indent = len(cell) - len(cell.lstrip(f"{MARK} "))
    wrapper = textwrap.TextWrapper(size, subsequent_indent=" " * indent)
    wrapper.wordsep_re = _BREAK
    return wrapper.wrap(cell) or [cell]


def markdown_text(text: str) -> str:
    """One line, with characters of Markdown's markup escaped."""
    return re.sub(r"([\\*<\[])", r"\\\1", " ".join(text.split()))


# Rows as CSV, or as Parquet with the extra `[parquet]`: bare values with every digit.

SUFFIXES = (".csv", ".parquet")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet take a text for a formula."""


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write rows with the same columns; the suffix of the path chooses CSV or Parquet.

    Numbers have every digit, None is an empty field. In CSV a text like a formula gets an apostrophe; of
    Parquet a mixed column is text. InputError for another suffix, PerfsimError without pyarrow, OSError.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: a table is written as {' or '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise PerfsimError("Parquet files need pyarrow: pip install 'perfsim[parquet]'") from None
        columns: dict[str, list[Any]] = {}
        for name in rows[0] if rows else ():
            values = [row[name] for row in rows]
            kinds = {type(value) for value in values if value is not None}
            alike = kinds <= {int, float} or kinds in ({str}, {bool})
            columns[name] = values if alike else [None if value is None else str(value) for value in values]
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer)
        return write_file(path, buffer.getvalue())

    def field(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(FORMULA):
            return f"'{value}"
        return repr(value) if isinstance(value, float) else value

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: field(value) for name, value in row.items()} for row in rows)
    return write_file(path, text.getvalue().encode())


# JSON documents: where results become plain values and text; equal results, equal bytes.


def document_text(document: Any) -> str:
    """A document as JSON text with sorted keys and a final newline; what is not finite is null."""
    text = json.dumps(plain(document), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def plain(value: Any) -> Any:
    """A value as JSON knows it: objects, lists (also of NumPy), floats with every digit, and NaN as null."""
    return to_jsonable_python(
        value,
        inf_nan_mode="null",
        fallback=lambda other: other.tolist() if hasattr(other, "tolist") else dict(other),
    )
