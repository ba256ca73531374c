"""Predicted against measured: how far predictions of published runs are off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """One published run and its prediction."""

    id: str
    family: str
    measured_s: float
    predicted_s: float
    error: float
    """Signed relative error: predicted / measured - 1."""
    evidence: str = ""


def predicted_against_measured(
    points: Sequence[ValidationPoint], *, unit: str = "s", band: float = 0.10
) -> go.Figure:
    """Log-log scatter with the identity line and a band of relative error, one look per family."""
    traces: list[Any] = [*_band(points, band), _identity(points)]
    families = list(dict.fromkeys(point.family for point in points))
    for index, family in enumerate(families):
        traces.append(_family([point for point in points if point.family == family], index, unit))
    style = base.layout(
        f"Predicted against measured time ({unit})",
        height=560,
        xaxis=base.axis(f"measured ({unit})", type="log", exponentformat="none"),
        yaxis=base.axis(f"predicted ({unit})", type="log", exponentformat="none"),
    )
    return base.figure(traces, style)


def _ends(points: Sequence[ValidationPoint]) -> list[float]:
    values = [value for point in points for value in (point.measured_s, point.predicted_s) if value > 0]
    return [min(values, default=1.0) / 1.5, max(values, default=1.0) * 1.5]


def _band(points: Sequence[ValidationPoint], band: float) -> list[Any]:
    ends = _ends(points)
    hidden: dict[str, Any] = {"x": ends, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    low = [end * (1 - band) for end in ends]
    high = [end * (1 + band) for end in ends]
    fill = {"fill": "tonexty", "fillcolor": "rgba(128,128,128,0.22)", "name": f"within {100 * band:.0f} %"}
    return [go.Scatter(y=low, showlegend=False, **hidden), go.Scatter(y=high, **hidden, **fill)]


def _identity(points: Sequence[ValidationPoint]) -> Any:
    ends = _ends(points)
    line = {"color": base.GREY, "width": 1.5, "dash": "dash"}
    return go.Scatter(x=ends, y=ends, mode="lines", line=line, name="equal", hoverinfo="skip")


def _family(own: Sequence[ValidationPoint], index: int, unit: str) -> Any:
    look = base.series_style(index)
    return go.Scatter(
        x=[point.measured_s for point in own],
        y=[point.predicted_s for point in own],
        mode="markers",
        name=f"{base.esc(own[0].family)} ({len(own)})",
        marker={"symbol": look["symbol"], "color": look["color"], "size": 9, "opacity": 0.85},
        customdata=[f"{base.esc(point.id)}<br>error {100 * point.error:+.1f} %" for point in own],
        hovertemplate=f"<b>%{{customdata}}</b><br>measured %{{x:.4g}} {unit}, predicted %{{y:.4g}} {unit}"
        "<extra>%{fullData.name}</extra>",
    )


def validation_table(points: Sequence[ValidationPoint]) -> Table:
    """Every case, worst first."""
    ranked = sorted(points, key=lambda point: (-abs(math.log1p(max(point.error, -0.999999))), point.id))
    rows = [
        [
            point.id,
            point.family,
            point.evidence,
            text.duration(point.measured_s),
            text.duration(point.predicted_s),
            f"{100 * point.error:+.1f} %",
        ]
        for point in ranked
    ]
    columns = ("case", "family", "evidence", "measured", "predicted", "error")
    return Table(columns, rows, "Worst first.", frozenset({3, 4, 5}))
