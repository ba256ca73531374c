"""Running a program rank by rank, in any order that the graph allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

import numpy as np

from perfsim.graph.unfold import Unfolded
from perfsim.numerics.execution.faults import Fault, FaultError
from perfsim.numerics.execution.oracle import TOLERANCE, Oracle
from perfsim.numerics.execution.program import SHARED, START, Action, Cell, Program

RESULTS = ("loss", "weight gradient", "weights")
"""What every order is compared in; the first one is compared in activations and their gradients as well."""

Initial = Callable[[Cell, int], Any]


@dataclass
class Outcome:
    """What one order came to."""

    max_relative_error: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    compared: int = 0
    """Arrays that were held against serial training."""


class Machine:
    """All ranks of an unfolded graph, with the buffers of each."""

    def __init__(self, program: Program, unfolded: Unfolded, initial: Initial, oracle: Oracle) -> None:
        self.program, self.initial, self.oracle = program, initial, oracle
        self.task = unfolded.task.tolist()
        self.members = _members(unfolded, program.width)

    def run(self, order: Sequence[int], *, thorough: bool = False) -> Outcome:
        """Execute every task once; FaultError where that is impossible."""
        outcome = Outcome()
        store: dict[tuple[Cell, int], tuple[Any, int]] = {}
        for instance in order:
            action = self.program.actions[self.task[instance]]
            members = self.members[instance]
            if not action.joined and len(members) > 1:
                members = members[:1]
            values = [
                [self._read(store, action, i, rank) for i in range(len(action.reads))] for rank in members
            ]
            results = self._execute(action, members, values)
            for rank, result in zip(members, results, strict=True):
                for cell, value in zip(action.writes, result, strict=True):
                    store[cell, 0 if cell.place == SHARED else rank] = value, action.task
                self._compare(action, rank, result, outcome, thorough=thorough)
        return outcome

    def _read(
        self, store: dict[tuple[Cell, int], tuple[Any, int]], action: Action, index: int, rank: int
    ) -> Any:
        """What a rank finds in a buffer; it must be what the intended task wrote there."""
        cell, intended = action.reads[index], action.expects[index]
        key = (cell, 0 if cell.place == SHARED else rank)
        found = store.get(key)
        if found is None:
            found = self._first(action, cell, key[1]) if intended == START else (None, -2)
            if intended == START:
                store[key] = found
        if found[1] != intended:
            name = self.program.name
            wrote = "nothing is there yet" if found[1] < START else f"{name(found[1])} wrote what is there"
            detail = f"must read what {name(intended)} writes, but {wrote}"
            raise FaultError(Fault("order", name(action.task), self.program.tensor(cell), detail))
        return found[0]

    def _first(self, action: Action, cell: Cell, rank: int) -> tuple[Any, int]:
        try:
            return self.initial(cell, rank), START
        except KeyError:
            detail = "nothing writes it before it is read"
            raise FaultError(
                Fault("refused", self.program.name(action.task), self.program.tensor(cell), detail)
            ) from None

    def _execute(
        self, action: Action, members: Sequence[int], values: list[list[Any]]
    ) -> list[tuple[Any, ...]]:
        try:
            return action.kernel(members, values)
        except (ValueError, IndexError, TypeError, AttributeError, KeyError) as error:
            tensor = ", ".join(self.program.tensor(cell) for cell in action.reads[:2])
            detail = f"cannot be computed: {error}"
            raise FaultError(Fault("value", self.program.name(action.task), tensor, detail)) from None

    def _compare(
        self, action: Action, rank: int, result: tuple[Any, ...], outcome: Outcome, *, thorough: bool
    ) -> None:
        for position, claim in action.claims:
            if not thorough and not claim.what.startswith(RESULTS):
                continue
            error = self.oracle.error(claim, rank, result[position])
            outcome.compared += 1
            outcome.max_relative_error = max(outcome.max_relative_error, error)
            if error > TOLERANCE:
                tensor = self.program.tensor(action.writes[position])
                detail = f"{claim.what} on rank {rank} differs from serial training by {error:.1e}"
                outcome.faults.append(Fault("value", self.program.name(action.task), tensor, detail))


def _members(unfolded: Unfolded, width: int) -> list[tuple[int, ...]]:
    """The peers that take part in each instance, by offset."""
    found: list[list[int]] = [[] for _ in range(len(unfolded.task))]
    for offset, instances in enumerate(starmap(unfolded.of_peer, ((offset,) for offset in range(width)))):
        for instance in np.unique(instances).tolist():
            found[instance].append(offset)
    return [tuple(each) for each in found]
