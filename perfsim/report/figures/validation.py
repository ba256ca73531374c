"""Errors of predictions of published runs, family by family."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    band_s: tuple[float, float] | None = None
    """The 90 % band of the prediction."""

    @property
    def allowed(self) -> tuple[float, float] | None:
        """The signed errors that its band allows; None without a band."""
        if self.band_s is None:
            return None
        low, high = self.band_s
        return self.predicted_s / high - 1.0, self.predicted_s / low - 1.0

    @property
    def outside(self) -> bool:
        """Whether the measured time lies outside the band."""
        return self.band_s is not None and not self.band_s[0] <= self.measured_s <= self.band_s[1]


def residuals(points: Sequence[ValidationPoint]) -> go.Figure:
    """The signed error of every run, a row for each family, the closest family first; a bar at its median.

    A pale bar spans the errors that the family's 90 % bands allow, at the median of its runs. A run outside
    its own band has a diamond; runs that are not scored (evidence C) have open marks.
    """
    families = _by_family(points)
    rows = {name: f"{base.esc(name)} ({len(own)})" for name, own in families.items()}
    runs = go.Scatter(
        x=[round(100.0 * point.error, 3) for own in families.values() for point in own],
        y=[rows[name] for name, own in families.items() for _ in own],
        mode="markers",
        marker={
            "symbol": [_symbol(point) for own in families.values() for point in own],
            "color": [
                base.VERMILLION if point.outside else base.BLUE for own in families.values() for point in own
            ],
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
        marker={"symbol": "line-ns", "size": 20, "line": {"width": 3, "color": base.ORANGE}},
        hovertemplate="median %{x:+.1f} %<extra>%{y}</extra>",
        name="median of the family",
    )
    style = base.layout(
        "Predicted over measured, minus 1, by family (%)",
        height=150 + 30 * len(families),
        xaxis=base.axis("error of the step time (%)", zeroline=True, zerolinecolor=base.INK),
        yaxis=base.axis("", autorange="reversed"),
        barmode="overlay",
        bargap=0.45,
    )
    return base.figure([*_bands(families, rows), runs, middles], style)


def _symbol(point: ValidationPoint) -> str:
    return ("diamond" if point.outside else "circle") + ("-open" if point.evidence == "C" else "")


def _bands(families: Mapping[str, Sequence[ValidationPoint]], rows: Mapping[str, str]) -> list[go.Bar]:
    """A pale bar for each family with bands, from the least to the largest error that they allow."""
    ends = {
        name: [median(side) for side in zip(*allowed, strict=True)]
        for name, own in families.items()
        if (allowed := [point.allowed for point in own if point.allowed is not None])
    }
    if not ends:
        return []
    return [
        go.Bar(
            orientation="h",
            name="errors that the 90 % bands allow",
            y=[rows[name] for name in ends],
            base=[round(100.0 * low, 3) for low, _ in ends.values()],
            x=[round(100.0 * (high - low), 3) for low, high in ends.values()],
            marker={"color": base.translucent(base.GREY, 0.32)},
            customdata=[f"{100 * low:+.1f} % to {100 * high:+.1f} %" for low, high in ends.values()],
            hovertemplate="bands allow %{customdata}<extra>%{y}</extra>",
        )
    ]


def _by_family(points: Sequence[ValidationPoint]) -> dict[str, list[ValidationPoint]]:
    """Families by the median of their absolute errors, the smallest first."""
    families: dict[str, list[ValidationPoint]] = {}
    for point in points:
        families.setdefault(point.family, []).append(point)
    ranked = sorted(families, key=lambda name: median(abs(point.error) for point in families[name]))
    return {name: families[name] for name in ranked}


def _hover(point: ValidationPoint) -> str:
    times = f"measured {text.duration(point.measured_s)}, predicted {text.duration(point.predicted_s)}"
    band = "" if point.band_s is None else f"<br>band {text.duration_band(point.band_s)}"
    return f"<b>{base.esc(point.id)}</b><br>{times}<br>error {100 * point.error:+.1f} %{band}"


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
