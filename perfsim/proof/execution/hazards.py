"""Happens-before: every two tasks that touch one buffer, one of them writing, must be ordered.

This is decided from the graph alone, so that a missing dependency is found whatever order a run takes.
It is checked on the folded graph: a path there holds for every peer on its own, and peers touch one
another's buffers in collectives only, which wait for each member.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfsim.proof.execution.faults import Fault
from perfsim.proof.execution.order import Precedence
from perfsim.proof.execution.program import START, Cell, Program


def hazards(program: Program, precedence: Precedence) -> Iterator[Fault]:
    """Every pair of tasks that nothing orders although one needs what the other does to a buffer."""
    last_write: dict[Cell, int] = {}
    readers: dict[Cell, list[int]] = {}
    for action in program.actions:
        task = action.task
        for cell in action.reads:
            writer = last_write.get(cell, START)
            if writer != START and not precedence.before(writer, task):
                yield _fault(program, task, cell, "may read it before {} has written it", writer)
        written = set(action.writes)
        for cell in written:
            for reader in readers.pop(cell, ()):
                if not precedence.before(reader, task):
                    yield _fault(program, task, cell, "may overwrite it before {} has read it", reader)
            writer = last_write.get(cell, START)
            if writer != START and not precedence.before(writer, task):
                yield _fault(program, task, cell, "may write it before {} has", writer)
            last_write[cell] = task
        for cell in action.reads:
            if cell not in written:
                readers.setdefault(cell, []).append(task)


def _fault(program: Program, task: int, cell: Cell, what: str, other: int) -> Fault:
    return Fault("hazard", program.name(task), program.tensor(cell), what.format(program.name(other)))
