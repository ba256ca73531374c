"""Machines at growing numbers of devices: how they scale, and how many of one finish with another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from perfsim.base.errors import InputError, LayoutError, PerfsimError, PlanError
from perfsim.base.sizes import MOST_DEVICES
from perfsim.convergence.critical_batch import CriticalBatch
from perfsim.convergence.time_to_accuracy import RatioBand, TimeToAccuracy
from perfsim.costs.wafer import HIDES
from perfsim.engine.limits import present_limits
from perfsim.prediction.planner import best_plan
from perfsim.prediction.question import Question
from perfsim.specs.hardware import SystemSpec
from perfsim.studies.answers import PointResult, settings_text
from perfsim.studies.batches import Target

MOST_POINTS = 24
"""Numbers of devices that are tried for one match."""
KNEE = 0.9
"""Scaling efficiency below which a machine no longer scales."""

# How many devices of one machine finish on the same day as another machine, each at its own best batch.


@dataclass(frozen=True, slots=True)
class EqualDevices:
    """A number of devices with its 90 % band; an end is None where no tried number reaches it.

    Between tried numbers the log of the ratio of times is taken to be linear in the log of the devices.
    """

    low: float | None
    typical: float | None
    high: float | None

    @classmethod
    def of(cls, ratios: Sequence[tuple[int, RatioBand]]) -> Self:
        """Where a machine's time over a rival's is 1, from the ratios at ascending numbers of devices.

        The ends of the band are where the low and the high end of the ratio are 1. An end below the smallest
        number is that number: fewer were not tried.
        """

        def crossing(end: str) -> float | None:
            before: tuple[int, float] | None = None
            for count, band in ratios:
                ratio = getattr(band, end)
                if ratio <= 1:
                    if before is None:
                        return float(count)
                    fewer, slower = before
                    return fewer * math.pow(count / fewer, math.log(slower) / math.log(slower / ratio))
                before = count, ratio
            return None

        return cls(crossing("low"), crossing("ratio"), crossing("high"))


@dataclass(frozen=True)
class _MatchPoint:
    """A number of devices at its best batch."""

    devices: int
    global_batch_size: int
    time: TimeToAccuracy
    ratio: RatioBand
    """Its time over the time of the machine that is matched."""


@dataclass(frozen=True)
class Matched:
    """The numbers of devices of a system that were tried against another machine, ascending."""

    system: str
    devices_noun: str
    points: tuple[_MatchPoint, ...]

    @classmethod
    def of(cls, system: SystemSpec, question: Question, time: TimeToAccuracy, target: Target) -> Self:
        """Times of a system on more and more devices, until the ratio to `time` is surely below 1.

        `question` asks about the machine that is matched. Numbers with one replica that does not fit are
        passed over. Raises the reason of the last one, a PerfsimError, where no number has a plan.
        """
        first = replace(
            question, system=system, devices=1, strategy="", batch=None, layout=None, cluster=None
        )
        devices = first.topology.devices_per_node
        same = system.name == question.system.name
        points: list[_MatchPoint] = []
        refused: PerfsimError | None = None
        while devices <= MOST_DEVICES and len(points) < MOST_POINTS:
            present_limits().in_time(lambda: f"{len(points)} numbers of {system.name} tried")
            asked = replace(first, devices=devices)
            try:
                asked.check()
                grid = target.grid(asked.recipe.seq_length, devices)
                curve = target.curve(asked, grid, extend=True)
                taken = target.time_of_run(best_plan(asked.at(curve.best)))
                point = _MatchPoint(devices, curve.best, taken, taken.ratio_to(time, same_machine=same))
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
        return cls(system.name, system.devices_noun, tuple(points))

    @property
    def equal(self) -> EqualDevices:
        """How many of them finish on the same day."""
        return EqualDevices.of([(point.devices, point.ratio) for point in self.points])


# Series of one machine over numbers of devices at its best batch, and how many of one match another.


@dataclass(frozen=True)
class Series:
    """One machine under one combination of settings: its best point at each number of devices.

    With perfect scaling the device-seconds of a token stay constant; their growth is what scaling loses.
    """

    points: tuple[PointResult, ...]
    """By increasing number of devices."""

    @property
    def first(self) -> PointResult:
        """The smallest machine."""
        return self.points[0]

    @property
    def last(self) -> PointResult:
        """The largest machine."""
        return self.points[-1]

    @property
    def target(self) -> tuple[CriticalBatch, float]:
        """What ends its runs: the critical batch and the tokens."""
        return self.first.target_time.critical, self.first.target_time.d_min_tokens

    @property
    def machine(self) -> tuple[str, str]:
        """Strategy and system."""
        return self.first.strategy, self.first.system

    @property
    def circumstance(self) -> str:
        """The name of its variant, and the other settings of the grid."""
        return settings_text(self.first.circumstances)

    @property
    def several(self) -> str:
        """`CS-2 with software release r1.7`."""
        return " with ".join(filter(None, [self.first.devices_noun, self.circumstance]))

    @property
    def label(self) -> str:
        """`CS-2, weight-streaming, software release r1.7`."""
        system = self.first.candidate.system
        name = system.noun.device if system.noun else system.name
        return ", ".join(filter(None, [name, self.first.strategy, self.circumstance]))

    def at(self, point: PointResult) -> str:
        """One of its points: `16 CS-2, weight-streaming, software release r1.7`."""
        return ", ".join(filter(None, [point.machine, point.strategy, self.circumstance]))

    @property
    def fastest(self) -> PointResult:
        """The point that reaches the target first."""
        return min(self.points, key=lambda point: point.target_time.time_s)

    def efficiency(self, point: PointResult) -> float:
        """Scaling efficiency in time to the target, relative to the smallest machine."""
        speedup = self.first.target_time.time_s / point.target_time.time_s
        return speedup * self.first.num_devices / point.num_devices

    def speedup(self, point: PointResult) -> float:
        """Throughput relative to the smallest machine."""
        return point.prediction.tokens_per_s / self.first.prediction.tokens_per_s

    def throughput_efficiency(self, point: PointResult) -> float:
        """Scaling efficiency in throughput, relative to the smallest machine."""
        return self.speedup(point) * self.first.num_devices / point.num_devices

    @property
    def knee(self) -> PointResult | None:
        """The first point under 90 % scaling efficiency in throughput, if there is one."""
        return next((point for point in self.points if self.throughput_efficiency(point) < KNEE), None)

    def losses(self, point: PointResult) -> dict[str, float]:
        """By cause, its share of the growth in device-seconds per token since the smallest machine.

        Largest first; causes that shrank are left out.
        """
        before, after = (
            {
                cause: seconds * known.num_devices / known.target_time.batch_tokens
                for cause, seconds in known.prediction.why.parts_s.items()
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
        in_throughput = self.throughput_efficiency(self.last)
        in_time = self.efficiency(self.last)
        tokens = ""
        if abs(in_time - in_throughput) >= 0.05:
            tokens = (
                f"; {100 * in_time:.0f} % in time to the target, because the larger batch needs more tokens"
            )
        head = (
            f"{self.circumstance or self.label}: from {self.first.num_devices:,} to {self.last.machine}, "
            f"throughput grows {self.speedup(self.last):,.3g} times (scaling efficiency "
            f"{100 * in_throughput:.0f} %{tokens})"
        )
        knee = self.knee
        if knee is None:
            return f"{head}; efficiency stays at {100 * KNEE:.0f} % or more."
        # The largest loss, and the second if it exceeds a fifth of the total.
        losses = list(self.losses(knee).items())
        named = [*losses[:1], *(loss for loss in losses[1:2] if loss[1] > 0.2)]
        causes = " and ".join(f"{cause} ({100 * share:.0f} % of the loss)" for cause, share in named)
        roof = knee.prediction.why.streaming_roof
        if roof is not None and roof.hidden_from_tokens:
            causes += (
                f"; a micro-batch has {roof.tokens:,.0f} tokens per system there, and hiding "
                f"{HIDES[roof.lane]} takes {roof.hidden_from_tokens:,.0f}"
            )
        return (
            f"{head}; efficiency falls below {100 * KNEE:.0f} % at {knee.num_devices:,} "
            f"({100 * self.throughput_efficiency(knee):.0f} %), because of {causes}."
        )


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

    @classmethod
    def of(cls, rival: PointResult, series: Series) -> Self:
        """The fewest devices of `series` that reach the target no later than `rival`."""
        same = series.first.system == rival.system
        ratios = [
            (point, point.target_time.ratio_to(rival.target_time, same_machine=same))
            for point in series.points
        ]
        return cls(
            rival,
            series,
            fewest=next((point for point, ratio in ratios if ratio.ratio <= 1), None),
            possibly=next((point.num_devices for point, ratio in ratios if ratio.low <= 1), None),
            surely=next((point.num_devices for point, ratio in ratios if ratio.high <= 1), None),
            equal=EqualDevices.of([(point.num_devices, ratio) for point, ratio in ratios]),
        )

    @property
    def between(self) -> tuple[PointResult, float] | None:
        """The largest point that is too slow, and the interpolated number of devices.

        None if the smallest point of the series is fast enough, or no point is.
        """
        if self.fewest is None or self.fewest is self.series.first or self.equal.typical is None:
            return None
        return self.series.points[self.series.points.index(self.fewest) - 1], self.equal.typical
