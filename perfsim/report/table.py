"""Rows as a table in a file: CSV, or Parquet with the extra `[parquet]`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfsim.base.errors import InputError, PerfsimError
from perfsim.base.files import write_file

# `Table`: the form in which results hand their figures to a page, to Markdown and to a terminal.


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


SUFFIXES = (".csv", ".parquet")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet take a text for a formula."""


def write_table(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Write rows with the same columns; the suffix of the path chooses CSV or Parquet.

    Numbers have every digit, None is an empty field. A text of a CSV file that begins like a formula gets an
    apostrophe. Raises InputError for another suffix, PerfsimError without pyarrow, OSError.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: a table is written as {' or '.join(SUFFIXES)}")
    return write_file(path, _csv(rows) if path.suffix == ".csv" else _parquet(rows))


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return repr(value) if isinstance(value, float) else value


def _parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise PerfsimError("Parquet files need pyarrow: pip install 'perfsim[parquet]'") from None
    names = list(rows[0]) if rows else []
    columns = {name: _column([row[name] for row in rows]) for name in names}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: as they are if they agree, else as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or (len(kinds) <= 1 and kinds <= {str, bool}):
        return values
    return [None if value is None else str(value) for value in values]
