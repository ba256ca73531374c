"""Who is first by size of the model: as sized, with as much power or money an hour, and in as much time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfsim.base.groups import listed
from perfsim.convergence.bill import HOUR_S
from perfsim.prediction.bands import Reached
from perfsim.studies.answers import PointResult
from perfsim.studies.loading import BATCH_PATHS
from perfsim.work.counts import parameters

if TYPE_CHECKING:
    from perfsim.studies.variants import Series

AS_SIZED = "as sized"
IN_TIME = "time"
POWER = "power"
MONEY = "money an hour"
SAID = {AS_SIZED: "with the devices of the grid", IN_TIME: "in as much time"}
"""Readings in words. Other readings are named by what is equal: with as much power, or money an hour."""
CRITICAL_BATCH = "convergence.critical_batch_tokens"
LEVELS = 9
"""Rows of a map whose rows are powers or amounts an hour."""
_FAR = 1e9
"""Times the largest size of the grid, and part of the smallest: beyond all that is asked."""


@dataclass(frozen=True, slots=True)
class Place:
    """Who is first at one place of a map."""

    reading: str
    """What is equal: sizes `as sized` by the grid, `power`, `money an hour`, or `time`."""
    model: str
    num_parameters: float
    level: float
    """Power (kW) or money an hour of the grid's first machine, or the value of a setting of the grid."""
    first: str
    rival: str
    """The next."""
    ratio: float
    """How many times as much time the next takes; in equal time, as much power or money an hour."""
    sure: bool
    """Whether it takes more throughout the 90 % band of the ratio."""


@dataclass(frozen=True, slots=True)
class Atlas:
    """Who is first, by size of the model across, and by power, money an hour or a setting upward."""

    places: tuple[Place, ...]
    rate: str
    """`power` or `money an hour`."""
    unit: str
    """Of the rate: kW, or a currency."""
    upward: str
    """The path of the setting whose values are the levels; empty where they are rates."""
    machines: Mapping[str, tuple[str, float]]
    """By name: its device, and the rate of one with its share of servers."""
    alone: Mapping[str, str]
    """By model without a place: the one machine that has a plan for it."""

    @classmethod
    def of(cls, targets: Sequence[Sequence[Series]]) -> Atlas | None:
        """The maps of several models on several machines, over one more number at most; None of another grid.

        Money is compared where every machine has a price, else power; None where not every power is known.
        """
        compared = [group for group in targets if len(group) > 1]
        points = [point for group in compared for series in group for point in series.points]
        apart = all(len({series.machine for series in group}) == len(group) for group in compared)
        others = {path for point in points for path in point.settings} - {"model", *BATCH_PATHS}
        upward = [path for path in others if len({str(point.settings.get(path)) for point in points}) > 1]
        levels = [point.settings.get(path) for point in points for path in upward]
        numbers = all(isinstance(level, (int, float)) and level > 0 for level in levels)
        models = {group[0].first.study.model.name: group[0].first.study.model for group in targets}
        several = len({parameters(model).total for model in models.values()}) == len(models) > 1
        if not points or not apart or not several or len(upward) > 1 or not numbers:
            return None
        rate = POWER if None in [point.outcome.money for point in points] else MONEY
        rates = [_rate(point, rate) for point in points]
        if any(map(math.isnan, rates)):
            return None
        ends = np.log([min(rates), max(rates)])
        rows = np.linspace(ends[0], ends[1], LEVELS).tolist()
        path = "".join(upward)
        names = _names([series for group in targets for series in group])
        places = [place for group in compared for place in _places(group, names, rate, path, rows)]
        machines = {
            names[point.strategy, point.system]: (point.candidate.system.device.name, of / point.num_devices)
            for point, of in zip(points, rates, strict=True)
        }
        unit = "kW" if rate == POWER else points[0].study.prices.currency
        alone = {own[0].first.study.model.name: names[own[0].machine] for own in targets if len(own) == 1}
        return cls(tuple(places), rate, unit, path, machines, alone)

    @property
    def sentence(self) -> str:
        """At how many places who is first, and at how many of them surely."""
        said = []
        for reading, places in listed((place.reading, place) for place in self.places).items():
            firsts = Counter(place.first for place in places)
            counts = [f"{name} at {count}" for name, count in firsts.most_common()]
            words = SAID.get(reading, f"with as much {reading}")
            sure = sum(place.sure for place in places)
            surely = {0: "none sure: the next is within the 90 % band", len(places): "all sure"}
            certainty = surely.get(sure, f"{sure} sure")
            said.append(f"{words}: {' and '.join(counts)} of {len(places)} places ({certainty})")
        alone = [f" Only {name} has a plan for {model}." for model, name in self.alone.items()]
        return f"First {'; '.join(said)}.{''.join(alone)}"

    @property
    def published(self) -> list[tuple[str, float, Reached]]:
        """Published runs on these devices: the machine, the level, and the run; none by another setting."""
        if self.upward not in ("", CRITICAL_BATCH):
            return []
        return [
            (name, float(run.batch_tokens) if self.upward else run.num_devices * rate, run)
            for name, (device, rate) in self.machines.items()
            for run in Reached.recorded()
            if run.device == device
        ]


def _rate(point: PointResult, rate: str) -> float:
    """Money an hour, or kWh an hour, which are kW; nan where it is not known."""
    bill = point.outcome.money if rate == MONEY else point.outcome.energy_kwh
    return math.nan if bill is None else bill.typical / (point.outcome.wall_s.typical / HOUR_S)


def _names(series: Sequence[Series]) -> dict[tuple[str, str], str]:
    """What several devices of each machine are called, apart from another machine that is called so too."""
    nouns = {member.machine: member.first.devices_noun for member in series}
    called = Counter(nouns.values())
    return {
        (strategy, system): f"{noun} ({system}, {strategy})" if called[noun] > 1 else noun
        for (strategy, system), noun in nouns.items()
    }


# Places of one target. A machine's time by its rate (power or money an hour) is straight in logarithms
# between the sizes of the grid, and never longer than at a lower rate, since devices may stand idle. Beyond
# the sizes it is in proportion, which is kind to more devices than any of the grid.


class _Course(NamedTuple):
    """How long a kind of machine takes to one target, by its rate, both as logarithms."""

    points: Sequence[PointResult]
    rates: Sequence[float]
    """Rising."""
    times: Sequence[float]

    @classmethod
    def of(cls, series: Series, rate: str) -> _Course:
        """The course of a series by its power or money an hour."""
        points = sorted(series.points, key=lambda point: _rate(point, rate))
        times = np.minimum.accumulate([point.prediction.wall_s for point in points])
        known = [(_rate(point, rate), time) for point, time in zip(points, times, strict=True)]
        (least, longest), (most, shortest) = known[0], known[-1]
        ends = [(least / _FAR, longest * _FAR), *known, (most * _FAR, shortest / _FAR)]
        return cls(points, *np.log(ends).T.tolist())

    def time(self, rate: float) -> float:
        return float(np.interp(rate, self.rates, self.times))

    def rate(self, time: float) -> float:
        return float(np.interp(-time, np.negative(self.times), self.rates))

    def nearest(self, rate: float) -> PointResult:
        return self.points[int(np.argmin(np.abs(np.subtract(self.rates[1:-1], rate))))]


_Taken = list[tuple[float, PointResult]]
"""Of each machine the logarithm of what it takes, and the point of the grid that is nearest."""


def _places(
    group: Sequence[Series],
    called: Mapping[tuple[str, str], str],
    rate: str,
    upward: str,
    rows: Sequence[float],
) -> Iterator[Place]:
    """Who is first at every rate of `rows`, or at the one value of the setting `upward`."""
    courses = [_Course.of(series, rate) for series in group]

    def at_rate(row: float) -> _Taken:
        return [(course.time(row), course.nearest(row)) for course in courses]

    def in_time(time: float) -> _Taken:
        needed = [(course.rate(time), course) for course in courses]
        return [(row, course.nearest(row)) for row, course in needed]

    def place(reading: str, level: float, taken: _Taken) -> Place:
        (least, first), (more, rival), *_ = sorted(taken, key=lambda known: known[0])
        ratio = math.exp(more - least)
        band = rival.target_time.ratio_to(first.target_time)
        model = first.study.model
        size = float(parameters(model).total)
        names = called[first.strategy, first.system], called[rival.strategy, rival.system]
        return Place(reading, model.name, size, level, *names, ratio, ratio >= band.typical / band.low)

    if upward:
        level = float(group[0].first.settings[upward])
        fastest = [series.fastest for series in group]
        yield place(AS_SIZED, level, [(math.log(point.prediction.wall_s), point) for point in fastest])
        yield place(rate, level, at_rate(courses[0].rates[-2]))
        return
    for row in rows:
        yield place(rate, math.exp(row), at_rate(row))
        yield place(IN_TIME, math.exp(row), in_time(courses[0].time(row)))
