"""The cards at the head of a sweep's page: the best of each machine, and which of them is fastest."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.report import text
from perfsim.report.sections import Card
from perfsim.report.study.whole_run import production_rate
from perfsim.sweeps.analysis import Analysis
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.scaling import Series

MAX_CARDS = 8


def cards_of(analysis: Analysis) -> tuple[list[Card], str]:
    """A card for each series in their order, the fastest of each target marked; and what the cards show.

    Where there are more than fit, the fastest are shown if all have one target, else the first.
    """
    series, targets = analysis.series, analysis.targets
    if not series:
        return [], ""
    winners = [min(group, key=_time_s) for group in targets if len(group) > 1]
    chosen = sorted(series, key=_time_s) if len(targets) == 1 else list(series)
    shown = [member for member in series if member in chosen[:MAX_CARDS]]
    cards = [_card(member, marked=member in winners) for member in shown]
    return cards, _note(len(shown), len(series), len(targets), marked=any(card.marked for card in cards))


def _time_s(series: Series) -> float:
    return series.fastest.target_time.time_s


def _card(series: Series, *, marked: bool) -> Card:
    time = series.fastest.target_time
    name = series.at(series.fastest)
    return Card(text.duration(time.time_s), f"band {text.duration_band(time.band_s)}", name, marked)


def production_notes(feasible: Sequence[PointResult]) -> list[str]:
    """A sentence for each production ratio of the points."""
    ratios = dict.fromkeys(point.production for point in feasible)
    return [
        f"Times are of healthy steps; runs take longer, at {production_rate(production)}."
        for production in filter(None, ratios)
    ]


def _note(shown: int, count: int, targets: int, *, marked: bool) -> str:
    words = ["Each machine at the number of devices that reaches the target first, at its best batch."]
    if targets > 1:
        words = ["Each machine at its best batch. Targets differ, because models or their tokens do."]
    if marked:
        words.append("Marked: the fastest." if targets == 1 else "Marked: the fastest to each target.")
    if shown < count:
        which = "the fastest" if targets == 1 else "the first"
        words.append(f"The cards show {which} {shown} of {count}; the tables have all.")
    return " ".join(words)
