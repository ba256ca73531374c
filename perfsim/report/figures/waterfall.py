"""From the step of one machine to that of another, in seconds for the same tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table
from perfsim.studies.result import CandidateResult

MINUS = "\u2212"
SMALL = 0.02
"""Differences below this share of the longer step are drawn as one."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """Two steps scaled to the same tokens, and the signed seconds that lead from the first to the second."""

    names: tuple[str, str]
    tokens: float
    ends_s: tuple[float, float]
    changes_s: Mapping[str, float]


def bridge(names: tuple[str, str], before: CandidateResult, after: CandidateResult) -> Bridge:
    """From `before` to `after`, for the tokens of a step of `after`."""
    tokens = after.tokens_per_s * after.step_time_s
    factor = tokens / (before.tokens_per_s * before.step_time_s)
    parts = base.union([before.breakdown_s, after.breakdown_s])
    changes = {
        part: after.breakdown_s.get(part, 0.0) - factor * before.breakdown_s.get(part, 0.0) for part in parts
    }
    ends = factor * before.step_time_s, after.step_time_s
    shown = {part: change for part, change in changes.items() if abs(change) >= SMALL * max(ends)}
    rest = ends[1] - ends[0] - sum(shown.values())
    ordered = dict(sorted(shown.items(), key=lambda item: item[1]))
    return Bridge(
        names, tokens, ends, ordered | ({"all others": rest} if abs(rest) > 1e-9 * max(ends) else {})
    )


def waterfall(own: Bridge) -> go.Figure:
    """A bar for each end, and between them a floating bar for each difference."""
    unit, scale = text.time_unit([max(own.ends_s)])
    labels = [
        base.esc(own.names[0]),
        *(base.esc(text.human(part)) for part in own.changes_s),
        base.esc(own.names[1]),
    ]
    at, starts, sizes, colours = own.ends_s[0], [0.0], [own.ends_s[0]], [base.GREY]
    for change in own.changes_s.values():
        starts.append(min(at, at + change))
        sizes.append(abs(change))
        colours.append(base.GREEN if change < 0 else base.VERMILLION)
        at += change
    starts.append(0.0)
    sizes.append(own.ends_s[1])
    colours.append(base.GREY)
    written = [
        _seconds(own.ends_s[0], scale),
        *(_signed(change, own, scale) for change in own.changes_s.values()),
    ]
    written.append(_seconds(own.ends_s[1], scale))
    bars = go.Bar(
        orientation="h",
        y=labels,
        base=[round(start / scale, 6) for start in starts],
        x=[round(size / scale, 6) for size in sizes],
        marker={"color": colours},
        text=[f"{number} {unit}" for number in written],
        textposition="outside",
        cliponaxis=False,
        customdata=written,
        hovertemplate=f"<b>%{{y}}</b><br>%{{customdata}} {unit}<extra></extra>",
        showlegend=False,
    )
    reach = max(start + size for start, size in zip(starts, sizes, strict=True)) / scale
    style = base.layout(
        f"Step time for the same tokens ({unit})",
        height=130 + 34 * len(labels),
        bargap=0.3,
        xaxis=base.axis(f"{unit} for {text.large(own.tokens)} tokens", range=[0, 1.4 * reach]),
        yaxis=base.axis("", autorange="reversed"),
    )
    return base.figure([bars], style)


def waterfall_table(own: Bridge) -> Table:
    """The same seconds."""
    unit, scale = text.time_unit([max(own.ends_s)])
    rows = [
        [own.names[0], _seconds(own.ends_s[0], scale)],
        *([text.human(part), _signed(change, own, scale)] for part, change in own.changes_s.items()),
        [own.names[1], _seconds(own.ends_s[1], scale)],
    ]
    return Table(("", f"step, {unit}"), rows, f"For {text.large(own.tokens)} tokens.", frozenset({1}))


def waterfall_alt(own: Bridge) -> str:
    """The ends and differences in words."""
    unit, scale = text.time_unit([max(own.ends_s)])
    words = ", ".join(
        f"{text.human(part)} {_signed(change, own, scale)}" for part, change in own.changes_s.items()
    )
    ends = [f"{name} {_seconds(end, scale)} {unit}" for name, end in zip(own.names, own.ends_s, strict=True)]
    return f"Bars from {ends[0]} to {ends[1]} for the same tokens: {words}."


def _seconds(value: float, scale: float) -> str:
    return text.number(value / scale)


def _signed(value: float, own: Bridge, scale: float) -> str:
    """A difference with a sign, all of a figure with as many digits."""
    digits = max(0, 3 - math.floor(math.log10(max(own.ends_s) / scale)))
    return f"{'+' if value >= 0 else MINUS}{abs(value) / scale:,.{digits}f}"
