"""What a sweep says together: machines over device counts, each at its best batch, and who matches whom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from perfsim.convergence.time_to_accuracy import RatioBand, TimeToAccuracy, ratio_band
from perfsim.sweep.axes import BATCH_PATHS, VARIANT
from perfsim.sweep.runner import PointResult, SweepResult

Circumstances = tuple[tuple[str, str], ...]
"""Settings other than the batch, each value as text."""


@dataclass(frozen=True)
class Series:
    """One machine under one set of circumstances: its best point at each number of devices."""

    strategy: str
    system: str
    circumstances: Circumstances
    points: tuple[PointResult, ...]

    @property
    def machine(self) -> tuple[str, str]:
        return self.strategy, self.system

    @property
    def label(self) -> str:
        """`cs-2, weight-streaming, software_release r1.7`."""
        return ", ".join(filter(None, [self.system, self.strategy, self.circumstance]))

    @property
    def circumstance(self) -> str:
        """Its variant by name, and what else the grid varies."""
        return ", ".join(worded(self.circumstances))

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(each.point.num_devices for each in self.points)

    def efficiency(self, each: PointResult) -> float:
        """Of one device of the smallest machine, the share that a device of this one achieves."""
        first = self.points[0]
        speedup = time_of(first).time_s / time_of(each).time_s
        return speedup * first.point.num_devices / each.point.num_devices


@dataclass(frozen=True)
class Match:
    """The fewest devices of a series that are as fast as a point of another machine.

    `fewest` by the central estimate; `possibly` where the low end of the ratio's 90 % band is as
    fast, `surely` where its high end is. None: more than the series has.
    """

    wanted: PointResult
    series: Series
    fewest: PointResult | None
    possibly: int | None
    surely: int | None

    @property
    def between(self) -> tuple[PointResult, float] | None:
        """The largest count that is too slow, and about how many devices would do: log-log between the two.

        None where the smallest count of the series is fast enough already, or none is.
        """
        if self.fewest is None or self.series.points.index(self.fewest) == 0:
            return None
        slower = self.series.points[self.series.points.index(self.fewest) - 1]
        few, many = (math.log(each.point.num_devices) for each in (slower, self.fewest))
        slow_s, fast_s, goal_s = (
            math.log(time_of(each).time_s) for each in (slower, self.fewest, self.wanted)
        )
        share = (slow_s - goal_s) / (slow_s - fast_s) if slow_s > fast_s else 1.0
        return slower, math.exp(few + share * (many - few))


def time_of(each: PointResult) -> TimeToAccuracy:
    """The time to the target of a feasible point."""
    if each.time is None:
        raise ValueError(f"{each.point.label} has no feasible plan")
    return each.time


def circumstances(each: PointResult) -> Circumstances:
    """The settings of a point that are no choice of who trains."""
    return tuple(
        (path, shown(value)) for path, value in each.point.settings.items() if path not in BATCH_PATHS
    )


def worded(settings: Circumstances) -> list[str]:
    """`software_release r1.7`: each setting by the last part of its path, a variant by its name alone."""
    return [value if path == VARIANT else f"{path.rpartition('.')[2]} {value}" for path, value in settings]


def shown(value: Any) -> str:
    """A value of a grid as text."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def series_of(result: SweepResult) -> list[Series]:
    """Every machine under every circumstance, in the order of the grid; only what is feasible."""
    groups: dict[tuple[str, str, Circumstances], list[PointResult]] = {}
    for each in result.feasible:
        candidate = each.point.candidate
        key = (candidate.strategy, candidate.system.name, circumstances(each))
        groups.setdefault(key, []).append(each)
    return [Series(*key, tuple(_best(points))) for key, points in groups.items()]


def _best(points: Iterable[PointResult]) -> list[PointResult]:
    """The soonest at each number of devices; of ties the smaller batch."""
    best: dict[int, PointResult] = {}
    for each in points:
        known = best.get(each.point.num_devices)
        if known is None or _rank(each) < _rank(known):
            best[each.point.num_devices] = each
    return [best[count] for count in sorted(best)]


def _rank(each: PointResult) -> tuple[float, float]:
    time = time_of(each)
    return time.time_s, time.batch_tokens


def matches(result: SweepResult) -> list[Match]:
    """For every point of the later machines: the fewest devices of the first one that are as fast.

    The first circumstance of the grid that both machines know counts. Empty where there is one machine.
    """
    series = series_of(result)
    if not series:
        return []
    first = series[0]
    others = [each for each in series if each.machine != first.machine and _comparable(each, first)]
    chosen = {each.machine: each for each in reversed(others)}
    return [
        match(wanted, first) for other in others if chosen[other.machine] is other for wanted in other.points
    ]


def targets_of(series: Sequence[Series]) -> list[list[Series]]:
    """Series by what they train: of one list all have the same model and pursue the same target."""
    groups: list[list[Series]] = []
    for each in series:
        known = next((group for group in groups if _same_target(group[0], each)), None)
        if known is None:
            groups.append([each])
        else:
            known.append(each)
    return groups


def _same_target(a: Series, b: Series) -> bool:
    return a.points[0].point.study.model == b.points[0].point.study.model and _comparable(a, b)


def _comparable(a: Series, b: Series) -> bool:
    """Whether two machines pursue the same target."""
    one, other = time_of(a.points[0]), time_of(b.points[0])
    return one.critical == other.critical and one.d_min_tokens == other.d_min_tokens


def match(wanted: PointResult, series: Series) -> Match:
    """The fewest devices of `series` that reach the target no later than `wanted`."""
    ratios = [(each, ratio_band(time_of(each), time_of(wanted))) for each in series.points]
    return Match(
        wanted,
        series,
        fewest=next((each for each, ratio in ratios if ratio.ratio <= 1), None),
        possibly=_first(ratios, lambda ratio: ratio.low),
        surely=_first(ratios, lambda ratio: ratio.high),
    )


def _first(ratios: Sequence[tuple[PointResult, RatioBand]], end: Any) -> int | None:
    return next((each.point.num_devices for each, ratio in ratios if end(ratio) <= 1), None)
