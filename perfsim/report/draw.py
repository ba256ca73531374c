"""Figures of one look: bars, marks and curves whose axes, units and tooltips come from a table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.table import Table

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
INK = "#5B6470"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY)
"""Colours of series; no two series differ in colour only."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_GRID = "rgba(128,128,128,0.28)"
IDEAL = {"color": GREY, "width": 1.5, "dash": "dot"}
"""A line of what would be best."""

LABEL_CHARS = 24
"""Most characters in a line of a label that is wrapped, unless a word is longer."""
_MOST_TICKS = 8
"""Of an axis; more would overlap on a phone."""
_LINE_PX = 15
"""Height of a line of a label, with the space between two rows."""


def in_lines(label: object) -> str:
    """A label or legend `128 A100, strategy, layout` broken after its machine, in short lines, escaped."""
    parts = str(label).split(", ", 1)
    lines = [line for part in parts for line in textwrap.wrap(part, LABEL_CHARS, break_on_hyphens=False)]
    return text.BREAK.join(map(text.esc, lines))


def translucent(colour: str, alpha: float = 0.16) -> str:
    """A `#rrggbb` colour as rgba."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with the house's grid; markup in its title is escaped."""
    style: dict[str, Any] = {
        "title": {"text": text.esc(title), "standoff": 8},
        "gridcolor": _GRID,
        "linecolor": _GRID,
        "zeroline": False,
        "showline": True,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": _GRID,
        "fixedrange": True,
    }
    return style | more


def ends(values: Iterable[float], room: float) -> tuple[float, float]:
    """The ends of a logarithmic axis with room around the values that it can show."""
    known = [value for value in values if value > 0 and math.isfinite(value)] or [1.0, 10.0]
    return min(known) / room, max(known) * room


def log_axis(
    title: str, values: Iterable[float], ends: tuple[float, float] | None = None, *, at_values: bool = False
) -> dict[str, Any]:
    """A logarithmic axis with round ticks that span the values, or with `at_values` some of these."""
    known = sorted(set(values), reverse=True)
    ticks = sorted(known[:: math.ceil(len(known) / _MOST_TICKS)]) if at_values else _log_ticks(known)
    shown = {"tickmode": "array", "tickvals": ticks, "ticktext": [_short(tick) for tick in ticks]}
    return axis(title, type="log", **shown, **({"range": [*map(math.log10, ends)]} if ends else {}))


def _log_ticks(values: Iterable[float]) -> list[float]:
    """At most 8 round numbers that span the values, the first and last not inside them."""
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
        if len(ticks) <= _MOST_TICKS:
            return ticks
    return ticks[:: math.ceil(len(ticks) / _MOST_TICKS)]


def _short(value: float) -> str:
    """`0.3 M`, `20`, `1.5 k`: a number of a tick."""
    for least, scale, prefix in ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e5, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _drawn(value: float) -> float:
    """Six digits, which are enough to draw and keep every length above zero."""
    return float(f"{value:.6g}")


def bars(
    name: str,
    labels: Sequence[Any],
    lengths: Sequence[float],
    marker: dict[str, Any],
    hover: Sequence[str],
    *,
    starts: Sequence[float] | None = None,
    written: Sequence[str] | None = None,
    **more: Any,
) -> go.Bar:
    """Horizontal bars under labels, from zero or from `starts`, with words `written` at their ends."""
    if starts is not None:
        more["base"] = list(map(_drawn, starts))
    if written is not None:
        more |= {"text": written, "textposition": "outside", "cliponaxis": False}
    x = list(map(_drawn, lengths))
    return go.Bar(orientation="h", name=in_lines(name), y=labels, x=x, marker=marker, **_hover(hover), **more)


def _hover(words: Sequence[Any]) -> dict[str, Any]:
    return {"customdata": words, "hovertemplate": "%{customdata}<extra></extra>"}


def marks(
    name: str, x: Sequence[Any], y: Sequence[Any], marker: dict[str, Any], hover: Sequence[str], **more: Any
) -> go.Scatter:
    """Marks at points; `hover` is what each says."""
    look = {"mode": "markers", "marker": marker, **_hover(hover)}
    return go.Scatter(name=in_lines(name), x=x, y=y, **(look | more))


def fields(
    x: Sequence[float],
    y: Sequence[float],
    numbers: Sequence[Sequence[int | None]],
    colours: Sequence[str],
    written: Sequence[Sequence[str]],
    hover: Sequence[Sequence[str]],
) -> go.Heatmap:
    """Fields between the sides x and y, each in the colour of its number; None is left empty."""
    ends = [(end / len(colours), colour) for at, colour in enumerate(colours) for end in (at, at + 1)]
    middle = [[None if number is None else number + 0.5 for number in row] for row in numbers]
    look = {"colorscale": ends, "zmin": 0, "zmax": len(colours), "showscale": False, "xgap": 1, "ygap": 1}
    look |= {"text": written, "texttemplate": "%{text}"}
    return go.Heatmap(x=x, y=y, z=middle, **look, **_hover(hover))


def line(
    x: Sequence[float], y: Sequence[float], look: dict[str, Any], name: str = "", **more: Any
) -> go.Scatter:
    """A line without marks that says nothing at the pointer; without a name it is not in the legend."""
    named = bool(name)
    return go.Scatter(
        x=x, y=y, mode="lines", line=look, name=in_lines(name), showlegend=named, hoverinfo="skip", **more
    )


def limits(name: str, x: Sequence[float], labels: Sequence[Any], hover: Sequence[str]) -> go.Scatter:
    """Upright strokes across the rows of a figure of bars."""
    stroke = {"symbol": "line-ns", "size": 20, "line": {"width": 3, "color": VERMILLION}}
    return marks(name, list(map(_drawn, x)), labels, stroke, hover)


class Series(NamedTuple):
    """The rows of a table that are one series, and its look."""

    name: str
    table: Table
    colour: str
    symbol: str
    dash: str

    @classmethod
    def of(cls, table: Table, x: str) -> Iterator[Series]:
        """A series for each value of the first column, in the order of the numbers of another column."""
        for index, (name, rows) in enumerate(table.by(table.columns[0].name).items()):
            opened = "-open" if index // len(SYMBOLS) % 2 else ""  # where colours repeat
            symbol = SYMBOLS[index % len(SYMBOLS)] + opened
            dash = DASHES[index % len(DASHES)]
            yield cls(name, rows.sorted(x), SERIES[index % len(SERIES)], symbol, dash)

    def curve(
        self, x: str, y: str, hover: Sequence[str] = (), *, dash: str = "", **marker: Any
    ) -> list[go.Scatter]:
        """A line with marks, each of which says its row or `hover`; in a band where a column has one."""
        across = self.table.values(x)
        group = text.esc(self.name)
        marked = marks(
            self.name,
            across,
            list(map(_drawn, self.table.values(y))),
            {"symbol": self.symbol, "size": 8} | marker,
            hover or self.table.hovers(),
            mode="lines+markers",
            legendgroup=group,
            line={"color": self.colour, "dash": dash or self.dash, "width": 2},
        )
        sides, bands = self.table.bands(x), self.table.bands(y)
        if len(across) == 1:
            marked.error_y = error_bars(self.table.values(y), bands, self.colour)
        if all(low == high for low, high in (*sides, *bands)):
            return [marked]
        left_to_right = [*(low for low, _ in sides), *(high for _, high in reversed(sides))]
        around = [*(high for _, high in bands), *(low for low, _ in reversed(bands))]
        filled = {"fill": "toself", "fillcolor": translucent(self.colour), "legendgroup": group}
        area = line(left_to_right, list(map(_drawn, around)), {"width": 0}, **filled)
        return [area, marked]


def error_bars(values: Sequence[float], bands: Sequence[tuple[float, float]], colour: str) -> dict[str, Any]:
    """From each value to the low and the high end of its band."""
    up = [_drawn(high - value) for value, (_, high) in zip(values, bands, strict=True)]
    down = [_drawn(value - low) for value, (low, _) in zip(values, bands, strict=True)]
    return {"type": "data", "symmetric": False, "color": colour, "array": up, "arrayminus": down}


def rule(at: float, line: dict[str, Any], *, across: bool = False) -> dict[str, Any]:
    """An upright line at a place of the x axis; with `across` a level one at a place of the y axis."""
    along, other = ("y", "x") if across else ("x", "y")
    ends = {f"{along}0": at, f"{along}1": at, f"{other}0": 0, f"{other}1": 1}
    return ends | {"type": "line", f"{other}ref": "paper", "line": line}


def figure(
    title: str, traces: Sequence[Any], x: dict[str, Any], y: dict[str, Any], height: int = 440, **more: Any
) -> go.Figure:
    """Traces on two axes; the legend lies under them, where phones have room."""
    style: dict[str, Any] = {
        "template": "none",
        "title": {"text": text.esc(title), "font": {"size": 15}, "pad": {"l": 4}}
        | {"x": 0, "xref": "container", "xanchor": "left"},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 10, "r": 14, "t": 46, "b": 10},
        "height": height,
        "xaxis": x,
        "yaxis": y,
        "hovermode": "closest",
        "dragmode": False,
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"}
        | {"x": 0, "xref": "container", "traceorder": "normal"},
        "hoverlabel": {"align": "left", "namelength": -1},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": BLUE},
    }
    return go.Figure(traces, style | more)


def rows(
    title: str, labels: Sequence[str], traces: Sequence[Any], x: dict[str, Any], row_px: int = 34, **more: Any
) -> go.Figure:
    """Bars or marks in rows with these labels, the first on top, each as high as the tallest label."""
    lines = 1 + max((label.count(text.BREAK) for label in labels), default=0)
    height = 150 + max(row_px, _LINE_PX * lines) * len(labels)
    y = axis("", autorange="reversed", categoryorder="array", categoryarray=list(labels))
    return figure(title, traces, x, y, height, **({"bargap": 0.3} | more))


# Times with their bands on one scale, for a page that needs no figure for them.


def scale(table: Table) -> dict[str, Any] | None:
    """The rows on a logarithmic scale, places in per cent of its width; None where none ever arrives."""
    rows = [
        (name, time, time.band or (time.number, time.number))
        for name, time in table.rows
        if math.isfinite(time.number)
    ]
    if not rows:
        return None
    unit = text.TIME.of(time.number for _, time, _ in rows)
    known = [end / unit.scale for _, time, band in rows for end in (*band, time.number) if end > 0]
    ticks = _log_ticks(known)
    low = min([*known, *ticks])
    high = max([*known, *ticks])

    def place(value: float) -> float:
        return round(100 * math.log(value / low) / math.log(high / low), 2) if high > low else 50.0

    return {
        "quantity": table.columns[1].name,
        "unit": unit.name,
        "ticks": [(place(tick), _short(tick)) for tick in ticks],
        "rows": [
            {
                "name": name.value,
                "value": unit.text(time.number, time.band),
                "extra": time.note,
                "marked": time.mark,
                "middle": place(time.number / unit.scale),
                "low": place(band[0] / unit.scale),
                "high": place(band[1] / unit.scale),
            }
            for name, time, band in rows
        ],
    }
