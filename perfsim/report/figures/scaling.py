"""Scaling: how a quantity changes with the number of devices, beside the ideal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One measured or simulated point; `value` is already in the unit of the axis."""

    series: str
    num_devices: int
    value: float
    efficiency: float
    """Scaling efficiency relative to the smallest machine of the series."""
    note: str = ""
    """Shown on hover, for example the layout."""


def scaling_curve(
    points: Sequence[ScalingPoint],
    *,
    quantity: str = "time to the target",
    unit: str = "days",
    better: Literal["lower", "higher"] = "lower",
    linear: bool = False,
) -> go.Figure:
    """One line per series, and the ideal from its first point: dotted, or broad and pale where `linear`.

    Axes are logarithmic unless `linear`. Ideal: a time falls as 1/devices (better="lower"), a rate rises
    with them (better="higher").
    """
    traces: list[Any] = []
    for index, (name, own) in enumerate(_by_series(points).items()):
        line, dotted = _series(name, own, index, unit, better)
        if linear:  # a thin ideal would vanish behind lines that follow it
            dotted.line.update(width=6, dash="solid", color=base.translucent(dotted.line.color, 0.3))
        traces += [dotted, line] if linear else [line, dotted]
    devices, values = [point.num_devices for point in points], [point.value for point in points]
    if linear:
        xaxis = base.axis("devices", rangemode="tozero")
        yaxis = base.axis(f"{quantity} ({unit})", rangemode="tozero")
    else:
        counts = sorted({float(count) for count in devices})
        shown = {"tickvals": counts, "ticktext": [base.short(count) for count in counts]}
        xaxis = base.log_axis("devices", devices, **(shown if len(counts) <= base.MOST_TICKS else {}))
        yaxis = base.log_axis(f"{quantity} ({unit})", values)
    style = base.layout(
        f"{quantity.capitalize()} ({unit}) by number of devices",
        height=460,
        xaxis=xaxis,
        yaxis=yaxis,
    )
    return base.figure(traces, style)


def _by_series(points: Sequence[ScalingPoint]) -> dict[str, list[ScalingPoint]]:
    series: dict[str, list[ScalingPoint]] = {}
    for point in sorted(points, key=lambda point: point.num_devices):
        series.setdefault(point.series, []).append(point)
    first = dict.fromkeys(point.series for point in points)
    return {name: series[name] for name in first}


def _ideal(point: ScalingPoint, better: Literal["lower", "higher"]) -> float:
    """What perfect scaling from the smallest machine would give."""
    return point.value * point.efficiency if better == "lower" else point.value / point.efficiency


def _series(
    name: str, own: Sequence[ScalingPoint], index: int, unit: str, better: Literal["lower", "higher"]
) -> list[Any]:
    look = base.series_style(index)
    devices = [point.num_devices for point in own]
    line = go.Scatter(
        x=devices,
        y=[point.value for point in own],
        name=base.esc(name),
        legendgroup=base.esc(name),
        mode="lines+markers",
        line={"color": look["color"], "width": 2},
        marker={"symbol": look["symbol"], "size": 8},
        customdata=[base.esc(_hover(point)) for point in own],
        hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{x}} devices: %{{y:.4g}} {unit}"
        "<br>%{customdata}<extra></extra>",
    )
    dotted = go.Scatter(
        x=devices,
        y=[_ideal(point, better) for point in own],
        name=f"{base.esc(name)}, ideal",
        legendgroup=base.esc(name),
        mode="lines",
        line={"color": look["color"], "width": 1.5, "dash": "dot"},
        hoverinfo="skip",
    )
    return [line, dotted]


def _hover(point: ScalingPoint) -> str:
    return f"scaling efficiency {text.percent(point.efficiency)}" + (f", {point.note}" if point.note else "")


def scaling_table(points: Sequence[ScalingPoint], *, unit: str = "days") -> Table:
    """Every point with its scaling efficiency."""
    rows = [
        [
            name,
            text.integer(point.num_devices),
            text.number(point.value),
            text.percent(point.efficiency),
            point.note,
        ]
        for name, own in _by_series(points).items()
        for point in own
    ]
    columns = ("series", "devices", unit, "scaling efficiency", "note")
    caption = "Scaling efficiency is relative to the smallest machine of the series."
    return Table(columns, rows, caption, frozenset({1, 2, 3}))
