"""How much longer or shorter a step becomes under each variant."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table
from perfsim.studies.answers import CandidateResult, StudyResult
from perfsim.studies.scaling import Series
from perfsim.studies.timeline import TimelineBar, grouped
from perfsim.studies.variants import Change
from perfsim.work.graph import computes

# Stacked horizontal bars: what each step is made of, in per cent of itself.


def _stacked_shares(
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


# Where the seconds of many steps go, by cause, as shares of each step.


@dataclass(frozen=True, slots=True)
class PartsRow:
    """A step under a name: its seconds by cause, and the sentence on them."""

    name: str
    step_time_s: float
    parts_s: Mapping[str, float]
    sentence: str = ""


def parts_figure(rows: Sequence[PartsRow]) -> go.Figure:
    """Stacked horizontal bars in per cent of each step; seconds on hover."""
    names = [_numbered(index, row.name) for index, row in enumerate(rows)]
    return _stacked_shares(
        "Step time by cause (% of the step)",
        names,
        [row.parts_s for row in rows],
        [row.step_time_s for row in rows],
        height=170 + base.row_px(names, 34) * len(rows),
        bargap=0.3,
    )


def _numbered(index: int, name: str) -> str:
    """The name in lines; an invisible suffix keeps equal names apart."""
    return base.two_lines(name) + "\u200b" * index


def parts_table(rows: Sequence[PartsRow]) -> Table:
    """Seconds and shares of every cause, and the sentence."""
    order = base.union([row.parts_s for row in rows])
    cells = [
        [row.name, text.duration(row.step_time_s), *(_parts_cell(row, part) for part in order), row.sentence]
        for row in rows
    ]
    return Table(["", "step", *order, "why"], cells, "", frozenset(range(1, 2 + len(order))))


def _parts_cell(row: PartsRow, part: str) -> str:
    seconds = row.parts_s.get(part, 0.0)
    return f"{text.duration(seconds)} ({text.percent(seconds / row.step_time_s)})" if seconds else text.NONE


def parts_alt(rows: Sequence[PartsRow]) -> str:
    """The share of computing in each row."""
    words = (f"{row.name}: {text.percent(row.parts_s.get('compute', 0.0) / row.step_time_s)}" for row in rows)
    return f"Stacked bars of the step time by cause; computing takes: {'; '.join(words)}."


# Where the seconds of a step go, as a share of each candidate's own step.


def step_breakdown(result: StudyResult) -> go.Figure:
    """Stacked horizontal bars, one per candidate, in per cent of the step; seconds on hover."""
    names = [base.wrapped(name) for name in text.names(result.candidates)]
    parts = [candidate.breakdown_s for candidate in result.candidates]
    return _stacked_shares(
        "Step time by what it is spent on (% of the step)",
        names,
        parts,
        [candidate.step_time_s for candidate in result.candidates],
        height=160 + base.row_px(names, 58) * len(names),
        bargap=0.35,
        called=text.human,
    )


def step_breakdown_table(result: StudyResult) -> Table:
    """Seconds and share of every part."""
    parts = [candidate.breakdown_s for candidate in result.candidates]
    order = base.union(parts)
    rows = []
    for name, candidate, values in zip(text.labels(result.candidates), result.candidates, parts, strict=True):
        cells = [_cell(values.get(part, 0.0), candidate.step_time_s) for part in order]
        rows.append([name, text.duration(candidate.step_time_s), *cells])
    columns = ["candidate", "step", *(text.human(part) for part in order)]
    caption = "Seconds of each part and its share of the step."
    return Table(columns, rows, caption, frozenset(range(1, len(columns))))


def _cell(seconds: float, step_s: float) -> str:
    return f"{text.duration(seconds)} ({text.percent(seconds / step_s)})" if seconds else text.NONE


def step_breakdown_alt(result: StudyResult) -> str:
    """The largest parts of each candidate in words."""
    sentences = []
    for name, candidate in zip(text.labels(result.candidates), result.candidates, strict=True):
        largest = sorted(candidate.breakdown_s.items(), key=lambda item: -item[1])[:3]
        words = ", ".join(
            f"{text.human(part)} {text.percent(s / candidate.step_time_s)}" for part, s in largest
        )
        sentences.append(f"{name}: {words}")
    return f"Stacked bars of the step time. {'; '.join(sentences)}."


# The tasks of a step as a Gantt chart: one lane per stream, coloured by category.
#
# A page has a budget of bars, so that it stays below two megabytes and is drawn in two seconds. Short bars
# are joined by kind until they fit (`studies.timeline`). Those of a step that is too long even so are cut
# off
# at one time for all lanes: bars missing here and there would look like idle time.

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


# From the step of one machine to that of another, in seconds for the same tokens.

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
    at = own.ends_s[0]
    starts = [0.0]
    sizes = [own.ends_s[0]]
    colours = [base.GREY]
    for change in own.changes_s.values():
        starts.append(min(at, at + change))
        sizes.append(abs(change))
        colours.append(base.GREEN if change < 0 else base.VERMILLION)
        at += change
    starts.append(0.0)
    sizes.append(own.ends_s[1])
    colours.append(base.GREY)
    written = [
        _waterfall_seconds(own.ends_s[0], scale),
        *(_signed(change, own, scale) for change in own.changes_s.values()),
    ]
    written.append(_waterfall_seconds(own.ends_s[1], scale))
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
        [own.names[0], _waterfall_seconds(own.ends_s[0], scale)],
        *([text.human(part), _signed(change, own, scale)] for part, change in own.changes_s.items()),
        [own.names[1], _waterfall_seconds(own.ends_s[1], scale)],
    ]
    return Table(("", f"step, {unit}"), rows, f"For {text.large(own.tokens)} tokens.", frozenset({1}))


def waterfall_alt(own: Bridge) -> str:
    """The ends and differences in words."""
    unit, scale = text.time_unit([max(own.ends_s)])
    words = ", ".join(
        f"{text.human(part)} {_signed(change, own, scale)}" for part, change in own.changes_s.items()
    )
    ends = [
        f"{name} {_waterfall_seconds(end, scale)} {unit}"
        for name, end in zip(own.names, own.ends_s, strict=True)
    ]
    return f"Bars from {ends[0]} to {ends[1]} for the same tokens: {words}."


def _waterfall_seconds(value: float, scale: float) -> str:
    return text.number(value / scale)


def _signed(value: float, own: Bridge, scale: float) -> str:
    """A difference with a sign, all of a figure with as many digits."""
    digits = max(0, 3 - math.floor(math.log10(max(own.ends_s) / scale)))
    return f"{'+' if value >= 0 else MINUS}{abs(value) / scale:,.{digits}f}"


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
    low = min([0.0, *values])
    high = max([0.0, *values])
    room = 0.32 * max(high - low, 1.0)
    return [low - (room if low < 0 else 0.0), high + 1.7 * room]


def _percent(change: Change) -> str:
    return f"{100.0 * (change.ratio - 1.0):+.1f} %"


def _seconds(change: Change) -> str:
    before = change.base.prediction.step_time_s
    after = change.point.prediction.step_time_s
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
