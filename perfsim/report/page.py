"""A page: one HTML file that needs no network, no server and no other file.

`write_page` makes a page of sections (of a study, a sweep, a validation). The same input gives the same
bytes: ids are fixed and nothing carries the time.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from perfsim.files import write_file
from perfsim.report.sections import Head, Section
from perfsim.version import __version__

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
