"""What a shorter time takes: money or device-days over the time to the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table


@dataclass(frozen=True, slots=True)
class CostPoint:
    """A machine at one size; `time` and `cost` are already in the units of the axes."""

    series: str
    machine: str
    time: float
    cost: float
    best: bool
    """Whether no comparable point is both faster and cheaper."""


def worth_taking(points: Sequence[tuple[float, float]]) -> list[bool]:
    """For each (time, cost), whether no other is at most as slow and as dear, and better in one of both."""
    return [
        not any(time <= own[0] and cost <= own[1] and (time, cost) != own for time, cost in points)
        for own in points
    ]


def cost_curve(points: Sequence[CostPoint], *, unit: str, cost: str) -> go.Figure:
    """A line for each series, from cheap and slow to dear and fast; points not worth taking are open."""
    traces = []
    for index, name in enumerate(dict.fromkeys(point.series for point in points)):
        own = sorted((point for point in points if point.series == name), key=lambda point: point.time)
        colour = base.series_style(index)["color"]
        traces.append(
            go.Scatter(
                x=[point.time for point in own],
                y=[point.cost for point in own],
                name=base.esc(name),
                mode="lines+markers",
                line={"color": colour, "width": 1.5},
                marker={"symbol": ["circle" if point.best else "circle-open" for point in own], "size": 9},
                customdata=[base.esc(point.machine) for point in own],
                hovertemplate=f"<b>%{{customdata}}</b><br>%{{x:.4g}} {unit}, %{{y:,.4g}} {base.esc(cost)}"
                "<extra></extra>",
            )
        )
    style = base.layout(
        f"{cost[0].upper()}{cost[1:]} by time to the target",
        height=440,
        xaxis=base.log_axis(f"time to the target ({unit})", [point.time for point in points]),
        yaxis=base.log_axis(base.esc(cost), [point.cost for point in points]),
        showlegend=True,
    )
    return base.figure(traces, style)


def cost_table(points: Sequence[CostPoint], *, unit: str, cost: str) -> Table:
    """Every point, and whether it is worth taking."""
    rows = [
        [
            point.machine,
            text.number(point.time),
            text.number(point.cost),
            "yes" if point.best else "no",
        ]
        for point in points
    ]
    columns = ("machine", f"time to the target ({unit})", cost, "none is faster and cheaper")
    return Table(columns, rows, "", frozenset({1, 2}))


def cost_alt(points: Sequence[CostPoint], *, unit: str, cost: str) -> str:
    """The points worth taking, in words."""
    words = (
        f"{point.machine}: {text.number(point.time)} {unit}, {text.number(point.cost)} {cost}"
        for point in points
        if point.best
    )
    return f"Worth taking: {'; '.join(words)}."
