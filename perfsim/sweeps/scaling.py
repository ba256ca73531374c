"""Machines over numbers of devices, each at its best batch, and how many of one match another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from perfsim.convergence.time_to_accuracy import RatioBand, ratio_band
from perfsim.sweeps.points import Circumstances, PointResult, settings_text


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
        """The name of its variant, and what else the grid varies."""
        return settings_text(self.circumstances)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(point.num_devices for point in self.points)

    @property
    def fastest(self) -> PointResult:
        """The point that reaches the target first."""
        return min(self.points, key=lambda point: point.target_time.time_s)

    def efficiency(self, point: PointResult) -> float:
        """Scaling efficiency in time to the target, relative to the smallest machine."""
        first = self.points[0]
        speedup = first.target_time.time_s / point.target_time.time_s
        return speedup * first.num_devices / point.num_devices


@dataclass(frozen=True)
class Match:
    """The fewest devices of a series that are as fast as a point of another machine.

    `fewest` is the central estimate, `possibly` and `surely` are where the low and the high end of the
    ratio's 90 % band are as fast. None: more than the series has.
    """

    rival: PointResult
    series: Series
    fewest: PointResult | None
    possibly: int | None
    surely: int | None

    @property
    def between(self) -> tuple[PointResult, float] | None:
        """The largest count that is too slow, and the interpolated number of devices (log-log).

        None where the smallest count of the series is fast enough already, or none is.
        """
        if self.fewest is None or self.series.points.index(self.fewest) == 0:
            return None
        slower = self.series.points[self.series.points.index(self.fewest) - 1]
        few, many = math.log(slower.num_devices), math.log(self.fewest.num_devices)
        slow_s, fast_s, goal_s = (
            math.log(point.target_time.time_s) for point in (slower, self.fewest, self.rival)
        )
        share = (slow_s - goal_s) / (slow_s - fast_s) if slow_s > fast_s else 1.0
        return slower, math.exp(few + share * (many - few))


def series_of(feasible: Sequence[PointResult]) -> list[Series]:
    """Every machine under every circumstance, in the order of the grid."""
    groups: dict[tuple[str, str, Circumstances], list[PointResult]] = {}
    for point in feasible:
        groups.setdefault((point.strategy, point.system, point.circumstances), []).append(point)
    return [Series(*key, tuple(_best(points))) for key, points in groups.items()]


def _best(points: Iterable[PointResult]) -> list[PointResult]:
    """The fastest at each number of devices; of ties the smaller batch."""
    best: dict[int, PointResult] = {}
    for point in points:
        known = best.get(point.num_devices)
        if known is None or _rank(point) < _rank(known):
            best[point.num_devices] = point
    return [best[count] for count in sorted(best)]


def _rank(point: PointResult) -> tuple[float, float]:
    return point.target_time.time_s, point.target_time.batch_tokens


def matches(series: Sequence[Series]) -> list[Match]:
    """For every point of the later machines, the fewest devices of the first machine that are as fast.

    A machine counts under the first circumstance of the grid that it shares with the first machine.
    Empty where there is one machine.
    """
    if not series:
        return []
    first = series[0]
    rivals: dict[tuple[str, str], Series] = {}
    for rival in series[1:]:
        if rival.machine != first.machine and _comparable(rival, first):
            rivals.setdefault(rival.machine, rival)
    return [match(point, first) for rival in rivals.values() for point in rival.points]


def same_target(series: Iterable[Series]) -> list[list[Series]]:
    """Series grouped by what they train: one model and one target in each group."""
    groups: list[list[Series]] = []
    for member in series:
        known = next((group for group in groups if _same_target(group[0], member)), None)
        if known is None:
            groups.append([member])
        else:
            known.append(member)
    return groups


def _same_target(a: Series, b: Series) -> bool:
    return a.points[0].point.study.model == b.points[0].point.study.model and _comparable(a, b)


def _comparable(a: Series, b: Series) -> bool:
    """Whether two machines train to the same target."""
    time_a, time_b = a.points[0].target_time, b.points[0].target_time
    return time_a.critical == time_b.critical and time_a.d_min_tokens == time_b.d_min_tokens


def match(rival: PointResult, series: Series) -> Match:
    """The fewest devices of `series` that reach the target no later than `rival`."""
    ratios = [(point, ratio_band(point.target_time, rival.target_time)) for point in series.points]
    return Match(
        rival,
        series,
        fewest=next((point for point, ratio in ratios if ratio.ratio <= 1), None),
        possibly=_first(ratios, lambda ratio: ratio.low),
        surely=_first(ratios, lambda ratio: ratio.high),
    )


def _first(ratios: Sequence[tuple[PointResult, RatioBand]], end: Any) -> int | None:
    return next((point.num_devices for point, ratio in ratios if end(ratio) <= 1), None)
