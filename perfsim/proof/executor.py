"""Runs a program on all ranks, in any order that the graph allows, and compares it with serial training."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from typing import Any

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.limits import present_limits
from perfsim.proof.interpreter import Interpreter
from perfsim.proof.program import BROKEN, CLIPPED, NORM, SHARED, START, Action, Cell, Claim, Fault, FaultError
from perfsim.work.unfold import Unfolded

TOLERANCE = 1e-10
"""Largest relative error of float64 sums in another order; a wrong schedule differs in the first digits."""
RESULTS = ("loss", "weight gradient", "weights", NORM)
"""Quantities compared in every order; the first order also compares activations and their gradients."""
CHECK_EVERY = 256
"""Tasks between two checks of the limits."""


@dataclass
class Outcome:
    """What running some orders found."""

    max_relative_error: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    compared: int = 0
    """Arrays compared with serial training."""
    first_only: bool = False
    """Whether the first fault ends the run."""
    moved: dict[int, int] = field(default_factory=dict)
    """Elements of each task's message, the most of any rank; in a thorough run only."""


class Executor:
    """Runs all ranks of an unfolded graph with their buffers."""

    def __init__(self, interpreter: Interpreter, unfolded: Unfolded) -> None:
        program = self.program = interpreter.program
        self.interpreter = interpreter
        self.task = unfolded.task.tolist()
        self.members: list[list[int]] = [[] for _ in self.task]
        """The peers that take part in each instance, by offset; one that runs alone, the first."""
        for offset in range(program.graph.width):
            for instance in np.unique(unfolded.of_peer(offset)).tolist():
                if not self.members[instance] or program.actions[self.task[instance]].joined:
                    self.members[instance].append(offset)
        number = defaultdict[tuple[Cell, int], int](count().__next__)
        """Of the buffer of each cell on a rank; of what exists once for all, on the first."""
        self.reads: list[list[list[int]]] = []
        """The numbers of the buffers that every member of each instance reads."""
        self.writes: list[list[list[int]]] = []
        for task, members in zip(self.task, self.members, strict=True):
            action = program.actions[task]
            for of_instances, cells in ((self.reads, action.reads), (self.writes, action.writes)):
                of_instances.append(
                    [[number[cell, rank * (cell.device != SHARED)] for cell in cells] for rank in members]
                )
        self.buffers = list(number)
        self.first: dict[int, Any] = {}
        """Initial values, by the number of their buffer."""
        self.expected: dict[tuple[Claim, int], tuple[Floats, float]] = {}

    def follow(self, order: Sequence[int]) -> None:
        """Check that every task reads what the intended tasks write, in an order; FaultError if not.

        Tasks compute from what they read alone, so any other such order gives the same numbers.
        """
        wrote = [START] * len(self.buffers)
        for instance in order:
            task = self.task[instance]
            action = self.program.actions[task]
            for numbers in self.reads[instance]:
                for number, intended in zip(numbers, action.expects, strict=True):
                    if wrote[number] != intended:
                        raise self._misread(action, number, intended, wrote[number])
            for numbers in self.writes[instance]:
                for number in numbers:
                    wrote[number] = task

    def _misread(self, action: Action, number: int, intended: int, writer: int) -> FaultError:
        name = self.program.name
        wrote = "nothing is there yet" if writer == START else f"{name(writer)} wrote what is there"
        detail = f"must read what {name(intended)} writes, but {wrote}"
        tensor = self.program.tensor(self.buffers[number][0])
        return FaultError(Fault("order", name(action.task), tensor, detail))

    def run(self, order: Sequence[int], outcome: Outcome, *, thorough: bool = False) -> None:
        """Follow an order, execute every task once and add what is found; FaultError if it is impossible."""
        self.follow(order)
        held = self.first.copy()
        limits = present_limits()
        progress = "{:,} of {:,} tasks of one order executed".format
        for done, instance in enumerate(order):
            if done % CHECK_EVERY == 0:
                limits.in_time(partial(progress, done, len(self.task)))
            task = self.task[instance]
            action = self.program.actions[task]
            members = self.members[instance]
            for number in chain.from_iterable(self.reads[instance]):
                if number not in held:
                    held[number] = self.first[number] = self._initial(action, number)
            operands = [[held[number] for number in numbers] for numbers in self.reads[instance]]
            results = self._execute(action, members, operands)
            for numbers, result in zip(self.writes[instance], results, strict=True):
                held.update(zip(numbers, result, strict=True))
            if thorough and (message := action.message):
                try:
                    most = max(map(message.elements, operands, results))
                except BROKEN as error:
                    detail = "its message cannot be counted"
                    raise self._failure(action, action.reads[:1], detail, error) from None
                outcome.moved[task] = max(outcome.moved.get(task, 0), most)
            for position, claim in action.claims:
                if thorough or claim.quantity.startswith(RESULTS):
                    for rank, result in zip(members, results, strict=True):
                        self._compare(action, position, claim, rank, result[position], outcome)

    def _initial(self, action: Action, number: int) -> Any:
        cell, rank = self.buffers[number]
        try:
            return self.interpreter.initial(cell, rank)
        except BROKEN:
            detail = "nothing writes it before it is read"
            fault = Fault("refused", self.program.name(action.task), self.program.tensor(cell), detail)
            raise FaultError(fault) from None

    def _execute(
        self, action: Action, members: Sequence[int], operands: list[list[Any]]
    ) -> Sequence[Sequence[Any]]:
        try:
            if action.joined:
                results = action.kernel(members, operands)
            else:
                results = [action.kernel(members[0], *operands[0])]
            if len(results) != len(members) or any(len(result) != len(action.writes) for result in results):
                raise ValueError("it computes another number of tensors than it writes")
            return results
        except BROKEN as error:
            raise self._failure(action, action.reads[:2], "cannot be computed", error) from None

    def _failure(self, action: Action, cells: Sequence[Cell], detail: str, error: Exception) -> FaultError:
        tensor = ", ".join(self.program.tensor(cell) for cell in cells) or "its operands"
        return FaultError.of("value", self.program.name(action.task), tensor, detail, error)

    def _compare(
        self, action: Action, position: int, claim: Claim, rank: int, value: Any, outcome: Outcome
    ) -> None:
        """Compare a value with serial training: the largest difference over the largest expected entry."""
        if (claim, rank) not in self.expected:
            try:
                expected = self._of_serial_training(claim, rank)
            except BROKEN as error:
                number = f"{claim.quantity} with the number {claim.number}"
                detail = f"serial training has no {number} to compare with"
                raise self._failure(action, [action.writes[position]], detail, error) from None
            self.expected[claim, rank] = expected, float(np.abs(expected).max(initial=0.0)) or 1.0
        expected, scale = self.expected[claim, rank]
        actual = np.asarray(next(iter(value.values())) if isinstance(value, dict) else value)
        difference = float("inf")
        if actual.shape == expected.shape:
            difference = float(np.abs(actual - expected).max(initial=0.0)) / scale
        if not np.isfinite(difference):
            difference = float("inf")
        outcome.compared += 1
        outcome.max_relative_error = max(outcome.max_relative_error, difference)
        if difference > TOLERANCE:
            tensor = self.program.tensor(action.writes[position])
            detail = f"{claim.quantity} on rank {rank} differs from serial training by {difference:.1e}"
            fault = Fault("value", self.program.name(action.task), tensor, detail)
            if outcome.first_only:
                raise FaultError(fault)
            outcome.faults.append(fault)

    def _of_serial_training(self, claim: Claim, rank: int) -> Floats:
        """The value that a claim states for a rank, divided as the layout divides it."""
        ranks = self.interpreter.ranks
        quantity = claim.quantity
        number = claim.number
        record = ranks.training.records[claim.step]
        if quantity == NORM:
            return np.array(record.squared_norm)
        if quantity.startswith("weight"):
            blocks = record.weight_gradients if "gradient" in quantity else record.weights
            share = ranks.share(rank)
            flat = share.flat(blocks, number)
            if quantity.endswith("shard"):
                flat = share.layouts[number].shard(flat, ranks.sharding(rank, number))
            return record.clipping * flat if CLIPPED in quantity else flat
        whole: Floats = getattr(record, "losses" if quantity == "loss" else quantity)[number]
        own = whole[ranks.rows(rank, claim.microbatch)][:, ranks.positions(rank)]
        return np.array(own.sum()) if quantity == "loss" else own
