"""How a step suffers from one slow device: step time against how slow it is."""

from __future__ import annotations

import plotly.graph_objects as go

from perfsim.prediction.result import Resilience
from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table
from perfsim.studies.result import StudyResult


def slowdowns(curve: Resilience) -> list[float]:
    """Step time at every severity over the step without a straggler."""
    first = curve.points[0].step_time_s
    return [point.step_time_s / first for point in curve.points]


def resilience(result: StudyResult) -> go.Figure:
    """One line for each candidate, relative to its own step; dotted, a step as slow as the slow device."""
    traces = []
    severities = sorted({point.severity for curve in result.resilience for point in curve.points})
    for index, curve in enumerate(result.resilience):
        look = base.series_style(index)
        traces.append(
            go.Scatter(
                x=[point.severity for point in curve.points],
                y=slowdowns(curve),
                name=base.esc(curve.label),
                mode="lines+markers",
                line={"color": look["color"], "width": 2, "dash": look["dash"]},
                marker={"symbol": look["symbol"], "size": 8},
                customdata=[text.duration(point.step_time_s) for point in curve.points],
                hovertemplate="<b>%{fullData.name}</b><br>device %{x:g} times as slow: step %{customdata}, "
                "%{y:.3f} times as long<extra></extra>",
            )
        )
    traces.append(
        go.Scatter(
            x=severities,
            y=severities,
            name="all wait for the slow device",
            mode="lines",
            line={"color": base.GREY, "width": 1.5, "dash": "dot"},
            hoverinfo="skip",
        )
    )
    style = base.layout(
        "Step time with one slow device (times)",
        height=420,
        xaxis=base.axis("slowdown of the device (times)"),
        yaxis=base.axis("step time (times)"),
    )
    return base.figure(traces, style)


def resilience_table(result: StudyResult) -> Table:
    """Step time of every candidate at every severity."""
    severities = sorted({point.severity for curve in result.resilience for point in curve.points})
    rows = []
    for curve in result.resilience:
        times = {
            point.severity: f"{text.duration(point.step_time_s)} ({slow:.3f})"
            for point, slow in zip(curve.points, slowdowns(curve), strict=True)
        }
        rows.append([curve.label, *(times.get(severity, text.NONE) for severity in severities)])
    columns = ("candidate", *(f"{severity:g} {text.TIMES}" for severity in severities))
    caption = "Step time, in parentheses relative to the step without a straggler."
    return Table(columns, rows, caption, frozenset(range(1, len(columns))))


def resilience_alt(result: StudyResult) -> str:
    """What the slowest device does to each candidate, in words."""
    sentences = [
        f"{curve.label}: {slowdowns(curve)[-1]:.2f} times as long with a device "
        f"{curve.points[-1].severity:g} times as slow"
        for curve in result.resilience
    ]
    return f"Lines of step time against the slowdown of one device. {'; '.join(sentences)}."
