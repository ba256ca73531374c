"""A comparison as a table, on its page and on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perfsim.report import text
from perfsim.report.document import write_document
from perfsim.report.page import Head, Section, write_page
from perfsim.report.table import Table
from perfsim.studies.comparisons import Comparison, Value

_GIGA = {"params": "billion", "tokens": "billion", "equation_bytes": "GB", "simulated_bytes": "GB"}
"""Columns in units of 1e9, with their unit."""
_WORDS: dict[str, Callable[[float], str]] = {
    "loss": "{:.3f}".format,
    "law_loss": "{:.3f}".format,
    "error": "{:+.3f}".format,
    "relative_error": lambda value: f"{100 * value:+.1f} %",
    "devices": text.integer,
    "batch": "{:,.6g}".format,
    "flop": "{:.3g}".format,
    **dict.fromkeys(_GIGA, lambda value: text.number(value / 1e9)),
}
"""How the values of a key are written; others have three digits."""


def comparison_table(result: Comparison) -> Table:
    """The rows in words, numbers flush right."""
    units = dict(_GIGA)
    words = dict(_WORDS)
    if "time_s" in result.columns:
        units["time_s"], scale = text.time_unit([float(row["time_s"] or 0.0) for row in result.rows])
        words["time_s"] = lambda seconds: text.number(seconds / scale)
    rows = [[_cell(words.get(key, text.number), row[key]) for key in result.columns] for row in result.rows]
    columns = [f"{name}\n{units[key]}" if key in units else name for key, name in result.columns.items()]
    numeric = {
        place
        for place, key in enumerate(result.columns)
        if any(isinstance(row[key], (int, float)) for row in result.rows)
    }
    return Table(columns, rows, " ".join(result.notes), frozenset(numeric))


def _cell(words: Callable[[float], str], value: Value) -> str:
    return words(value) if isinstance(value, (int, float)) else value or text.NONE


def write_comparison(result: Comparison, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page."""
    section = Section("Side by side", "", table=comparison_table(result), slug="comparison")
    head = Head(result.question, result.verdict)
    page = write_page(result.title, [section], folder / "index.html", head=head)
    write_document(result, folder / "summary.json")
    return page
