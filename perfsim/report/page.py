"""What a page is made of, and how it becomes HTML or Markdown."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from perfsim.base.files import write_file
from perfsim.report.draw import scale
from perfsim.report.table import Table, markdown_text
from perfsim.report.text import unbroken
from perfsim.version import __version__

if TYPE_CHECKING:
    from perfsim.studies.answers import SharedCaveat


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a lead on what the section helps to decide, and a figure with its table."""

    heading: str
    lead: str = ""
    figure: go.Figure | None = None
    table: Table | None = None
    told: Sequence[str] = ()
    """The columns of the table whose values those are told who do not see the figure."""
    slug: str = ""
    """Fixes the ids (`figure-<slug>`); the default is made from the heading."""
    note: str = ""
    level: int = 2
    trace: str = ""
    """A file next to the page, with all tasks."""
    fold: str = ""
    """The words under which the table is folded; the words of a figure always are."""
    tab: str = ""
    """Sections with the same word here, one after the other, are shown one at a time."""
    short: str = ""
    """Its name in the list of contents, where it is not the heading."""

    @property
    def anchor(self) -> str:
        """Its id on the page."""
        return self.slug or slugify(self.heading)

    @property
    def alt(self) -> str:
        """The figure in words: its title, and values of its table."""
        title = "" if self.figure is None else f": {unescape(self.figure.layout.title.text)}"
        told = self.table.words(*self.told) if self.table is not None and self.told else ""
        return f"{self.heading}{title}. {told}".strip()

    @property
    def plot(self) -> Markup:
        """The place of the figure, and its compressed JSON, from which `page.js` draws it there."""
        if self.figure is None:
            return Markup()
        document = f'{{"figure":{self.figure.to_json()},"config":{json.dumps(_PLOT_CONFIG)}}}'
        packed = base64.b64encode(zlib.compress(document.encode(), 9)).decode()
        return _PLOT.format(id=f"figure-{self.anchor}", height=self.figure.layout.height, packed=packed)


@dataclass(frozen=True, slots=True)
class Page:
    """One HTML file that needs no network, no server and no other file; and the same as Markdown."""

    title: str
    sections: Sequence[Section]
    question: str = ""
    headline: str = ""
    """The answer in one short sentence, larger than the verdict."""
    verdict: str = ""
    trust: str = ""
    """How much to trust the answer, and why not more."""
    scale: Table | None = None
    """Names, and times with their bands, drawn on one logarithmic scale; notes stand below the times."""
    note: str = ""
    """On the scale."""
    caveats: Sequence[SharedCaveat] = ()
    footer: str = ""
    command: str = ""
    """The command line that makes the page."""
    digest: str = ""
    """A fingerprint of its inputs."""

    def write(self, folder: Path, summary: str | Iterable[str] = "") -> Path:
        """Write `index.html`, and `summary` (or its parts) as `summary.json`; equal results, equal bytes."""
        page = write_file(folder / "index.html", self.html())
        if summary:
            write_file(folder / "summary.json", summary)
        return page

    def html(self) -> str:
        """The page as text, in which all text is escaped; ValueError for sections with the same id."""
        anchors = [section.anchor for section in self.sections]
        twice = sorted({anchor for anchor in anchors if anchors.count(anchor) > 1})
        if twice:
            raise ValueError(f"sections share an id: {', '.join(twice)}; give every section its own slug")
        drawn = any(section.figure is not None for section in self.sections)
        return template("page.html.j2").render(
            page=self,
            scale=scale(self.scale) if self.scale is not None else None,
            version=__version__,
            plotly_js=Markup(_plotly_source()) if drawn else "",  # noqa: S704  # Plotly's own source
        )

    def markdown(self) -> str:
        """Headings, leads and tables as text that ends in a line feed; figures stay with the page."""
        blocks = [f"# {markdown_text(self.title)}"]
        blocks += [markdown_text(words) for words in (self.question, self.verdict) if words]
        for section in self.sections:
            blocks.append(f"{'#' * section.level} {markdown_text(section.heading)}")
            blocks += [markdown_text(words) for words in (section.lead, section.note) if words]
            blocks += [section.table.markdown()] if section.table is not None else []
        blocks += [markdown_text(self.footer)] if self.footer else []
        return "\n\n".join(blocks) + "\n"


def caveats_section(
    caveats: Sequence[SharedCaveat], heading: str, lead: str, slug: str = ""
) -> Iterator[Section]:
    """Caveats that are not at the head of a page; nothing without any."""
    rows = [("; ".join(caveat.machines), caveat.severity, caveat.text) for caveat in caveats]
    table = Table.of(("plan", "severity", "caveat"), rows)
    name = "-".join(filter(None, ["caveats", slug]))
    if rows:
        yield Section(heading, lead, table=table, slug=name, short="Caveats", level=3 if slug else 2)


def slugify(heading: str) -> str:
    """Lower-case words joined by hyphens, for ids."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "section"


_PLOT = Markup(
    '<div id="{id}" class="plotly-graph-div" style="height:{height}px; width:100%;"></div>'
    '<script type="text/plain" data-figure="{id}">{packed}</script>'
)
_PLOT_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}


@cache
def _plotly_source() -> str:
    """Plotly's own JavaScript: the part with cartesian axes, a third of all; all for another release."""
    part = files("perfsim.report") / "vendor" / f"plotly-cartesian-{get_plotlyjs_version()}.min.js.gz"
    return gzip.decompress(part.read_bytes()).decode("utf-8") if part.is_file() else get_plotlyjs()


@cache
def template(name: str) -> jinja2.Template:
    """A page of the folder `templates`, in which all text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("perfsim.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters.update(linked=_linked, unbroken=unbroken)
    return environment.get_template(name)


_ADDRESS = re.compile(r"&lt;(https?://(?:&amp;|[^\s&])+)&gt;|(https?://(?:&amp;|[^\s&])*[^\s&.,;:)])")


def _linked(words: str) -> Markup:
    """Escaped text whose addresses can be clicked; angle brackets around them are dropped."""
    linked = _ADDRESS.sub(r'<a href="\1\2" rel="noreferrer">\1\2</a>', str(escape(words)))
    return Markup(linked)  # noqa: S704  # the text is escaped, and an address has no quote
