"""Which faults injected into correct graphs a proof detects, and why the others are harmless."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from perfsim.engine.limits import present_limits
from perfsim.proof.mutations import mutations
from perfsim.proof.proof import Subject, described, subject_of
from perfsim.strategies import Plan

EXPLAINED = {
    r"buffer reused too early: layer\.fetch.* does not wait for head\.": (
        "The first fetch finds its buffer empty: this wait only delays the fetch, it frees no buffer."
    ),
    r"buffer reused too early: layer\.forward.* does not wait for layer\.spill": (
        "The last layer's output waits for a buffer like the others, though it never leaves the wafer."
    ),
    r"buffer reused too early: (embedding\.backward|head\.).* does not wait for data\..* of embedding and": (
        "Under zbv one rank keeps embedding and LM head. The strategy gives both one buffer, so each waits "
        "for the reduction of the other; the executor has a buffer for each."
    ),
    r"buffer reused too early: offload\.parameters.* does not wait for mlp\.forward": (
        "A copy of parameters waits for the same layer as the all-gather that reads it, and for the one "
        "before the last, which frees the buffer of the copy: the first of these waits only delays it."
    ),
    r"buffer reused too early: mlp\.backward.* does not wait for offload\.gradients.*/d2h": (
        "Where the reduction runs between the backwards, on their stream, it frees the buffer of a layer's "
        "whole gradients itself; the buffer of shards is protected by the wait of the next reduction."
    ),
    r"buffer reused too early: offload\.activations.* of layer 1 on .*/h2d.* does not wait for tensor\.": (
        "The second copy of a micro-batch that returns waits for the LM head, but a layer of the micro-batch "
        "before used its buffer last: this wait only delays the copy."
    ),
}
"""Faults that change no result, by a pattern of their description, with the reason."""


@dataclass
class MutationTally:
    """Injected and detected faults by kind, and those that were not detected."""

    injected: Counter[str] = field(default_factory=Counter)
    detected: Counter[str] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Fraction of the faults that were detected."""
        return self.detected.total() / max(1, self.injected.total())

    def add(self, tally: MutationTally) -> None:
        """Add the counts of another graph."""
        self.injected += tally.injected
        self.detected += tally.detected
        self.survivors += tally.survivors

    @property
    def unexplained(self) -> list[str]:
        """Faults that were neither detected nor explained."""
        return [name for name in self.survivors if not any(re.match(pattern, name) for pattern in EXPLAINED)]

    def classes(self) -> list[dict[str, Any]]:
        """Explained faults by reason."""
        by_reason = [
            (reason, [name for name in self.survivors if re.match(pattern, name)])
            for pattern, reason in EXPLAINED.items()
        ]
        return [
            {"why": reason, "count": len(names), "example": names[0]} for reason, names in by_reason if names
        ]


def try_all(subject: Subject, every: int = 1, first: int = 0) -> MutationTally:
    """Inject every `every`-th fault from `first` on; a fault is detected if task and tensor are named."""
    result, limits = MutationTally(), present_limits()
    for number, mutation in enumerate(mutations(subject)):
        if number % every != first % every:
            continue
        limits.in_time(partial("{:,} faults of the present schedule tried".format, number))
        result.injected[mutation.kind] += 1
        if any(fault.task and fault.tensor for fault in mutation.faults()):
            result.detected[mutation.kind] += 1
        else:
            result.survivors.append(f"{mutation.kind}: {mutation.description}")
    return result


def try_plans(
    target: str, plans: Iterable[Plan], every: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """The document of `perfsim prove --mutations`: injected and detected faults of each plan's graph.

    The sample of each graph begins one fault later than that of the one before, so that together the
    samples cover all kinds of tasks.
    """
    total, layouts = MutationTally(), []
    for number, plan in enumerate(plans):
        progress(f"faults in {plan.strategy} on {plan.topology.num_devices} ranks")
        tally = try_all(subject_of(plan), every, number)
        total.add(tally)
        layouts.append(
            {
                "strategy": plan.strategy,
                "layout": described(plan),
                "injected": tally.injected.total(),
                "caught": tally.detected.total(),
                "unexplained": tally.unexplained,
            }
        )
    kinds = {name: {"injected": n, "caught": total.detected[name]} for name, n in total.injected.items()}
    return {
        "target": target,
        "passed": not total.unexplained,
        "every": every,
        "injected": total.injected.total(),
        "caught": total.detected.total(),
        "share": total.share,
        "kinds": kinds,
        "survivors": total.classes(),
        "unexplained": total.unexplained,
        "layouts": layouts,
    }
