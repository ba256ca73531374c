"""From a schedule's order to slots: which template each slot stamps, and whose output it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Slots, Template
from perfsim.strategies.schedules import Pass, Placement, Slot

Wide = NDArray[np.int64]
PASSES: tuple[Pass, ...] = get_args(Pass)


@dataclass(frozen=True)
class Index:
    """Which slot runs a pass of a micro-batch through a virtual stage."""

    number: Wide

    def slot(self, which: Pass, place: int, microbatch: int) -> int:
        return int(self.number[PASSES.index(which), place, microbatch])


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
    count = placement.num_stages
    place_of = np.array(
        [
            [placement.virtual_stage(rank, chunk) for chunk in range(placement.virtual)]
            for rank in range(placement.pipeline)
        ]
    )
    passed = np.array([PASSES.index(slot.which) for slot in merged])
    rank, chunk, microbatch = np.array([slot[1:] for slot in merged], dtype=np.int64).T
    place = place_of[rank, chunk]
    number = np.full((len(PASSES), count + 1, num_microbatches), -1, dtype=np.int64)  # place -1: none
    number[passed, place, microbatch] = np.arange(len(merged))
    first = np.array(
        [
            [passes.numbers(which, final=final) if which in passes.usual else 0 for final in (False, True)]
            for which in PASSES
        ]
    )
    template = first[passed, (microbatch == num_microbatches - 1).astype(np.int64)] + place

    def where(which: Pass, source: Pass, shift: int = 0) -> Wide:
        """For slots of pass `which`, the slot of pass `source` of the virtual stage `shift` further on."""
        found = number[PASSES.index(source), place + shift, microbatch]
        return np.where(passed == PASSES.index(which), found, -1)

    activation, gradient = where("F", "F", -1), where("B", "B", 1)
    sources = {name: (where("W", "B"), name) for name in passes.ports("W")}
    sources |= {name: (where("B", "F"), name) for name in passes.ports("B")}
    sources |= {"activation": (activation, "activation"), "gradient": (gradient, "gradient")}
    return Slots(template, microbatch, sources), Index(number)
