"""A page's sections as Markdown: headings, leads and tables; figures stay with the page."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.report.sections import Head, Section
from perfsim.report.table import Table


def markdown(title: str, sections: Sequence[Section], head: Head | None = None) -> str:
    """The page as text that ends in a line feed; the same input gives the same bytes."""
    blocks = [f"# {_plain(title)}"]
    if head is not None:
        blocks += [_plain(text) for text in (head.subtitle, head.verdict) if text]
    for section in sections:
        blocks.append(f"{'#' * section.level} {_plain(section.heading)}")
        blocks += [_plain(text) for text in (section.lead, section.note) if text]
        if section.table is not None:
            blocks.append(table_lines(section.table))
        blocks += [table_lines(table) for _, table in section.topics]
    if head is not None and head.footer:
        blocks.append(_plain(head.footer))
    return "\n\n".join(blocks) + "\n"


def table_lines(table: Table) -> str:
    """A pipe table with its caption below."""
    rules = ["---:" if index in table.numeric else "---" for index in range(len(table.columns))]
    rows = [table.columns, rules, *table.rows]
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    caption = ["", _plain(table.caption)] if table.caption else []
    return "\n".join([*lines, *caption])


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """One line, with characters of Markdown's markup escaped."""
    line = " ".join(text.split())
    for mark in "\\*<[":
        line = line.replace(mark, f"\\{mark}")
    return line
