"""One step in figures: its parts, its tasks over time, and what makes one step longer than another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Cell, Table
from perfsim.studies.answers import CandidateResult, StudyResult
from perfsim.studies.timeline import TimelineBar, grouped
from perfsim.studies.variants import Change
from perfsim.work.graph import computes

# What steps are made of, in per cent of each step.


def parts_table(rows: Sequence[tuple[str, float, Mapping[str, float], str]]) -> Table:
    """The seconds of each part and its share of the step, of steps given as (name, seconds, parts, why)."""
    order = base.union(parts for _, _, parts, _ in rows)
    says_why = any(why for *_, why in rows)
    return Table.of(
        {
            "candidate": None,
            "step": text.TIME,
            **{text.human(part): text.TIME for part in order},
            **({"why": None} if says_why else {}),
        },
        (
            [
                name,
                step_s,
                *(
                    Cell(parts[part], note=f"({text.percent(parts[part] / step_s)})")
                    if parts.get(part)
                    else None
                    for part in order
                ),
                *([why] if says_why else []),
            ]
            for name, step_s, parts, why in rows
        ),
        "Seconds of each part and its share of the step.",
    )


def breakdown_table(result: StudyResult) -> Table:
    """The parts of the step of every candidate."""
    return parts_table(
        [(name, own.step_time_s, own.breakdown_s, "") for name, own in text.named(result.candidates)]
    )


def step_shares(table: Table) -> go.Figure:
    """Stacked horizontal bars, one a row of `parts_table`, in per cent of the step; seconds on hover."""
    steps_s = [cell.number for cell in table.column("step")]
    # An invisible suffix keeps equal names apart.
    names = [
        base.in_lines(str(cell.value)) + "\u200b" * row for row, cell in enumerate(table.column("candidate"))
    ]
    parts = [column.name for column in table.columns[2:] if column.unit]
    styles = base.part_styles(parts)
    traces = []
    for part in parts:
        seconds = [cell.number if cell.value else 0.0 for cell in table.column(part)]
        traces.append(
            go.Bar(
                orientation="h",
                name=base.esc(part),
                y=names,
                x=[round(100 * own / step_s, 4) for own, step_s in zip(seconds, steps_s, strict=True)],
                marker=styles[part],
                customdata=[text.duration(own) for own in seconds],
                hovertemplate="<b>%{fullData.name}</b><br>%{customdata}, %{x:.1f} % of the step"
                "<extra>%{y}</extra>",
            )
        )
    style = base.layout(
        "Step time by what it is spent on (% of the step)",
        height=160 + base.row_px(names, 44) * len(names),
        barmode="stack",
        bargap=0.3,
        xaxis=base.axis("share of the step (%)", range=[0, 101]),
        yaxis=base.axis("", autorange="reversed"),
    )
    style["legend"]["traceorder"] = "normal"
    return go.Figure(traces, style)


# The tasks of a step as a Gantt chart: one lane per stream, coloured by category.
#
# A page has a budget of bars, so that it stays below two megabytes and is drawn in two seconds. Short bars
# are joined by kind until they fit. Those of a step that is too long even so are cut off at one time for
# all lanes: bars missing here and there would look like idle time.

MAX_BARS = 9000
MAX_STEPS = 2
_NOT_QUITE_OPAQUE = 0.99
PIXELS = 1000
"""Of a timeline's width."""
_OUTLINED = 150
"""Up to so many bars of a category have an outline; of thinner ones it would hide the colour."""


@dataclass(frozen=True, slots=True)
class DrawnTimeline:
    """The bars of a step that are drawn, and how many bars are not."""

    bars: tuple[TimelineBar, ...]
    left_out: int = 0

    @property
    def note(self) -> str:
        """How many bars are missing, or of how many tasks bars are; empty where every task has its own."""
        tasks = sum(bar.tasks for bar in self.bars)
        if self.left_out:
            until = text.duration(max((bar.start_s for bar in self.bars), default=0.0))
            return f"{text.integer(self.left_out)} bars after {until} are not drawn."
        if tasks == len(self.bars):
            return ""
        return (
            f"{text.integer(tasks)} tasks are drawn as {text.integer(len(self.bars))} bars: short neighbours "
            "of one kind are one, idle time after it; a tooltip has their number."
        )


def timelines(candidates: Sequence[CandidateResult], budget: int = MAX_BARS) -> list[DrawnTimeline]:
    """At most two steps of each candidate, short bars joined by kind, within a budget of bars for all."""
    shares = _fair_shares([len(candidate.timeline) for candidate in candidates], budget)
    drawn = []
    for candidate, share in zip(candidates, shares, strict=True):
        bars = grouped(candidate.timeline, share)
        start_s = min((bar.start_s for bar in bars), default=0.0)
        end_s = start_s + MAX_STEPS * candidate.step_time_s * (1 + 1e-9)
        kept = sorted((bar for bar in bars if bar.start_s < end_s), key=lambda bar: (bar.start_s, bar.end_s))[
            :share
        ]
        drawn.append(DrawnTimeline(tuple(kept), len(bars) - len(kept)))
    return drawn


def _fair_shares(counts: Sequence[int], budget: int) -> list[int]:
    """Max-min fair shares: small counts in full, large ones share the rest."""
    shares = [0] * len(counts)
    order = sorted(range(len(counts)), key=lambda i: counts[i])
    for done, i in enumerate(order):
        shares[i] = min(counts[i], budget // (len(counts) - done))
        budget -= shares[i]
    return shares


def timeline(candidate: CandidateResult, bars: Sequence[TimelineBar]) -> go.Figure:
    """One lane per stream in the order given by the candidate, time from left to right."""
    unit = text.time_unit([max((bar.end_s for bar in bars), default=1.0)])
    kept = {bar.lane for bar in bars}
    lanes = [lane for lane in _lanes(candidate.timeline) if lane in kept]
    categories = list(dict.fromkeys(bar.category for bar in bars))
    styles = base.part_styles(categories)
    alone = _alone(bars)
    traces = [
        _bars(
            [bar for bar in bars if bar.category == category], category, styles[category], unit.scale, alone
        )
        for category in categories
    ]
    style = base.layout(
        f"Tasks of each stream over time ({unit.name})",
        height=150 + 24 * len(lanes),
        barmode="overlay",
        bargap=0.2,
        dragmode="zoom",
        xaxis=base.axis(
            f"time since the start of the step ({unit.name})", fixedrange=False, rangemode="tozero"
        ),
        yaxis=base.axis(
            "", categoryorder="array", categoryarray=[base.esc(n) for n in lanes], autorange="reversed"
        ),
    )
    style["legend"]["traceorder"] = "normal"
    return go.Figure(traces, style)


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
        base=[base.rounded(bar.start_s / scale) for bar in bars],
        x=[base.rounded((bar.end_s - bar.start_s) / scale) for bar in bars],
        marker=flat,
        # Plotly's x of a bar with a base is where it ends, so what it takes is written out.
        customdata=[
            [
                base.esc(bar.name if bar.microbatch < 0 else f"{bar.name}, micro-batch {bar.microbatch}"),
                text.duration(bar.start_s),
                text.duration(bar.end_s - bar.start_s),
            ]
            for bar in bars
        ],
        text=[_work(bar) for bar in bars],
        textposition="none",
        hovertemplate="<b>%{customdata[0]}</b><br>%{text}<br>from %{customdata[1]}, takes %{customdata[2]}"
        "<extra></extra>",
    )


def _work(bar: TimelineBar) -> str:
    """The layers, FLOPs and bytes of a bar, and of how many tasks it is."""
    layers = ""
    if bar.layers:
        low, high = bar.layers
        layers = f"layer {low}" if low == high else f"layers {low} to {high}"
    details = [
        layers,
        text.si(bar.flop, "FLOP") if bar.flop else "",
        text.si(bar.n_bytes, "B") if bar.n_bytes else "",
        text.counted(bar.tasks, "task"),
    ]
    return ", ".join(filter(None, details))


def timeline_table(candidate: CandidateResult) -> Table:
    """Busy seconds by lane and category, of all bars and not only of those drawn."""
    busy: dict[tuple[str, str], list[TimelineBar]] = {}
    for bar in candidate.timeline:
        busy.setdefault((bar.lane, bar.category), []).append(bar)
    return Table.of(
        {
            "stream": None,
            "category": None,
            "tasks": text.COUNT,
            "busy": text.TIME,
            "FLOPs": text.FLOP,
            "bytes": text.BYTES,
        },
        (
            (
                lane,
                text.human(category),
                sum(bar.tasks for bar in bars),
                sum(bar.end_s - bar.start_s for bar in bars),
                sum(bar.flop for bar in bars),
                sum(bar.n_bytes for bar in bars),
            )
            for (lane, category), bars in busy.items()
        ),
        "Tasks and busy time by stream. Bytes are those that communication sends, and those that computation "
        "moves in the device's memory.",
    )


# From the step of one machine to that of another, in seconds for the same tokens.

MINUS = "\u2212"
SMALL = 0.02
"""Differences below this share of the longer step are drawn as one."""


def bridge_table(names: tuple[str, str], before: CandidateResult, after: CandidateResult) -> Table:
    """From the step of `before`, scaled to the tokens of a step of `after`, to that of `after`.

    The first and last row are the two steps, those between the signed differences of their parts.
    """
    tokens = after.tokens_per_s * after.step_time_s
    factor = tokens / (before.tokens_per_s * before.step_time_s)
    ends_s = factor * before.step_time_s, after.step_time_s
    changes_s = {
        part: after.breakdown_s.get(part, 0.0) - factor * before.breakdown_s.get(part, 0.0)
        for part in base.union([before.breakdown_s, after.breakdown_s])
    }
    shown = sorted((change, part) for part, change in changes_s.items() if abs(change) >= SMALL * max(ends_s))
    rest = ends_s[1] - ends_s[0] - sum(change for change, _ in shown)
    if abs(rest) > 1e-9 * max(ends_s):
        shown.append((rest, "all others"))
    unit = text.time_unit([max(ends_s)])
    digits = max(0, 3 - math.floor(math.log10(max(ends_s) / unit.scale)))
    signed = text.Unit(
        unit.name, unit.scale, lambda value: f"{'+' if value >= 0 else MINUS}{abs(value):,.{digits}f}"
    )
    return Table.of(
        {"": None, "step": unit},
        [
            (names[0], ends_s[0]),
            *((text.human(part), Cell(change, unit=signed)) for change, part in shown),
            (names[1], ends_s[1]),
        ],
        f"For {text.large(tokens)} tokens.",
    )


def waterfall(table: Table) -> go.Figure:
    """A bar for each end of `bridge_table`, and between them a floating bar for each difference."""
    first, *changes, last = table.column("step")
    unit = table.columns[1].unit or text.TIME
    at = first.number
    starts = [0.0]
    for change in changes:
        starts.append(min(at, at + change.number))
        at += change.number
    starts.append(0.0)
    sizes = [abs(cell.number) for cell in (first, *changes, last)]
    written = [table.text(cell, table.columns[1]) for cell in (first, *changes, last)]
    colours = [base.GREEN if change.number < 0 else base.VERMILLION for change in changes]
    bars = go.Bar(
        orientation="h",
        y=[base.esc(row[0].value) for row in table.rows],
        base=[round(start / unit.scale, 6) for start in starts],
        x=[round(size / unit.scale, 6) for size in sizes],
        marker={"color": [base.GREY, *colours, base.GREY]},
        text=written,
        textposition="outside",
        cliponaxis=False,
        hovertemplate="<b>%{y}</b><br>%{text}<extra></extra>",
        showlegend=False,
    )
    reach = max(start + size for start, size in zip(starts, sizes, strict=True)) / unit.scale
    style = base.layout(
        f"Step time for the same tokens ({unit.name})",
        height=130 + 34 * len(sizes),
        bargap=0.3,
        xaxis=base.axis(unit.name, range=[0, 1.4 * reach]),
        yaxis=base.axis("", autorange="reversed"),
    )
    return go.Figure([bars], style)


# How much longer or shorter a step becomes under each variant, and the time to the target of each.


def change_table(changes: Mapping[str, Sequence[Change]]) -> Table:
    """Every variant in every group, the largest effect first: its step, the change, and what limits it."""
    known = [
        (group, change)
        for group, (first, *others) in changes.items()
        for change in [first, *sorted(others, key=lambda own: -max(own.ratio, 1.0 / own.ratio))]
    ]
    points = [change.point for _, change in known]
    unit = text.time_unit(point.target_time.time_s for point in points)
    step = text.time_unit([max((point.prediction.step_time_s for point in points), default=1.0)])
    columns = {
        "in common": None,
        "variant": None,
        "machine": None,
        "batch": text.COUNT,
        "step": step,
        "MFU": text.WHOLE_SHARE,
        "change": text.CHANGE,
        "time": unit,
        "wall": unit,
        "policy changed": None,
        "limited by": None,
        "nearest remedy": None,
    }
    rows = (
        (
            *(group, change.point.variant, change.point.machine),
            change.point.prediction.global_batch_size,
            change.point.prediction.step_time_s,
            change.point.prediction.mfu,
            Cell(None)
            if change.point is change.base
            else Cell(change.ratio - 1.0, note="*" if change.policy else ""),
            Cell(change.point.target_time.time_s, change.point.target_time.band_s),
            change.point.prediction.wall_s,
            change.policy or None,
            change.point.prediction.why.cause,
            change.point.prediction.why.remedy,
        )
        for group, change in known
    )
    caption = "Changes are relative to the first variant of each group. * the planner's policy changed too."
    return Table.of(columns, rows, caption)


def change_bars(table: Table) -> go.Figure:
    """Horizontal bars of `change_table` in per cent, the largest first, one colour a group."""
    table = table.only("in common", "variant", "step", "change", "policy changed")
    step = table.columns[2].unit or text.TIME
    groups: dict[str, dict[str, Sequence[Cell]]] = {}
    effects: dict[str, float] = {}
    for row in table.rows:
        name = str(row[1].value)
        groups.setdefault(str(row[0].value), {})[name] = row
        if row[3].value is not None:
            ratio = 1.0 + row[3].number
            effects[name] = max(ratio, 1.0 / ratio, effects.get(name, 0.0))
    names = sorted(effects, key=lambda name: -effects[name])
    traces = []
    values = [0.0]
    for index, (group, rows) in enumerate(groups.items()):
        before = step.text(next(iter(rows.values()))[2].number)
        drawn = [rows[name] for name in names if name in rows and rows[name][3].value is not None]
        values += [100.0 * row[3].number for row in drawn]
        traces.append(
            go.Bar(
                orientation="h",
                name=base.esc(group),
                y=[base.in_lines(str(row[1].value)) for row in drawn],
                x=[round(100.0 * row[3].number, 4) for row in drawn],
                marker={"color": base.series_style(index)["color"]},
                text=[table.text(row[3], table.columns[3]) for row in drawn],
                textposition="outside",
                cliponaxis=False,
                customdata=[
                    f"{before} to {step.text(row[2].number)}"
                    + (f"<br>policy changed: {base.esc(row[4].value)}" if row[4].value else "")
                    for row in drawn
                ],
                hovertemplate="<b>%{y}</b><br>%{customdata} (%{text})<extra>%{fullData.name}</extra>",
            )
        )
    low = min(values)
    high = max(values)
    room = 0.32 * max(high - low, 1.0)  # for what is written next to the bars
    style = base.layout(
        "Change of the step time (%)",
        height=170 + 14 * len(names) + 22 * len(names) * max(1, len(groups)),
        barmode="group",
        bargap=0.25,
        xaxis=base.axis(
            "change of the step time (%)", range=[low - (room if low < 0 else 0.0), high + 1.7 * room]
        ),
        yaxis=base.axis("", autorange="reversed"),
    )
    return go.Figure(traces, style)


def time_dots(table: Table) -> go.Figure:
    """One dot with its 90 % band for every row of a table of series, on a logarithmic axis of time."""
    table = table.only("series", "steps", "step", "time")
    unit = table.columns[3].unit or text.TIME
    step = table.columns[2].unit or text.TIME
    names = [base.in_lines(str(row[0].value)) for row in table.rows]
    times = [cell.number / unit.scale for cell in table.column("time")]
    ends = [[end / unit.scale for end in cell.band or ()] for cell in table.column("time")]
    dots = go.Scatter(
        x=list(map(base.rounded, times)),
        y=names,
        mode="markers",
        marker={"color": base.BLUE, "size": 9},
        error_x=base.error_bars(times, ends, base.GREY),
        customdata=[
            f"{unit.text(row[3].number, row[3].band)}, {text.integer(row[1].number)} steps of "
            f"{step.text(row[2].number)}"
            for row in table.rows
        ],
        hovertemplate="<b>%{y}</b><br>%{customdata}<extra></extra>",
        showlegend=False,
    )
    style = base.layout(
        f"Time to the target ({unit.name})",
        height=150 + base.row_px(names, 38) * len(names),
        xaxis=base.log_axis(f"time to the target ({unit.name})", [end for band in ends for end in band]),
        yaxis=base.axis("", autorange="reversed"),
    )
    return go.Figure([dots], style)
