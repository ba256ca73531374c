"""The tasks of a step as a Gantt chart: one lane per stream, coloured by category.

A page has a budget of bars, so that it stays below two megabytes and is drawn in two seconds. Short bars
are joined by kind until they fit (`studies.timeline`). Those of a step that is too long even so are cut off
at one time for all lanes: bars missing here and there would look like idle time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from perfsim.graph.task_graph import computes
from perfsim.prediction.result import TimelineBar
from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table
from perfsim.studies.result import CandidateResult
from perfsim.studies.timeline import grouped

MAX_BARS = 9000
MAX_STEPS = 2
_NOT_QUITE_OPAQUE = 0.99
PIXELS = 1000
"""Of a timeline's width."""
_OUTLINED = 150
"""Up to so many bars of a category have an outline; of thinner ones it would hide the colour."""


@dataclass(frozen=True, slots=True)
class CutTimeline:
    """The bars that are drawn, and how many of the candidate's bars are not."""

    bars: tuple[TimelineBar, ...]
    left_out: int

    def note(self) -> str:
        """How many bars are missing, or of how many tasks bars are; empty where every task has its own."""
        tasks = sum(bar.tasks for bar in self.bars)
        if not self.left_out:
            drawn = f"{text.integer(tasks)} tasks are drawn as {text.integer(len(self.bars))} bars"
            joined = "short neighbours of one kind are one, idle time after it; a tooltip has their number"
            return f"{drawn}: {joined}." if tasks > len(self.bars) else ""
        until = text.duration(max((bar.start_s for bar in self.bars), default=0.0))
        return f"{text.integer(self.left_out)} bars after {until} are not drawn."


def shared(candidates: Sequence[CandidateResult], budget: int = MAX_BARS) -> list[CandidateResult]:
    """The candidates with their short bars joined by kind, so that all together fit a budget of bars."""
    shares = _fair_shares([len(candidate.timeline) for candidate in candidates], budget)
    return [
        replace(candidate, timeline=grouped(candidate.timeline, share))
        for candidate, share in zip(candidates, shares, strict=True)
    ]


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
    kept = {bar.lane for bar in bars}
    lanes = [lane for lane in _lanes(candidate.timeline) if lane in kept]
    categories = list(dict.fromkeys(bar.category for bar in bars))
    styles = base.part_styles(categories)
    alone = _alone(bars)
    traces = [
        _bars([bar for bar in bars if bar.category == category], category, styles[category], scale, alone)
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


def _lanes(bars: Sequence[TimelineBar]) -> list[str]:
    """The lanes in the order of their first bars, those of a device that computes below its computation."""
    lanes = list(dict.fromkeys(bar.lane for bar in bars))

    def home(lane: str) -> str:
        owner = lane.split("/", 1)[0]
        return owner if f"{owner}/compute" in lanes else lane

    homes = list(dict.fromkeys(map(home, lanes)))
    return sorted(lanes, key=lambda lane: (homes.index(home(lane)), not computes(lane)))


def _alone(bars: Sequence[TimelineBar]) -> set[TimelineBar]:
    """The bars that are narrower than a pixel and have no neighbour within two."""
    pixel_s = max((bar.end_s for bar in bars), default=0.0) / PIXELS
    lanes: dict[str, list[TimelineBar]] = {}
    for bar in sorted(bars, key=lambda bar: bar.start_s):
        lanes.setdefault(bar.lane, []).append(bar)
    thin = set()
    for lane in lanes.values():
        before_s = [-math.inf, *(bar.end_s for bar in lane)]
        after_s = [*(bar.start_s for bar in lane[1:]), math.inf]
        for bar, before, after in zip(lane, before_s, after_s, strict=False):
            if (
                bar.end_s - bar.start_s < pixel_s
                and min(bar.start_s - before, after - bar.end_s) > 2 * pixel_s
            ):
                thin.add(bar)
    return thin


def _bars(
    bars: Sequence[TimelineBar],
    category: str,
    marker: dict[str, Any],
    scale: float,
    alone: set[TimelineBar],
) -> Any:
    """The bars of a category. Those in `alone` have an outline, without which nobody would see them."""
    width = 0.5 if len(bars) <= _OUTLINED else 0.0
    edge: dict[str, Any] = {"width": width, "color": "rgba(60,60,60,0.45)"}
    if not width and any(bar in alone for bar in bars):
        edge = {"width": [float(bar in alone) for bar in bars], "color": marker["color"]}
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
        text=[_work(bar) for bar in bars],
        textposition="none",
        hovertemplate="<b>%{customdata[0]}</b><br>%{text}<br>from %{customdata[1]}, takes %{customdata[2]}"
        "<extra></extra>",
    )


def _name(bar: TimelineBar) -> str:
    return bar.name if bar.microbatch < 0 else f"{bar.name}, micro-batch {bar.microbatch}"


def _work(bar: TimelineBar) -> str:
    """The layers, FLOPs and bytes of a bar, and of how many tasks it is."""
    details = [
        _layers(bar.layers) if bar.layers else "",
        base.si(bar.flop, "FLOP") if bar.flop else "",
        base.si(bar.n_bytes, "B") if bar.n_bytes else "",
        text.counted(bar.tasks, "task"),
    ]
    return ", ".join(filter(None, details))


def _layers(layers: tuple[int, int]) -> str:
    low, high = layers
    return f"layer {low}" if low == high else f"layers {low} to {high}"


def _round(value: float) -> float:
    """Six digits, so that no bar gets a length of zero."""
    return float(f"{value:.6g}")


def timeline_table(candidate: CandidateResult) -> Table:
    """Busy seconds by lane and category, of all bars and not only of those drawn."""
    busy: dict[tuple[str, str], list[TimelineBar]] = {}
    for bar in candidate.timeline:
        busy.setdefault((bar.lane, bar.category), []).append(bar)
    rows = [
        [
            lane,
            text.human(category),
            text.integer(sum(bar.tasks for bar in bars)),
            text.duration(sum(bar.end_s - bar.start_s for bar in bars)),
            base.si(sum(bar.flop for bar in bars), "FLOP"),
            base.si(sum(bar.n_bytes for bar in bars), "B"),
        ]
        for (lane, category), bars in busy.items()
    ]
    caption = (
        "Tasks and busy time by stream. Bytes are those that communication sends, and those that computation "
        "moves in the device's memory."
    )
    columns = ("stream", "category", "tasks", "busy", "FLOPs", "bytes")
    return Table(columns, rows, caption, frozenset({2, 3, 4, 5}))


def timeline_alt(candidate: CandidateResult, label: str) -> str:
    """The number of streams and the length of the step, in words."""
    lanes = len({bar.lane for bar in candidate.timeline})
    return f"Gantt chart of {label}: {lanes} streams over a step of {text.duration(candidate.step_time_s)}."
