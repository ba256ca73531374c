"""Series of one machine over numbers of devices at its best batch, and how many of one match another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from perfsim.convergence.time_to_accuracy import RatioBand, ratio_band
from perfsim.studies.equal_time import EqualDevices, equal_devices
from perfsim.sweeps.points import Circumstances, PointResult, settings_text


@dataclass(frozen=True)
class Series:
    """One machine under one combination of settings: its best point at each number of devices."""

    strategy: str
    system: str
    circumstances: Circumstances
    points: tuple[PointResult, ...]

    @property
    def machine(self) -> tuple[str, str]:
        """Strategy and system."""
        return self.strategy, self.system

    @property
    def label(self) -> str:
        """`CS-2, weight-streaming, software release r1.7`."""
        system = self.points[0].point.candidate.system
        name = system.noun.device if system.noun else system.name
        return ", ".join(filter(None, [name, self.strategy, self.circumstance]))

    def at(self, point: PointResult) -> str:
        """One of its points: `16 CS-2, weight-streaming, software release r1.7`."""
        return ", ".join(filter(None, [point.machine, self.strategy, self.circumstance]))

    @property
    def devices_noun(self) -> str:
        """Several of its devices, such as `CS-2`."""
        return self.points[0].point.candidate.system.devices_noun

    @property
    def circumstance(self) -> str:
        """The name of its variant, and the other settings of the grid."""
        return settings_text(self.circumstances)

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of devices, increasing."""
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

    `fewest` is the central estimate; `possibly` and `surely` take the low and the high end of the 90 % band
    of the ratio of times. None: more devices than the series has.
    """

    rival: PointResult
    series: Series
    fewest: PointResult | None
    possibly: int | None
    surely: int | None
    equal: EqualDevices
    """The number of devices that takes equal time, interpolated."""

    @property
    def between(self) -> tuple[PointResult, float] | None:
        """The largest point that is too slow, and the interpolated number of devices.

        None if the smallest point of the series is fast enough, or no point is.
        """
        if self.fewest is None or self.fewest is self.series.points[0] or self.equal.typical is None:
            return None
        return self.series.points[self.series.points.index(self.fewest) - 1], self.equal.typical


def series_of(feasible: Sequence[PointResult]) -> list[Series]:
    """Every machine under every combination of settings, in the order of the grid."""
    groups: dict[tuple[str, str, Circumstances], list[PointResult]] = {}
    for point in feasible:
        groups.setdefault((point.strategy, point.system, point.circumstances), []).append(point)
    return [Series(*key, tuple(_best(points))) for key, points in groups.items()]


def _best(points: Iterable[PointResult]) -> list[PointResult]:
    """The fastest point at each number of devices; ties go to the smaller batch."""
    best: dict[int, PointResult] = {}
    for point in points:
        count = point.num_devices
        best[count] = min(best.get(count, point), point, key=_rank)
    return [best[count] for count in sorted(best)]


def _rank(point: PointResult) -> tuple[float, float]:
    return point.target_time.time_s, point.target_time.batch_tokens


def matches(series: Sequence[Series]) -> list[Match]:
    """For every point of the later machines, the fewest devices of the first machine that are as fast.

    A machine is compared by its first series with the target of the first machine. Empty for one machine.
    """
    if not series:
        return []
    first = series[0]
    rivals: dict[tuple[str, str], Series] = {}
    for rival in series[1:]:
        if rival.machine != first.machine and _comparable(rival, first):
            rivals.setdefault(rival.machine, rival)
    return [match(point, first) for rival in rivals.values() for point in rival.points]


def equal_times(series: Sequence[Series]) -> list[tuple[list[Match], list[Match]]]:
    """For each other machine, its points matched by the first machine, and the first's points by it."""
    pairs: dict[tuple[str, str], Series] = {}
    for known in matches(series):
        rival = next(own for own in series if known.rival in own.points)
        pairs.setdefault(rival.machine, rival)
    first = series[0] if series else None
    return [
        ([match(point, first) for point in rival.points], [match(point, rival) for point in first.points])
        for rival in pairs.values()
        if first is not None
    ]


def same_target(series: Iterable[Series]) -> list[list[Series]]:
    """Series grouped by model and target."""
    groups: list[list[Series]] = []
    for member in series:
        group = next((group for group in groups if _same_target(group[0], member)), None)
        if group is None:
            groups.append([member])
        else:
            group.append(member)
    return groups


def _same_target(a: Series, b: Series) -> bool:
    return a.points[0].point.study.model == b.points[0].point.study.model and _comparable(a, b)


def _comparable(a: Series, b: Series) -> bool:
    """Whether two series train to the same target."""
    time_a, time_b = a.points[0].target_time, b.points[0].target_time
    return time_a.critical == time_b.critical and time_a.d_min_tokens == time_b.d_min_tokens


def match(rival: PointResult, series: Series) -> Match:
    """The fewest devices of `series` that reach the target no later than `rival`."""
    same = series.system == rival.system
    ratios = [
        (point, ratio_band(point.target_time, rival.target_time, same_machine=same))
        for point in series.points
    ]
    return Match(
        rival,
        series,
        fewest=next((point for point, ratio in ratios if ratio.ratio <= 1), None),
        possibly=_first(ratios, lambda ratio: ratio.low),
        surely=_first(ratios, lambda ratio: ratio.high),
        equal=equal_devices([(point.num_devices, ratio) for point, ratio in ratios]),
    )


def _first(ratios: Sequence[tuple[PointResult, RatioBand]], end: Any) -> int | None:
    return next((point.num_devices for point, ratio in ratios if end(ratio) <= 1), None)
