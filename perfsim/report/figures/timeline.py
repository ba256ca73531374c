"""The tasks of a step as a Gantt chart: one lane per stream, coloured by category.

A browser draws some 10,000 bars in two seconds and takes seven for 50,000, so a page has a budget
of bars. Bars beyond it are cut off at one time for all lanes: bars missing here and there would look
like idle time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from perfsim.prediction.result import TimelineBar
from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table
from perfsim.studies.result import CandidateResult

MAX_BARS = 8000
MAX_STEPS = 2
_NOT_QUITE_OPAQUE = 0.99
_OUTLINED = 150
"""Up to so many bars of a category have an outline; of thinner ones it would hide the colour."""


@dataclass(frozen=True, slots=True)
class CutTimeline:
    """The bars that are drawn, and how many of the candidate's bars are not."""

    bars: tuple[TimelineBar, ...]
    left_out: int

    def note(self) -> str:
        """How many bars are missing; empty without any."""
        if not self.left_out:
            return ""
        until = text.duration(max((bar.start_s for bar in self.bars), default=0.0))
        return f"{text.integer(self.left_out)} bars after {until} are not drawn."


def cut_timelines(candidates: Sequence[CandidateResult], budget: int = MAX_BARS) -> list[CutTimeline]:
    """At most two steps of each candidate and `budget` bars of all, shared fairly."""
    timelines = [_two_steps(candidate) for candidate in candidates]
    shares = _fair_shares([len(bars) for bars in timelines], budget)
    return [
        CutTimeline(bars[:share], len(candidate.timeline) - len(bars[:share]))
        for candidate, bars, share in zip(candidates, timelines, shares, strict=True)
    ]


def _two_steps(candidate: CandidateResult) -> tuple[TimelineBar, ...]:
    start = min((bar.start_s for bar in candidate.timeline), default=0.0)
    end = start + MAX_STEPS * candidate.step_time_s * (1 + 1e-9)
    kept = [bar for bar in candidate.timeline if bar.start_s < end]
    return tuple(sorted(kept, key=lambda bar: (bar.start_s, bar.end_s)))


def _fair_shares(counts: Sequence[int], budget: int) -> list[int]:
    """Max-min fair shares: small counts in full, large ones share the rest."""
    shares = [0] * len(counts)
    left = budget
    order = sorted(range(len(counts)), key=lambda i: counts[i])
    for done, i in enumerate(order):
        shares[i] = min(counts[i], left // (len(counts) - done))
        left -= shares[i]
    return shares


def timeline(candidate: CandidateResult, bars: Sequence[TimelineBar]) -> go.Figure:
    """One lane per stream in the order given by the candidate, time from left to right."""
    unit, scale = text.time_unit([max((bar.end_s for bar in bars), default=1.0)])
    lanes = list(dict.fromkeys(bar.lane for bar in candidate.timeline))
    kept = {bar.lane for bar in bars}
    lanes = [lane for lane in lanes if lane in kept]
    categories = list(dict.fromkeys(bar.category for bar in bars))
    styles = base.part_styles(categories)
    traces = [
        _bars([bar for bar in bars if bar.category == category], category, styles[category], scale)
        for category in categories
    ]
    style = base.layout(
        f"Tasks of each stream over time ({unit})",
        height=150 + 24 * len(lanes),
        barmode="overlay",
        bargap=0.2,
        dragmode="zoom",
        xaxis=base.axis(f"time since the start of the step ({unit})", fixedrange=False, rangemode="tozero"),
        yaxis=base.axis(
            "", categoryorder="array", categoryarray=[base.esc(n) for n in lanes], autorange="reversed"
        ),
    )
    style["legend"]["traceorder"] = "normal"
    return base.figure(traces, style)


def _bars(bars: Sequence[TimelineBar], category: str, marker: dict[str, Any], scale: float) -> Any:
    edge = {"width": 0.5 if len(bars) <= _OUTLINED else 0, "color": "rgba(60,60,60,0.45)"}
    # Plotly widens an opaque bar without outline to a whole pixel, which would hide its neighbours.
    flat = {"color": base.translucent(marker["color"], _NOT_QUITE_OPAQUE), "line": edge}
    if "pattern" in marker:
        flat["pattern"] = marker["pattern"]
    return go.Bar(
        orientation="h",
        name=base.esc(text.human(category)),
        y=[base.esc(bar.lane) for bar in bars],
        base=[_round(bar.start_s / scale) for bar in bars],
        x=[_round((bar.end_s - bar.start_s) / scale) for bar in bars],
        marker=flat,
        # Plotly's x of a bar with a base is where it ends, so what it takes is written out.
        customdata=[
            [base.esc(_name(bar)), text.duration(bar.start_s), text.duration(bar.end_s - bar.start_s)]
            for bar in bars
        ],
        hovertemplate="<b>%{customdata[0]}</b><br>from %{customdata[1]}, takes %{customdata[2]}"
        "<extra></extra>",
    )


def _name(bar: TimelineBar) -> str:
    return bar.name if bar.microbatch < 0 else f"{bar.name}, micro-batch {bar.microbatch}"


def _round(value: float) -> float:
    return round(value, 5)


def timeline_table(candidate: CandidateResult) -> Table:
    """Busy seconds by lane and category, of all bars and not only of those drawn."""
    busy: dict[tuple[str, str], list[float]] = {}
    for bar in candidate.timeline:
        busy.setdefault((bar.lane, bar.category), []).append(bar.end_s - bar.start_s)
    rows = [
        [lane, text.human(category), text.integer(len(spans)), text.duration(sum(spans))]
        for (lane, category), spans in busy.items()
    ]
    caption = "Bars and busy time by stream; a bar may stand for a run of similar tasks."
    return Table(("stream", "category", "bars", "busy"), rows, caption, frozenset({2, 3}))


def timeline_alt(candidate: CandidateResult, label: str) -> str:
    """The number of streams and the length of the step, in words."""
    lanes = len({bar.lane for bar in candidate.timeline})
    return f"Gantt chart of {label}: {lanes} streams over a step of {text.duration(candidate.step_time_s)}."
