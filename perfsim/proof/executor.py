"""Runs a program on all ranks, in any order that the graph allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import starmap
from typing import Any

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.engine.limits import present_limits
from perfsim.proof.compute import ComputeCompiler
from perfsim.proof.parameters import Weights, with_experts
from perfsim.proof.program import (
    BROKEN,
    CLIPPED,
    NORM,
    SHARED,
    START,
    Action,
    Cell,
    Claim,
    Fault,
    FaultError,
    Program,
    failure,
)
from perfsim.proof.serial import Record, train
from perfsim.work.unfold import Unfolded

TOLERANCE = 1e-10
"""Largest relative error of float64 sums in another order; a wrong schedule differs in the first digits."""
RESULTS = ("loss", "weight gradient", "weights", NORM)
"""Quantities compared in every order; the first order also compares activations and their gradients."""

CHECK_EVERY = 256
"""Tasks between two checks of the limits."""
NOBODY = -2
"""The writer of an empty buffer."""


@dataclass
class Outcome:
    """What running some orders found."""

    max_relative_error: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    compared: int = 0
    """Arrays compared with serial training."""
    moved: dict[int, int] = field(default_factory=dict)
    """Elements of each task's message, the most of any rank; in a thorough run only."""


@dataclass
class _Oracle:
    """Serial training, partitioned among ranks as a compiler of a graph partitions it."""

    compiler: ComputeCompiler
    _cache: dict[tuple[Claim, int], Floats] = field(default_factory=dict)

    @cached_property
    def records(self) -> list[Record]:
        """Serial training, one record per step."""
        return train(self.compiler.training)

    def expected(self, claim: Claim, rank: int) -> Floats:
        """The value that a claim states for a rank."""
        cached = self._cache.get((claim, rank))
        if cached is None:
            cached = self._cache[claim, rank] = self._expected(claim, rank)
        return cached

    def _expected(self, claim: Claim, rank: int) -> Floats:
        record = self.records[claim.step]
        number = claim.number
        if claim.quantity == "loss":
            return np.array(self._own(record.later_losses.get(number, record.losses), rank, claim).sum())
        if claim.quantity == NORM:
            return np.array(record.squared_norm)
        if claim.quantity.startswith("weight gradient"):
            gradient = self._flat(record.weight_gradients, number, rank, claim.quantity)
            return record.clipping * gradient if CLIPPED in claim.quantity else gradient
        if claim.quantity.startswith("weights"):
            return self._flat(record.weights, number, rank, claim.quantity)
        activations: dict[str, list[Floats] | dict[int, Floats]] = {
            "hidden": record.hidden,
            "attention": record.attention,
            "gradient": record.gradient,
            "middle": record.middle,
        }
        return self._own(activations[claim.quantity][number], rank, claim)

    def _own(self, values: Floats, rank: int, claim: Claim) -> Floats:
        """What a rank has of values of all samples and positions."""
        return values[self.compiler.rows(rank, claim.microbatch)][:, self.compiler.places(rank)]

    def _flat(self, blocks: Mapping[int, Weights], block: int, rank: int, quantity: str) -> Floats:
        share = self.compiler.share(rank)
        layout = share.layouts[block]
        flat = layout.flat(share.cut(with_experts(blocks, block, share), block).items())
        sharded = quantity.endswith("shard")
        return layout.shard(flat, self.compiler.sharding(rank, block)) if sharded else flat

    def error(self, claim: Claim, rank: int, value: Floats) -> float:
        """Largest difference over the largest expected entry; infinite for another shape."""
        expected = self.expected(claim, rank)
        actual = np.asarray(next(iter(value.values())) if isinstance(value, dict) else value)
        if actual.shape != expected.shape or not np.isfinite(actual).all():
            return float("inf")
        if not expected.size:
            return 0.0
        scale = float(np.abs(expected).max())
        return float(np.abs(actual - expected).max()) / (scale or 1.0)


class Executor:
    """Runs all ranks of an unfolded graph with their buffers."""

    def __init__(self, program: Program, unfolded: Unfolded, compiler: ComputeCompiler) -> None:
        self.program = program
        self.initial = compiler.initial
        self.oracle = _Oracle(compiler)
        self.task = unfolded.task.tolist()
        self.members = _members(unfolded, program.width)
        for instance, task in enumerate(self.task):
            if not program.actions[task].joined:
                self.members[instance] = self.members[instance][:1]
        self.cells: dict[Cell, int] = {}
        self.reads = [self._numbers(action.reads) for action in program.actions]
        self.writes = [self._numbers(action.writes) for action in program.actions]
        self.first: dict[tuple[int, int], Any] = {}

    def _numbers(self, cells: Sequence[Cell]) -> list[tuple[int, bool]]:
        """The number of each cell, and whether every rank has its own copy."""
        return [(self.cells.setdefault(cell, len(self.cells)), cell.place != SHARED) for cell in cells]

    def run(self, order: Sequence[int], outcome: Outcome, *, thorough: bool = False) -> None:
        """Execute every task once and add what is found; FaultError if that is impossible."""
        width = self.program.width
        values: list[list[Any]] = [[None] * width for _ in self.cells]
        writers: list[list[int]] = [[NOBODY] * width for _ in self.cells]
        limits = present_limits()
        for number, instance in enumerate(order):
            if number % CHECK_EVERY == 0:
                limits.in_time(
                    partial("{:,} of {:,} tasks of one order executed".format, number, len(self.task))
                )
            action = self.program.actions[self.task[instance]]
            operands, results = self._step(action, self.members[instance], values, writers)
            if thorough and action.message is not None:
                sizes = (self._size(action, *of_rank) for of_rank in zip(operands, results, strict=True))
                outcome.moved[action.task] = max(outcome.moved.get(action.task, 0), *sizes, 0)
            if action.claims:
                for rank, result in zip(self.members[instance], results, strict=True):
                    self._compare(action, rank, result, outcome, thorough=thorough)

    def _step(
        self, action: Action, members: Sequence[int], values: list[list[Any]], writers: list[list[int]]
    ) -> tuple[list[list[Any]], list[tuple[Any, ...]]]:
        """Execute one task and store its results; returns the values that its ranks read and wrote."""
        task = action.task
        operands = []
        for rank in members:
            read = []
            for index, (cell, per_rank) in enumerate(self.reads[task]):
                place = rank if per_rank else 0
                if writers[cell][place] != action.expects[index]:
                    self._begin(action, index, place, values[cell], writers[cell])
                read.append(values[cell][place])
            operands.append(read)
        results = self._execute(action, members, operands)
        for rank, result in zip(members, results, strict=True):
            for (cell, per_rank), value in zip(self.writes[task], result, strict=True):
                place = rank if per_rank else 0
                values[cell][place], writers[cell][place] = value, task
        return operands, results

    def _size(self, action: Action, read: list[Any], made: tuple[Any, ...]) -> int:
        """Elements of a rank's message; 0 if it has none."""
        if action.message is None:
            return 0
        try:
            return action.message.elements(read, made)
        except BROKEN as error:
            raise self._failure(action, action.reads[:1], "its message cannot be counted", error) from None

    def _begin(self, action: Action, index: int, place: int, values: list[Any], writers: list[int]) -> None:
        """Put the initial value into an empty buffer; any other mismatch of its writer is a fault."""
        intended = action.expects[index]
        if writers[place] == NOBODY and intended == START:
            values[place], writers[place] = self._first(action, index, place), START
            return
        name = self.program.name
        writer = writers[place]
        wrote = "nothing is there yet" if writer == NOBODY else f"{name(writer)} wrote what is there"
        tensor = self.program.tensor(action.reads[index])
        detail = f"must read what {name(intended)} writes, but {wrote}"
        raise FaultError(Fault("order", name(action.task), tensor, detail))

    def _first(self, action: Action, index: int, place: int) -> Any:
        cell = action.reads[index]
        key = (self.cells[cell], place)
        if key not in self.first:
            try:
                self.first[key] = self.initial(cell, place)
            except BROKEN:
                name = self.program.name(action.task)
                tensor = self.program.tensor(cell)
                fault = Fault("refused", name, tensor, "nothing writes it before it is read")
                raise FaultError(fault) from None
        return self.first[key]

    def _execute(
        self, action: Action, members: Sequence[int], values: list[list[Any]]
    ) -> list[tuple[Any, ...]]:
        try:
            results = action.kernel(members, values)
            if len(results) != len(members) or any(len(result) != len(action.writes) for result in results):
                raise ValueError("it computes another number of tensors than it writes")
            return results
        except BROKEN as error:
            raise self._failure(action, action.reads[:2], "cannot be computed", error) from None

    def _failure(self, action: Action, cells: Sequence[Cell], detail: str, error: Exception) -> FaultError:
        tensor = ", ".join(self.program.tensor(cell) for cell in cells) or "its operands"
        return failure("value", self.program.name(action.task), tensor, detail, error)

    def _compare(
        self, action: Action, rank: int, result: tuple[Any, ...], outcome: Outcome, *, thorough: bool
    ) -> None:
        for position, claim in action.claims:
            if not thorough and not claim.quantity.startswith(RESULTS):
                continue
            try:
                error = self.oracle.error(claim, rank, result[position])
            except BROKEN as broken:
                detail = (
                    f"serial training has no {claim.quantity} with the number {claim.number} to compare with"
                )
                raise self._failure(action, [action.writes[position]], detail, broken) from None
            outcome.compared += 1
            outcome.max_relative_error = max(outcome.max_relative_error, error)
            if error > TOLERANCE:
                tensor = self.program.tensor(action.writes[position])
                detail = f"{claim.quantity} on rank {rank} differs from serial training by {error:.1e}"
                outcome.faults.append(Fault("value", self.program.name(action.task), tensor, detail))


def _members(unfolded: Unfolded, width: int) -> list[tuple[int, ...]]:
    """The peers that take part in each instance, by offset."""
    members: list[list[int]] = [[] for _ in range(len(unfolded.task))]
    for offset, instances in enumerate(starmap(unfolded.of_peer, ((offset,) for offset in range(width)))):
        for instance in np.unique(instances).tolist():
            members[instance].append(offset)
    return [tuple(offsets) for offsets in members]
