"""How much longer or shorter a step becomes under each variant."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table
from perfsim.sweeps.scaling import Series
from perfsim.sweeps.variants import Change

Changes = Mapping[str, Sequence[Change]]


def change_bars(changes: Changes) -> go.Figure:
    """Horizontal bars of the change in per cent, the largest first, one colour a group; seconds on hover."""
    effects: dict[str, float] = {}
    for change in (change for own in changes.values() for change in own[1:]):
        effect = max(change.ratio, 1.0 / change.ratio)
        effects[change.point.variant] = max(effect, effects.get(change.point.variant, 0.0))
    names = sorted(effects, key=lambda name: -effects[name])
    traces = []
    for index, (group, own) in enumerate(changes.items()):
        by_name = {change.point.variant: change for change in own[1:]}
        drawn = [by_name[name] for name in names if name in by_name]
        traces.append(
            go.Bar(
                orientation="h",
                name=base.esc(group),
                y=[_wrapped(change.point.variant) for change in drawn],
                x=[round(100.0 * (change.ratio - 1.0), 4) for change in drawn],
                marker={"color": base.series_style(index)["color"]},
                text=[_percent(change) + (" *" if change.policy else "") for change in drawn],
                textposition="outside",
                cliponaxis=False,
                customdata=[_seconds(change) for change in drawn],
                hovertemplate="<b>%{y}</b><br>%{customdata}<extra>%{fullData.name}</extra>",
            )
        )
    style = base.layout(
        "Change of the step time (%)",
        height=170 + 14 * len(names) + 22 * len(names) * max(1, len(changes)),
        barmode="group",
        bargap=0.25,
        xaxis=base.axis("change of the step time (%)", range=_reach(changes)),
        yaxis=base.axis("", autorange="reversed"),
    )
    return base.figure(traces, style)


def time_dots(series: Sequence[Series]) -> go.Figure:
    """One dot with its 90 % band for every series, on a logarithmic axis of time."""
    points = [
        (base.two_lines(member.label), point.target_time) for member in series for point in member.points
    ]
    unit, scale = text.time_unit(time.time_s for _, time in points)
    dots = go.Scatter(
        x=[float(f"{time.time_s / scale:.6g}") for _, time in points],
        y=[name for name, _ in points],
        mode="markers",
        marker={"color": base.BLUE, "size": 9},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [float(f"{(time.band_s[1] - time.time_s) / scale:.6g}") for _, time in points],
            "arrayminus": [float(f"{(time.time_s - time.band_s[0]) / scale:.6g}") for _, time in points],
            "color": base.GREY,
        },
        customdata=[
            f"{text.duration(time.time_s)} (band {text.duration_band(time.band_s)}), "
            f"{text.integer(time.steps)} steps of {text.duration(time.step_time_s)}"
            for _, time in points
        ],
        hovertemplate="<b>%{y}</b><br>%{customdata}<extra></extra>",
        showlegend=False,
    )
    style = base.layout(
        f"Time to the target ({unit})",
        height=150 + base.row_px((name for name, _ in points), 38) * len(points),
        xaxis=base.log_axis(
            f"time to the target ({unit})", [end / scale for _, time in points for end in time.band_s]
        ),
        yaxis=base.axis("", autorange="reversed"),
    )
    return base.figure([dots], style)


def time_table(series: Sequence[Series]) -> Table:
    """Every series: steps, step time, time and band."""
    rows = [
        [
            member.label,
            text.integer(point.prediction.global_batch_size),
            text.integer(point.target_time.steps),
            text.duration(point.target_time.step_time_s),
            text.duration(point.target_time.time_s),
            text.duration_band(point.target_time.band_s),
            text.layout_long(point.prediction.layout),
        ]
        for member in series
        for point in member.points
    ]
    columns = ("", "batch", "steps", "step", "time", "90 % band", "layout")
    return Table(columns, rows, "", frozenset(range(1, 6)))


def _wrapped(name: str) -> str:
    """A name in short lines, so that a phone has room for the bars."""
    return "<br>".join(base.esc(line) for line in textwrap.wrap(name, 20))


def _reach(changes: Changes) -> list[float]:
    """The axis with room for what is written beside the bars."""
    values = [100.0 * (change.ratio - 1.0) for own in changes.values() for change in own[1:]]
    low, high = min([0.0, *values]), max([0.0, *values])
    room = 0.32 * max(high - low, 1.0)
    return [low - (room if low < 0 else 0.0), high + 1.7 * room]


def _percent(change: Change) -> str:
    return f"{100.0 * (change.ratio - 1.0):+.1f} %"


def _seconds(change: Change) -> str:
    before, after = change.base.prediction.step_time_s, change.point.prediction.step_time_s
    policy = f"<br>policy changed: {base.esc(change.policy)}" if change.policy else ""
    return f"{text.duration(before)} to {text.duration(after)} ({_percent(change)}){policy}"


def change_table(changes: Changes) -> Table:
    """Every variant in every group: its step, the change, and what limits its step."""
    rows = [
        [
            group,
            change.point.variant,
            change.point.machine,
            text.duration(change.point.prediction.step_time_s),
            text.NONE if change.point is change.base else _percent(change),
            change.policy or text.NONE,
            change.point.prediction.why.cause,
            change.point.prediction.why.remedy,
        ]
        for group, own in changes.items()
        for change in own
    ]
    columns = (
        "in common", "variant", "machine", "step", "change", "policy changed", "limited by", "nearest remedy",
    )  # fmt: skip
    caption = "The first variant of each group is what the others are compared with."
    return Table(columns, rows, caption, frozenset({3, 4}))
