"""Layout changes on one machine from each variant to the next, if the variants train different models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfsim.sweeps.points import PointResult
from perfsim.sweeps.policy import policy_changes


@dataclass(frozen=True)
class Succession:
    """One machine in two successive variants."""

    before: PointResult
    after: PointResult

    @property
    def machine(self) -> str:
        return f"{self.after.num_devices:,} x {self.after.system}"

    @property
    def changes(self) -> str:
        return policy_changes(self.before, self.after)


def successions(points: Sequence[PointResult]) -> dict[str, list[Succession]]:
    """By machine, each variant with the previous one; empty if all variants train the same model.

    Only machines with at most one feasible point per variant are included.
    """
    if not points or not points[0].variant:
        return {}
    if all(point.point.study.model == points[0].point.study.model for point in points):
        return {}
    machines: dict[tuple[str, str, int], list[PointResult]] = {}
    for point in points:
        if point.feasible:
            machines.setdefault((point.system, point.strategy, point.num_devices), []).append(point)
    steps_of: dict[str, list[Succession]] = {}
    for members in machines.values():
        names = {point.variant for point in members}
        if len(names) == len(members) > 1:
            steps = [Succession(before, after) for before, after in pairwise(members)]
            steps_of.setdefault(steps[0].machine, steps)
    return steps_of


def policy_sentence(steps_of: Mapping[str, Sequence[Succession]]) -> str:
    """The layout changes on each machine from the first variant to the last; empty without successions."""
    if not steps_of:
        return ""
    first = next(iter(steps_of.values()))
    ends = f"{first[0].before.variant} to {first[-1].after.variant}"
    words = [
        f"{machine}: {policy_changes(steps[0].before, steps[-1].after) or 'nothing'}"
        for machine, steps in steps_of.items()
    ]
    return f"What the planner changed from {ends}: {'; '.join(words)}."
