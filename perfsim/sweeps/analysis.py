"""Comparisons between the points of a sweep, each computed once when first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from perfsim.sweeps.knee import Scaling, scalings
from perfsim.sweeps.maps import TimeMap, time_maps
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.scaling import Match, Series, equal_times, matches, same_target, series_of
from perfsim.sweeps.variants import Change, changes_of, differing, successions, variants_of


@dataclass(frozen=True)
class Analysis:
    """Comparisons between the points of a sweep; empty if the sweep has nothing to compare in that way."""

    points: tuple[PointResult, ...]

    @cached_property
    def feasible(self) -> tuple[PointResult, ...]:
        """The points that have a plan."""
        return tuple(point for point in self.points if point.feasible)

    @cached_property
    def series(self) -> Sequence[Series]:
        """Every machine under every setting of the grid, at its best batch for each number of devices."""
        return series_of(self.feasible)

    @cached_property
    def targets(self) -> Sequence[Sequence[Series]]:
        """The series grouped by model and target; times are comparable only within a group."""
        return same_target(self.series)

    @cached_property
    def matches(self) -> Sequence[Match]:
        """For each point of the other machines, the fewest devices of the first machine that are as fast."""
        return matches(self.series)

    @cached_property
    def equal_times(self) -> Sequence[tuple[Sequence[Match], Sequence[Match]]]:
        """The same for each pair of the first machine and another one, both ways."""
        return equal_times(self.series)

    @cached_property
    def scalings(self) -> Sequence[Scaling]:
        """How throughput grows with devices, for series that have several numbers of them."""
        return scalings(self.series)

    @cached_property
    def variants(self) -> Sequence[str]:
        """The names of the variants in the order of the file."""
        return variants_of(self.points)

    @cached_property
    def changes(self) -> Mapping[str, Sequence[Change]]:
        """By the settings that variants share, each variant's point compared with the first variant's."""
        return changes_of(self.feasible, self.variants)

    @cached_property
    def differences(self) -> Mapping[str, Sequence[str]]:
        """By dotted path, the value in each variant, for paths where the variants differ."""
        return differing(self.points, self.variants)

    @cached_property
    def successions(self) -> Mapping[str, Sequence[Change]]:
        """By machine, layout changes from each variant to the next, if variants train different models."""
        return successions(self.points)

    @cached_property
    def maps(self) -> Sequence[TimeMap]:
        """Time to the target over devices and one more field."""
        return time_maps(self.points)
