"""What a page is made of, before it is HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ParamSpec
from urllib.parse import quote

from perfsim.report.table import Table

if TYPE_CHECKING:
    import plotly.graph_objects as go


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
