"""Answers as tables: rows for a notebook, and pandas frames where pandas is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfsim.errors import PerfsimError

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]


@dataclass(frozen=True)
class Rows(Sequence[Row]):
    """Rows with the same columns; quantities are in SI units, named by the suffix of their column."""

    rows: tuple[Row, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a frame. Raises PerfsimError where pandas is not installed."""
        return frame(self.rows)

    def save(self, path: str | Path) -> Path:
        """Write the rows as a .csv file, or as a .parquet file with the extra `[parquet]`."""
        return save_table(self.rows, path)

    def _repr_html_(self) -> str:
        return html_table(self.rows)


def save_table(rows: Sequence[Row], path: str | Path) -> Path:
    """Write rows as .csv or .parquet. Raises PerfsimError for what cannot be written."""
    from perfsim.report.tables import write_table

    try:
        return write_table(rows, Path(path))
    except OSError as error:
        raise PerfsimError(f"{path}: {error.strerror or error}") from None


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a pandas frame. Raises PerfsimError where pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise PerfsimError("to_pandas needs pandas: pip install 'perfsim[pandas]'") from None
    return pd.DataFrame(list(rows))


def html_table(rows: Sequence[Row]) -> str:
    """Rows as an HTML table for a notebook; all text is escaped."""
    if not rows:
        return "<p>no rows</p>"
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    body = "".join(_html_row(row) for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_row(row: Row) -> str:
    return "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) + "</tr>"


def _cell(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
