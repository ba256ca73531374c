"""Where the seconds of a step go, as a share of each candidate's own step."""

from __future__ import annotations

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.figures.shares import stacked_shares
from perfsim.report.table import Table
from perfsim.studies.result import StudyResult


def step_breakdown(result: StudyResult) -> go.Figure:
    """Stacked horizontal bars, one per candidate, in per cent of the step; seconds on hover."""
    names = [base.wrapped(name) for name in text.names(result.candidates)]
    parts = [candidate.breakdown_s for candidate in result.candidates]
    return stacked_shares(
        "Step time by what it is spent on (% of the step)",
        names,
        parts,
        [candidate.step_time_s for candidate in result.candidates],
        height=160 + base.row_px(names, 58) * len(names),
        bargap=0.35,
        called=text.human,
    )


def step_breakdown_table(result: StudyResult) -> Table:
    """Seconds and share of every part."""
    parts = [candidate.breakdown_s for candidate in result.candidates]
    order = base.union(parts)
    rows = []
    for name, candidate, values in zip(text.labels(result.candidates), result.candidates, parts, strict=True):
        cells = [_cell(values.get(part, 0.0), candidate.step_time_s) for part in order]
        rows.append([name, text.duration(candidate.step_time_s), *cells])
    columns = ["candidate", "step", *(text.human(part) for part in order)]
    caption = "Seconds of each part and its share of the step."
    return Table(columns, rows, caption, frozenset(range(1, len(columns))))


def _cell(seconds: float, step_s: float) -> str:
    return f"{text.duration(seconds)} ({text.percent(seconds / step_s)})" if seconds else text.NONE


def step_breakdown_alt(result: StudyResult) -> str:
    """The largest parts of each candidate in words."""
    sentences = []
    for name, candidate in zip(text.labels(result.candidates), result.candidates, strict=True):
        largest = sorted(candidate.breakdown_s.items(), key=lambda item: -item[1])[:3]
        words = ", ".join(
            f"{text.human(part)} {text.percent(s / candidate.step_time_s)}" for part, s in largest
        )
        sentences.append(f"{name}: {words}")
    return f"Stacked bars of the step time. {'; '.join(sentences)}."
