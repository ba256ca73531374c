"""Maps of time to the target over devices and one more field, one per machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfsim.convergence.time_to_accuracy import RatioBand, ratio_band
from perfsim.costs.wafer import HIDES
from perfsim.studies.axes import BATCH_PATHS, LAYOUT
from perfsim.studies.equal_time import EqualDevices, equal_devices
from perfsim.studies.points import Circumstances, PointResult, setting_text, settings_text

# Series of one machine over numbers of devices at its best batch, and how many of one match another.


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
    time_a = a.points[0].target_time
    time_b = b.points[0].target_time
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


# Where a machine stops scaling, and which part of a step is the cause.
#
# With perfect scaling the device-seconds of a token stay constant; their growth is the loss, split by
# cause.
# The knee is the first number of devices with a scaling efficiency under 90 %.

KNEE = 0.9
"""Scaling efficiency below which a machine no longer scales."""


@dataclass(frozen=True)
class Scaling:
    """How the throughput of one series grows with its devices."""

    series: Series

    @property
    def first(self) -> PointResult:
        """The smallest machine."""
        return self.series.points[0]

    @property
    def last(self) -> PointResult:
        """The largest machine."""
        return self.series.points[-1]

    @property
    def knee(self) -> PointResult | None:
        """The first point under 90 % scaling efficiency, if there is one."""
        return next((point for point in self.series.points if self.efficiency(point) < KNEE), None)

    def speedup(self, point: PointResult) -> float:
        """Throughput relative to the smallest machine."""
        return point.prediction.tokens_per_s / self.first.prediction.tokens_per_s

    def efficiency(self, point: PointResult) -> float:
        """Scaling efficiency in throughput, relative to the smallest machine."""
        return self.speedup(point) * self.first.num_devices / point.num_devices

    def losses(self, point: PointResult) -> dict[str, float]:
        """By cause, its share of the growth in device-seconds per token since the smallest machine.

        Largest first; causes that shrank are left out.
        """
        before = cost_of_token(self.first)
        after = cost_of_token(point)
        grown = {cause: seconds - before.get(cause, 0.0) for cause, seconds in after.items()}
        total = sum(after.values()) - sum(before.values())
        shares = {cause: seconds / total for cause, seconds in grown.items() if seconds > 0 < total}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @property
    def sentence(self) -> str:
        """How far the series scales and what limits it."""
        return _sentence(self)


def scalings(series: Sequence[Series]) -> list[Scaling]:
    """The series with more than one number of devices."""
    return [Scaling(member) for member in series if len(member.points) > 1]


def cost_of_token(point: PointResult) -> dict[str, float]:
    """Device-seconds per token by cause."""
    scale = point.num_devices / point.target_time.batch_tokens
    return {cause: seconds * scale for cause, seconds in point.parts_s.items()}


def _sentence(scaling: Scaling) -> str:
    name = scaling.series.circumstance or scaling.series.label
    first = scaling.first
    last = scaling.last
    knee = scaling.knee
    head = (
        f"{name}: from {first.num_devices:,} to {last.machine}, throughput "
        f"grows {scaling.speedup(last):,.3g} times (scaling efficiency {_percent(scaling.efficiency(last))}"
        f"{_in_time(scaling)})"
    )
    if knee is None:
        return f"{head}; efficiency stays at {_percent(KNEE)} or more."
    causes = " and ".join(
        f"{cause} ({_percent(share)} of the loss)" for cause, share in _largest(scaling.losses(knee))
    )
    return (
        f"{head}; efficiency falls below {_percent(KNEE)} at {knee.num_devices:,} "
        f"({_percent(scaling.efficiency(knee))}), because of {causes}{_roof(knee)}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _in_time(scaling: Scaling) -> str:
    """The efficiency in time to the target, if a growing batch needs noticeably more tokens."""
    share = scaling.series.efficiency(scaling.last)
    if abs(share - scaling.efficiency(scaling.last)) < 0.05:
        return ""
    return f"; {_percent(share)} in time to the target, because the larger batch needs more tokens"


def _roof(point: PointResult) -> str:
    """How many tokens a micro-batch needs to hide streaming; empty on machines that stream nothing."""
    roof = point.prediction.why.streaming_roof
    if roof is None or not roof.hidden_from_tokens:
        return ""
    return (
        f"; a micro-batch has {roof.tokens:,.0f} tokens per system there, and hiding {HIDES[roof.lane]} "
        f"takes {roof.hidden_from_tokens:,.0f}"
    )


def _largest(losses: dict[str, float]) -> list[tuple[str, float]]:
    """The largest loss, and the second if it exceeds a fifth of the total."""
    return [item for index, item in enumerate(losses.items()) if index == 0 or (index == 1 and item[1] > 0.2)]


@dataclass(frozen=True)
class TimeMap:
    """Times to the target: numbers of devices in columns, one more field in rows."""

    machine: str
    """`cs-2, weight-streaming`; empty for a map of all machines."""
    fixed: Circumstances
    """The settings that this map holds fixed."""
    path: str | None
    """The field of the rows; None if the rows are machines."""
    counts: tuple[int, ...]
    rows: tuple[str, ...]
    times_s: Mapping[tuple[str, int], float]
    """By row and number of devices; points without a feasible plan are absent."""

    @property
    def of_batch(self) -> bool:
        """Whether the rows are batches."""
        return self.path in BATCH_PATHS


def time_maps(points: Sequence[PointResult]) -> list[TimeMap]:
    """One map per machine and combination of fixed settings, or one map of all machines.

    The rows are the batch if the grid varies it, else the first field that it varies, else the machines.
    Maps of a single cell are left out.
    """
    groups: dict[tuple[str, Circumstances, str | None], list[PointResult]] = {}
    for machine, members in _by_machine(points).items():
        path = _row_path(members)
        for point in members:
            fixed = tuple(
                (name, setting_text(value)) for name, value in point.settings.items() if name != path
            )
            groups.setdefault((machine, fixed, path), []).append(point)
    if all(path is None for _, _, path in groups):
        groups = {("", (), None): list(points)}
    maps = [_map(*key, members) for key, members in groups.items()]
    return [time_map for time_map in maps if len(time_map.counts) * len(time_map.rows) > 1]


def _by_machine(points: Sequence[PointResult]) -> dict[str, list[PointResult]]:
    machines: dict[str, list[PointResult]] = {}
    for point in points:
        machines.setdefault(f"{point.system}, {point.strategy}", []).append(point)
    return machines


def _row_path(points: Sequence[PointResult]) -> str | None:
    """The field of the rows: one with several values."""
    paths = dict.fromkeys(path for point in points for path in point.settings)
    varied = [path for path in paths if len({setting_text(point.settings.get(path)) for point in points}) > 1]
    return next((path for path in (*BATCH_PATHS, *varied) if path in varied), None)


def _map(machine: str, fixed: Circumstances, path: str | None, points: Sequence[PointResult]) -> TimeMap:
    return TimeMap(
        machine,
        fixed,
        path,
        counts=tuple(sorted({point.num_devices for point in points})),
        rows=tuple(dict.fromkeys(_row(point, path) for point in points)),
        times_s={
            (_row(point, path), point.num_devices): point.target_time.time_s
            for point in points
            if point.feasible
        },
    )


def _row(point: PointResult, path: str | None) -> str:
    if path is None:
        return point.system
    return setting_text(point.settings.get(path, "chosen" if path == LAYOUT else None))
