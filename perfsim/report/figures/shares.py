"""Stacked horizontal bars: what each step is made of, in per cent of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base


def stacked_shares(
    title: str,
    names: Sequence[str],
    parts_s: Sequence[Mapping[str, float]],
    steps_s: Sequence[float],
    *,
    height: int,
    bargap: float,
    called: Callable[[str], str] = str,
) -> go.Figure:
    """One bar for each step, parts in the same order in all; seconds on hover.

    `parts_s` are the seconds of each step by part, `steps_s` the steps that they are shares of; `called`
    names a part in the legend.
    """
    order = base.union(parts_s)
    styles = base.part_styles(order)
    traces = [
        go.Bar(
            orientation="h",
            name=base.esc(called(part)),
            y=list(names),
            x=[share(parts, part, step_s) for parts, step_s in zip(parts_s, steps_s, strict=True)],
            marker=styles[part],
            customdata=[text.duration(parts.get(part, 0.0)) for parts in parts_s],
            hovertemplate="<b>%{fullData.name}</b><br>%{customdata}, %{x:.1f} % of the step"
            "<extra>%{y}</extra>",
        )
        for part in order
    ]
    style = base.layout(
        title,
        height=height,
        barmode="stack",
        bargap=bargap,
        xaxis=base.axis("share of the step (%)", range=[0, 101]),
        yaxis=base.axis("", autorange="reversed"),
    )
    style["legend"]["traceorder"] = "normal"
    return base.figure(traces, style)


def share(parts_s: Mapping[str, float], part: str, step_s: float) -> float:
    """A part in per cent of its step."""
    return round(100.0 * parts_s.get(part, 0.0) / step_s, 4)
