"""Times with their bands on one logarithmic scale at the head of a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfsim.report import text
from perfsim.report.figures.base import log_ticks, short
from perfsim.report.sections import Interval, Scale


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
    low, high = min([*ends, *ticks]), max([*ends, *ticks])

    def place(value: float) -> float:
        return round(100 * math.log(value / low) / math.log(high / low), 2) if high > low else 50.0

    intervals = []
    for row in rows:
        least, middle, most = (end / scale for end in (row.band_s[0], row.time_s, row.band_s[1]))
        value = f"{text.number(middle)} {unit} ({text.number(least)} to {text.number(most)})"
        places = place(least), place(middle), place(most)
        intervals.append(Interval(row.name, value, row.extra, *places, row.marked))
    return Scale(quantity, unit, [(place(tick), short(tick)) for tick in ticks], intervals)
