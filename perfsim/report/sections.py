"""What a page is made of, before it is HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from markupsafe import Markup

from perfsim.report.table import Table


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, what the section helps to decide, and a figure or ready HTML, with its table.

    `alt` describes the figure to who cannot see it. `html` is put in as it is: pass `Markup` built
    with escaping. `slug` fixes the ids (`figure-<slug>`); without one it is made from the heading.
    """

    heading: str
    lead: str = ""
    figure: go.Figure | None = None
    html: Markup | None = None
    table: Table | None = None
    alt: str = ""
    slug: str = ""
    note: str = ""
    level: int = 2

    @property
    def anchor(self) -> str:
        return self.slug or slugify(self.heading)


@dataclass(frozen=True, slots=True)
class Card:
    """One large figure at the head of a page."""

    figure: str
    range: str
    name: str
    marked: bool = False
    """Whether it stands out, as the best of those beside it."""


@dataclass(frozen=True, slots=True)
class Head:
    """What stands above the sections."""

    subtitle: str = ""
    verdict: str = ""
    cards: Sequence[Card] = ()
    cards_note: str = ""
    footer: str = ""


def slugify(heading: str) -> str:
    """Lower-case words joined by hyphens, for ids."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "section"
