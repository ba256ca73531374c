"""From one variant to the next on the same machine: what the planner changed where models differ."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from perfsim.sweep.policy import policy_changes
from perfsim.sweep.runner import PointResult, SweepResult
from perfsim.sweep.variants import variants_of


@dataclass(frozen=True)
class Succession:
    """One machine from one variant to the next."""

    before: PointResult
    after: PointResult

    @property
    def machine(self) -> str:
        return f"{self.after.point.num_devices:,} x {self.after.point.candidate.system.name}"

    @property
    def changes(self) -> str:
        return policy_changes(self.before, self.after)


def successions(result: SweepResult) -> dict[str, list[Succession]]:
    """By machine, each variant beside the one before; empty where all variants train one model.

    Only of machines that have one point in each variant.
    """
    first = result.points[0].point.study.model
    if not variants_of(result) or all(each.point.study.model == first for each in result.points):
        return {}
    machines: dict[tuple[str, str, int], list[PointResult]] = {}
    for each in result.feasible:
        candidate = each.point.candidate
        key = (candidate.system.name, candidate.strategy, each.point.num_devices)
        machines.setdefault(key, []).append(each)
    found: dict[str, list[Succession]] = {}
    for points in machines.values():
        names = [each.point.variant for each in points]
        if len(points) > 1 and len(set(names)) == len(names):
            steps = [Succession(one, other) for one, other in pairwise(points)]
            found.setdefault(steps[0].machine, steps)
    return found


def policy_sentence(result: SweepResult) -> str:
    """What each machine changed from the first variant to the last; empty where that says nothing."""
    found = successions(result)
    if not found:
        return ""
    first = next(iter(found.values()))
    ends = f"{first[0].before.point.variant} to {first[-1].after.point.variant}"
    words = [
        f"{machine}: {policy_changes(steps[0].before, steps[-1].after) or 'nothing'}"
        for machine, steps in found.items()
    ]
    return f"What the planner changed from {ends}: {'; '.join(words)}."
