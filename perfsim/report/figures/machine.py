"""A drawn network, devices at the bottom: what repeats is drawn once, with what the step uses of links."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from perfsim.costs.memory import MemoryUse
from perfsim.network.topology import Cables, NetworkMap, Place
from perfsim.prediction.why import ATTENTION, ELEMENTWISE, PRODUCT, UPDATE, KernelUse, LinkUse, Roofline
from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.page import Box, Drawing, Line, Words
from perfsim.report.table import Table
from perfsim.studies.answers import StudyResult

# What each pipeline stage or wafer holds at its peak, against its capacity.


@dataclass(frozen=True, slots=True)
class _Row:
    candidate: str
    place: str
    bar: MemoryUse
    machine: str
    """The short name of the candidate."""

    @property
    def label(self) -> str:
        return f"{self.machine}<br>{base.esc(self.place)}"

    @property
    def total(self) -> float:
        return sum(self.bar.parts_bytes.values())


def memory(result: StudyResult) -> go.Figure:
    """Stacked bars; one subplot for each capacity, all in one unit."""
    groups = _groups(result)
    unit = _unit(groups)
    order = base.union(row.bar.parts_bytes for rows in groups for row in rows)
    styles = base.part_styles(order)
    traces: list[Any] = []
    style = base.layout(
        f"Peak memory by what it holds ({unit[0]})",
        height=0,
        barmode="stack",
        bargap=0.3,
        shapes=[],
        annotations=[],
    )
    style["legend"]["traceorder"] = "normal"
    drawn: set[str] = set()
    for index, (rows, domain) in enumerate(zip(groups, _domains(groups), strict=True)):
        suffix = str(index + 1) if index else ""
        traces += _bars(rows, order, styles, unit, suffix, drawn)
        _axes(style, rows, domain, unit, suffix)
    style["height"] = _height(groups)
    return base.figure(traces, style)


def _memory_rows(result: StudyResult) -> list[_Row]:
    """One row per place; neighbours that hold exactly the same share a row."""
    rows: list[_Row] = []
    machines = [base.wrapped(name) for name in text.names(result.candidates)]
    named = zip(text.labels(result.candidates), result.candidates, machines, strict=True)
    for name, candidate, machine in named:
        run: list[MemoryUse] = []
        for bar in candidate.memory:
            if run and (dict(run[0].parts_bytes), run[0].capacity_bytes) != (
                dict(bar.parts_bytes),
                bar.capacity_bytes,
            ):
                rows.append(_Row(name, _place(run), run[0], machine))
                run = []
            run.append(bar)
        if run:
            rows.append(_Row(name, _place(run), run[0], machine))
    return rows


def _place(run: Sequence[MemoryUse]) -> str:
    if len(run) == 1:
        return run[0].place
    return f"{run[0].place} to {run[-1].place.split(' ')[-1]}"


def _groups(result: StudyResult) -> list[list[_Row]]:
    groups: dict[float, list[_Row]] = {}
    for row in _memory_rows(result):
        groups.setdefault(row.bar.capacity_bytes, []).append(row)
    return list(groups.values())


def _unit(groups: Sequence[Sequence[_Row]]) -> tuple[str, float]:
    """The unit of all bars, with its bytes."""
    return text.memory_unit(*(row.bar.capacity_bytes for rows in groups for row in rows))


_ROW_PX = 44
_GAP_PX = 92
_FRAME_PX = 150


def _height(groups: Sequence[Sequence[_Row]]) -> int:
    return _FRAME_PX + sum(_row_px(rows) * len(rows) for rows in groups) + _GAP_PX * max(len(groups) - 1, 0)


def _row_px(rows: Sequence[_Row]) -> int:
    return base.row_px((row.label for row in rows), _ROW_PX)


def _domains(groups: Sequence[Sequence[_Row]]) -> list[tuple[float, float]]:
    """Heights in proportion to the bars, top to bottom, with room for an axis between."""
    inner = max(_height(groups) - _FRAME_PX, 1)
    domains = []
    top = 1.0
    for rows in groups:
        bottom = max(top - _row_px(rows) * len(rows) / inner, 0.0)
        domains.append((round(bottom, 4), round(top, 4)))
        top = bottom - _GAP_PX / inner
    return domains


def _bars(
    rows: Sequence[_Row],
    order: Sequence[str],
    styles: dict[str, dict[str, Any]],
    unit: tuple[str, float],
    suffix: str,
    drawn: set[str],
) -> list[Any]:
    name, scale = unit
    traces = []
    for part in order:
        values = [row.bar.parts_bytes.get(part, 0.0) / scale for row in rows]
        if not any(values):
            continue
        traces.append(
            go.Bar(
                orientation="h",
                name=base.esc(text.human(part)),
                legendgroup=base.esc(part),
                showlegend=part not in drawn,
                y=[row.label for row in rows],
                x=[round(value, 4) for value in values],
                marker=styles[part],
                xaxis=f"x{suffix}",
                yaxis=f"y{suffix}",
                hovertemplate=f"<b>%{{fullData.name}}</b><br>%{{x:.3g}} {name}<extra>%{{y}}</extra>",
            )
        )
        drawn.add(part)
    return traces


def _axes(
    style: dict[str, Any],
    rows: Sequence[_Row],
    domain: tuple[float, float],
    unit: tuple[str, float],
    suffix: str,
) -> None:
    capacity, (name, scale) = rows[0].bar.capacity_bytes, unit
    limit = capacity / scale if math.isfinite(capacity) else 0.0
    end = 1.1 * max([limit, *(row.total / scale for row in rows)])
    style[f"xaxis{suffix}"] = base.axis(f"{name} per device", range=[0, end], anchor=f"y{suffix}")
    style[f"yaxis{suffix}"] = base.axis("", autorange="reversed", domain=domain, anchor=f"x{suffix}")
    if not limit:
        return
    line = {"width": 2, "dash": "dash", "color": base.VERMILLION}
    place: dict[str, Any] = {"xref": f"x{suffix}", "yref": f"y{suffix} domain"}
    style["shapes"].append(place | {"type": "line", "x0": limit, "x1": limit, "y0": 0, "y1": 1, "line": line})
    note = {"x": limit, "y": 1, "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    style["annotations"].append(place | note | {"text": f"capacity {text.trim(text.number(limit))} {name}"})


def memory_table(result: StudyResult) -> Table:
    """Every place with its parts, total and share of the capacity."""
    rows = _memory_rows(result)
    order = base.union(row.bar.parts_bytes for row in rows)
    all_capacities = [row.bar.capacity_bytes for row in rows]
    cells = []
    for row in rows:
        capacity = row.bar.capacity_bytes
        sizes = [row.bar.parts_bytes.get(part, 0.0) for part in order]
        parts = [text.memory(size, *all_capacities) if size else text.NONE for size in sizes]
        share = text.percent(row.total / capacity)
        cells.append([row.candidate, row.place, *parts, text.memory(row.total, *all_capacities), share])
    columns = ["candidate", "place", *(text.human(part) for part in order), "total", "of capacity"]
    return Table(columns, cells, "Peak memory of one device.", frozenset(range(2, len(columns))))


def memory_alt(result: StudyResult) -> str:
    """The fullest place of each candidate in words."""
    fullest: dict[str, _Row] = {}
    for row in _memory_rows(result):
        if row.candidate not in fullest or row.total > fullest[row.candidate].total:
            fullest[row.candidate] = row
    capacities = [row.bar.capacity_bytes for row in fullest.values()]
    words = "; ".join(
        f"{name}: {text.memory(row.total, *capacities)} of "
        f"{text.memory(row.bar.capacity_bytes, *capacities)} in {row.place}"
        for name, row in fullest.items()
    )
    return f"Stacked bars of peak memory with the capacity as a line. {words}."


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


def network_use(result: StudyResult) -> go.Figure:
    """A bar for each candidate and kind of link: its mean use; a line marks the peak of its busiest link."""
    rows = _rows(result)
    names = [[base.in_lines(name) for name, *_ in rows], [base.esc(kind) for _, kind, *_ in rows]]
    columns = {"mean over the step": [mean for *_, mean, _ in rows]}
    columns["peak of the busiest link"] = [peak for *_, peak in rows]
    bar, line = (
        {
            "y": names,
            "x": [100 * share for share in shares],
            "name": name,
            "hovertemplate": f"%{{x:.1f}} % {name}<extra>%{{y}}</extra>",
        }
        for name, shares in columns.items()
    )
    peaks = {
        "mode": "markers",
        "marker": {"symbol": "line-ns", "size": 14, "line": {"width": 3, "color": base.VERMILLION}},
    }
    style = base.layout(
        "Use of the network by kind of link (% of capacity)",
        height=150 + 26 * len(rows),
        bargap=0.35,
        xaxis=base.axis(
            "share of capacity (%)", range=[0, 101 * max([1.0, *columns["peak of the busiest link"]])]
        ),
        yaxis=base.axis("", autorange="reversed", type="multicategory"),
    )
    bars = go.Bar(orientation="h", marker={"color": base.BLUE}, **bar)
    return base.figure([bars, go.Scatter(**line, **peaks)], style)


def network_use_table(result: StudyResult) -> Table:
    """Mean and peak of every candidate and kind of link."""
    rows = [[name, kind, text.percent(mean), text.percent(peak)] for name, kind, mean, peak in _rows(result)]
    caption = (
        "Mean: bytes of the step over what all links of the kind could carry in it, in both directions. "
        "Peak: the most that the busiest link carries at once."
    )
    return Table(["candidate", "kind of link", "mean", "peak"], rows, caption, frozenset({2, 3}))


def overload_note(result: StudyResult) -> str:
    """What a peak above the capacity means; empty where there is none."""
    peaks = [peak for *_, peak in _rows(result)]
    if max(peaks, default=0.0) <= 1.0:
        return ""
    return (
        f"A peak of {text.percent(max(peaks), 0)} is more than a link carries: samples, or updates in the "
        "memory of a weight server, run beside streamed weights, and in the simulation neither waits for "
        f"the other. While both run they would take up to {text.percent(max(peaks) - 1, 0)} longer."
    )


def network_use_alt(result: StudyResult) -> str:
    """The busiest kind of link of each candidate in words."""
    busiest: dict[str, tuple[str, float, float]] = {}
    for name, kind, mean, peak in _rows(result):
        if name not in busiest or mean > busiest[name][1]:
            busiest[name] = (kind, mean, peak)
    sentences = [
        f"{name}: {kind} {text.percent(mean)} on average, {text.percent(peak)} at most"
        for name, (kind, mean, peak) in busiest.items()
    ]
    return f"Bars of the use of the network, the busiest kind of link first. {'; '.join(sentences)}."


def _rows(result: StudyResult) -> list[tuple[str, str, float, float]]:
    """Candidate, kind of link, mean and peak, in the order of `KINDS`; other kinds by their name."""
    return [
        (name, KINDS.get(kind, text.human(kind)), use.mean, use.peak)
        for name, candidate in zip(text.labels(result.candidates), result.candidates, strict=True)
        for kind, use in sorted(candidate.utilisation.items(), key=lambda item: _order(item[0]))
    ]


def _order(kind: str) -> int:
    return list(KINDS).index(kind) if kind in KINDS else len(KINDS)


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


def roofline(own: Roofline) -> go.Figure:
    """Points of kernels sized by time, below the ceilings of memory and of each precision."""
    kernels = _drawn(own)
    spots = [_spot(kernel) for kernel in kernels]
    peak = max(own.peaks_flop_per_s.values(), default=max(y for _, y in spots))
    ridge = peak / own.memory_bytes_per_s
    x_ends = min(ridge / 8, *(x / 2.5 for x, _ in spots)), 4 * max(ridge, *(x for x, _ in spots))
    y_ends = min(peak / 20, *(y / 4 for _, y in spots)), HEADROOM * peak
    traces: list[Any] = [_line([x_ends[0], ridge], own.memory_bytes_per_s)]
    for flop_per_s in own.peaks_flop_per_s.values():
        traces.append(_line([flop_per_s / own.memory_bytes_per_s, x_ends[1]], 0.0, flop_per_s))
    traces += [_points(own, kind) for kind in LOOKS if any(kernel.kind == kind for kernel in kernels)]
    style = base.layout(
        "FLOP/s of a device by FLOPs per byte",
        height=460,
        xaxis=_axis("FLOP per byte of device memory", x_ends, "{:,g}".format),
        yaxis=_axis("FLOP/s", y_ends, lambda tick: base.si(tick, "")),
        annotations=[*_ceilings(own, x_ends), *_labels(own, kernels, x_ends, y_ends)],
    )
    return base.figure(traces, style)


def _axis(title: str, ends: tuple[float, float], written: Callable[[float], str]) -> dict[str, Any]:
    """A logarithmic axis with a tick for each power of ten."""
    low, high = (math.log10(end) for end in ends)
    ticks = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]
    shown = {"tickmode": "array", "tickvals": ticks, "ticktext": [written(tick) for tick in ticks]}
    return base.axis(title, type="log", range=[low, high], **shown)


def _drawn(own: Roofline) -> list[KernelUse]:
    total_s = sum(kernel.time_s for kernel in own.kernels)
    return [kernel for kernel in own.kernels if kernel.time_s >= LEAST * total_s]


def _spot(kernel: KernelUse) -> tuple[float, float]:
    """FLOP per byte and FLOP/s; one FLOP a number where FLOPs are not counted."""
    flop = kernel.flop or kernel.n_bytes / NUMBER_BYTES
    return flop / kernel.n_bytes, flop / kernel.time_s


def _line(x: Sequence[float], bytes_per_s: float, flop_per_s: float = 0.0) -> Any:
    """A ceiling: of memory where `bytes_per_s` is given, else of arithmetic."""
    y = [bytes_per_s * at if bytes_per_s else flop_per_s for at in x]
    line = {"color": base.GREY, "width": 2, "dash": "solid" if bytes_per_s else "dash"}
    return go.Scatter(x=list(x), y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False)


def _points(own: Roofline, kind: str) -> Any:
    kernels = [kernel for kernel in _drawn(own) if kernel.kind == kind]
    colour, symbol = LOOKS[kind]
    spots = [_spot(kernel) for kernel in kernels]
    return go.Scatter(
        x=[float(f"{x:.5g}") for x, _ in spots],
        y=[float(f"{y:.5g}") for _, y in spots],
        name=kind,
        mode="markers",
        marker={
            "color": base.translucent(colour, 0.75),
            "symbol": symbol,
            "size": [_size_px(own, kernel) for kernel in kernels],
            "line": {"width": 1, "color": colour},
        },
        customdata=["<br>".join([base.esc(_named(own, kernel)), *_said(own, kernel)]) for kernel in kernels],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _size_px(own: Roofline, kernel: KernelUse) -> float:
    """The diameter of a point, whose area follows the time."""
    return round(max(SMALLEST_PX, LARGEST_PX * math.sqrt(_share(own, kernel))), 1)


def _share(own: Roofline, kernel: KernelUse) -> float:
    return kernel.time_s / sum(other.time_s for other in own.kernels)


def _named(own: Roofline, kernel: KernelUse) -> str:
    """The name, with the precision where several are used."""
    told = kernel.precision and kernel.kind != UPDATE and len(own.peaks_flop_per_s) > 1
    return f"{kernel.name}, {kernel.precision}" if told else kernel.name


def _said(own: Roofline, kernel: KernelUse) -> list[str]:
    """Time, FLOPs, bytes, and how near the ceilings a kernel is."""
    words = [f"{text.duration(kernel.time_s)} a step, {text.percent(_share(own, kernel))} of kernel time"]
    if kernel.flop:
        words.append(f"{base.si(kernel.flop, 'FLOP')}, {base.si(kernel.flop / kernel.time_s, 'FLOP/s')}")
    rate = kernel.n_bytes / kernel.time_s
    words.append(f"{base.si(kernel.n_bytes, 'B')}, {base.si(rate, 'B/s')}")
    return [*words, _reach(own, kernel)]


def _reach(own: Roofline, kernel: KernelUse) -> str:
    """What a kernel reaches of the ceiling that it is nearest to."""
    memory = kernel.n_bytes / kernel.time_s / own.memory_bytes_per_s
    peak = own.peaks_flop_per_s.get(kernel.precision or "")
    compute = kernel.flop / kernel.time_s / peak if peak else 0.0
    nearest, ceiling = max((memory, "memory"), (compute, f"{kernel.precision} peak"))
    return f"{text.percent(nearest, 0)} of {ceiling}"


def _ceilings(own: Roofline, x_ends: tuple[float, float]) -> list[dict[str, Any]]:
    """The names of the ceilings, beside their lines."""
    plain = {"showarrow": False, "yanchor": "bottom"}
    notes = [
        plain
        | {"x": math.log10(x_ends[1]), "y": math.log10(peak), "xanchor": "right"}
        | {"text": f"{name} peak {base.si(peak, 'FLOP/s')}"}
        for name, peak in own.peaks_flop_per_s.items()
    ]
    low = x_ends[0] * 1.15
    memory = {"x": math.log10(low), "y": math.log10(low * own.memory_bytes_per_s), "xanchor": "left"}
    words = f"memory {base.si(own.memory_bytes_per_s, 'B/s')}"
    return [*notes, plain | memory | {"text": words, "yshift": 26}]


def _labels(
    own: Roofline, kernels: Sequence[KernelUse], x_ends: tuple[float, float], y_ends: tuple[float, float]
) -> list[dict[str, Any]]:
    """A label with a leader for each point, the longest first; left out where it would hide another one."""
    canvas = base.Canvas(x_ends, y_ends)
    taken = [canvas.around(*_spot(kernel), _size_px(own, kernel)) for kernel in kernels]
    peak = canvas.at(x_ends[0], y_ends[1] / HEADROOM)[1]
    taken.append((base.WIDE_PX / 2, peak, base.WIDE_PX, peak + 2 * base.LABEL_LINE_PX))
    asked = []
    for kernel in kernels:
        words = f"{_named(own, kernel)}: {text.percent(_share(own, kernel), 0)}"
        spots = [base.Spot(*_spot(kernel), *offset) for offset in _offsets(base.half_px(words))]
        asked.append((words, spots, {"standoff": _size_px(own, kernel) / 2}))
    return base.notes(canvas, asked, taken, always=False)


def _offsets(half: float) -> list[tuple[float, float]]:
    """Where a label may stand beside its point, nearest first: pixels to the right and up."""
    near = [(0.0, -34.0), (0.0, 34.0), (-half - 28, 0.0), (half + 28, 0.0)]
    return near + [
        (side * half, sign * up)
        for up in (52.0, 74.0, 96.0, 118.0)
        for sign in (-1, 1)
        for side in (0, -1, 1)
    ]


def roofline_table(own: Roofline) -> Table:
    """Every kind of kernel with its time, work and rates."""
    rows = [
        [
            _named(own, kernel),
            kernel.kind,
            text.duration(kernel.time_s),
            text.percent(_share(own, kernel)),
            base.si(kernel.flop, "FLOP"),
            base.si(kernel.n_bytes, "B"),
            text.number(kernel.flop / kernel.n_bytes) if kernel.flop else text.NONE,
            base.si(kernel.flop / kernel.time_s, "FLOP/s"),
            _reach(own, kernel),
        ]
        for kernel in own.kernels
    ]
    columns = ("kernels", "kind", "time a step", "share", "work", "memory", "FLOP per byte", "rate", "reach")
    caption = "Sums over one device and step, forward, backward and recomputation together."
    return Table(columns, rows, caption, frozenset(range(2, 8)))


def roofline_alt(own: Roofline) -> str:
    """The kernels with the most time, and how near they are to their ceilings."""
    words = [
        f"{_named(own, kernel)} {text.percent(_share(own, kernel), 0)} of the time at {_reach(own, kernel)}"
        for kernel in _drawn(own)[:4]
    ]
    return f"Roofline of a device, with the kernels of a step: {'; '.join(words)}."


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


def topology(name: str, noun: str, network: NetworkMap, use: Mapping[str, LinkUse]) -> Drawing:
    """The network of a candidate with devices `noun`; colours of links follow the mean use, widths the peak.

    Places at the end of a link that the step does not use are left out.
    """
    tree = _pruned(_tree(network), use)
    spots = _spots(tree, network.places[0].kind)
    meshed = [cable for cable in network.cables if cable.a == cable.b and cable.kind in use]
    own = [cable for cable in meshed if cable.kind not in {other.kind for other in tree.values()}]
    width = COLUMN_PX * (1 + max(column for column, _ in spots.values())) + LABEL_PX
    height = ROW_PX * max(row for _, row in spots.values()) + BOX_PX[1] + 2
    at = {
        kind: (COLUMN_PX * (column + 0.5), height - ROW_PX * row - BOX_PX[1] / 2 - 1)
        for kind, (column, row) in spots.items()
    }
    lines: list[Line] = []
    words: list[Words] = []
    for kind, cable in tree.items():
        parent = cable.a if cable.b == kind else cable.b
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


def _tree(network: NetworkMap) -> dict[str, Cables]:
    """Every kind of place but the devices, nearest first, with the link that leads to it."""
    reached = [network.places[0].kind]
    tree = dict[str, Cables]()
    for kind in reached:
        for cable in network.cables:
            if kind in (cable.a, cable.b):
                far = cable.b if cable.a == kind else cable.a
                if far not in reached:
                    reached.append(far)
                    tree[far] = cable
    return tree


def _pruned(tree: Mapping[str, Cables], use: Mapping[str, LinkUse]) -> dict[str, Cables]:
    """The tree without the places that only unused links lead to."""
    kept = dict(tree)
    for kind, cable in reversed(list(tree.items())):
        is_end = not any(kind in (other.a, other.b) for far, other in kept.items() if far != kind)
        if is_end and cable.kind not in use:
            del kept[kind]
    return kept


def _spots(tree: Mapping[str, Cables], root: str) -> dict[str, tuple[float, int]]:
    """Column and row of every kind of place: branches side by side, what they share in the middle."""
    spots: dict[str, tuple[float, int]] = {}
    free = iter(range(len(tree) + 1))

    def put(kind: str, row: int) -> float:
        further = [far for far, cable in tree.items() if kind in (cable.a, cable.b) and far != kind]
        columns = [put(far, row + 1) for far in further if far not in spots and _is_beyond(tree, far, kind)]
        column = sum(columns) / len(columns) if columns else float(next(free))
        spots[kind] = column, row
        return column

    put(root, 0)
    return spots


def _is_beyond(tree: Mapping[str, Cables], far: str, kind: str) -> bool:
    cable = tree[far]
    return (cable.a if cable.b == far else cable.b) == kind


def _look(use: LinkUse | None) -> tuple[float, str]:
    """Width in pixels and the class of a link's colour."""
    if use is None:
        return 1.5, "unused"
    return 2.0 + 5.0 * min(use.peak, 1.0), f"use{sum(use.mean >= least for least in BUSY)}"


def _link_words(cable: Cables, use: LinkUse | None, x: float, y: float) -> Iterator[Words]:
    rows = [
        KINDS.get(cable.kind, text.human(cable.kind)),
        "not used" if use is None else f"{text.percent(use.mean, 0)}, peak {text.percent(use.peak, 0)}",
        f"{text.counted(cable.count, 'link')} of {base.si(cable.bytes_per_s, 'B/s')}",
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
