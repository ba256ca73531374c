"""One typed table: values with unit, band, mark and note. Terminal, page, Markdown and files write it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from perfsim.base.errors import InputError, PerfsimError
from perfsim.base.files import write_file
from perfsim.report.text import NONE, NUMBER, Unit

Item = TypeVar("Item")
Value = str | float | None
Columns = Mapping[str, Unit | None] | Sequence[str]


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
    """Where it is not that of the column."""

    @property
    def number(self) -> float:
        """The value of a cell that holds a number."""
        if isinstance(self.value, (int, float)):
            return float(self.value)
        raise TypeError(f"{self.value!r} is no number")


@dataclass(frozen=True, slots=True)
class Column:
    """A name, and the unit of its values; words have none, and stand flush left."""

    name: str
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    @classmethod
    def of(cls, columns: Columns, rows: Iterable[Iterable[Cell | Value]], caption: str = "") -> Table:
        """A table of cells or bare values; `columns` maps each name to the unit of its values or None."""
        named = columns if isinstance(columns, Mapping) else dict.fromkeys(columns)
        return cls(
            [Column(name, unit) for name, unit in named.items()],
            [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows],
            caption,
        )

    @classmethod
    def each(
        cls,
        items: Iterable[Item],
        columns: Mapping[str, tuple[Unit | None, Callable[[Item], Cell | Value]]],
        caption: str = "",
    ) -> Table:
        """A row for each item; `columns` maps each name to its unit (None: words) and what a cell holds."""
        named = {name: unit for name, (unit, _) in columns.items()}
        return cls.of(named, ([value(item) for _, value in columns.values()] for item in items), caption)

    @classmethod
    def read(
        cls,
        columns: Mapping[str, tuple[str, Unit | None]],
        rows: Iterable[Mapping[str, Any]],
        caption: str = "",
    ) -> Table:
        """A table of mappings; `columns` maps each name to a key and the unit of its values or None."""
        named = {name: unit for name, (_, unit) in columns.items()}
        keys = [key for key, _ in columns.values()]
        return cls.of(named, ([row.get(key) for key in keys] for row in rows), caption)

    def only(self, *names: str) -> Table:
        """The columns of these names, in this order."""
        places = [self._place(name) for name in names]
        rows = [[row[place] for place in places] for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in places], rows=rows)

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
        """The cells of the column of this name."""
        place = self._place(name)
        return [row[place] for row in self.rows]

    def texts(self, name: str) -> list[str]:
        """The same as text, with their units."""
        column = self.columns[self._place(name)]
        return [self.text(cell, column) for cell in self.column(name)]

    def unit(self, name: str) -> Unit:
        """The unit of the column of this name; that of bare numbers where it has none."""
        return self.columns[self._place(name)].unit or NUMBER

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
        groups: dict[str, list[Sequence[Cell]]] = {}
        for row in self.rows:
            groups.setdefault(str(row[self._place(name)].value), []).append(row)
        return {value: replace(self, rows=rows) for value, rows in groups.items()}

    def sorted(self, name: str) -> Table:
        """The rows by the numbers of the column of this name."""
        place = self._place(name)
        return replace(self, rows=sorted(self.rows, key=lambda row: row[place].number))

    def _place(self, name: str) -> int:
        return [column.name for column in self.columns].index(name)

    def turned(self) -> Table:
        """Rows as columns of figures, named by the first column; every cell keeps its unit."""
        names = [self.text(row[0], self.columns[0]) for row in self.rows]
        rows = [
            [
                Cell(column.name),
                *(replace(row[place], unit=row[place].unit or column.unit) for row in self.rows),
            ]
            for place, column in enumerate(self.columns)
            if place
        ]
        return replace(self, columns=[Column(""), *(Column(name, Unit()) for name in names)], rows=rows)

    def text(self, cell: Cell, column: Column, to: str = " to ", *, bare: bool = False) -> str:
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
        units = [column.unit.name if column.unit else "" for column in self.columns]
        return [
            f"{column.name} ({unit})" if unit and column.name else column.name or unit
            for column, unit in zip(self.columns, units, strict=True)
        ]

    def words(self, *names: str, most: int = 12) -> str:
        """The rows in words, `128 A100: compute 71.0 %, bubble 7.0 %; ...`: what a figure shows.

        A row is named by the words that it begins with; of it the columns of these names are told. Where
        some are marked, only those rows are told, else the first ones.
        """
        lead = next((place for place, column in enumerate(self.columns) if column.unit), 1)
        told = [(self._place(name), name if len(names) > 1 else "") for name in names]
        marked = [row for row in self.rows if any(row[place].mark for place, _ in told)]
        rows = []
        for row in (marked or self.rows)[:most]:
            named = ", ".join(
                self.text(cell, column) for cell, column in zip(row[:lead], self.columns, strict=False)
            )
            values = [
                f"{name} {self.text(row[place], self.columns[place])}".strip()
                for place, name in told
                if row[place].value is not None
            ]
            rows.append(f"{named}: {', '.join(values)}")
        left = len(marked or self.rows) - most
        return "; ".join([*rows, *([f"and {left} more"] if left > 0 else [])])


# A table as Markdown.


def markdown_table(table: Table) -> str:
    """A pipe table with its caption below."""
    rules = ["---:" if column.unit else "---" for column in table.columns]
    heads = [markdown_text(head) for head in table.heads()]
    rows = [[markdown_text(cell) for cell in row] for row in table.shown()]
    lines = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (heads, rules, *rows)
    ]
    return "\n".join([*lines, *(["", markdown_text(table.caption)] if table.caption else [])])


def markdown_text(text: str) -> str:
    """One line, with characters of Markdown's markup escaped."""
    line = " ".join(text.split())
    for mark in "\\*<[":
        line = line.replace(mark, f"\\{mark}")
    return line


# Rows as CSV, or as Parquet with the extra `[parquet]`: bare values with every digit.

SUFFIXES = (".csv", ".parquet")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet take a text for a formula."""


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write rows with the same columns; the suffix of the path chooses CSV or Parquet.

    Numbers have every digit, None is an empty field. A text of a CSV file that begins like a formula gets an
    apostrophe. Raises InputError for another suffix, PerfsimError without pyarrow, OSError.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: a table is written as {' or '.join(SUFFIXES)}")
    return write_file(path, _csv(rows) if path.suffix == ".csv" else _parquet(rows))


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _field(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _field(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return repr(value) if isinstance(value, float) else value


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise PerfsimError("Parquet files need pyarrow: pip install 'perfsim[parquet]'") from None
    columns = {name: _of_one_type([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _of_one_type(values: list[Any]) -> list[Any]:
    """Values as they are if their types agree, else as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or (len(kinds) <= 1 and kinds <= {str, bool}):
        return values
    return [None if value is None else str(value) for value in values]
