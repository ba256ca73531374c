"""From a schedule's order to slots: which template each slot stamps, and whose output it reads."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfsim.graph import Slots, Template
from perfsim.strategies.schedules import Pass, Placement, Slot

Index = dict[tuple[str, int, int], int]
"""Slot number of each (pass, virtual stage, micro-batch)."""


FREED = ("freed0", "freed1", "freed2")
"""What frees the buffers of gradients: see `Reduction.leave`."""


@dataclass(frozen=True)
class Passes:
    """The templates of each pass, one a virtual stage."""

    usual: dict[Pass, list[Template]]
    special: dict[Pass, list[Template]] = field(default_factory=dict)
    """Those of the last micro-batch, or of the first pass of its kind on a rank, where they differ."""
    first_is_special: bool = False

    @property
    def templates(self) -> list[Template]:
        """All templates, in the order in which `number` counts them."""
        return [each for group in (self.usual, self.special) for same in group.values() for each in same]

    def numbers(self, which: Pass, *, special: bool) -> int:
        """Where the templates of a pass begin among `templates`."""
        keys = [(False, each) for each in self.usual] + [(True, each) for each in self.special]
        wanted = (special and which in self.special, which)
        return keys.index(wanted) * len(self.usual["F"])

    def ports(self, which: Pass) -> set[str]:
        """What any template of a pass reads from outside."""
        return {
            name
            for group in (self.usual, self.special)
            for template in group.get(which, ())
            for name in template.ports
        }


def pipeline_slots(
    merged: list[Slot], placement: Placement, passes: Passes, num_microbatches: int
) -> tuple[Slots, Index]:
    """Every slot of a step.

    A forward reads the activation of the virtual stage before it, a backward the gradient of the one
    after it and what its own forward saved, W what its own backward left.
    """
    first = {
        (which, special): passes.numbers(which, special=special)
        for which in passes.usual
        for special in (False, True)
    }
    index: Index = {}
    template = np.empty(len(merged), dtype=np.int64)
    activation, gradient, saved, left, freed = (np.full(len(merged), -1, dtype=np.int64) for _ in range(5))
    reduced: dict[int, int] = {}
    for number, (which, stage, chunk, microbatch) in enumerate(merged):
        place = placement.virtual_stage(stage, chunk)
        index[which, place, microbatch] = number
        final = microbatch == num_microbatches - 1
        special = stage not in reduced if passes.first_is_special else final
        template[number] = first[which, special] + place
        freed[number] = reduced.get(stage, -1)
        if "freed0" in passes.templates[template[number]].outputs:
            reduced[stage] = number
        if which == "F":
            activation[number] = index.get(("F", place - 1, microbatch), -1)
        elif which == "B":
            gradient[number] = index.get(("B", place + 1, microbatch), -1)
            saved[number] = index["F", place, microbatch]
        else:
            left[number] = index["B", place, microbatch]
    sources = {name: (left, name) for name in passes.ports("W")}
    sources |= {name: (saved, name) for name in passes.ports("B")}
    sources |= {name: (freed, name) for name in FREED}
    sources |= {"activation": (activation, "activation"), "gradient": (gradient, "gradient")}
    tag = np.array([slot.microbatch for slot in merged], dtype=np.int64)
    return Slots(template, tag, sources), index
