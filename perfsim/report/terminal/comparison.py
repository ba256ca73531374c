"""A comparison on a terminal."""

from __future__ import annotations

from perfsim.report.comparison import comparison_table
from perfsim.report.terminal.layout import paragraph, table_lines, terminal_width
from perfsim.studies.comparisons.spec import Comparison


def comparison_lines(result: Comparison) -> list[str]:
    """The title, the table, the answer in words, and what the columns are."""
    width = terminal_width()
    lines = [*paragraph(result.title, width), "", *table_lines(comparison_table(result), width), ""]
    return [*lines, *paragraph(result.verdict, width)]
