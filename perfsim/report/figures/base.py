"""What all figures share: colours, axes, escaping, and labels that hide neither each other nor marks."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The palette is Okabe and Ito's, which stays distinguishable with every common colour vision; black
# is not used, because pages have a dark form. Backgrounds are transparent and text is grey, so the
# page's style sheet decides between light and dark.

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
YELLOW = "#F0E442"
GREY = "#8A8F98"
PALE = "#C9CDD3"

BREAK = "<br>"
MOST_TICKS = 8
"""Of an axis; more would overlap on a phone."""
LABEL_CHARS = 24
"""Most characters in a line of a label that is wrapped, unless a word is longer."""
LINE_PX = 15
"""Height of a line of a label, with the space between two rows."""
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", "x", ".", "-", "|")

INK = "#5B6470"
GRID = "rgba(128,128,128,0.28)"
BAND_ALPHA = 0.16

_PART_COLOURS: tuple[tuple[str, str], ...] = (
    ("mesh", SKY),
    ("tensor_comm", ORANGE),
    ("pipeline_comm", GREY),
    ("data_comm", VERMILLION),
    ("weight_stream", PURPLE),
    ("gradient", VERMILLION),
    ("spill", ORANGE),
    ("offload", ORANGE),
    ("input", YELLOW),
    ("recompute", YELLOW),
    ("optimizer", GREEN),
    ("update", GREEN),
    ("bubble", PALE),
    ("forward", BLUE),
    ("backward", SKY),
    ("compute", BLUE),
    ("parameter", BLUE),
    ("weight", PURPLE),
    ("activation", ORANGE),
    ("logit", YELLOW),
    ("workspace", GREY),
)
"""The first of these words that a part's name contains decides its colour, in all figures."""

_SPARE = (SKY, GREY, PURPLE, YELLOW)


def esc(text: object) -> str:
    """Text for a Plotly label, which reads a subset of HTML."""
    return html.escape(str(text), quote=False)


def series_style(index: int) -> dict[str, Any]:
    """Colour, marker and dash of the index-th series, so that no series differs in colour only.

    Where colours repeat, markers are open.
    """
    opened = "-open" if index // len(SYMBOLS) % 2 else ""
    return {
        "color": SERIES[index % len(SERIES)],
        "symbol": SYMBOLS[index % len(SYMBOLS)] + opened,
        "dash": DASHES[index % len(DASHES)],
    }


def translucent(colour: str, alpha: float = BAND_ALPHA) -> str:
    """A `#rrggbb` colour as rgba."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def part_styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A bar marker for each part: its colour by meaning, a hatch where a colour repeats."""
    used: dict[str, int] = {}
    styles: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(names):
        key = name.replace(" ", "_").replace("_communication", "_comm")
        colour = next((colour for word, colour in _PART_COLOURS if word in key), _SPARE[index % len(_SPARE)])
        times = used.get(colour, 0)
        used[colour] = times + 1
        marker: dict[str, Any] = {"color": colour, "line": {"width": 0.5, "color": "rgba(60,60,60,0.55)"}}
        if times:
            shape = PATTERNS[times % len(PATTERNS)]
            hatch = {
                "fillmode": "overlay",
                "fgcolor": "#222222",
                "fgopacity": 0.75,
                "size": 7,
                "solidity": 0.2,
            }
            marker["pattern"] = {"shape": shape} | hatch
        styles[name] = marker
    return styles


def union(groups: Iterable[Mapping[str, float]]) -> list[str]:
    """Every part name with a value somewhere, in the order of first sight."""
    seen: dict[str, None] = {}
    for group in groups:
        for name, value in group.items():
            if value:
                seen.setdefault(name)
    return list(seen)


def in_lines(label: str) -> str:
    """A label `128 A100, strategy, layout` broken after its machine and in short lines, escaped."""
    parts = label.split(", ", 1)
    lines = [line for part in parts for line in textwrap.wrap(part, LABEL_CHARS, break_on_hyphens=False)]
    return BREAK.join(map(esc, lines))


def row_px(labels: Iterable[str], least: int) -> int:
    """The height of a row that holds the tallest of these labels."""
    return max([least, *(LINE_PX * (1 + label.count(BREAK)) for label in labels)])


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with the house's grid."""
    style: dict[str, Any] = {
        "title": {"text": title, "standoff": 8},
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "showline": True,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": GRID,
        "fixedrange": True,
    }
    return style | more


def log_axis(title: str, values: Iterable[float], **more: Any) -> dict[str, Any]:
    """A logarithmic axis over these values whose ticks are written out: 20, 50, 100 and not 2, 5, 100."""
    ticks = log_ticks(values)
    shown = {"tickmode": "array", "tickvals": ticks, "ticktext": [short(tick) for tick in ticks]}
    return axis(title, type="log", **(shown | more))


def log_ticks(values: Iterable[float]) -> list[float]:
    """At most `MOST_TICKS` round numbers that span the values, the first and last not inside them."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not known:
        return [1.0, 10.0]
    first = math.floor(math.log10(min(known)))
    last = math.ceil(math.log10(max(known)) + 1e-9)
    for leads in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
        marks = sorted(lead * 10.0**power for power in range(first, last + 1) for lead in leads)
        low = max((mark for mark in marks if mark <= min(known)), default=marks[0])
        high = min((mark for mark in marks if mark >= max(known)), default=marks[-1])
        ticks = [float(f"{mark:.3g}") for mark in marks if low <= mark <= high]
        if len(ticks) <= MOST_TICKS:
            return ticks
    return ticks[:: math.ceil(len(ticks) / MOST_TICKS)]


def short(value: float) -> str:
    """`0.3 M`, `20`, `1.5 k`: a number of a tick."""
    for least, scale, prefix in ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e5, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rounded(value: float) -> float:
    """Six digits, which are enough to draw and keep every length above zero."""
    return float(f"{value:.6g}")


def error_bars(middles: Sequence[float], ends: Iterable[Sequence[float]], colour: str) -> dict[str, Any]:
    """Bars from each middle to its low and its high end."""
    reach = [[rounded(abs(end - middle)) for end in pair] for middle, pair in zip(middles, ends, strict=True)]
    return {
        "type": "data",
        "symmetric": False,
        "color": colour,
        "array": [above for _, above in reach],
        "arrayminus": [below for below, _ in reach],
    }


def layout(title: str, *, height: int, **more: Any) -> dict[str, Any]:
    """The layout shared by all figures; the legend lies under the axes, where phones have room."""
    style: dict[str, Any] = {
        "template": "none",
        "title": {
            "text": title,
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "font": {"size": 15},
            "pad": {"l": 4},
        },
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 10, "r": 14, "t": 46, "b": 10},
        "height": height,
        "hovermode": "closest",
        "dragmode": False,
        "legend": {
            "orientation": "h",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "x": 0,
            "xref": "container",
        },
        "hoverlabel": {"align": "left", "namelength": -1},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
    }
    return style | more


WIDE_PX = 300
HIGH_PX = 330
LETTER_PX = 6.2
LABEL_LINE_PX = 16
"""A plot as labels are placed for it: that of a phone; where there is more room, marks are further apart."""

Rectangle = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Spot:
    """A place for a label: the mark that it names, and the pixels from it, to the right and up."""

    x: float
    y: float
    right: float
    up: float


@dataclass(frozen=True, slots=True)
class Canvas:
    """A plot with logarithmic axes between these ends."""

    x_ends: tuple[float, float]
    y_ends: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels from the lower left corner."""
        places = (
            length * math.log(value / low) / math.log(high / low)
            for value, (low, high), length in ((x, self.x_ends, WIDE_PX), (y, self.y_ends, HIGH_PX))
        )
        return next(places), next(places)

    def around(self, x: float, y: float, size_px: float) -> Rectangle:
        """The square of a mark."""
        right, up = self.at(x, y)
        return right - size_px / 2, up - size_px / 2, right + size_px / 2, up + size_px / 2

    def box(self, words: str, spot: Spot) -> Rectangle:
        """The rectangle of a label."""
        (right, up), half = self.at(spot.x, spot.y), half_px(words)
        middle = (right + spot.right, up + spot.up)
        height = LABEL_LINE_PX * (1 + words.count("\n")) / 2
        return middle[0] - half, middle[1] - height, middle[0] + half, middle[1] + height

    def hidden(self, box: Rectangle, taken: Iterable[Rectangle]) -> float:
        """Square pixels of what a box covers of others, and of itself outside the plot."""
        width = max(0.0, min(box[2], WIDE_PX) - max(box[0], 0.0))
        height = max(0.0, min(box[3], HIGH_PX) - max(box[1], 0.0))
        outside = (box[2] - box[0]) * (box[3] - box[1]) - width * height
        return outside + sum(_common(box, other) for other in taken)


def half_px(words: str) -> float:
    """Half the width of a label, which may have several lines."""
    return max(map(len, words.split("\n"))) * LETTER_PX / 2


def notes(
    canvas: Canvas,
    labels: Sequence[tuple[str, Sequence[Spot], dict[str, Any]]],
    taken: Iterable[Rectangle],
    *,
    always: bool,
) -> list[dict[str, Any]]:
    """An annotation with a leader for each label (words, spots by preference, style), the first ones first.

    A label that has no free spot is left out, or with `always` put where it covers least.
    """
    covered = list(taken)
    annotations = []
    for words, spots, style in labels:
        costs = [canvas.hidden(canvas.box(words, spot), covered) for spot in spots]
        best = costs.index(min(costs))
        if costs[best] > 0 and not always:
            continue
        spot = spots[best]
        covered.append(canvas.box(words, spot))
        annotations.append(
            {
                "x": math.log10(spot.x),
                "y": math.log10(spot.y),
                "text": esc(words).replace("\n", BREAK),
            }
            | {"ax": spot.right, "ay": -spot.up, "arrowhead": 0, "arrowwidth": 1, "arrowcolor": GREY}
            | style
        )
    return annotations


def _common(a: Rectangle, b: Rectangle) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0
