"""What each pipeline stage or wafer holds at its peak, against its capacity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from perfsim.prediction.prediction import MemoryBar
from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table
from perfsim.studies.result import StudyResult


@dataclass(frozen=True, slots=True)
class _Row:
    candidate: str
    place: str
    bar: MemoryBar
    machine: str
    """The short name of the candidate."""

    @property
    def label(self) -> str:
        return f"{self.machine}<br>{base.esc(self.place)}"

    @property
    def total(self) -> float:
        return sum(self.bar.parts_bytes.values())


def memory(result: StudyResult) -> go.Figure:
    """Stacked bars; one subplot for each capacity, all in one unit."""
    groups = _groups(result)
    unit = _unit(groups)
    order = base.union(row.bar.parts_bytes for rows in groups for row in rows)
    styles = base.part_styles(order)
    traces: list[Any] = []
    style = base.layout(
        f"Peak memory by what it holds ({unit[0]})",
        height=0,
        barmode="stack",
        bargap=0.3,
        shapes=[],
        annotations=[],
    )
    style["legend"]["traceorder"] = "normal"
    drawn: set[str] = set()
    for index, (rows, domain) in enumerate(zip(groups, _domains(groups), strict=True)):
        suffix = str(index + 1) if index else ""
        traces += _bars(rows, order, styles, unit, suffix, drawn)
        _axes(style, rows, domain, unit, suffix)
    style["height"] = _height(groups)
    return base.figure(traces, style)


def _rows(result: StudyResult) -> list[_Row]:
    """One row per place; neighbours that hold exactly the same share a row."""
    rows: list[_Row] = []
    machines = [base.wrapped(name) for name in text.names(result.candidates)]
    named = zip(text.labels(result.candidates), result.candidates, machines, strict=True)
    for name, candidate, machine in named:
        run: list[MemoryBar] = []
        for bar in candidate.memory:
            if run and (dict(run[0].parts_bytes), run[0].capacity_bytes) != (
                dict(bar.parts_bytes),
                bar.capacity_bytes,
            ):
                rows.append(_Row(name, _place(run), run[0], machine))
                run = []
            run.append(bar)
        if run:
            rows.append(_Row(name, _place(run), run[0], machine))
    return rows


def _place(run: Sequence[MemoryBar]) -> str:
    if len(run) == 1:
        return run[0].place
    return f"{run[0].place} to {run[-1].place.split(' ')[-1]}"


def _groups(result: StudyResult) -> list[list[_Row]]:
    groups: dict[float, list[_Row]] = {}
    for row in _rows(result):
        groups.setdefault(row.bar.capacity_bytes, []).append(row)
    return list(groups.values())


def _unit(groups: Sequence[Sequence[_Row]]) -> tuple[str, float]:
    """The unit of all bars, with its bytes."""
    return text.memory_unit(*(row.bar.capacity_bytes for rows in groups for row in rows))


_ROW_PX, _GAP_PX, _FRAME_PX = 44, 92, 150


def _height(groups: Sequence[Sequence[_Row]]) -> int:
    return _FRAME_PX + sum(_row_px(rows) * len(rows) for rows in groups) + _GAP_PX * max(len(groups) - 1, 0)


def _row_px(rows: Sequence[_Row]) -> int:
    return base.row_px((row.label for row in rows), _ROW_PX)


def _domains(groups: Sequence[Sequence[_Row]]) -> list[tuple[float, float]]:
    """Heights in proportion to the bars, top to bottom, with room for an axis between."""
    inner = max(_height(groups) - _FRAME_PX, 1)
    domains, top = [], 1.0
    for rows in groups:
        bottom = max(top - _row_px(rows) * len(rows) / inner, 0.0)
        domains.append((round(bottom, 4), round(top, 4)))
        top = bottom - _GAP_PX / inner
    return domains


def _bars(
    rows: Sequence[_Row],
    order: Sequence[str],
    styles: dict[str, dict[str, Any]],
    unit: tuple[str, float],
    suffix: str,
    drawn: set[str],
) -> list[Any]:
    name, scale = unit
    traces = []
    for part in order:
        values = [row.bar.parts_bytes.get(part, 0.0) / scale for row in rows]
        if not any(values):
            continue
        traces.append(
            go.Bar(
                orientation="h",
                name=base.esc(text.human(part)),
                legendgroup=base.esc(part),
                showlegend=part not in drawn,
                y=[row.label for row in rows],
                x=[round(value, 4) for value in values],
                marker=styles[part],
                xaxis=f"x{suffix}",
                yaxis=f"y{suffix}",
                hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{x:.3g}} {name}<extra>%{{y}}</extra>",
            )
        )
        drawn.add(part)
    return traces


def _axes(
    style: dict[str, Any],
    rows: Sequence[_Row],
    domain: tuple[float, float],
    unit: tuple[str, float],
    suffix: str,
) -> None:
    capacity, (name, scale) = rows[0].bar.capacity_bytes, unit
    limit = capacity / scale if math.isfinite(capacity) else 0.0
    end = 1.1 * max([limit, *(row.total / scale for row in rows)])
    style[f"xaxis{suffix}"] = base.axis(f"{name} per device", range=[0, end], anchor=f"y{suffix}")
    style[f"yaxis{suffix}"] = base.axis("", autorange="reversed", domain=domain, anchor=f"x{suffix}")
    if not limit:
        return
    line = {"width": 2, "dash": "dash", "color": base.VERMILLION}
    place: dict[str, Any] = {"xref": f"x{suffix}", "yref": f"y{suffix} domain"}
    style["shapes"].append(place | {"type": "line", "x0": limit, "x1": limit, "y0": 0, "y1": 1, "line": line})
    note = {"x": limit, "y": 1, "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    style["annotations"].append(place | note | {"text": f"capacity {text.trim(text.number(limit))} {name}"})


def memory_table(result: StudyResult) -> Table:
    """Every place with its parts, total and share of the capacity."""
    rows = _rows(result)
    order = base.union(row.bar.parts_bytes for row in rows)
    all_capacities = [row.bar.capacity_bytes for row in rows]
    cells = []
    for row in rows:
        capacity = row.bar.capacity_bytes
        sizes = [row.bar.parts_bytes.get(part, 0.0) for part in order]
        parts = [text.memory(size, *all_capacities) if size else text.NONE for size in sizes]
        share = text.percent(row.total / capacity)
        cells.append([row.candidate, row.place, *parts, text.memory(row.total, *all_capacities), share])
    columns = ["candidate", "place", *(text.human(part) for part in order), "total", "of capacity"]
    return Table(columns, cells, "Peak memory of one device.", frozenset(range(2, len(columns))))


def memory_alt(result: StudyResult) -> str:
    """The fullest place of each candidate in words."""
    fullest: dict[str, _Row] = {}
    for row in _rows(result):
        if row.candidate not in fullest or row.total > fullest[row.candidate].total:
            fullest[row.candidate] = row
    capacities = [row.bar.capacity_bytes for row in fullest.values()]
    words = "; ".join(
        f"{name}: {text.memory(row.total, *capacities)} of "
        f"{text.memory(row.bar.capacity_bytes, *capacities)} in {row.place}"
        for name, row in fullest.items()
    )
    return f"Stacked bars of peak memory with the capacity as a line. {words}."
