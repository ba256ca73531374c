"""How many devices of one machine finish on the same day as another machine, each at its own best batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from perfsim.base.errors import InputError, LayoutError, PerfsimError, PlanError
from perfsim.base.sizes import MOST_DEVICES
from perfsim.convergence.time_to_accuracy import RatioBand, TimeToAccuracy, ratio_band
from perfsim.engine.limits import present_limits
from perfsim.prediction.question import Question
from perfsim.specs.hardware import SystemSpec
from perfsim.studies.batches import Target, batch_curve, batch_grid, best_of, run_at

MOST_POINTS = 24
"""Numbers of devices that are tried for one match."""


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
    ends: tuple[Callable[[RatioBand], float], ...] = (
        lambda ratio: ratio.low,
        lambda ratio: ratio.ratio,
        lambda ratio: ratio.high,
    )
    low, typical, high = (_crossing([(count, end(ratio)) for count, ratio in ratios]) for end in ends)
    return EqualDevices(low, typical, high)


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
            point = _at_best_batch(asked, target, time, same_machine=same)
        except (PlanError, LayoutError, InputError) as error:
            refused = error
            if points:
                break
            devices *= 2
            continue
        points.append(point)
        if point.ratio.high <= 1:
            break
        devices = _next(devices, point.ratio.low if len(points) == 1 else 1.0)
    if not points:
        raise refused or PlanError(f"{system.name}: no number of devices to try")
    return Matched(system.name, system.devices_noun, tuple(points))


def _next(devices: int, ratio: float) -> int:
    """Twice as many; after the first number the largest that even ideal scaling keeps too slow."""
    doublings = max(int(math.log2(max(ratio, 1.0))), 1)
    return devices << doublings


def _at_best_batch(
    question: Question, target: Target, rival: TimeToAccuracy, *, same_machine: bool
) -> MatchPoint:
    question.check()
    grid = batch_grid(target, question.recipe.seq_length, question.devices)
    best = best_of(batch_curve(question, target, grid, extend=True)[0])
    time = run_at(question, target, best)[1].answer
    return MatchPoint(question.devices, best, time, ratio_band(time, rival, same_machine=same_machine))
