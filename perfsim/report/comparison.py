"""A comparison as a table, on its page and on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perfsim.report import text
from perfsim.report.document import write_document
from perfsim.report.page import write_page
from perfsim.report.sections import Head, Section
from perfsim.report.table import Table
from perfsim.studies.comparisons.spec import Comparison, Value

_WORDS: dict[str, Callable[[float], str]] = {
    "loss": "{:.3f}".format,
    "law_loss": "{:.3f}".format,
    "error": "{:+.3f}".format,
    "relative_error": lambda value: f"{100 * value:+.1f} %",
    "time_s": text.duration,
    "devices": text.integer,
    "batch": "{:,.6g}".format,
    **dict.fromkeys(("params", "tokens", "flop", "equation_bytes", "simulated_bytes"), "{:.3g}".format),
}
"""How the values of a key are written; others have three digits."""


def comparison_table(result: Comparison) -> Table:
    """The rows in words, numbers flush right."""
    rows = [[_cell(key, row[key]) for key in result.columns] for row in result.rows]
    numeric = {
        place
        for place, key in enumerate(result.columns)
        if any(isinstance(row[key], (int, float)) for row in result.rows)
    }
    return Table(tuple(result.columns.values()), rows, " ".join(result.notes), frozenset(numeric))


def _cell(key: str, value: Value) -> str:
    if value is None or isinstance(value, str):
        return value or text.NONE
    return _WORDS.get(key, text.number)(value)


def write_comparison(result: Comparison, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page."""
    section = Section("Side by side", "", table=comparison_table(result), slug="comparison")
    head = Head(result.question, result.verdict)
    page = write_page(result.title, [section], folder / "index.html", head=head)
    write_document(result, folder / "summary.json")
    return page
