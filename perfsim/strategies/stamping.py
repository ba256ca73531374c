"""From a schedule's order to slots: which template each slot stamps, and whose output it reads."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfsim.graph import Slots, Template
from perfsim.strategies.schedules import Pass, Placement, Slot

Index = dict[tuple[str, int, int], int]
"""Slot number of each (pass, virtual stage, micro-batch)."""


@dataclass(frozen=True)
class Passes:
    """The templates of each pass, one a virtual stage."""

    usual: dict[Pass, list[Template]]
    final: dict[Pass, list[Template]] = field(default_factory=dict)
    """Those of the last micro-batch, where they differ."""

    @property
    def templates(self) -> list[Template]:
        """All templates, in the order in which `number` counts them."""
        return [each for group in (self.usual, self.final) for same in group.values() for each in same]

    def numbers(self, which: Pass, *, final: bool) -> int:
        """Where the templates of a pass begin among `templates`."""
        keys = [(False, each) for each in self.usual] + [(True, each) for each in self.final]
        wanted = (final and which in self.final, which)
        return keys.index(wanted) * len(self.usual["F"])

    def ports(self, which: Pass) -> set[str]:
        """What any template of a pass reads from outside."""
        return {
            name
            for group in (self.usual, self.final)
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
        (which, final): passes.numbers(which, final=final)
        for which in passes.usual
        for final in (False, True)
    }
    index: Index = {}
    template = np.empty(len(merged), dtype=np.int64)
    activation, gradient, saved, left = (np.full(len(merged), -1, dtype=np.int64) for _ in range(4))
    for number, (which, stage, chunk, microbatch) in enumerate(merged):
        place = placement.virtual_stage(stage, chunk)
        index[which, place, microbatch] = number
        template[number] = first[which, microbatch == num_microbatches - 1] + place
        if which == "F":
            activation[number] = index.get(("F", place - 1, microbatch), -1)
        elif which == "B":
            gradient[number] = index.get(("B", place + 1, microbatch), -1)
            saved[number] = index["F", place, microbatch]
        else:
            left[number] = index["B", place, microbatch]
    sources = {name: (left, name) for name in passes.ports("W")}
    sources |= {name: (saved, name) for name in passes.ports("B")}
    sources |= {"activation": (activation, "activation"), "gradient": (gradient, "gradient")}
    tag = np.array([slot.microbatch for slot in merged], dtype=np.int64)
    return Slots(template, tag, sources), index
