"""Caveats in words: the worst stand at the head of an answer, the others in a table below."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfsim.report.page import Remark, Section

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfsim.report.table import Table

if TYPE_CHECKING:
    from perfsim.prediction.caveats import SharedCaveat


MOST_AT_HEAD = 3
"""Caveats at the head of an answer; more only where more are serious, or are of `ALWAYS`."""


ALWAYS = ("cluster-scaled",)
"""Codes of caveats without which the figures are misread, whatever their severity."""


def split(
    caveats: Sequence[SharedCaveat], verdict: str, most: int = MOST_AT_HEAD
) -> tuple[list[SharedCaveat], list[SharedCaveat]]:
    """The `most` worst for the head of an answer, all serious ones among them, and the others.

    A caveat that the verdict quotes as a whole is in neither.
    """
    left = [caveat for caveat in caveats if not (caveat.headline == caveat.text and caveat.text in verdict)]
    serious = sum(caveat.severity == "serious" for caveat in left)
    warned = sum(caveat.severity != "info" for caveat in left)
    count = max(serious, min(warned, most))
    shown = [*left[:count], *(caveat for caveat in left[count:] if caveat.code in ALWAYS)]
    return shown, [caveat for caveat in left if caveat not in shown]


def about(caveat: SharedCaveat) -> str:
    """The machines that a caveat is about."""
    return "; ".join(caveat.machines)


def head_remarks(caveats: Sequence[SharedCaveat], verdict: str) -> list[Remark]:
    """The caveats at the head of a page."""
    from perfsim.report.page import Remark  # a terminal needs none

    return [Remark(caveat.severity, about(caveat), caveat.text) for caveat in split(caveats, verdict)[0]]


def caveats_section(caveats: Sequence[SharedCaveat], verdict: str, badge: str = "") -> list[Section]:
    """The caveats that are not among the remarks at the head of a page; nothing without any.

    What the badge quotes stands here too, with the machines that it is about.
    """
    at_head = split(caveats, verdict or badge)[0]
    shown, others = split(caveats, verdict)
    rest = [caveat for caveat in (*shown, *others) if caveat not in at_head]
    if not rest:
        return []
    rows = [[about(caveat), caveat.severity, caveat.text] for caveat in rest]
    from perfsim.report.page import Section  # a terminal needs none

    lead = "Further reasons to trust a figure less, besides those above."
    table = Table(("plan", "severity", "caveat"), rows)
    return [Section("Further caveats", lead, table=table, slug="caveats", short="Caveats")]
