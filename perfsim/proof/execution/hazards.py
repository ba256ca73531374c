"""Happens-before: any two tasks that access one buffer, at least one writing it, must be ordered.

This depends on the graph alone, so a missing dependency is found whatever order a run takes. It is checked
on the folded graph: a path there holds for every peer, and peers access each other's buffers only in
collectives, which wait for all members.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from perfsim.engine.limits import present_limits
from perfsim.proof.execution.faults import Fault
from perfsim.proof.execution.order import Precedence
from perfsim.proof.execution.program import START, Cell, Program

CHECK_EVERY = 1_000
"""Tasks between two checks of the limits."""


def hazards(program: Program, precedence: Precedence) -> Iterator[Fault]:
    """Every pair of unordered tasks of which one depends on what the other does to a buffer."""
    last_write: dict[Cell, int] = {}
    readers: dict[Cell, list[int]] = {}
    limits = present_limits()
    for number, action in enumerate(program.actions):
        if number % CHECK_EVERY == 0:
            limits.in_time(
                partial("{:,} of {:,} tasks checked for hazards".format, number, len(program.actions))
            )
        task = action.task
        for cell in action.reads:
            writer = last_write.get(cell, START)
            if writer != START and not precedence.before(writer, task):
                yield _fault(program, task, cell, "may read it before {} has written it", writer)
        overwritten = set(action.writes)
        for cell in overwritten:
            for reader in readers.pop(cell, ()):
                if not precedence.before(reader, task):
                    yield _fault(program, task, cell, "may overwrite it before {} has read it", reader)
            writer = last_write.get(cell, START)
            if writer != START and not precedence.before(writer, task):
                yield _fault(program, task, cell, "may write it before {} has", writer)
            last_write[cell] = (
                task  # earlier writers precede it, so later tasks need to wait only for this one
            )
        for cell in action.reads:
            if cell not in overwritten:
                readers.setdefault(cell, []).append(task)


def _fault(program: Program, task: int, cell: Cell, detail: str, conflicting: int) -> Fault:
    return Fault("hazard", program.name(task), program.tensor(cell), detail.format(program.name(conflicting)))
