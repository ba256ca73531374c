"""What the points of a sweep say together: each kind of comparison, computed once, when first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from perfsim.sweeps.knee import Scaling, scalings
from perfsim.sweeps.maps import TimeMap, time_maps
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.scaling import Match, Series, matches, same_target, series_of
from perfsim.sweeps.succession import Succession, successions
from perfsim.sweeps.variants import Change, changes_of, differing, variants_of


@dataclass(frozen=True)
class Analysis:
    """Comparisons between the points of a sweep; empty where the sweep has nothing of a kind to compare."""

    points: tuple[PointResult, ...]

    @cached_property
    def feasible(self) -> tuple[PointResult, ...]:
        """The points that have a plan."""
        return tuple(point for point in self.points if point.feasible)

    @cached_property
    def series(self) -> Sequence[Series]:
        """Every machine under every circumstance, at its best batch for each number of devices."""
        return series_of(self.feasible)

    @cached_property
    def targets(self) -> Sequence[Sequence[Series]]:
        """The series grouped by what they train: a time can be compared within a group only."""
        return same_target(self.series)

    @cached_property
    def matches(self) -> Sequence[Match]:
        """The fewest devices of the first machine that are as fast as each point of the others."""
        return matches(self.series)

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
        """By what variants have in common, each variant's point beside the first variant's."""
        return changes_of(self.feasible, self.variants)

    @cached_property
    def differences(self) -> Mapping[str, Sequence[str]]:
        """By dotted path, the value in each variant where the variants differ."""
        return differing(self.points, self.variants)

    @cached_property
    def successions(self) -> Mapping[str, Sequence[Succession]]:
        """By machine, what the planner changed from each variant to the next where models differ."""
        return successions(self.points)

    @cached_property
    def maps(self) -> Sequence[TimeMap]:
        """Time to the target over devices and one more field."""
        return time_maps(self.points)
