"""Which of the faults that were put into right graphs a proof finds, and why it leaves the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from perfsim.proof.mutations import mutations
from perfsim.proof.proof import Subject, described, subject_of
from perfsim.strategies import Plan

EXPLAINED = {
    r"buffer reused too early: layer\.fetch.* does not wait for head\.": (
        "What comes back first finds its room empty: the wait is against fetching early, it frees none."
    ),
    r"buffer reused too early: layer\.forward.* does not wait for layer\.spill": (
        "The last layer's output waits for room like the others', though it never leaves the wafer."
    ),
    r"buffer reused too early: (embedding\.backward|head\.).* does not wait for data\..* of embedding and": (
        "Under zbv one rank keeps embedding and LM head. The strategy gives both one buffer, so each waits "
        "for the reduction of the other; the executor has a buffer for each."
    ),
}
"""Faults that change nothing that is computed, by what they are called, and why that is so."""


@dataclass
class Caught:
    """How many faults of each kind were put in and found, and those that were not."""

    injected: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.caught.total() / max(1, self.injected.total())

    def add(self, other: Caught) -> None:
        """Count those of another graph as well."""
        self.injected += other.injected
        self.caught += other.caught
        self.survivors += other.survivors

    @property
    def unexplained(self) -> list[str]:
        """Survivors of which nobody has said why they are right to survive."""
        return [each for each in self.survivors if not any(re.match(why, each) for why in EXPLAINED)]

    def classes(self) -> list[dict[str, Any]]:
        """Explained survivors by why they survive."""
        found = [
            (why, [each for each in self.survivors if re.match(pattern, each)])
            for pattern, why in EXPLAINED.items()
        ]
        return [{"why": why, "count": len(own), "example": own[0]} for why, own in found if own]


def try_all(subject: Subject, every: int = 1, first: int = 0) -> Caught:
    """Put in every fault, or each `every`-th one from `first` on; found means with task and tensor."""
    result = Caught()
    for number, mutation in enumerate(mutations(subject)):
        if number % every != first % every:
            continue
        result.injected[mutation.kind] += 1
        if any(fault.task and fault.tensor for fault in mutation.found()):
            result.caught[mutation.kind] += 1
        else:
            result.survivors.append(f"{mutation.kind}: {mutation.what}")
    return result


def try_plans(
    target: str, plans: Iterable[Plan], every: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """What `perfsim prove --mutations` answers: faults put into the graph of each plan, and what was found.

    Each graph begins its sample one fault further on, so that together they come by all kinds of tasks.
    """
    total, layouts = Caught(), []
    for number, plan in enumerate(plans):
        progress(f"faults in {plan.strategy} on {plan.topology.num_devices} ranks")
        own = try_all(subject_of(plan), every, number)
        total.add(own)
        layouts.append(
            {
                "strategy": plan.strategy,
                "layout": described(plan),
                "injected": own.injected.total(),
                "caught": own.caught.total(),
                "unexplained": own.unexplained,
            }
        )
    kinds = {name: {"injected": n, "caught": total.caught[name]} for name, n in total.injected.items()}
    return {
        "target": target,
        "passed": not total.unexplained,
        "every": every,
        "injected": total.injected.total(),
        "caught": total.caught.total(),
        "share": total.share,
        "kinds": kinds,
        "survivors": total.classes(),
        "unexplained": total.unexplained,
        "layouts": layouts,
    }
