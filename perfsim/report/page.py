"""Caveats in words: the worst stand at the head of an answer, the others in a table below."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec
from urllib.parse import quote

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from perfsim.base.files import write_file
from perfsim.report import text
from perfsim.report.figures.base import log_ticks, short
from perfsim.report.table import Table
from perfsim.version import __version__

if TYPE_CHECKING:
    pass


# What a page is made of, before it is HTML.


@dataclass(frozen=True, slots=True)
class Link:
    """A file beside the page: its name, and what it is."""

    file: str
    words: str

    @property
    def href(self) -> str:
        return f"./{quote(self.file)}"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a lead on what the section helps to decide, and a figure with its table.

    `alt` describes the figure in words. `slug` fixes the ids (`figure-<slug>`); the default is made from
    the heading.
    """

    heading: str
    lead: str = ""
    figure: go.Figure | None = None
    table: Table | None = None
    alt: str = ""
    slug: str = ""
    note: str = ""
    level: int = 2
    links: Sequence[Link] = ()
    """Files beside the page."""
    cards: Sequence[Card] = ()
    """Figures that are told before the table."""
    drawings: Sequence[Drawing] = ()
    """Beside each other where there is room."""
    topics: Sequence[tuple[str, Table]] = ()
    """Tables that are folded, each under its name."""
    tab: str = ""
    """Sections with the same word here, one after the other, are shown one at a time."""
    short: str = ""
    """Its name in the list of contents, where it is not the heading."""

    @property
    def anchor(self) -> str:
        return self.slug or slugify(self.heading)


Values = ParamSpec("Values")


def drawn(
    section: Section,
    figure: Callable[Values, go.Figure],
    table: Callable[Values, Table],
    alt: Callable[Values, str],
    *values: Values.args,
    **named: Values.kwargs,
) -> Section:
    """A section with a figure of some values, its table and its description in words."""
    made = figure(*values, **named), table(*values, **named), alt(*values, **named)
    return replace(section, figure=made[0], table=made[1], alt=made[2])


@dataclass(frozen=True, slots=True)
class Card:
    """One large number at the head of a page."""

    figure: str
    range: str
    name: str
    marked: bool = False
    """Whether it is highlighted, as the best of its neighbours."""


@dataclass(frozen=True, slots=True)
class Badge:
    """How much to trust an answer: serious or warning, and the reason."""

    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class Interval:
    """A candidate on a scale: its places in per cent of the scale's width, and what is written beside."""

    name: str
    value: str
    extra: str
    low: float
    middle: float
    high: float
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Intervals of a quantity on one scale, with its ticks in per cent of the width."""

    quantity: str
    unit: str
    ticks: Sequence[tuple[float, str]]
    rows: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points of a drawing, its width, and the class that gives it a colour."""

    points: Sequence[tuple[float, float]]
    width: float
    look: str


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of a drawing, from its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Words:
    """Text in a drawing: where its line begins or has its middle, and whether it is strong or soft."""

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


@dataclass(frozen=True, slots=True)
class Remark:
    """A caveat below the verdict: its severity, whom it is about, and its text."""

    severity: str
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Head:
    """What stands above the sections."""

    subtitle: str = ""
    verdict: str = ""
    caveats: Sequence[Remark] = ()
    cards: Sequence[Card] = ()
    cards_note: str = ""
    footer: str = ""
    command: str = ""
    """The command line that makes the page."""
    digest: str = ""
    """A fingerprint of its inputs."""
    headline: str = ""
    """One short sentence, larger than the verdict."""
    badge: Badge | None = None
    scale: Scale | None = None


def slugify(heading: str) -> str:
    """Lower-case words joined by hyphens, for ids."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "section"


# A page's sections as Markdown: headings, leads and tables; figures stay with the page.


def markdown(title: str, sections: Sequence[Section], head: Head | None = None) -> str:
    """The page as text that ends in a line feed; the same input gives the same bytes."""
    blocks = [f"# {_plain(title)}"]
    if head is not None:
        blocks += [_plain(text) for text in (head.subtitle, head.verdict) if text]
    for section in sections:
        blocks.append(f"{'#' * section.level} {_plain(section.heading)}")
        blocks += [_plain(text) for text in (section.lead, section.note) if text]
        if section.table is not None:
            blocks.append(table_lines(section.table))
        blocks += [table_lines(table) for _, table in section.topics]
    if head is not None and head.footer:
        blocks.append(_plain(head.footer))
    return "\n\n".join(blocks) + "\n"


def table_lines(table: Table) -> str:
    """A pipe table with its caption below."""
    rules = ["---:" if index in table.numeric else "---" for index in range(len(table.columns))]
    rows = [table.columns, rules, *table.rows]
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    caption = ["", _plain(table.caption)] if table.caption else []
    return "\n".join([*lines, *caption])


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """One line, with characters of Markdown's markup escaped."""
    line = " ".join(text.split())
    for mark in "\\*<[":
        line = line.replace(mark, f"\\{mark}")
    return line


# A page: one HTML file that needs no network, no server and no other file.
#
# `write_page` makes a page of sections (of a study, a sweep, a validation). The same input gives the same
# bytes: ids are fixed and nothing carries the time.

DIGITS = 12
"""Of a digest; the whole one is in the JSON."""
LONGEST_PLAIN = 50_000
"""Characters of a figure's JSON above which it is compressed."""
PLOT_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}


def write_page(title: str, sections: Sequence[Section], out_path: Path, *, head: Head | None = None) -> Path:
    """Write one self-contained page; all text is escaped. Makes the directory where it is missing."""
    return write_file(out_path, render_page(title, sections, head=head))


def render_page(title: str, sections: Sequence[Section], *, head: Head | None = None) -> str:
    """The page as text; ValueError for sections with the same id."""
    anchors = [section.anchor for section in sections]
    twice = sorted({anchor for anchor in anchors if anchors.count(anchor) > 1})
    if twice:
        raise ValueError(f"sections share an id: {', '.join(twice)}; give every section its own slug")
    head = head or Head()
    has_plots = any(section.figure is not None for section in sections)
    return _template().render(
        title=title,
        subtitle=head.subtitle,
        headline=head.headline,
        verdict=head.verdict,
        badge=head.badge,
        scale=head.scale,
        caveats=head.caveats,
        cards=head.cards,
        cards_note=head.cards_note,
        footer=head.footer,
        version=__version__,
        command=head.command,
        digest=head.digest[:DIGITS],
        sections=[_view(section) for section in sections],
        plotly_js=Markup(plotly_source()) if has_plots else "",  # noqa: S704  # Plotly's own source
    )


@cache
def plotly_source() -> str:
    """Plotly's own JavaScript: the part with cartesian axes, which every figure here has, a third of all.

    The whole of it where another release of plotly.py is installed than the part is of.
    """
    part = files("perfsim.report") / "vendor" / f"plotly-cartesian-{get_plotlyjs_version()}.min.js.gz"
    return gzip.decompress(part.read_bytes()).decode("utf-8") if part.is_file() else get_plotlyjs()


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("perfsim.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["linked"] = linked
    return environment.get_template("page.html.j2")


_ADDRESS = re.compile(r"&lt;(https?://(?:&amp;|[^\s&])+)&gt;|(https?://(?:&amp;|[^\s&])*[^\s&.,;:)])")


def linked(text: str) -> Markup:
    """Escaped text whose addresses can be clicked; angle brackets around them are dropped."""

    def link(match: re.Match[str]) -> str:
        address = match[1] or match[2]
        return f'<a href="{address}" rel="noreferrer">{address}</a>'

    return Markup(_ADDRESS.sub(link, str(escape(text))))  # noqa: S704  # escaped, and an address has no quote


def _view(section: Section) -> dict[str, Any]:
    """A section as the template reads it."""
    names = (
        "heading",
        "lead",
        "table",
        "alt",
        "note",
        "level",
        "anchor",
        "links",
        "cards",
        "drawings",
        "topics",
        "tab",
        "short",
    )
    view = {name: getattr(section, name) for name in names}
    view["plot"], view["height"] = "", 0
    if section.figure is not None:
        view["plot"] = _plot(section.figure, f"figure-{section.anchor}")
        view["height"] = section.figure.layout.height or 450
    return view


def _plot(figure: go.Figure, div_id: str) -> Markup:
    """The figure's div and script; Plotly escapes `<`, `>` and `/` in its JSON.

    A figure of many bars is compressed, and `page.js` draws it.
    """
    height = f"{figure.layout.height or 450}px"
    document = f'{{"figure":{figure.to_json()},"config":{json.dumps(PLOT_CONFIG)}}}'
    if len(document) > LONGEST_PLAIN:
        packed = base64.b64encode(zlib.compress(document.encode(), 9)).decode()
        text = (
            f'<div id="{div_id}" class="plotly-graph-div" style="height:{height}; width:100%;"></div>'
            f'<script type="text/plain" data-figure="{div_id}">{packed}</script>'
        )
        return Markup(text)  # noqa: S704  # an id of ours and base64
    text = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=div_id,
        config=PLOT_CONFIG,
        default_width="100%",
        default_height=height,
    )
    return Markup(text)  # noqa: S704


# Times with their bands on one logarithmic scale at the head of a page.


@dataclass(frozen=True, slots=True)
class Row:
    """A time with its 90 % band under a name; `extra` is written below it."""

    name: str
    time_s: float
    band_s: tuple[float, float]
    marked: bool = False
    extra: str = ""


def scale_of(rows: Sequence[Row], quantity: str = "Time to the target") -> Scale | None:
    """The rows in their order, without those that never arrive; None where nothing is left."""
    rows = [row for row in rows if math.isfinite(row.time_s)]
    if not rows:
        return None
    unit, scale = text.time_unit(row.time_s for row in rows)
    ends = [end / scale for row in rows for end in (*row.band_s, row.time_s) if end > 0]
    ticks = log_ticks(ends)
    low = min([*ends, *ticks])
    high = max([*ends, *ticks])

    def place(value: float) -> float:
        return round(100 * math.log(value / low) / math.log(high / low), 2) if high > low else 50.0

    intervals = []
    for row in rows:
        least, middle, most = (end / scale for end in (row.band_s[0], row.time_s, row.band_s[1]))
        value = f"{text.number(middle)} {unit} ({text.number(least)} to {text.number(most)})"
        places = place(least), place(middle), place(most)
        intervals.append(Interval(row.name, value, row.extra, *places, row.marked))
    return Scale(quantity, unit, [(place(tick), short(tick)) for tick in ticks], intervals)
