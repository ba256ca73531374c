"""Errors of predictions of published runs, family by family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

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


SYMBOLS = {"C": "circle-open"}
"""Marks by evidence; a full circle for all others."""


def residuals(points: Sequence[ValidationPoint], *, band: float = 0.10) -> go.Figure:
    """The signed error of every run, a row for each family, the closest family first; a bar at its median.

    Runs that are not scored (evidence C) have open marks. The shade holds errors up to `band`.
    """
    families = _by_family(points)
    rows = {name: f"{base.esc(name)} ({len(own)})" for name, own in families.items()}
    runs = go.Scatter(
        x=[round(100.0 * point.error, 3) for own in families.values() for point in own],
        y=[rows[name] for name, own in families.items() for _ in own],
        mode="markers",
        marker={
            "symbol": [
                "circle-open" if p.evidence == "C" else "circle" for own in families.values() for p in own
            ],
            "color": base.BLUE,
            "size": 9,
            "opacity": 0.8,
        },
        customdata=[_hover(point) for own in families.values() for point in own],
        hovertemplate="%{customdata}<extra></extra>",
        name="a run",
    )
    middles = go.Scatter(
        x=[round(100.0 * median(point.error for point in own), 3) for own in families.values()],
        y=list(rows.values()),
        mode="markers",
        marker={"symbol": "line-ns", "size": 20, "line": {"width": 3, "color": base.VERMILLION}},
        hovertemplate="median %{x:+.1f} %<extra>%{y}</extra>",
        name="median of the family",
    )
    shade = {"type": "rect", "x0": -100 * band, "x1": 100 * band, "yref": "paper", "y0": 0, "y1": 1}
    style = base.layout(
        "Error of the step time by family (%)",
        height=150 + 30 * len(families),
        xaxis=base.axis("predicted over measured, minus 1 (%)", zeroline=True, zerolinecolor=base.INK),
        yaxis=base.axis("", autorange="reversed"),
        shapes=[shade | {"fillcolor": "rgba(128,128,128,0.18)", "line": {"width": 0}, "layer": "below"}],
    )
    return base.figure([runs, middles], style)


def _by_family(points: Sequence[ValidationPoint]) -> dict[str, list[ValidationPoint]]:
    """Families by the median of their absolute errors, the smallest first."""
    families: dict[str, list[ValidationPoint]] = {}
    for point in points:
        families.setdefault(point.family, []).append(point)
    ranked = sorted(families, key=lambda name: median(abs(point.error) for point in families[name]))
    return {name: families[name] for name in ranked}


def _hover(point: ValidationPoint) -> str:
    times = f"measured {text.duration(point.measured_s)}, predicted {text.duration(point.predicted_s)}"
    return f"<b>{base.esc(point.id)}</b><br>{times}<br>error {100 * point.error:+.1f} %"


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
