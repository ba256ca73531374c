"""A machine in figures: its memory, the use of its network, its roofline, and its drawn network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from perfsim.costs.memory import MemoryUse
from perfsim.network.export import Cables, NetworkMap, Place
from perfsim.prediction.why import ATTENTION, ELEMENTWISE, PRODUCT, UPDATE, LinkUse, Roofline
from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Cell, Table
from perfsim.studies.answers import StudyResult

# What each pipeline stage or wafer holds at its peak, against its capacity.

_ROW_PX = 44
_GAP_PX = 92
_FRAME_PX = 150


def memory_table(result: StudyResult) -> Table:
    """Every place with its parts, total and capacity; neighbours that hold exactly the same share a row."""
    rows: list[tuple[str, str, MemoryUse]] = []
    for name, candidate in text.named(result.candidates):
        runs: list[list[MemoryUse]] = []
        for bar in candidate.memory:
            if runs and _held(runs[-1][0]) == _held(bar):
                runs[-1].append(bar)
            else:
                runs.append([bar])
        for first, *others in runs:
            place = f"{first.place} to {others[-1].place.split(' ')[-1]}" if others else first.place
            rows.append((name, place, first))
    order = base.union(bar.parts_bytes for *_, bar in rows)
    unit = text.memory_unit(*(bar.capacity_bytes for *_, bar in rows))
    cells = []
    for name, place, bar in rows:
        total = sum(bar.parts_bytes.values())
        share = f"({text.percent(total / bar.capacity_bytes)} of the capacity)"
        parts = [bar.parts_bytes.get(part) or None for part in order]
        cells.append([name, place, *parts, Cell(total, note=share), bar.capacity_bytes])
    names = [*map(text.human, order), "total", "capacity"]
    columns = {"candidate": None, "place": None} | dict.fromkeys(names, unit)
    return Table.of(columns, cells, "Peak memory of one device.")


def _held(bar: MemoryUse) -> tuple[dict[str, float], float]:
    return dict(bar.parts_bytes), bar.capacity_bytes


def memory(table: Table) -> go.Figure:
    """Stacked bars of `memory_table`; one subplot for each capacity, all in one unit."""
    unit = table.columns[-1].unit or text.NUMBER
    groups = {rows[0][-1].number: rows for rows in table.by("capacity").values()}
    labels = {
        capacity: [f"{base.in_lines(str(row[0].value))}<br>{base.esc(row[1].value)}" for row in rows]
        for capacity, rows in groups.items()
    }
    heights = {capacity: base.row_px(own, _ROW_PX) * len(own) for capacity, own in labels.items()}
    inner = max(1, sum(heights.values()) + _GAP_PX * (len(groups) - 1))
    parts = table.columns[2:-2]
    styles = base.part_styles([part.name for part in parts])
    style = base.layout(
        f"Peak memory by what it holds ({unit.name})",
        height=_FRAME_PX + inner,
        barmode="stack",
        bargap=0.3,
        shapes=[],
        annotations=[],
    )
    style["legend"]["traceorder"] = "normal"
    traces: list[go.Bar] = []
    top = 1.0
    for index, (capacity, rows) in enumerate(groups.items()):
        suffix = str(index + 1) if index else ""
        known = {trace.name for trace in traces}
        traces += [
            go.Bar(
                orientation="h",
                name=base.esc(part.name),
                legendgroup=base.esc(part.name),
                showlegend=base.esc(part.name) not in known,
                y=labels[capacity],
                x=[round((row[place].number if row[place].value else 0.0) / unit.scale, 4) for row in rows],
                marker=styles[part.name],
                xaxis=f"x{suffix}",
                yaxis=f"y{suffix}",
                hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{x:.3g}} {unit.name}<extra>%{{y}}</extra>",
            )
            for place, part in enumerate(parts, start=2)
            if any(row[place].value for row in rows)
        ]
        limit = capacity / unit.scale if math.isfinite(capacity) else 0.0
        end = 1.1 * max([limit, *(row[-2].number / unit.scale for row in rows)])
        bottom = max(top - heights[capacity] / inner, 0.0)
        style[f"xaxis{suffix}"] = base.axis(f"{unit.name} per device", range=[0, end], anchor=f"y{suffix}")
        style[f"yaxis{suffix}"] = base.axis(
            "", autorange="reversed", domain=(round(bottom, 4), round(top, 4)), anchor=f"x{suffix}"
        )
        top = bottom - _GAP_PX / inner
        if limit:
            line = {"width": 2, "dash": "dash", "color": base.VERMILLION}
            at: dict[str, Any] = {"xref": f"x{suffix}", "yref": f"y{suffix} domain"}
            style["shapes"].append(
                at | {"type": "line", "x0": limit, "x1": limit, "y0": 0, "y1": 1, "line": line}
            )
            note = {"x": limit, "y": 1, "xanchor": "right", "yanchor": "bottom", "showarrow": False}
            style["annotations"].append(at | note | {"text": f"capacity {unit.text(capacity)}"})
    return go.Figure(traces, style)


# How much of the network each candidate's step uses, by kind of link.

KINDS = {
    "scale_up": "NVLink port",
    "host": "GPU to NIC",
    "nic": "NIC",
    "uplink": "leaf to spine",
    "io": "ports of a system",
    "swarmx": "SwarmX",
    "memoryx": "MemoryX to SwarmX",
    "server": "weight server",
    "dram": "DRAM of a server",
    "flash": "flash of a server",
    "feed": "activation server",
    "pcie": "PCIe",
    "nvme": "drives of a host",
}
"""Kinds of links in words, from the devices outwards."""


def network_table(result: StudyResult) -> Table:
    """Mean and peak use of every candidate and kind of link, in the order of `KINDS`, then others."""
    order = list(KINDS)
    return Table.of(
        {"candidate": None, "kind of link": None, "mean": text.SHARE, "peak": text.SHARE},
        (
            (name, KINDS.get(kind, text.human(kind)), use.mean, use.peak)
            for name, candidate in text.named(result.candidates)
            for kind, use in sorted(
                candidate.utilisation.items(),
                key=lambda item: order.index(item[0]) if item[0] in KINDS else len(KINDS),
            )
        ),
        "Mean: bytes of the step over what all links of the kind could carry in it, in both directions. "
        "Peak: the most that the busiest link carries at once.",
    )


def network_use(table: Table) -> go.Figure:
    """A bar of the mean for each row of `network_table`; a line marks the peak of the busiest link."""
    peaks = [100 * cell.number for cell in table.column("peak")]
    names = [
        [base.in_lines(str(row[0].value)) for row in table.rows],
        [base.esc(row[1].value) for row in table.rows],
    ]
    style = base.layout(
        "Use of the network by kind of link (% of capacity)",
        height=150 + 26 * len(peaks),
        bargap=0.35,
        xaxis=base.axis("share of capacity (%)", range=[0, 1.01 * max([100.0, *peaks])]),
        yaxis=base.axis("", autorange="reversed", type="multicategory"),
    )
    bars = go.Bar(
        orientation="h",
        y=names,
        x=[100 * cell.number for cell in table.column("mean")],
        name="mean over the step",
        marker={"color": base.BLUE},
        hovertemplate="%{x:.1f} % mean over the step<extra>%{y}</extra>",
    )
    marks = go.Scatter(
        y=names,
        x=peaks,
        name="peak of the busiest link",
        mode="markers",
        marker={"symbol": "line-ns", "size": 14, "line": {"width": 3, "color": base.VERMILLION}},
        hovertemplate="%{x:.1f} % peak of the busiest link<extra>%{y}</extra>",
    )
    return go.Figure([bars, marks], style)


def overload_note(table: Table) -> str:
    """What a peak above the capacity means; empty where there is none."""
    peak = max((cell.number for cell in table.column("peak")), default=0.0)
    if peak <= 1.0:
        return ""
    return (
        f"A peak of {text.percent(peak, 0)} is more than a link carries: samples, or updates in a weight "
        "server's memory, run at the same time as streamed weights, and in the simulation neither waits for "
        f"the other. While both run they would take up to {text.percent(peak - 1, 0)} longer."
    )


# The roofline of a device, with the kernels of its step as points.

LEAST = 5e-3
"""Kernels with less than this share of the time of all are in the table only."""
NUMBER_BYTES = 2.0
"""Of a number that a kernel without counted FLOPs reads or writes, each drawn as one FLOP."""
LOOKS = {
    PRODUCT: (base.BLUE, "circle"),
    ATTENTION: (base.PURPLE, "diamond"),
    ELEMENTWISE: (base.ORANGE, "square"),
    UPDATE: (base.GREEN, "triangle-up"),
}
LARGEST_PX = 44
SMALLEST_PX = 8
HEADROOM = 5
"""How far above the highest ceiling the figure ends, for labels."""


def roofline_table(own: Roofline) -> Table:
    """Every kind of kernel with its time, work and rates."""
    total_s = sum(kernel.time_s for kernel in own.kernels)
    columns = {
        "kernels": None,
        "kind": None,
        "time a step": text.TIME,
        "share": text.SHARE,
        "work": text.FLOP,
        "memory": text.BYTES,
        "FLOP per byte": text.NUMBER,
        "rate": text.FLOP_PER_S,
        "reach": None,
    }
    rows = []
    for kernel in own.kernels:
        rate = kernel.flop / kernel.time_s
        peak = own.peaks_flop_per_s.get(kernel.precision or "")
        of_memory = kernel.n_bytes / kernel.time_s / own.memory_bytes_per_s
        nearest = max((of_memory, "memory"), (rate / peak if peak else 0.0, f"{kernel.precision} peak"))
        precise = kernel.precision and kernel.kind != UPDATE and len(own.peaks_flop_per_s) > 1
        name = f"{kernel.name}, {kernel.precision}" if precise else kernel.name
        intensity = kernel.flop / kernel.n_bytes or None
        reach = f"{text.percent(nearest[0], 0)} of {nearest[1]}"
        shares = (kernel.time_s, kernel.time_s / total_s)
        rows.append((name, kernel.kind, *shares, kernel.flop, kernel.n_bytes, intensity, rate, reach))
    caption = "Sums over one device and step, forward, backward and recomputation together."
    return Table.of(columns, rows, caption)


def roofline(table: Table, own: Roofline) -> go.Figure:
    """The kernels of `roofline_table` as points sized by time, below the ceilings of their device."""
    points = [_Point(table, row) for row in table.rows if row[3].number >= LEAST]
    peak = max(own.peaks_flop_per_s.values(), default=max(point.y for point in points))
    ridge = peak / own.memory_bytes_per_s
    x_ends = (
        min(ridge / 8, *(point.x / 2.5 for point in points)),
        4 * max(ridge, *(point.x for point in points)),
    )
    y_ends = min(peak / 20, *(point.y / 4 for point in points)), HEADROOM * peak
    # Memory gives a slope up to the ridge, each precision a level line beyond its own ridge.
    lines = [([x_ends[0], ridge], [own.memory_bytes_per_s * x_ends[0], peak], "solid")]
    for flop_per_s in own.peaks_flop_per_s.values():
        lines.append(([flop_per_s / own.memory_bytes_per_s, x_ends[1]], [flop_per_s] * 2, "dash"))
    look = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
    traces = [
        go.Scatter(x=x, y=y, line={"color": base.GREY, "width": 2, "dash": dash}, **look)
        for x, y, dash in lines
    ]
    for kind, (colour, symbol) in LOOKS.items():
        if own_points := [point for point in points if point.kind == kind]:
            traces.append(
                go.Scatter(
                    x=[base.rounded(point.x) for point in own_points],
                    y=[base.rounded(point.y) for point in own_points],
                    name=kind,
                    mode="markers",
                    marker={
                        "color": base.translucent(colour, 0.75),
                        "symbol": symbol,
                        "size": [point.size_px for point in own_points],
                        "line": {"width": 1, "color": colour},
                    },
                    customdata=[point.hover for point in own_points],
                    hovertemplate="%{customdata}<extra></extra>",
                )
            )
    style = base.layout(
        "FLOP/s of a device by FLOPs per byte",
        height=460,
        xaxis=_axis("FLOP per byte of device memory", x_ends, "{:,g}".format),
        yaxis=_axis("FLOP/s", y_ends, lambda tick: text.si(tick, "")),
        annotations=[*_ceilings(own, x_ends), *_labels(points, base.Canvas(x_ends, y_ends))],
    )
    return go.Figure(traces, style)


class _Point:
    """A kernel in the figure: FLOP per byte and FLOP/s, one FLOP a number where FLOPs are not counted."""

    def __init__(self, table: Table, row: Sequence[Cell]) -> None:
        name, kind, time, share, work, memory, *_ = row
        flop = work.number or memory.number / NUMBER_BYTES
        self.kind = kind.value
        self.x = flop / memory.number
        self.y = flop / time.number
        self.label = f"{name.value}: {text.percent(share.number, 0)}"
        # The area of a point follows the time.
        self.size_px = round(max(SMALLEST_PX, LARGEST_PX * math.sqrt(share.number)), 1)
        told = [table.text(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        words = [told[0], f"{told[2]} a step, {told[3]} of kernel time", f"{told[4]}, {told[7]}", *told[5::3]]
        self.hover = "<br>".join(map(base.esc, words))


def _axis(title: str, ends: tuple[float, float], written: Callable[[float], str]) -> dict[str, Any]:
    """A logarithmic axis with a tick for each power of ten."""
    low, high = (math.log10(end) for end in ends)
    ticks = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]
    shown = {"tickmode": "array", "tickvals": ticks, "ticktext": [written(tick) for tick in ticks]}
    return base.axis(title, type="log", range=[low, high], **shown)


def _ceilings(own: Roofline, x_ends: tuple[float, float]) -> list[dict[str, Any]]:
    """The names of the ceilings, at their lines."""
    plain = {"showarrow": False, "yanchor": "bottom"}
    notes = [
        plain
        | {"x": math.log10(x_ends[1]), "y": math.log10(peak), "xanchor": "right"}
        | {"text": f"{name} peak {text.si(peak, 'FLOP/s')}"}
        for name, peak in own.peaks_flop_per_s.items()
    ]
    low = x_ends[0] * 1.15
    memory = {"x": math.log10(low), "y": math.log10(low * own.memory_bytes_per_s), "xanchor": "left"}
    words = f"memory {text.si(own.memory_bytes_per_s, 'B/s')}"
    return [*notes, plain | memory | {"text": words, "yshift": 26}]


def _labels(points: Sequence[_Point], canvas: base.Canvas) -> list[dict[str, Any]]:
    """A label with a leader for each point, the longest first; left out where it would hide another one."""
    taken = [canvas.around(point.x, point.y, point.size_px) for point in points]
    peak = canvas.at(canvas.x_ends[0], canvas.y_ends[1] / HEADROOM)[1]
    taken.append((base.WIDE_PX / 2, peak, base.WIDE_PX, peak + 2 * base.LABEL_LINE_PX))
    asked = []
    for point in points:
        half = base.half_px(point.label)
        # Nearest first: pixels to the right and up.
        near = [(0.0, -34.0), (0.0, 34.0), (-half - 28, 0.0), (half + 28, 0.0)]
        far = [
            (side * half, sign * up)
            for up in (52.0, 74.0, 96.0, 118.0)
            for sign in (-1, 1)
            for side in (0, -1, 1)
        ]
        spots = [base.Spot(point.x, point.y, *offset) for offset in (*near, *far)]
        asked.append((point.label, spots, {"standoff": point.size_px / 2}))
    return base.notes(canvas, asked, taken, always=False)


# A drawn network, devices at the bottom: what repeats is drawn once, with what the step uses of links.

PLACES = {
    "nvswitch": "NVSwitch",
    "nic": "NIC",
    "leaf": "leaf switch",
    "spine": "spine switch",
    "cpu": "CPU",
    "dram": "DRAM",
    "nvme": "drives",
    "port": "ports",
    "memoryx": "MemoryX",
    "swarmx": "SwarmX",
    "server": "weight server",
}
HOMES = {"node": "nodes", "cs": "systems"}
COLUMN_PX = 170
ROW_PX = 104
BOX_PX = (150, 42)
LABEL_PX = 60
BUSY = (0.1, 0.3, 0.6)
"""Mean uses at which the colour of a link changes."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, its width, and the class that gives it a colour."""

    points: Sequence[tuple[float, float]]
    width: float
    look: str


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, from its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Words:
    """Text: where its line begins or has its middle, and whether it is strong or soft."""

    x: float
    y: float
    text: str
    anchor: str
    look: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A small drawing with its name and a description; all places and sizes are in pixels."""

    name: str
    alt: str
    width: float
    height: float
    lines: Sequence[Line]
    boxes: Sequence[Box]
    words: Sequence[Words]


_Tree = dict[str, tuple[str, Cables]]


def topology(name: str, noun: str, network: NetworkMap, use: Mapping[str, LinkUse]) -> Drawing:
    """The network of a candidate with devices `noun`; colours of links follow the mean use, widths the peak.

    Places at the end of a link that the step does not use are left out.
    """
    tree = _tree(network, use)
    spots = _spots(tree, network.places[0].kind)
    meshed = [cable for cable in network.cables if cable.a == cable.b and cable.kind in use]
    own = [cable for cable in meshed if cable.kind not in {other.kind for _, other in tree.values()}]
    width = COLUMN_PX * (1 + max(column for column, _ in spots.values())) + LABEL_PX
    height = ROW_PX * max(row for _, row in spots.values()) + BOX_PX[1] + 2
    at = {
        kind: (COLUMN_PX * (column + 0.5), height - ROW_PX * row - BOX_PX[1] / 2 - 1)
        for kind, (column, row) in spots.items()
    }
    lines: list[Line] = []
    words: list[Words] = []
    for kind, (parent, cable) in tree.items():
        (x, y), (_, below) = at[kind], at[parent]
        top = y + BOX_PX[1] / 2
        bottom = below - BOX_PX[1] / 2
        turn = bottom - 9 if at[parent][0] != x else bottom
        points = [(x, top), (x, turn), (at[parent][0], turn), (at[parent][0], bottom)]
        lines.append(Line(points, *_look(use.get(cable.kind))))
        words += _link_words(cable, use.get(cable.kind), x + 9, top + 15)
    boxes = []
    for place in network.places:
        if place.kind in at:
            x, y = at[place.kind]
            boxes.append(Box(x - BOX_PX[0] / 2, y - BOX_PX[1] / 2, *BOX_PX))
            words += _place_words(place, noun, x, y)
    for cable in own:
        x, y = at[cable.a]
        words += _link_words(cable, use.get(cable.kind), x - BOX_PX[0] / 2, y + BOX_PX[1] / 2 + 16)
        height += 52
    return Drawing(name, _alt(name, use), width, height, lines, boxes, words)


def _tree(network: NetworkMap, use: Mapping[str, LinkUse]) -> _Tree:
    """Every kind of place but the devices, nearest first, with the place and the link that lead to it.

    What only unused links lead to is left out.
    """
    reached = [network.places[0].kind]
    tree: _Tree = {}
    for near in reached:
        for cable in network.cables:
            if near in (cable.a, cable.b):
                far = cable.b if cable.a == near else cable.a
                if far not in reached:
                    reached.append(far)
                    tree[far] = near, cable
    for far, (_, cable) in reversed(list(tree.items())):
        if cable.kind not in use and all(near != far for near, _ in tree.values()):
            del tree[far]
    return tree


def _spots(tree: _Tree, root: str) -> dict[str, tuple[float, int]]:
    """Column and row of every kind of place: branches side by side, what they share in the middle."""
    spots: dict[str, tuple[float, int]] = {}
    free = iter(range(len(tree) + 1))

    def put(kind: str, row: int) -> float:
        columns = [put(far, row + 1) for far, (near, _) in tree.items() if near == kind]
        column = sum(columns) / len(columns) if columns else float(next(free))
        spots[kind] = column, row
        return column

    put(root, 0)
    return spots


def _look(use: LinkUse | None) -> tuple[float, str]:
    """Width in pixels and the class of a link's colour."""
    if use is None:
        return 1.5, "unused"
    return 2.0 + 5.0 * min(use.peak, 1.0), f"use{sum(use.mean >= least for least in BUSY)}"


def _link_words(cable: Cables, use: LinkUse | None, x: float, y: float) -> Iterator[Words]:
    rows = [
        KINDS.get(cable.kind, text.human(cable.kind)),
        "not used" if use is None else f"{text.percent(use.mean, 0)}, peak {text.percent(use.peak, 0)}",
        f"{text.counted(cable.count, 'link')} of {text.si(cable.bytes_per_s, 'B/s')}",
    ]
    for row, (words, style) in enumerate(zip(rows, ("soft", "strong", "soft"), strict=True)):
        yield Words(x, y + 14 * row, words, "start", style)


def _place_words(place: Place, noun: str, x: float, y: float) -> Iterator[Words]:
    named = noun if place.kind == "device" else PLACES.get(place.kind, place.kind)
    in_a_home = place.count // place.homes
    repeats = place.home in HOMES and place.homes > 1 and (in_a_home > 1 or place.kind != "device")
    times = " " if place.kind == "device" else f" {text.TIMES} "
    yield Words(
        x, y + (-2 if repeats else 5), f"{text.integer(place.count)}{times}{named}", "middle", "strong"
    )
    if repeats:
        folded = f"{in_a_home} in each of {text.integer(place.homes)} {HOMES[place.home]}"
        yield Words(x, y + 14, folded, "middle", "soft")


def _alt(name: str, use: Mapping[str, LinkUse]) -> str:
    words = [
        f"{KINDS.get(kind, text.human(kind))} {text.percent(own.mean, 0)}, peak {text.percent(own.peak, 0)}"
        for kind, own in use.items()
    ]
    return f"Network of {name} with the use of its links: {'; '.join(words)}."
