"""Layout changes on one machine from each variant to the next, if the variants train different models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from perfsim.sweeps.points import PointResult
from perfsim.sweeps.policy import policy_changes
from perfsim.sweeps.variants import Change


def successions(points: Sequence[PointResult]) -> dict[str, list[Change]]:
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
    steps_of: dict[str, list[Change]] = {}
    for members in machines.values():
        names = {point.variant for point in members}
        if len(names) == len(members) > 1:
            machine = members[0].machine
            steps_of.setdefault(machine, [Change(before, after) for before, after in pairwise(members)])
    return steps_of


def policy_sentence(steps_of: Mapping[str, Sequence[Change]]) -> str:
    """The layout changes on each machine from the first variant to the last; empty without successions."""
    if not steps_of:
        return ""
    first = next(iter(steps_of.values()))
    ends = f"{first[0].base.variant} to {first[-1].point.variant}"
    words = [
        f"{machine}: {policy_changes(steps[0].base, steps[-1].point) or 'nothing'}"
        for machine, steps in steps_of.items()
    ]
    return f"What the planner changed from {ends}: {'; '.join(words)}."
