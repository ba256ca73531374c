"""From the folded graph that strategies write to one with more of its ranks, or all of them.

Every class of peers is written once (all peers, if each is its own class). Compute tasks and sends are
written for each class; a collective once for each group, on a stream of the devices that it joins: it
reads the inputs of every member, waits for what precedes it on the stream of every member, and what
follows there waits for it. Tasks on streams that all share (MemoryX, SwarmX) stay single; they read
from every class, and every class reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.errors import GraphError
from perfsim.graph.ragged import Ints, Ragged, Wide, offsets
from perfsim.graph.symmetry import bases_of, gatherings, meeting_of, meetings_of, rank_of, width_of
from perfsim.graph.task_graph import TaskGraph
from perfsim.graph.work import RankGroup, Work


@dataclass(frozen=True)
class Unfolded:
    """An unfolded graph and the way back to the folded one."""

    graph: TaskGraph
    task: Ints
    """The folded task that each task is an instance of."""
    rank: Ints
    """The (first) rank that runs each task; -1 on a stream that all share."""
    written: dict[int, int]
    """The rank that is written for each rank."""
    first: Wide
    """The first instance of each folded task."""
    row: Wide
    """How each folded task meets others: a row of `instance`."""
    instance: Wide
    """Which instance of a task, counted from its first, runs for a class of peers: (row, class)."""
    classes: Ints
    """Class of each peer, by offset."""

    def of_peer(self, offset: int) -> Wide:
        """The task that runs each folded one for the peer of this offset."""
        return np.asarray(self.first + self.instance[self.row, self.classes[offset]])


def unfold(graph: TaskGraph, classes: Ints | None = None) -> Unfolded:
    """Write `graph` for every class of peers; for every rank where no classes are given.

    `classes` has one entry a peer, as `peer_classes` makes them. Raises GraphError for classes whose
    members do not meet the same classes, and for a graph that is not folded.
    """
    width = width_of(graph)
    classes = np.arange(width, dtype=np.int32) if classes is None else np.asarray(classes, dtype=np.int32)
    if len(classes) != width:
        raise GraphError(f"a written device stands for {width} ranks, but {len(classes)} have a class")
    return _Unfolding(graph, classes).result()


class _Instances(NamedTuple):
    """The tasks of the new graph, folded task by folded task: whose instance each is, and which."""

    task: Wide
    local: Wide
    first: Wide
    """The first instance of each folded task, and the end of the last."""


class _Unfolding:
    """One graph being unfolded. Tables have a row a meeting; the last row is what all share."""

    def __init__(self, graph: TaskGraph, classes: Ints) -> None:
        self.graph = graph
        self.width = len(classes)
        numbers, self.offset, sizes = np.unique(classes, return_index=True, return_counts=True)
        if not np.array_equal(numbers, np.arange(len(numbers))):
            raise GraphError("classes of peers must be numbered 0, 1, 2, ...")
        self.classes, self.size = classes, sizes
        self.meetings = meetings_of(graph)
        self.shared = len(self.meetings)
        everyone = tuple(range(len(numbers)))
        found = gatherings(classes, self.meetings)
        self.instance = np.vstack([found.instance, np.zeros(len(numbers), dtype=np.int64)])
        self.slot = np.vstack([found.slot, np.arange(len(numbers))])
        self.members = [*found.members, [everyone]]
        most = max(len(instances) for instances in self.members)
        self.num_members = np.zeros((len(self.members), most), dtype=np.int64)
        for row, instances in enumerate(self.members):
            self.num_members[row, : len(instances)] = [len(members) for members in instances]
        self.row = self._rows()

    def _rows(self) -> Wide:
        """The row of each folded task."""
        graph, number = self.graph, {meeting: row for row, meeting in enumerate(self.meetings)}
        of_work = np.array([number.get(meeting_of(work, self.width), 0) for work in graph.works])
        is_shared = np.array([rank_of(name) is None for name in graph.streams])
        return np.where(is_shared[graph.stream], self.shared, of_work[graph.work])

    @cached_property
    def instances(self) -> _Instances:
        counts = np.array([len(instances) for instances in self.members])[self.row]
        first = offsets(counts)
        task = np.repeat(np.arange(len(self.graph)), counts)
        return _Instances(task, np.arange(len(task)) - first[task], first)

    @property
    def writes_of_task(self) -> Wide:
        """Tensors that each folded task writes."""
        return np.diff(self.graph.first_write).astype(np.int64)

    @cached_property
    def first_write(self) -> Wide:
        """A collective writes its tensors for each of its members, one member after another."""
        task, local, _ = self.instances
        row = self.row[task]
        copies = np.where(row == self.shared, 1, self.num_members[row, local])
        return offsets(self.writes_of_task[task] * copies)

    def at(self, tasks: Wide | Ints, peer: int) -> Wide:
        """The instances of folded tasks that run for one class of peers."""
        return np.asarray(self.instances.first[tasks] + self.instance[self.row[tasks], peer])

    # ---------------------------------------------------------------------------------- result
    def result(self) -> Unfolded:
        graph, (task, local, first) = self.graph, self.instances
        works, work = self._works()
        names, stands_for, stream = self._streams()
        unfolded = TaskGraph(
            works=works,
            streams=names,
            work=work[graph.work[task]] + np.where(self._moves[graph.work[task]], local, 0).astype(np.int32),
            stream=stream[graph.stream[task], self.row[task], local],
            tag=graph.tag[task],
            block=graph.block[task],
            reads=self._reads(),
            after=self._after(),
            first_write=self.first_write.astype(np.int32),
            step_ends=tuple(int(first[end]) for end in graph.step_ends),
            stands_for=stands_for,
        )
        ranks, written = self._ranks(), self._written()
        return Unfolded(
            unfolded, task.astype(np.int32), ranks, written, first[:-1], self.row, self.instance, self.classes
        )

    def _ranks(self) -> Ints:
        """The first rank of each instance."""
        base = np.array([-1 if (rank := rank_of(name)) is None else rank for name in self.graph.streams])
        offsets = np.zeros(self.num_members.shape, dtype=np.int64)
        for row, instances in enumerate(self.members):
            offsets[row, : len(instances)] = [self.offset[members[0]] for members in instances]
        task, local, _ = self.instances
        ranks = base[self.graph.stream[task]] + offsets[self.row[task], local]
        return np.where(self.row[task] == self.shared, -1, ranks).astype(np.int32)

    def _written(self) -> dict[int, int]:
        offsets = self.offset[self.classes].tolist()
        return {
            base + offset: base + written
            for base in bases_of(self.graph)
            for offset, written in enumerate(offsets)
        }

    # --------------------------------------------------------------------------- works, streams
    @cached_property
    def _moves(self) -> NDArray[np.bool_]:
        """Works that are not the same in every instance, because they name ranks."""
        alone = np.unique(self.graph.work[self.row == self.shared])
        moves = np.array([work.group is not None for work in self.graph.works])
        moves[alone] = False
        return moves

    def _works(self) -> tuple[tuple[Work, ...], Ints]:
        """The works of all instances, and where those of each folded work begin."""
        works: list[Work] = []
        first = []
        row_of_work = np.zeros(len(self.graph.works), dtype=np.int64)
        row_of_work[self.graph.work] = self.row
        for number, work in enumerate(self.graph.works):
            first.append(len(works))
            if not self._moves[number]:
                works.append(work)
                continue
            row = int(row_of_work[number])
            works += [self._moved(work, row, members) for members in self.members[row]]
        return tuple(works), np.array(first, dtype=np.int32)

    def _moved(self, work: Work, row: int, members: tuple[int, ...]) -> Work:
        group = work.group
        offset = self.meetings[row].first(int(self.offset[members[0]]))
        if group is None or (not offset and len(members) == 1):
            return work
        moved = RankGroup(group.start + offset, group.stride, group.size)
        return replace(work, group=moved, writes=work.writes * len(members))

    def _streams(self) -> tuple[tuple[str, ...], tuple[int, ...], NDArray[np.int32]]:
        """Streams of the new graph, the ranks each stands for, and their ids by (stream, row, instance)."""
        graph = self.graph
        number = np.full((len(graph.streams), *self.num_members.shape), -1, dtype=np.int32)
        ids: dict[tuple[int, tuple[int, ...]], int] = {}
        names, stands_for = [], []
        used = np.unique(graph.stream * len(self.members) + self.row)
        for stream, row in zip(*(each.tolist() for each in np.divmod(used, len(self.members))), strict=True):
            for local, members in enumerate(self.members[row]):
                if (stream, members) not in ids:
                    ids[stream, members] = len(ids)
                    names.append(self._name(graph.streams[stream], members))
                    ranks = int(self.size[list(members)].sum())
                    stands_for.append(1 if row == self.shared else ranks)
                number[stream, row, local] = ids[stream, members]
        return tuple(names), tuple(stands_for), number

    def _name(self, stream: str, members: tuple[int, ...]) -> str:
        """The stream of a written device, as it is called on these of its peers."""
        base = rank_of(stream)
        if base is None:
            return stream
        device, what = stream.split("/", 1)
        kind = device.removesuffix(str(base))
        return "+".join(f"{kind}{base + self.offset[member]}" for member in members) + f"/{what}"

    # ------------------------------------------------------------------------------ dependencies
    def _reads(self) -> Ragged:
        """Tensors that each instance reads: each of the folded task's, once for every member."""
        reads, row_of_value = self.graph.reads, self.graph.reads.row_of_value
        writer = self.graph.writer[reads.values]
        single = self.row[writer] == self.shared
        before = np.stack([offsets(~single)[:-1], offsets(single)[:-1]])
        at_start = np.stack([offsets(~single)[reads.start], offsets(single)[reads.start]])
        counts = np.diff(at_start, axis=1)
        before = before - at_start[:, row_of_value]
        task, local, _ = self.instances
        length = counts[0, task] * self.num_members[self.row[task], local] + counts[1, task]
        start = offsets(length)
        values = np.empty(int(start[-1]), dtype=np.int32)
        row, position = self.row[row_of_value], reads.values - self.graph.first_write[writer]
        for peer in range(len(self.size)):
            slot = self.slot[row, peer]
            members = self.num_members[row, self.instance[row, peer]]
            where = start[self.at(row_of_value, peer)] + before[0] * members + before[1]
            where += np.where(single, 0, slot)
            values[where] = self._handles(writer, position, peer)
        return Ragged(start.astype(np.int32), values)

    def _handles(self, writer: Ints, position: Wide, peer: int) -> Wide:
        """What folded tasks write at `position` for one class of peers."""
        row = self.row[writer]
        copy = np.where(row == self.shared, 0, self.slot[row, peer])
        return np.asarray(
            self.first_write[self.at(writer, peer)] + copy * self.writes_of_task[writer] + position
        )

    def _after(self) -> Ragged:
        """Control dependencies of every member, and program order between streams of unlike members."""
        after, previous = self.graph.after, self.graph.stream_predecessor
        follows = np.flatnonzero((previous >= 0) & (self.row[previous] != self.row))
        pairs = []
        for peer in range(len(self.size)):
            pairs.append((self.at(after.row_of_value, peer), self.at(after.values, peer)))
            here = follows[self._parted[self.row[follows], self.row[previous[follows]], peer]]
            pairs.append((self.at(here, peer), self.at(previous[here], peer)))
        instance, values = (np.concatenate(column) for column in zip(*pairs, strict=True))
        order = np.argsort(instance, kind="stable")
        count = np.bincount(instance, minlength=len(self.instances.task))
        return Ragged(offsets(count).astype(np.int32), values[order].astype(np.int32))

    @cached_property
    def _parted(self) -> NDArray[np.bool_]:
        """Whether what one class does in two rows stands on unlike streams: (row, row, class)."""
        met = [
            [instances[local] for local in row.tolist()]
            for instances, row in zip(self.members, self.instance, strict=True)
        ]
        return np.array([[[a != b for a, b in zip(one, other, strict=True)] for other in met] for one in met])
