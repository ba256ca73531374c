"""Errors of predictions of published runs, family by family."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table

# Scaling: how a quantity changes with the number of devices, beside the ideal.

LABELLED = 4
"""Most series that are named beside their lines; more have a legend."""
APART = 0.09
"""Least distance of two names, as a share of the height of the axes."""
WIDTH = 0.4
"""Width of a name, as a share of that of the axes."""


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
    band: tuple[float, float] | None = None
    """The 90 % band of the value."""


def scaling_curve(
    points: Sequence[ScalingPoint],
    *,
    quantity: str = "time to the target",
    unit: str = "days",
    better: Literal["lower", "higher"] = "lower",
) -> go.Figure:
    """One line per series with its band, and dotted the ideal from its first point, on logarithmic axes.

    Ideal: a time falls as 1/devices (better="lower"), a rate rises with them (better="higher").
    """
    series = _by_series(points)
    traces: list[Any] = [
        trace
        for index, (name, own) in enumerate(series.items())
        for trace in _series(name, own, index, unit, better)
    ]
    traces += [
        _band(name, own, index) for index, (name, own) in enumerate(series.items()) if own[0].band is not None
    ]
    values = [value for point in points for value in (point.value, *(point.band or ()))]
    ends = {
        name: [(float(point.num_devices), point.value) for point in (own[0], own[-1])]
        for name, own in series.items()
    }
    style = base.layout(
        f"{quantity.capitalize()} ({unit}) by number of devices",
        height=460,
        xaxis=_devices_axis(point.num_devices for point in points),
        yaxis=base.log_axis(f"{quantity} ({unit})", values),
        **_direct_labels(ends),
    )
    return base.figure(traces, style)


def efficiency_curve(points: Sequence[ScalingPoint]) -> go.Figure:
    """Scaling efficiency in per cent on a logarithmic axis of devices, beside the ideal of 100 %.

    `value` is the efficiency in throughput; `efficiency` that in time to the target, dashed where it differs.
    """
    series = _by_series(points)
    traces = []
    for index, (name, own) in enumerate(series.items()):
        look = base.series_style(index)
        common: dict[str, Any] = {
            "x": [point.num_devices for point in own],
            "legendgroup": base.esc(name),
            "customdata": [base.esc(point.note) for point in own],
        }
        kinds = [("solid", "throughput", [point.value for point in own])]
        if max(abs(point.value - point.efficiency) for point in own) >= SAME:
            kinds.append(("dash", "time to the target", [point.efficiency for point in own]))
        for dash, what, shares in kinds:
            traces.append(
                go.Scatter(
                    y=[round(100 * share, 3) for share in shares],
                    name=base.esc(name) if dash == "solid" else f"in {what}",
                    mode="lines+markers",
                    line={"color": look["color"], "width": 2, "dash": dash},
                    marker={"symbol": look["symbol"], "size": 8 if dash == "solid" else 5},
                    hovertemplate=f"<b>{base.esc(name)}</b><br>%{{x:,}} devices: %{{y:.1f}} % in {what}"
                    "<br>%{customdata}<extra></extra>",
                    **common,
                )
            )
    top = max([1.0, *(share for point in points for share in (point.value, point.efficiency))])
    style = base.layout(
        "Scaling efficiency (%) by number of devices",
        height=400,
        xaxis=_devices_axis(point.num_devices for point in points),
        yaxis=base.axis("scaling efficiency (%)", range=[0, 108 * top]),
        shapes=[{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100, "y1": 100, "line": IDEAL}],
        showlegend=True,
    )
    return base.figure(traces, style)


SAME = 0.02
"""Differences of efficiencies below this are not drawn."""
IDEAL = {"color": base.GREY, "width": 1.5, "dash": "dot"}


def _devices_axis(counts: Iterable[int]) -> dict[str, Any]:
    """A logarithmic axis of numbers of devices, with ticks at the numbers that were asked for."""
    known = sorted({float(count) for count in counts}, reverse=True)
    ticks = sorted(known[:: math.ceil(len(known) / base.MOST_TICKS)])
    return base.log_axis("devices", known, tickvals=ticks, ticktext=[base.short(tick) for tick in ticks])


def _direct_labels(ends: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Names beside the lines where they have room, else a legend.

    `ends` are the first and last point of each falling line on logarithmic axes. A name stands above the
    first point, or below the last one where the first place is taken.
    """
    spots = [(math.log10(x), math.log10(y)) for own in ends.values() for x, y in own]
    wide, high = (max(axis) - min(axis) or 1.0 for axis in zip(*spots, strict=True))
    taken: list[tuple[float, float]] = []
    labels = []
    for index, (name, own) in enumerate(ends.items()):
        for (x, y), above in zip(own, (True, False), strict=True):
            left = math.log10(x) / wide - (0.0 if above else WIDTH)
            top = math.log10(y) / high + (APART if above else 0.0)
            if all(abs(left - a) > WIDTH or abs(top - b) > APART for a, b in taken):
                taken.append((left, top))
                labels.append(_label(name, math.log10(x), math.log10(y), index, above=above))
                break
    if len(labels) < len(ends) or len(ends) > LABELLED:
        return {"showlegend": True}
    return {"showlegend": False, "annotations": labels}


def _label(name: str, x: float, y: float, index: int, *, above: bool) -> dict[str, Any]:
    """An annotation; a colour would not suit both themes, so a mark in the line's colour stands before it."""
    colour = base.series_style(index)["color"]
    return {
        "x": x,
        "y": y,
        "text": f'<span style="color:{colour}">\u25cf</span> {base.two_lines(name)}',
        "showarrow": False,
        "align": "left",
        "xanchor": "left" if above else "right",
        "yanchor": "bottom" if above else "top",
        "xshift": 6 if above else -8,
        "yshift": 2 if above else -6,
    }


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
        customdata=[_scaling_hover(point) for point in own],
        hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{x:,}} devices: %{{y:.4g}} {unit}"
        "%{customdata}<extra></extra>",
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


def _band(name: str, own: Sequence[ScalingPoint], index: int) -> go.Scatter:
    """The 90 % bands of a series as an area."""
    devices = [point.num_devices for point in own]
    low, high = zip(*(point.band or (point.value, point.value) for point in own), strict=True)
    return go.Scatter(
        x=[*devices, *reversed(devices)],
        y=[*high, *reversed(low)],
        name=f"{base.esc(name)}, 90 % band",
        legendgroup=base.esc(name),
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=base.translucent(base.series_style(index)["color"]),
        hoverinfo="skip",
        showlegend=False,
    )


def _scaling_hover(point: ScalingPoint) -> str:
    """The band on the line of the value, and below it efficiency and note; escaped."""
    band = "" if point.band is None else f" (band {_to(point.band)})"
    words = [f"scaling efficiency {text.percent(point.efficiency)}", point.note]
    return f"{band}<br>{base.esc(', '.join(filter(None, words)))}"


def _to(band: tuple[float, float]) -> str:
    return " to ".join(text.number(end) for end in band)


def scaling_table(points: Sequence[ScalingPoint], *, unit: str = "days") -> Table:
    """Every point with its scaling efficiency, and its band where points have one."""
    banded = any(point.band is not None for point in points)
    rows = [
        [
            name,
            text.integer(point.num_devices),
            text.number(point.value),
            *([text.NONE if point.band is None else _to(point.band)] if banded else []),
            text.percent(point.efficiency),
            point.note,
        ]
        for name, own in _by_series(points).items()
        for point in own
    ]
    columns = ("series", "devices", unit, *(["90 % band"] if banded else []), "scaling efficiency", "note")
    caption = "Scaling efficiency is relative to the smallest machine of the series."
    return Table(columns, rows, caption, frozenset(range(1, len(columns) - 1)))


def efficiency_table(points: Sequence[ScalingPoint]) -> Table:
    """Every point with its efficiency in throughput and in time to the target."""
    rows = [
        [name, text.integer(p.num_devices), text.percent(p.value), text.percent(p.efficiency), p.note]
        for name, own in _by_series(points).items()
        for p in own
    ]
    columns = ("series", "devices", "in throughput", "in time to the target", "note")
    return Table(columns, rows, "Relative to the smallest machine of the series.", frozenset({1, 2, 3}))


# A quantity over two swept fields, as coloured cells.

_MAX_WRITTEN_CELLS = 150
_LOG_SPAN = 30.0


def heat_map(
    x: Sequence[object],
    y: Sequence[object],
    z: Sequence[Sequence[float | None]],
    *,
    x_name: str,
    y_name: str,
    z_name: str,
    unit: str,
) -> go.Figure:
    """Cells `z[row of y][column of x]`; None or NaN (no plan fits) stays empty.

    Colours are cividis, which reads alike with every colour vision, on a logarithmic scale where
    the values span more than a factor of thirty. Small maps write the figure in each cell.
    """
    cells = [[_finite(value) for value in row] for row in z]
    flat = [value for row in cells for value in row if value is not None]
    logarithmic = bool(flat) and min(flat) > 0 and max(flat) / min(flat) > _LOG_SPAN
    trace = go.Heatmap(
        x=[base.esc(value) for value in x],
        y=[base.esc(value) for value in y],
        z=[[_colour(value, logarithmic) for value in row] for row in cells],
        text=[["" if value is None else text.number(value) for value in row] for row in cells],
        texttemplate="%{text}" if len(flat) <= _MAX_WRITTEN_CELLS else None,
        hovertemplate=f"{base.esc(x_name)} %{{x}}<br>{base.esc(y_name)} %{{y}}<br>"
        f"<b>%{{text}} {base.esc(unit)}</b><extra></extra>",
        hoverongaps=False,
        colorscale="Cividis",
        xgap=1,
        ygap=1,
        colorbar=_colour_bar(flat, logarithmic),
    )
    style = base.layout(
        f"{base.esc(z_name)} ({base.esc(unit)})",
        height=max(300, 150 + 30 * len(y)),
        xaxis=base.axis(base.esc(x_name), type="category", showgrid=False),
        yaxis=base.axis(base.esc(y_name), type="category", showgrid=False),
    )
    return base.figure([trace], style)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _colour(value: float | None, logarithmic: bool) -> float | None:
    if value is None:
        return None
    return float(f"{math.log10(value) if logarithmic else value:.6g}")


def _colour_bar(flat: Sequence[float], logarithmic: bool) -> dict[str, object]:
    bar: dict[str, object] = {"thickness": 12, "outlinewidth": 0, "xpad": 4}
    if logarithmic:
        first = math.log10(min(flat))
        last = math.log10(max(flat))
        places = [first + (last - first) * i / 4 for i in range(5)]
        bar |= {"tickvals": places, "ticktext": [text.number(10**place, 2) for place in places]}
    return bar


def heat_map_table(
    x: Sequence[object], y: Sequence[object], z: Sequence[Sequence[float | None]], *, x_name: str, y_name: str
) -> Table:
    """The cells as numbers; an empty cell has no feasible plan."""
    rows = []
    for name, row in zip(y, z, strict=True):
        cells = [_finite(value) for value in row]
        rows.append([str(name), *(text.NONE if value is None else text.number(value) for value in cells)])
    columns = [f"{y_name} \\ {x_name}", *(str(value) for value in x)]
    return Table(columns, rows, "Rows and columns as in the figure.", frozenset(range(1, len(columns))))


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
