"""The roofline of a device, with the kernels of its step as points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from perfsim.prediction.roofline import ATTENTION, ELEMENTWISE, PRODUCT, UPDATE, KernelUse, Roofline
from perfsim.report import text
from perfsim.report.figures import base, labels
from perfsim.report.table import Table

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
LARGEST_PX, SMALLEST_PX = 44, 8
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
    canvas = labels.Canvas(x_ends, y_ends)
    taken = [canvas.around(*_spot(kernel), _size_px(own, kernel)) for kernel in kernels]
    peak = canvas.at(x_ends[0], y_ends[1] / HEADROOM)[1]
    taken.append((labels.WIDE_PX / 2, peak, labels.WIDE_PX, peak + 2 * labels.LINE_PX))
    asked = []
    for kernel in kernels:
        words = f"{_named(own, kernel)}: {text.percent(_share(own, kernel), 0)}"
        spots = [labels.Spot(*_spot(kernel), *offset) for offset in _offsets(labels.half_px(words))]
        asked.append((words, spots, {"standoff": _size_px(own, kernel) / 2}))
    return labels.notes(canvas, asked, taken, always=False)


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
