"""Chains of tasks, in which every task starts exactly when the task before it ends.

For any durations this holds if a task waits for one task only, or if that one has already waited for all
its other dependencies. A chain has one unknown, the start of its head; the rest are cumulative sums.
Chains depend only on the graph and are computed once.
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
"""A task with more dependencies, its stream predecessor included, always begins a chain."""
DEPTH = 3
"""Steps that the search for a task's other dependencies goes back from its last one."""


class Waits(NamedTuple):
    """Dependencies of every task, one per column (-1: none); empty for tasks with too many."""

    columns: NDArray[np.int32]
    """(COLUMNS, tasks); the first is the stream predecessor, the others are on other streams."""
    long: NDArray[np.bool_]
    """Tasks with too many dependencies for the columns."""


def waits(stream: Ints, previous: Ints, sources: Sequence[Ragged]) -> Waits:
    """Collect dependencies: the stream predecessor, and those rows of every source on other streams."""
    counts = [np.diff(source.start) for source in sources]
    long = np.sum(counts, axis=0) >= COLUMNS
    columns = np.full((COLUMNS, len(stream)), -1, dtype=np.int32)
    columns[0] = previous
    filled = np.ones(len(stream), dtype=np.int8)
    for source, count in zip(sources, counts, strict=True):
        for position in range(int(count[~long].max(initial=0))):
            tasks = np.flatnonzero((count > position) & ~long)
            dependency = source.values[source.start[tasks] + position]
            apart = stream[dependency] != stream[tasks]
            tasks, dependency = tasks[apart], dependency[apart]
            columns[filled[tasks], tasks] = dependency
            filled[tasks] += 1
    return Waits(columns, long)


def followed(waits: Waits) -> Ints:
    """The task that each task directly follows; -1 if it waits for several, or for none.

    It is the last dependency, if the search finds that this one has waited for all the others.
    """
    columns, long = waits
    last: Ints = columns.max(axis=0)
    last[long] = -1
    follows = last.copy()
    for column in columns:
        tasks = np.flatnonzero((follows >= 0) & (column >= 0) & (column != last))
        dependency, ancestor = column[tasks], last[tasks]
        for _ in range(DEPTH):  # back along last dependencies, until one waits for `dependency`
            ended = ancestor < 0
            left = ~ended
            for waited in columns:
                left &= waited[ancestor] != dependency
            follows[tasks[ended]] = -1
            left &= ~ended
            tasks, dependency, ancestor = tasks[left], dependency[left], last[ancestor[left]]
        follows[tasks] = -1
    return follows


class Pairs(NamedTuple):
    """The critical path as a table: value i + 1 is the larger of the two sums in row i.

    A sum is an earlier value (0 is the start of the run) plus the time from the start of a task's chain to
    that task's end. Tasks are given by their place among all chains; place -1 adds no time.
    """

    left_value: Ints
    left_place: Ints
    left_chain: Ints
    right_value: Ints
    right_place: Ints
    right_chain: Ints
    value_of_chain: Ints


@dataclass(frozen=True)
class Chains:
    """All tasks, chain by chain; chains are in the order of their heads, which is topological."""

    order: Ints
    """Task ids chain by chain, in order."""
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
        """Ticks from the start of each task's chain to the task's end, by place."""
        total, before = self.running_sums(ticks)
        total -= before.repeat(self.length)
        return total

    def running_sums(self, ticks: Wide) -> tuple[Wide, Wide]:
        """Running sums of ticks over all tasks, by place, and the sum before each chain."""
        # Sums of whole ticks are exact, so one running sum over all chains loses no precision.
        total = ticks.take(self.order).cumsum()
        heads = self.first[:-1]
        return total, total.take(heads) - ticks.take(self.order.take(heads))

    @cached_property
    def pairs(self) -> Pairs:
        """The start of every chain as a cascade of maxima of two sums."""
        start, values = self.waits_for
        count = np.diff(start)
        last = np.cumsum(np.maximum(count - 1, 1))
        first = np.append(0, last[:-1])
        left_value, right_value = (np.zeros(int(last[-1]), dtype=np.int32) for _ in range(2))
        left_place, right_place = (np.full(int(last[-1]), -1, dtype=np.int32) for _ in range(2))
        chain = self.waits_for.row_of_value
        position = np.arange(len(values)) - start[chain]
        value, place = last[self.chain[values]], self.place[values]
        # Row 0 of a chain compares its first two dependencies, row i > 0 the value so far with the next one.
        row = first[chain] + np.maximum(position - 1, 0)
        begins = position == 0
        left_value[row[begins]], left_place[row[begins]] = value[begins], place[begins]
        right_value[row[~begins]], right_place[row[~begins]] = value[~begins], place[~begins]
        continued = np.ones(len(left_value), dtype=bool)
        continued[first] = False
        left_value[continued] = np.flatnonzero(continued)
        left_chain, right_chain = (self.chain[self.order[place]] for place in (left_place, right_place))
        return Pairs(
            left_value,
            left_place,
            left_chain,
            right_value,
            right_place,
            right_chain,
            last.astype(np.int32),
        )


def chains(follows: Ints, waits: Waits, sources: Sequence[Ragged]) -> Chains:
    """The chains of a graph."""
    tasks = np.arange(len(follows), dtype=np.int32)
    joined = follows >= 0  # the tasks that continue a chain
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


def split(whole: Chains, apart: NDArray[np.bool_], waits: Waits, sources: Sequence[Ragged]) -> Chains:
    """Chains cut before and behind each task in `apart`, whose duration is not known yet."""
    alone = apart[whole.order]
    begins = alone.copy()
    begins[1:] |= alone[:-1]
    begins[whole.first[:-1]] = False
    cuts = np.flatnonzero(begins)
    begins[whole.first[:-1]] = True
    first = np.append(np.flatnonzero(begins), len(alone))
    by_head = np.argsort(whole.order[first[:-1]])
    parts = Ragged(first.astype(np.int32), whole.order).rows(by_head)
    number = np.empty(len(by_head), dtype=np.int32)
    number[by_head] = np.arange(len(by_head), dtype=np.int32)
    chain = np.empty(len(alone), dtype=np.int32)
    chain[whole.order] = number.repeat(np.diff(first))
    # Chains that began before keep their rows; the new ones come behind them.
    both = whole.waits_for.with_others(_of_heads(whole.order[cuts], waits, sources))
    is_cut = np.isin(first[:-1], cuts)
    row = np.where(is_cut, len(whole) + np.cumsum(is_cut) - 1, np.cumsum(~is_cut) - 1)
    return Chains(parts.values, parts.start, chain, both.rows(row[by_head]))


def _chain_of_run(first: Wide, run: Ints, follows: Ints, joined: NDArray[np.bool_]) -> Ints:
    """The chain of every run of consecutive task ids; a run may continue another one."""
    before = np.where(joined[first], run[follows[first]], np.arange(len(first), dtype=np.int32))
    behind = np.flatnonzero(joined[first])
    while len(behind):  # pointer jumping: each pass doubles the distance covered
        further = before[before[behind]]
        moved = further != before[behind]
        before[behind] = further
        behind = behind[moved]
    number = np.cumsum(~joined[first], dtype=np.int32) - 1
    return np.asarray(number[before])


def _of_heads(heads: Wide | Ints, waits: Waits, sources: Sequence[Ragged]) -> Ragged:
    """Dependencies of the head of each chain, ascending, without repeats."""
    columns = np.sort(waits.columns[:, heads].T, axis=1)
    new = columns >= 0
    new[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    rows = Ragged(offsets(np.count_nonzero(new, axis=1)).astype(np.int32), columns[new])
    long = np.flatnonzero(waits.long[heads])
    return _with_long(rows, long, heads[long], waits, sources) if len(long) else rows


def _with_long(
    rows: Ragged, long: Wide, heads: Wide | Ints, waits: Waits, sources: Sequence[Ragged]
) -> Ragged:
    """`rows` with all dependencies of those heads that have too many for the columns."""
    previous = waits.columns[0, heads]
    by_source = [source.rows(heads) for source in sources]
    head = [np.flatnonzero(previous >= 0), *(part.row_of_value.astype(np.int64) for part in by_source)]
    dependency = [previous[previous >= 0], *(part.values for part in by_source)]
    # One key per (head, dependency), so that sorting finds repeats.
    keys = np.concatenate(head) * np.int64(len(waits.long)) + np.concatenate(dependency)
    keys.sort()
    row, values = np.divmod(keys[np.append(True, keys[1:] != keys[:-1])], len(waits.long))
    start = offsets(np.bincount(row, minlength=len(heads)))
    chosen = np.arange(len(rows.start) - 1)
    chosen[long] = len(chosen) + np.arange(len(long))
    return rows.with_others(Ragged(start.astype(np.int32), values.astype(np.int32))).rows(chosen)
