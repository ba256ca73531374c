"""From one variant to the next on the same machine: what the planner changed where models differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfsim.sweeps.points import PointResult
from perfsim.sweeps.policy import policy_changes


@dataclass(frozen=True)
class Succession:
    """One machine from one variant to the next."""

    before: PointResult
    after: PointResult

    @property
    def machine(self) -> str:
        return f"{self.after.num_devices:,} x {self.after.system}"

    @property
    def changes(self) -> str:
        return policy_changes(self.before, self.after)


def successions(points: Sequence[PointResult]) -> dict[str, list[Succession]]:
    """By machine, each variant beside the one before; empty where all variants train one model.

    Only of machines that have one point in each variant.
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
    for own in machines.values():
        names = [point.variant for point in own]
        if len(own) > 1 and len(set(names)) == len(names):
            steps = [Succession(before, after) for before, after in pairwise(own)]
            steps_of.setdefault(steps[0].machine, steps)
    return steps_of


def policy_sentence(steps_of: Mapping[str, Sequence[Succession]]) -> str:
    """What the planner changed on each machine from the first variant to the last; empty without any."""
    if not steps_of:
        return ""
    first = next(iter(steps_of.values()))
    ends = f"{first[0].before.variant} to {first[-1].after.variant}"
    words = [
        f"{machine}: {policy_changes(steps[0].before, steps[-1].after) or 'nothing'}"
        for machine, steps in steps_of.items()
    ]
    return f"What the planner changed from {ends}: {'; '.join(words)}."
