"""From the order of a schedule to slots: the template of each slot, and the slots whose outputs it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Ints
from perfsim.strategies.schedules import Pass, Placement, Slot
from perfsim.work import Slots, Template

PASSES: tuple[Pass, ...] = get_args(Pass)


@dataclass(frozen=True)
class Index:
    """The slot of each pass, virtual stage and micro-batch."""

    number: Ints

    def slot(self, which: Pass, place: int, microbatch: int) -> int:
        """Number of the slot; -1 where there is none."""
        return int(self.number[PASSES.index(which), place, microbatch])


FREED = ("freed0", "freed1", "freed2")
"""Outputs whose tasks free gradient buffers: see `Reduction.leave`."""


@dataclass(frozen=True)
class Passes:
    """The templates of each pass, one per virtual stage."""

    usual: dict[Pass, list[Template]]
    special: dict[Pass, list[Template]] = field(default_factory=dict)
    """Templates of the last micro-batch, or of the first pass of its kind on a rank, where they differ.

    Those of forwards are of the first micro-batch.
    """
    first_is_special: bool = False

    @property
    def templates(self) -> list[Template]:
        """All templates, in the order of `numbers`."""
        return [
            template
            for group in (self.usual, self.special)
            for of_pass in group.values()
            for template in of_pass
        ]

    def numbers(self, which: Pass, *, special: bool) -> int:
        """Index of the first template of a pass in `templates`."""
        keys = [(False, name) for name in self.usual] + [(True, name) for name in self.special]
        wanted = (special and which in self.special, which)
        return keys.index(wanted) * len(self.usual["F"])

    def ports(self, which: Pass) -> set[str]:
        """The ports that any template of a pass reads."""
        return {
            name
            for group in (self.usual, self.special)
            for template in group.get(which, ())
            for name in template.ports
        }


def pipeline_slots(
    merged: list[Slot], placement: Placement, passes: Passes, num_microbatches: int
) -> tuple[Slots, Index]:
    """All slots of a step.

    A forward reads the activation of the previous virtual stage. A backward reads the gradient of the next
    stage and what its own forward saved. W reads what its own backward saved.
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
    forward = passed == PASSES.index("F")
    final = np.where(forward, microbatch == 0, microbatch == num_microbatches - 1)
    template, freed = _templates(passes, passed, rank, place, final)

    def where(which: Pass, source: Pass, shift: int = 0) -> Ints:
        """For slots of pass `which`, the slot of pass `source`, `shift` virtual stages further; else -1."""
        slots = number[PASSES.index(source), place + shift, microbatch]
        return np.where(passed == PASSES.index(which), slots, -1)

    activation = where("F", "F", -1)
    gradient = where("B", "B", 1)
    sources = {name: (where("W", "B"), name) for name in passes.ports("W")}
    sources |= {name: (where("B", "F"), name) for name in passes.ports("B")}
    sources |= {name: (freed, name) for name in FREED}
    sources |= {"activation": (activation, "activation"), "gradient": (gradient, "gradient")}
    return Slots(template, microbatch, sources), Index(number)


def _templates(
    passes: Passes, passed: Ints, rank: Ints, place: Ints, final: NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """The template of each slot, and the latest slot before it on its rank that frees gradient buffers."""
    first = np.array(
        [
            [passes.numbers(which, special=kind) if which in passes.usual else 0 for kind in (False, True)]
            for which in PASSES
        ]
    )
    usual = first[passed, 0] + place
    special = first[passed, 1] + place
    frees = np.array(["freed0" in template.outputs for template in passes.templates])
    template = np.where(final, special, usual)
    freed = np.full(len(passed), -1, dtype=np.int64)
    for number in range(rank.max() + 1):
        slots = np.flatnonzero(rank == number)
        if passes.first_is_special:
            until = np.argmax(frees[special[slots]]) if frees[special[slots]].any() else len(slots)
            early = np.where(passed[slots] == PASSES.index("F"), final[slots], np.arange(len(slots)) <= until)
            template[slots] = np.where(early, special[slots], usual[slots])
        latest = np.maximum.accumulate(np.where(frees[template[slots]], slots, -1))
        freed[slots[1:]] = latest[:-1]
    return template, freed
