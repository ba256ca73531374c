"""Chains: tasks that follow one another at once, so that a reader of the graph may take them as one.

A task that waits for one other only (what else it waits for, that one has waited for already) begins
when that one ends, whatever the durations. A chain of such tasks has one unknown, the start of its
head; all else is a cumulative sum. Chains depend on the graph alone and are found once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph.ragged import Ints, Ragged, Wide, offsets

COLUMNS = 4
"""A task that waits for more, the one before it on its stream included, begins a chain unseen."""
DEPTH = 3
"""How far back the search goes for what a task waits for besides the last."""


class Waits(NamedTuple):
    """What every task waits for, as columns of one task each (-1: none); those of long rows stay empty."""

    columns: NDArray[np.int32]
    """(COLUMNS, tasks); the first is program order, and nothing else stands on the same stream."""
    long: NDArray[np.bool_]
    """Tasks that wait for too many to stand here."""


def waits(stream: Ints, previous: Ints, sources: Sequence[Ragged]) -> Waits:
    """Gather what tasks wait for: the one before on the stream, and the rows of every source."""
    counts = [np.diff(source.start) for source in sources]
    long = np.sum(counts, axis=0) >= COLUMNS
    columns = np.full((COLUMNS, len(stream)), -1, dtype=np.int32)
    columns[0] = previous
    filled = np.ones(len(stream), dtype=np.int8)
    for source, count in zip(sources, counts, strict=True):
        for position in range(int(count[~long].max(initial=0))):
            tasks = np.flatnonzero((count > position) & ~long)
            other = source.values[source.start[tasks] + position]
            apart = stream[other] != stream[tasks]
            tasks, other = tasks[apart], other[apart]
            columns[filled[tasks], tasks] = other
            filled[tasks] += 1
    return Waits(columns, long)


def followed(waits: Waits) -> Ints:
    """The task that each one follows at once; -1 where it waits for several, or for none.

    That is the last of those it waits for, if the search finds that it has waited for all others.
    """
    columns, long = waits
    last: Ints = columns.max(axis=0)
    last[long] = -1
    follows = last.copy()
    for column in columns:
        tasks = np.flatnonzero((follows >= 0) & (column >= 0) & (column != last))
        other, ancestor = column[tasks], last[tasks]
        for _ in range(DEPTH):
            found = ancestor < 0
            left = ~found
            for waited in columns:
                left &= waited[ancestor] != other
            follows[tasks[found]] = -1
            left &= ~found
            tasks, other, ancestor = tasks[left], other[left], last[ancestor[left]]
        follows[tasks] = -1
    return follows


class Pairs(NamedTuple):
    """The longest path as a table: each row the larger of two sums, after the rows that it names.

    A sum is the value of another row and the time from the start of a task's chain to that task's
    end. Value 0 is the start of the run, row i makes value i + 1. Tasks are named by their place among
    all chains; place -1 takes no time.
    """

    left_value: list[int]
    left_place: Ints
    left_chain: Ints
    right_value: list[int]
    right_place: Ints
    right_chain: Ints
    value_of_chain: Ints


@dataclass(frozen=True)
class Chains:
    """All tasks, chain by chain; chains are in the order of their heads, which is topological."""

    order: Ints
    """Task ids, those of each chain together and in order."""
    first: Ints
    """Where each chain begins in `order`, and the end of the last."""
    chain: Ints
    """The chain of each task."""
    waits_for: Ragged
    """Tasks that the head of each chain waits for."""

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def length(self) -> Ints:
        """Tasks of each chain."""
        return np.diff(self.first)

    @cached_property
    def place(self) -> Ints:
        """Where each task stands in `order`."""
        place = np.empty(len(self.order), dtype=np.int32)
        place[self.order] = np.arange(len(self.order), dtype=np.int32)
        return place

    def since_start(self, ticks: Wide) -> Wide:
        """Time from the start of each task's chain to the task's end, by place; whole numbers of ticks."""
        total, before = self.running_sums(ticks)
        total -= before.repeat(self.length)
        return total

    def running_sums(self, ticks: Wide) -> tuple[Wide, Wide]:
        """Sums over all tasks up to each one, by place, and the sum before each chain; in ticks."""
        total = ticks.take(self.order).cumsum()
        heads = self.first[:-1]
        return total, total.take(heads) - ticks.take(self.order.take(heads))

    @cached_property
    def pairs(self) -> Pairs:
        """What the start of every chain is the maximum of, two by two."""
        start, values = self.waits_for
        count = np.diff(start)
        last = np.cumsum(np.maximum(count - 1, 1))
        first = np.append(0, last[:-1])
        left_value, right_value = (np.zeros(int(last[-1]), dtype=np.int32) for _ in range(2))
        left_place, right_place = (np.full(int(last[-1]), -1, dtype=np.int32) for _ in range(2))
        chain = self.waits_for.row_of_value
        position = np.arange(len(values)) - start[chain]
        value, place = last[self.chain[values]], self.place[values]
        row = first[chain] + np.maximum(position - 1, 0)
        begins = position == 0
        left_value[row[begins]], left_place[row[begins]] = value[begins], place[begins]
        right_value[row[~begins]], right_place[row[~begins]] = value[~begins], place[~begins]
        continued = np.ones(len(left_value), dtype=bool)
        continued[first] = False
        left_value[continued] = np.flatnonzero(continued)
        left_chain, right_chain = (self.chain[self.order[place]] for place in (left_place, right_place))
        return Pairs(
            left_value.tolist(),
            left_place,
            left_chain,
            right_value.tolist(),
            right_place,
            right_chain,
            last.astype(np.int32),
        )


def chains(
    follows: Ints, waits: Waits, sources: Sequence[Ragged], apart: NDArray[np.bool_] | None = None
) -> Chains:
    """The chains of a graph; tasks that are `apart` stand alone, since nobody knows how long they take."""
    tasks = np.arange(len(follows), dtype=np.int32)
    joined = follows >= 0
    if apart is not None:
        joined &= ~(apart | apart[follows])
    next_task = np.full(len(follows), -1, dtype=np.int32)
    followers = np.flatnonzero(joined)[::-1]
    next_task[follows[followers]] = followers  # of several followers the first, which is set last
    joined[followers] = next_task[follows[followers]] == followers
    begins = ~(joined & (follows == tasks - 1))
    run = np.cumsum(begins, dtype=np.int32) - 1
    chain_of_run = _chain_of_run(np.flatnonzero(begins), run, follows, joined)
    length = np.diff(np.append(np.flatnonzero(begins), len(follows)))
    by_chain = np.argsort(chain_of_run, kind="stable")
    order = Ragged(offsets(length).astype(np.int32), tasks).rows(by_chain).values
    heads = np.flatnonzero(~joined)
    first = offsets(np.bincount(chain_of_run, length, len(heads)).astype(np.int64))
    return Chains(order, first.astype(np.int32), chain_of_run[run], _of_heads(heads, waits, sources))


def _chain_of_run(first: Wide, run: Ints, follows: Ints, joined: NDArray[np.bool_]) -> Ints:
    """The chain of every run of neighbouring tasks; a run may follow the end of another."""
    before = np.where(joined[first], run[follows[first]], np.arange(len(first), dtype=np.int32))
    behind = np.flatnonzero(joined[first])
    while len(behind):
        further = before[before[behind]]
        moved = further != before[behind]
        before[behind] = further
        behind = behind[moved]
    number = np.cumsum(~joined[first], dtype=np.int32) - 1
    return np.asarray(number[before])


def _of_heads(heads: Wide, waits: Waits, sources: Sequence[Ragged]) -> Ragged:
    """What the head of each chain waits for, each once."""
    long = np.flatnonzero(waits.long[heads])
    found = [(np.tile(np.arange(len(heads)), COLUMNS), waits.columns[:, heads].ravel())]
    found += [(long[rows.row_of_value], rows.values) for rows in (each.rows(heads[long]) for each in sources)]
    head, other = (np.concatenate(column) for column in zip(*found, strict=True))
    keys = head[other >= 0] * np.int64(len(waits.long)) + other[other >= 0]
    keys.sort()
    head, other = np.divmod(keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]], len(waits.long))
    return Ragged(offsets(np.bincount(head, minlength=len(heads))).astype(np.int32), other.astype(np.int32))
