"""All laws of the critical batch in one table, and where they disagree."""

from __future__ import annotations

from perfsim.report import text
from perfsim.report.sections import Section
from perfsim.report.table import Table
from perfsim.studies.result import StudyResult


def laws_section(result: StudyResult) -> list[Section]:
    """One row a law: its critical batch, each candidate's best batch and time; nothing for a single law."""
    if len(result.laws) < 2:
        return []
    names = dict(zip((own.label for own in result.candidates), text.names(result.candidates), strict=True))
    unit, scale = text.time_unit(row.time_s for answer in result.laws for row in answer.rows)
    rows, best = [], set()
    for number, answer in enumerate(result.laws):
        cells = [
            f"{text.number(row.time_s / scale)} {unit} at batch {text.integer(row.global_batch_size)}"
            for row in answer.rows
        ]
        low, high = answer.band_tokens
        band = f"{text.large(answer.critical_batch_tokens)} ({text.large(low)} to {text.large(high)})"
        rows.append([answer.law, band, *cells, answer.source])
        best.add((number, 2 + [row.label for row in answer.rows].index(answer.first)))
    columns = ("law", "critical batch, tokens", *names.values(), "source")
    firsts = list(dict.fromkeys(answer.first for answer in result.laws))
    agree = (
        f"All put {names[firsts[0]]} first."
        if len(firsts) == 1
        else f"They disagree on who is first: {', '.join(names[first] for first in firsts)}."
    )
    lead = (
        f"Helps to see whether the choice of law decides the answer. {agree} The first row is the study's "
        "law; Kaplan's takes the loss of its own corpus. A star marks who is first; only batches that were "
        "tried count."
    )
    table = Table(columns, rows, "", frozenset(range(1, len(columns) - 1)), frozenset(best))
    return [Section("Laws of the critical batch", lead, table=table, slug="laws", level=3)]
