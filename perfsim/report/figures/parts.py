"""Where the seconds of many steps go, by cause, as shares of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.figures.shares import stacked_shares
from perfsim.report.table import Table


@dataclass(frozen=True, slots=True)
class PartsRow:
    """A step under a name: its seconds by cause, and the sentence on them."""

    name: str
    step_time_s: float
    parts_s: Mapping[str, float]
    sentence: str = ""


def parts_figure(rows: Sequence[PartsRow]) -> go.Figure:
    """Stacked horizontal bars in per cent of each step; seconds on hover."""
    names = [_numbered(index, row.name) for index, row in enumerate(rows)]
    return stacked_shares(
        "Step time by cause (% of the step)",
        names,
        [row.parts_s for row in rows],
        [row.step_time_s for row in rows],
        height=170 + base.row_px(names, 34) * len(rows),
        bargap=0.3,
    )


def _numbered(index: int, name: str) -> str:
    """The name in lines; an invisible suffix keeps equal names apart."""
    return base.two_lines(name) + "\u200b" * index


def parts_table(rows: Sequence[PartsRow]) -> Table:
    """Seconds and shares of every cause, and the sentence."""
    order = base.union([row.parts_s for row in rows])
    cells = [
        [row.name, text.duration(row.step_time_s), *(_cell(row, part) for part in order), row.sentence]
        for row in rows
    ]
    return Table(["", "step", *order, "why"], cells, "", frozenset(range(1, 2 + len(order))))


def _cell(row: PartsRow, part: str) -> str:
    seconds = row.parts_s.get(part, 0.0)
    return f"{text.duration(seconds)} ({text.percent(seconds / row.step_time_s)})" if seconds else text.NONE


def parts_alt(rows: Sequence[PartsRow]) -> str:
    """The share of computing in each row."""
    words = (f"{row.name}: {text.percent(row.parts_s.get('compute', 0.0) / row.step_time_s)}" for row in rows)
    return f"Stacked bars of the step time by cause; computing takes: {'; '.join(words)}."
