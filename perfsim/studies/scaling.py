"""Machines at growing numbers of devices: how they scale, and how many of one finish with another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from perfsim.base.errors import InputError, LayoutError, PerfsimError, PlanError
from perfsim.base.sizes import MOST_DEVICES
from perfsim.convergence.time_to_accuracy import RatioBand, TimeToAccuracy, ratio_band
from perfsim.costs.wafer import HIDES
from perfsim.engine.limits import present_limits
from perfsim.prediction.question import Question
from perfsim.specs.hardware import SystemSpec
from perfsim.studies.answers import Circumstances, PointResult, setting_text, settings_text
from perfsim.studies.axes import BATCH_PATHS, LAYOUT
from perfsim.studies.batches import Target, batch_curve, batch_grid, best_of, run_at

MOST_POINTS = 24
"""Numbers of devices that are tried for one match."""
KNEE = 0.9
"""Scaling efficiency below which a machine no longer scales."""

# How many devices of one machine finish on the same day as another machine, each at its own best batch.


@dataclass(frozen=True, slots=True)
class EqualDevices:
    """A number of devices with its 90 % band; an end is None where no tried number reaches it.

    Between tried numbers the logarithm of the ratio of times is taken to be linear in that of the devices.
    """

    low: float | None
    typical: float | None
    high: float | None


def equal_devices(ratios: Sequence[tuple[int, RatioBand]]) -> EqualDevices:
    """Where a machine's time over a rival's is 1, from the ratios at ascending numbers of devices.

    The ends of the band are where the low and the high end of the ratio are 1. An end below the smallest
    number is that number: fewer were not tried.
    """
    return EqualDevices(
        _crossing([(count, ratio.low) for count, ratio in ratios]),
        _crossing([(count, ratio.ratio) for count, ratio in ratios]),
        _crossing([(count, ratio.high) for count, ratio in ratios]),
    )


def _crossing(points: Sequence[tuple[int, float]]) -> float | None:
    before: tuple[int, float] | None = None
    for count, ratio in points:
        if ratio <= 1:
            if before is None:
                return float(count)
            fewer, slower = before
            share = math.log(slower) / math.log(slower / ratio)
            return fewer * math.pow(count / fewer, share)
        before = count, ratio
    return None


@dataclass(frozen=True)
class MatchPoint:
    """A number of devices at its best batch."""

    devices: int
    global_batch_size: int
    time: TimeToAccuracy
    ratio: RatioBand
    """Its time over that of the machine that is matched."""


@dataclass(frozen=True)
class Matched:
    """The numbers of devices of a system that were tried against another machine, ascending."""

    system: str
    devices_noun: str
    points: tuple[MatchPoint, ...]

    @property
    def equal(self) -> EqualDevices:
        """How many of them finish on the same day."""
        return equal_devices([(point.devices, point.ratio) for point in self.points])


def match_system(system: SystemSpec, question: Question, time: TimeToAccuracy, target: Target) -> Matched:
    """Times of a system on more and more devices, until all of the band of the ratio to `time` is below 1.

    `question` is that of the machine that is matched. Numbers with one replica that does not fit are passed
    over. Raises the reason of the last one, a PerfsimError, where no number of devices has a plan.
    """
    first = replace(question, system=system, devices=1, strategy="", batch=None, layout=None, cluster=None)
    devices = first.topology.devices_per_node
    same = system.name == question.system.name
    points: list[MatchPoint] = []
    refused: PerfsimError | None = None
    while devices <= MOST_DEVICES and len(points) < MOST_POINTS:
        present_limits().in_time(lambda: f"{len(points)} numbers of {system.name} tried")
        asked = replace(first, devices=devices)
        try:
            asked.check()
            grid = batch_grid(target, asked.recipe.seq_length, devices)
            best = best_of(batch_curve(asked, target, grid, extend=True)[0])
            taken = run_at(asked, target, best)[1].answer
            point = MatchPoint(devices, best, taken, ratio_band(taken, time, same_machine=same))
        except (PlanError, LayoutError, InputError) as error:
            refused = error
            if points:
                break
            devices *= 2
            continue
        points.append(point)
        if point.ratio.high <= 1:
            break
        # Twice as many; after the first number the largest that even ideal scaling keeps too slow.
        slower = point.ratio.low if len(points) == 1 else 1.0
        devices <<= max(int(math.log2(max(slower, 1.0))), 1)
    if not points:
        raise refused or PlanError(f"{system.name}: no number of devices to try")
    return Matched(system.name, system.devices_noun, tuple(points))


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
        system = self.points[0].candidate.system
        name = system.noun.device if system.noun else system.name
        return ", ".join(filter(None, [name, self.strategy, self.circumstance]))

    def at(self, point: PointResult) -> str:
        """One of its points: `16 CS-2, weight-streaming, software release r1.7`."""
        return ", ".join(filter(None, [point.machine, self.strategy, self.circumstance]))

    @property
    def devices_noun(self) -> str:
        """Several of its devices, such as `CS-2`."""
        return self.points[0].candidate.system.devices_noun

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
        possibly=next((point.num_devices for point, ratio in ratios if ratio.low <= 1), None),
        surely=next((point.num_devices for point, ratio in ratios if ratio.high <= 1), None),
        equal=equal_devices([(point.num_devices, ratio) for point, ratio in ratios]),
    )


# Where a machine stops scaling, and which part of a step is the cause.
#
# With perfect scaling the device-seconds of a token stay constant; their growth is the loss, split by cause.


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
        before, after = (
            {
                cause: seconds * known.num_devices / known.target_time.batch_tokens
                for cause, seconds in known.prediction.parts_s.items()
            }
            for known in (self.first, point)
        )
        grown = {cause: seconds - before.get(cause, 0.0) for cause, seconds in after.items()}
        total = sum(after.values()) - sum(before.values())
        shares = {cause: seconds / total for cause, seconds in grown.items() if seconds > 0 < total}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @property
    def sentence(self) -> str:
        """How far the series scales and what limits it."""
        last = self.last
        knee = self.knee
        in_throughput = self.efficiency(last)
        in_time = self.series.efficiency(last)
        tokens = ""
        if abs(in_time - in_throughput) >= 0.05:
            tokens = (
                f"; {_percent(in_time)} in time to the target, because the larger batch needs more tokens"
            )
        head = (
            f"{self.series.circumstance or self.series.label}: from {self.first.num_devices:,} to "
            f"{last.machine}, throughput grows {self.speedup(last):,.3g} times (scaling efficiency "
            f"{_percent(in_throughput)}{tokens})"
        )
        if knee is None:
            return f"{head}; efficiency stays at {_percent(KNEE)} or more."
        # The largest loss, and the second if it exceeds a fifth of the total.
        losses = list(self.losses(knee).items())
        named = [*losses[:1], *(loss for loss in losses[1:2] if loss[1] > 0.2)]
        causes = " and ".join(f"{cause} ({_percent(share)} of the loss)" for cause, share in named)
        roof = knee.prediction.why.streaming_roof
        if roof is not None and roof.hidden_from_tokens:
            causes += (
                f"; a micro-batch has {roof.tokens:,.0f} tokens per system there, and hiding "
                f"{HIDES[roof.lane]} takes {roof.hidden_from_tokens:,.0f}"
            )
        return (
            f"{head}; efficiency falls below {_percent(KNEE)} at {knee.num_devices:,} "
            f"({_percent(self.efficiency(knee))}), because of {causes}."
        )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


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


def _map(machine: str, fixed: Circumstances, path: str | None, points: Sequence[PointResult]) -> TimeMap:
    def row(point: PointResult) -> str:
        if path is None:
            return point.system
        return setting_text(point.settings.get(path, "chosen" if path == LAYOUT else None))

    return TimeMap(
        machine,
        fixed,
        path,
        counts=tuple(sorted({point.num_devices for point in points})),
        rows=tuple(dict.fromkeys(map(row, points))),
        times_s={
            (row(point), point.num_devices): point.target_time.time_s for point in points if point.feasible
        },
    )


@dataclass(frozen=True)
class Machines:
    """The points of a sweep by machine; each comparison is made once, when it is first asked for."""

    points: tuple[PointResult, ...]

    @cached_property
    def feasible(self) -> tuple[PointResult, ...]:
        """The points that have a plan."""
        return tuple(point for point in self.points if point.feasible)

    @cached_property
    def series(self) -> Sequence[Series]:
        """Every machine under every combination of settings, in the order of the grid.

        At each number of devices a series has its fastest point; ties go to the smaller batch.
        """
        groups: dict[tuple[str, str, Circumstances], dict[int, PointResult]] = {}
        for point in self.feasible:
            best = groups.setdefault((point.strategy, point.system, point.circumstances), {})
            best[point.num_devices] = min(
                best.get(point.num_devices, point),
                point,
                key=lambda known: (known.target_time.time_s, known.target_time.batch_tokens),
            )
        return [Series(*key, tuple(best[count] for count in sorted(best))) for key, best in groups.items()]

    @cached_property
    def targets(self) -> Sequence[Sequence[Series]]:
        """The series grouped by model and target; times are comparable only within a group."""
        groups: list[list[Series]] = []
        for member in self.series:
            model = member.points[0].study.model
            alike = (
                group
                for group in groups
                if group[0].points[0].study.model == model and _comparable(group[0], member)
            )
            if (group := next(alike, None)) is None:
                groups.append([member])
            else:
                group.append(member)
        return groups

    @cached_property
    def equal_times(self) -> Sequence[tuple[Sequence[Match], Sequence[Match]]]:
        """For each other machine, its points matched by the first machine, and the first's points by it.

        A machine is compared by its first series that trains to the first machine's target.
        """
        rivals: dict[tuple[str, str], Series] = {}
        for rival in self.series[1:]:
            if rival.machine != self.series[0].machine and _comparable(rival, self.series[0]):
                rivals.setdefault(rival.machine, rival)
        return [
            (
                [match(point, self.series[0]) for point in rival.points],
                [match(point, rival) for point in self.series[0].points],
            )
            for rival in rivals.values()
        ]

    @cached_property
    def matches(self) -> Sequence[Match]:
        """For each point of the other machines, the fewest devices of the first machine that are as fast."""
        return [matched for forward, _ in self.equal_times for matched in forward]

    @cached_property
    def scalings(self) -> Sequence[Scaling]:
        """How throughput grows with devices, for series that have several numbers of them."""
        return [Scaling(member) for member in self.series if len(member.points) > 1]

    @cached_property
    def maps(self) -> Sequence[TimeMap]:
        """Times over devices and one more field: the batch if the grid varies it, else the first that varies.

        One map per machine and combination of fixed settings, or one of all machines where no field varies.
        Maps of a single cell are left out.
        """
        machines: dict[str, list[PointResult]] = {}
        for point in self.points:
            machines.setdefault(f"{point.system}, {point.strategy}", []).append(point)
        groups: dict[tuple[str, Circumstances, str | None], list[PointResult]] = {}
        for machine, members in machines.items():
            values: dict[str, set[str]] = {path: set() for point in members for path in point.settings}
            for path, found in values.items():
                found.update(setting_text(point.settings.get(path)) for point in members)
            varied = [path for path, found in values.items() if len(found) > 1]
            row = next((path for path in (*BATCH_PATHS, *varied) if path in varied), None)
            for point in members:
                fixed = tuple(
                    (name, setting_text(value)) for name, value in point.settings.items() if name != row
                )
                groups.setdefault((machine, fixed, row), []).append(point)
        if all(path is None for _, _, path in groups):
            groups = {("", (), None): list(self.points)}
        maps = [_map(*key, members) for key, members in groups.items()]
        return [time_map for time_map in maps if len(time_map.counts) * len(time_map.rows) > 1]


def _comparable(a: Series, b: Series) -> bool:
    """Whether two series train to the same target."""
    time_a = a.points[0].target_time
    time_b = b.points[0].target_time
    return time_a.critical == time_b.critical and time_a.d_min_tokens == time_b.d_min_tokens
