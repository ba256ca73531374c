"""The cards at the head of a sweep's page: the best of each machine, and which of them is soonest."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.report import text
from perfsim.report.sections import Card
from perfsim.sweep.runner import PointResult
from perfsim.sweep.scaling import Series, targets_of, time_of

MOST_CARDS = 8


def cards_of(series: Sequence[Series]) -> tuple[list[Card], str]:
    """A card for each series in their order, the soonest of one target marked; and what the cards are.

    Of more than there is room for, the soonest are shown where all have one target, else the first.
    """
    if not series:
        return [], ""
    groups = targets_of(series)
    winners = [min(group, key=_best_s) for group in groups if len(group) > 1]
    chosen = sorted(series, key=_best_s) if len(groups) == 1 else list(series)
    shown = [each for each in series if any(each is other for other in chosen[:MOST_CARDS])]
    cards = [_card(each, marked=any(each is winner for winner in winners)) for each in shown]
    return cards, _note(len(shown), len(series), len(groups), marked=any(card.marked for card in cards))


def _best(series: Series) -> PointResult:
    return min(series.points, key=lambda each: time_of(each).time_s)


def _best_s(series: Series) -> float:
    return time_of(_best(series)).time_s


def _card(series: Series, *, marked: bool) -> Card:
    best = _best(series)
    time = time_of(best)
    name = f"{best.point.num_devices:,} {text.TIMES} {series.label}"
    return Card(text.duration(time.time_s), f"band {text.duration_band(time.band_s)}", name, marked)


def _note(shown: int, count: int, targets: int, *, marked: bool) -> str:
    words = ["Each machine at the number of devices that reaches the target soonest, at its best batch."]
    if targets > 1:
        words = ["Each at its best batch. Not all have the same target: a model or its tokens differ."]
    if marked:
        words.append("Marked: the soonest of all." if targets == 1 else "Marked: the soonest of one target.")
    if shown < count:
        which = "the soonest" if targets == 1 else "the first"
        words.append(f"{shown} of {count} are shown, {which}; the tables have all.")
    return " ".join(words)
