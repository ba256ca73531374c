"""Time to the target over global batch: a small batch takes many steps, a large one wastes tokens."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base, labels
from perfsim.report.table import Table
from perfsim.studies.result import BatchPoint, CandidateResult, StudyResult


def time_to_accuracy(result: StudyResult) -> go.Figure:
    """One curve with its band per candidate, the best batch starred, the critical batch as a line."""
    unit, scale = _unit(result)
    names = text.labels(result.candidates)
    traces: list[Any] = []
    for index, (name, candidate) in enumerate(zip(names, result.candidates, strict=True)):
        traces += _curve(name, candidate, index, unit, scale)
    points = [point for candidate in result.candidates for point in candidate.batch_curve]
    x_ends = _ends([point.batch_tokens for point in points], result.critical_batch_tokens, 1.4)
    y_ends = _ends([end / scale for point in points for end in point.time_to_accuracy_band_s], 0.0, 1.15)
    style = base.layout(
        f"Time to the target ({unit}) by global batch (tokens)",
        height=500,
        xaxis=base.log_axis("global batch (tokens)", x_ends, range=[math.log10(end) for end in x_ends]),
        yaxis=base.log_axis(
            f"time to the target ({unit})", y_ends, range=[math.log10(end) for end in y_ends]
        ),
        shapes=_critical_shapes(result),
        annotations=[*_critical_note(result), *_names(result, labels.Canvas(x_ends, y_ends), scale)],
        showlegend=False,
    )
    return base.figure(traces, style)


def _ends(values: Sequence[float], also: float, room: float) -> tuple[float, float]:
    """The ends of a logarithmic axis over finite values, and over another one if it is positive."""
    known = [value for value in (*values, also) if value > 0 and math.isfinite(value)] or [1.0, 10.0]
    return min(known) / room, max(known) * room


def _names(result: StudyResult, canvas: labels.Canvas, scale: float) -> list[dict[str, Any]]:
    """The name of each candidate at its curve, with a leader in the colour of the curve."""
    curves = {
        place: [(point.batch_tokens, point.time_to_accuracy_s / scale) for point in candidate.batch_curve]
        for place, candidate in enumerate(result.candidates)
    }
    known = {
        place: sorted(point for point in curve if math.isfinite(point[1])) for place, curve in curves.items()
    }
    taken = [canvas.around(*point, 8) for curve in known.values() for point in curve]
    asked = []
    for place, whole in enumerate(text.names(result.candidates)):
        name = "\n".join(textwrap.wrap(whole, base.LABEL_CHARS, break_on_hyphens=False))
        half = labels.half_px(name)
        spots = [
            labels.Spot(*point, right, up)
            for up in (22.0, -22.0, 40.0, -40.0, 60.0, -60.0, 90.0, -90.0)
            for point in known[place][::-1]
            for right in (0.0, -half, half)
        ]
        if spots:
            colour = base.series_style(place)["color"]
            asked.append((name, spots, {"arrowcolor": colour, "arrowwidth": 1.5, "standoff": 4}))
    return labels.notes(canvas, asked, taken, always=True)


def _unit(result: StudyResult) -> tuple[str, float]:
    return text.time_unit(candidate.time_to_accuracy_s for candidate in result.candidates)


def _curve(name: str, candidate: CandidateResult, index: int, unit: str, scale: float) -> list[Any]:
    points = sorted(candidate.batch_curve, key=lambda point: point.batch_tokens)
    look = base.series_style(index)
    tokens = [point.batch_tokens for point in points]
    line = go.Scatter(
        x=tokens,
        y=[_round(point.time_to_accuracy_s / scale) for point in points],
        name=base.esc(name),
        legendgroup=base.esc(name),
        mode="lines+markers",
        line={"color": look["color"], "dash": look["dash"], "width": 2},
        marker={"symbol": look["symbol"], "size": 6},
        customdata=[_hover(point, unit, scale) for point in points],
        hovertemplate="<b>%{fullData.name}</b><br>%{customdata}<extra></extra>",
    )
    return [
        *_band(points, name, look["color"], scale),
        line,
        *_star(points, candidate, name, look, unit, scale),
    ]


def _band(points: list[BatchPoint], name: str, colour: str, scale: float) -> list[Any]:
    hidden = {
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": base.esc(name),
    }
    tokens = [point.batch_tokens for point in points]
    low = [_round(point.time_to_accuracy_band_s[0] / scale) for point in points]
    high = [_round(point.time_to_accuracy_band_s[1] / scale) for point in points]
    fill = {"fill": "tonexty", "fillcolor": base.translucent(colour)}
    return [go.Scatter(x=tokens, y=low, **hidden), go.Scatter(x=tokens, y=high, **hidden, **fill)]


def _star(
    points: list[BatchPoint],
    candidate: CandidateResult,
    name: str,
    look: dict[str, Any],
    unit: str,
    scale: float,
) -> list[Any]:
    best = [point for point in points if point.global_batch_size == candidate.global_batch_size][:1]
    return [
        go.Scatter(
            x=[point.batch_tokens],
            y=[_round(point.time_to_accuracy_s / scale)],
            mode="markers",
            marker={
                "symbol": "star",
                "size": 17,
                "color": look["color"],
                "line": {"width": 1, "color": "#FFFFFF"},
            },
            legendgroup=base.esc(name),
            showlegend=False,
            customdata=[_hover(point, unit, scale)],
            hovertemplate=f"<b>{base.esc(name)}</b>: best batch<br>%{{customdata}}<extra></extra>",
        )
        for point in best
    ]


def _hover(point: BatchPoint, unit: str, scale: float) -> str:
    low, high = (text.number(end / scale) for end in point.time_to_accuracy_band_s)
    lines = [
        f"{text.integer(point.global_batch_size)} sequences, {text.large(point.batch_tokens)} tokens",
        f"{text.number(point.time_to_accuracy_s / scale)} {unit} (band {low}{text.NONE}{high})",
        f"{text.integer(point.steps)} steps of {text.duration(point.step_time_s)}",
        text.layout_long(point.layout),
    ]
    return "<br>".join(base.esc(line) for line in lines if line)


def _critical_shapes(result: StudyResult) -> list[dict[str, Any]]:
    if not result.critical_batch_tokens > 0:
        return []
    low, high = result.critical_batch_band_tokens
    common: dict[str, Any] = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    band = {
        "type": "rect",
        "x0": low,
        "x1": high,
        "fillcolor": "rgba(128,128,128,0.15)",
        "line": {"width": 0},
    }
    at = result.critical_batch_tokens
    line = {"type": "line", "x0": at, "x1": at, "line": {"width": 2, "dash": "dash", "color": base.GREY}}
    return [common | band, common | line]


def _critical_note(result: StudyResult) -> list[dict[str, Any]]:
    critical = result.critical_batch_tokens
    if not critical > 0:
        return []
    tokens = [point.batch_tokens for candidate in result.candidates for point in candidate.batch_curve]
    on_the_left = bool(tokens) and critical**2 < min(tokens) * max(tokens)
    return [
        {
            "x": math.log10(critical),
            "xref": "x",
            "y": 1,
            "yref": "paper",
            "yanchor": "top",
            "xanchor": "left" if on_the_left else "right",
            "showarrow": False,
            "align": "left" if on_the_left else "right",
            "text": f" critical batch <br> {text.large(critical)} ",
        }
    ]


def time_to_accuracy_table(result: StudyResult) -> Table:
    """Every point of every curve."""
    rows: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    for name, candidate in zip(text.labels(result.candidates), result.candidates, strict=True):
        for point in candidate.batch_curve:
            if point.global_batch_size == candidate.global_batch_size:
                best.add((len(rows), 5))
            rows.append([name, *_cells(point)])
    columns = ("candidate", "batch (sequences)", "batch (tokens)", "step", "steps", "time", "band", "layout")
    caption = "Time to the target at each batch; the best batch of each candidate is marked."
    return Table(columns, rows, caption, frozenset(range(1, 7)), frozenset(best))


def _cells(point: BatchPoint) -> list[str]:
    return [
        text.integer(point.global_batch_size),
        text.large(point.batch_tokens),
        text.duration(point.step_time_s),
        text.integer(point.steps),
        text.duration(point.time_to_accuracy_s),
        text.duration_band(point.time_to_accuracy_band_s),
        text.layout_long(point.layout),
    ]


def time_to_accuracy_alt(result: StudyResult) -> str:
    """Each candidate's best point in words."""
    best = "; ".join(
        f"{name}: {text.duration(candidate.time_to_accuracy_s)} at a batch of "
        f"{text.integer(candidate.global_batch_size)} sequences"
        for name, candidate in zip(text.labels(result.candidates), result.candidates, strict=True)
    )
    critical = result.critical_batch_tokens
    return (
        "Line chart of time to the target over global batch, both logarithmic. "
        f"{f'Critical batch {text.large(critical)} tokens. ' if critical > 0 else ''}{best}."
    )


def _round(value: float) -> float:
    return float(f"{value:.6g}")
