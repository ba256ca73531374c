"""Folded graphs: which peers a device stands for, and the graph with a device for each class of them.

A folded graph has one device per pipeline rank (one wafer for all). Device `gpu{base}` stands for its
*peers*, ranks base .. base + width - 1: tensor peers innermost, then replicas. Peers meet only in work of a
group, such as a collective; sends stay among ranks of equal offset. So symmetry is a property of offsets, and
*classes* number them: peers of one class have equal times.

In an unfolded graph compute tasks and sends have one instance per class. A collective has one per group, on a
stream of its devices: it reads the inputs of all members and waits for the task before it on each member's
stream, and the next tasks there wait for it. Tasks on shared streams (MemoryX, SwarmX) stay single; they read
from every class, and every class reads from them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Bools, Ids, Ints
from perfsim.base.errors import GraphError
from perfsim.work.graph import Kind, Ragged, RankGroup, TaskGraph, Work, offsets, rank_of


class Meeting(NamedTuple):
    """The peers in a collective: `size` offsets, `stride` apart; (1, 1) for work without peers."""

    stride: int
    size: int

    def first(self, offset: int) -> int:
        """The lowest offset of a peer's group."""
        return offset - offset // self.stride % self.size * self.stride

    def offsets(self, offset: int) -> range:
        """All offsets of a peer's group."""
        first = self.first(offset)
        return range(first, first + self.stride * self.size, self.stride)


ALONE = Meeting(1, 1)


def bases_of(graph: TaskGraph) -> list[int]:
    """The rank of every device in the graph, ascending."""
    return sorted({rank for rank in graph.stream_ranks.tolist() if rank >= 0})


def meeting_of(work: Work, width: int) -> Meeting:
    """The peers in work of one class. Raises GraphError for a group that does not divide them evenly."""
    group = work.group
    if work.kind is Kind.COMM_SEND or group is None or group.size == 1 or group.stride >= width:
        return ALONE
    if group.stride < 1 or width % (group.stride * group.size):
        raise GraphError(f"the group of {work.name} does not divide {width} peers evenly: {group}")
    return Meeting(group.stride, group.size)


def _meetings_of(graph: TaskGraph) -> list[Meeting]:
    """All distinct meetings of peers in a graph, `ALONE` first."""
    width = graph.width
    meetings = {ALONE}
    used = np.unique(graph.stream.astype(np.int64) * len(graph.works) + graph.work).tolist()
    for stream, work in (divmod(key, len(graph.works)) for key in used):
        rank = int(graph.stream_ranks[stream])
        group = graph.works[work].group
        if rank < 0:
            continue
        meetings.add(meeting := meeting_of(graph.works[work], width))
        if meeting != ALONE and group is not None and group.start != rank:
            name = graph.works[work].name
            raise GraphError(f"the group of {name} on rank {rank} must begin with it: {group}")
    return sorted(meetings)


def peer_classes(graph: TaskGraph, marks: Mapping[int, Hashable] | None = None) -> Ids:
    """Class of each peer, by offset: the fewest classes whose members have equal times.

    `marks` distinguishes ranks (a straggler, a slow NIC); ranks without a mark are equal. Two peers are of
    one class if they have the same marks at every pipeline rank and meet peers of the same classes. This
    is colour refinement; it ends because classes are only ever split. A single class means that the
    folded graph is exact.
    """
    width = graph.width
    bases = bases_of(graph)
    meetings = _meetings_of(graph)
    marks = marks or {}
    classes = _numbered([tuple(marks.get(base + offset) for base in bases) for offset in range(width)])
    while True:
        seen = [_groups(classes, meeting) for meeting in meetings]
        # Peers stay together only if they were and if all their groups have equal classes.
        refined = _numbered(list(zip(classes.tolist(), *seen, strict=True)))
        if refined.max(initial=0) == classes.max(initial=0):
            return refined
        classes = refined


def as_slowest_peers(graph: TaskGraph, factors: Mapping[int, float]) -> dict[int, float]:
    """Slowdown of every rank (1 if absent) if all tensor peers are as slow as the slowest of them.

    Tensor peers synchronise after every block, so they wait for the slowest anyway: the step time is
    bitwise the same with stragglers in one tensor group, and no shorter with stragglers in several. Used
    as marks, these factors halve the number of classes and keep chains whole.
    """
    inner = [meeting for meeting in _meetings_of(graph) if meeting.stride == 1 and meeting.size > 1]
    meeting = min(inner, key=lambda candidate: candidate.size, default=ALONE)
    slowdown: dict[int, float] = {}
    for base in bases_of(graph):
        for first in {meeting.first(offset) for offset in range(graph.width)}:
            group = [base + offset for offset in meeting.offsets(first)]
            slowest = max(factors.get(rank, 1.0) for rank in group)
            slowdown |= dict.fromkeys(group, slowest) if slowest != 1.0 else {}
    return slowdown


def _groups(classes: Ids, meeting: Meeting) -> list[tuple[int, ...]]:
    """The distinct classes in each peer's group."""
    groups: dict[int, tuple[int, ...]] = {}
    for first in {meeting.first(offset) for offset in range(len(classes))}:
        groups[first] = tuple(sorted(set(classes[list(meeting.offsets(first))].tolist())))
    return [groups[meeting.first(offset)] for offset in range(len(classes))]


def _numbered(colours: Sequence[Hashable]) -> Ids:
    """Colours as numbers, in the order in which they appear."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(colour, len(numbers)) for colour in colours], dtype=np.int32)


class _Gatherings(NamedTuple):
    """The instances of each meeting among classes of peers.

    `instance[m, k]` is the instance of meeting m that class k is in, `slot[m, k]` its place there;
    `members[m]` lists the classes of every instance.
    """

    instance: Ints
    slot: Ints
    members: list[list[tuple[int, ...]]]


def _gatherings(classes: Ids, meetings: Sequence[Meeting]) -> _Gatherings:
    """The instances of every meeting. Raises GraphError if members of one class meet different classes."""
    count = int(classes.max(initial=-1)) + 1
    instance, slot = (np.zeros((len(meetings), count), dtype=np.int64) for _ in range(2))
    members = []
    for row, meeting in enumerate(meetings):
        met = [(number,) for number in classes.tolist()] if meeting == ALONE else _groups(classes, meeting)
        of_class: dict[int, tuple[int, ...]] = {}
        for number, group in zip(classes.tolist(), met, strict=True):
            if of_class.setdefault(number, group) != group:
                raise GraphError("peers of one class meet peers of unlike classes")
        instances = list(dict.fromkeys(of_class.values()))
        members.append(instances)
        for index, group in enumerate(instances):
            instance[row, list(group)] = index
            slot[row, list(group)] = range(len(group))
    return _Gatherings(instance, slot, members)


@dataclass(frozen=True)
class Unfolded:
    """An unfolded graph and its mapping to the folded one."""

    graph: TaskGraph
    task: Ids
    """The folded task of which each task is an instance."""
    rank: Ids
    """The (first) rank that runs each task; -1 on a shared stream."""
    first: Ints
    """The first instance of each folded task."""
    row: Ints
    """The row of `instance` for each folded task."""
    instance: Ints
    """Number of the instance, among those of its folded task, for a class of peers: (row, class)."""
    classes: Ids
    """Class of each peer, by offset."""

    def of_peer(self, offset: int) -> Ints:
        """The instance of each folded task for the peer at this offset."""
        return np.asarray(self.first + self.instance[self.row, self.classes[offset]])


def unfold(graph: TaskGraph, classes: Ids | None = None) -> Unfolded:
    """`graph` with a device for every class of peers, by default for every rank.

    `classes` has one entry per peer, as from `peer_classes`. Raises GraphError if members of one class meet
    different classes, and for a graph that is not folded.
    """
    width = graph.width
    classes = np.arange(width, dtype=np.int32) if classes is None else np.asarray(classes, dtype=np.int32)
    if len(classes) != width:
        raise GraphError(f"a device stands for {width} ranks, but {len(classes)} have a class")
    return _Unfolding(graph, classes).result()


class _Instances(NamedTuple):
    """The tasks of the new graph by folded task: each one's folded task and number among its instances."""

    task: Ints
    local: Ints
    first: Ints
    """The first instance of each folded task, and the end of the last."""


class _Unfolding:
    """One unfolding. Tables have one row per meeting; the last row is for shared streams."""

    def __init__(self, graph: TaskGraph, classes: Ids) -> None:
        self.graph = graph
        self.width = len(classes)
        # `offset` is the first peer of each class: its ranks name the devices of the new graph.
        numbers, self.offset, sizes = np.unique(classes, return_index=True, return_counts=True)
        if not np.array_equal(numbers, np.arange(len(numbers))):
            raise GraphError("classes of peers must be numbered 0, 1, 2, ...")
        self.classes = classes
        self.size = sizes
        self.meetings = _meetings_of(graph)
        self.shared = len(self.meetings)
        everyone = tuple(range(len(numbers)))
        gathered = _gatherings(classes, self.meetings)
        self.instance = np.vstack([gathered.instance, np.zeros(len(numbers), dtype=np.int64)])
        self.slot = np.vstack([gathered.slot, np.arange(len(numbers))])
        self.members = [*gathered.members, [everyone]]
        most = max(len(instances) for instances in self.members)
        self.num_members = np.zeros((len(self.members), most), dtype=np.int64)
        for row, instances in enumerate(self.members):
            self.num_members[row, : len(instances)] = [len(members) for members in instances]
        self.row = self._rows()

    def _rows(self) -> Ints:
        """The row of each folded task."""
        graph = self.graph
        number = {meeting: row for row, meeting in enumerate(self.meetings)}
        of_work = np.array([number.get(meeting_of(work, self.width), 0) for work in graph.works])
        is_shared = graph.stream_ranks < 0
        return np.where(is_shared[graph.stream], self.shared, of_work[graph.work])

    @cached_property
    def instances(self) -> _Instances:
        counts = np.array([len(instances) for instances in self.members])[self.row]
        first = offsets(counts)
        task = np.repeat(np.arange(len(self.graph)), counts)
        return _Instances(task, np.arange(len(task)) - first[task], first)

    @property
    def writes_of_task(self) -> Ints:
        """Tensors that each folded task writes."""
        return np.diff(self.graph.first_write).astype(np.int64)

    @cached_property
    def first_write(self) -> Ints:
        """First tensor of each instance; a collective writes its tensors once for each member, in order."""
        task, local, _ = self.instances
        row = self.row[task]
        copies = np.where(row == self.shared, 1, self.num_members[row, local])
        return offsets(self.writes_of_task[task] * copies)

    def at(self, tasks: Ints | Ids, peer: int) -> Ints:
        """The instances of folded tasks for one class of peers."""
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
        return Unfolded(
            unfolded,
            task.astype(np.int32),
            self._ranks(),
            first[:-1],
            self.row,
            self.instance,
            self.classes,
        )

    def _ranks(self) -> Ids:
        """The first rank of each instance."""
        base = self.graph.stream_ranks
        offsets = np.zeros(self.num_members.shape, dtype=np.int64)
        for row, instances in enumerate(self.members):
            offsets[row, : len(instances)] = [self.offset[members[0]] for members in instances]
        task, local, _ = self.instances
        ranks = base[self.graph.stream[task]] + offsets[self.row[task], local]
        return np.where(self.row[task] == self.shared, -1, ranks).astype(np.int32)

    # --------------------------------------------------------------------------- works, streams
    @cached_property
    def _moves(self) -> Bools:
        """Works that differ between instances because they contain ranks."""
        alone = np.unique(self.graph.work[self.row == self.shared])
        moves = np.array([work.group is not None for work in self.graph.works])
        moves[alone] = False
        return moves

    def _works(self) -> tuple[tuple[Work, ...], Ids]:
        """The works of all instances, and the first one of each folded work."""
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

    def _streams(self) -> tuple[tuple[str, ...], tuple[int, ...], Ids]:
        """Streams of the new graph, the ranks each stands for, and their ids by (stream, row, instance)."""
        graph = self.graph
        number = np.full((len(graph.streams), *self.num_members.shape), -1, dtype=np.int32)
        ids: dict[tuple[int, tuple[int, ...]], int] = {}
        names = []
        stands_for = []
        used = np.unique(graph.stream * len(self.members) + self.row)
        for stream, row in zip(
            *(column.tolist() for column in np.divmod(used, len(self.members))), strict=True
        ):
            for local, members in enumerate(self.members[row]):
                if (stream, members) not in ids:
                    ids[stream, members] = len(ids)
                    names.append(self._name(graph.streams[stream], members))
                    ranks = int(self.size[list(members)].sum())
                    stands_for.append(1 if row == self.shared else ranks)
                number[stream, row, local] = ids[stream, members]
        return tuple(names), tuple(stands_for), number

    def _name(self, stream: str, members: tuple[int, ...]) -> str:
        """Name of a device's stream for these of its peers."""
        base = rank_of(stream)
        if base is None:
            return stream
        device, purpose = stream.split("/", 1)
        kind = device.removesuffix(str(base))
        return "+".join(f"{kind}{base + self.offset[member]}" for member in members) + f"/{purpose}"

    # ------------------------------------------------------------------------------ dependencies
    def _reads(self) -> Ragged:
        """Tensors that each instance reads: those of the folded task, once for every member."""
        reads = self.graph.reads
        row_of_value = self.graph.reads.row_of_value
        writer = self.graph.writer[reads.values]
        # A read has one value per member of the reading instance, but only one if its writer is shared.
        single = self.row[writer] == self.shared
        before = np.stack([offsets(~single)[:-1], offsets(single)[:-1]])
        at_start = np.stack([offsets(~single)[reads.start], offsets(single)[reads.start]])
        counts = np.diff(at_start, axis=1)
        before = before - at_start[:, row_of_value]
        task, local, _ = self.instances
        length = counts[0, task] * self.num_members[self.row[task], local] + counts[1, task]
        start = offsets(length)
        values = np.empty(int(start[-1]), dtype=np.int32)
        row = self.row[row_of_value]
        position = reads.values - self.graph.first_write[writer]
        for peer in range(len(self.size)):
            slot = self.slot[row, peer]
            members = self.num_members[row, self.instance[row, peer]]
            where = start[self.at(row_of_value, peer)] + before[0] * members + before[1]
            where += np.where(single, 0, slot)
            values[where] = self._handles(writer, position, peer)
        return Ragged(start.astype(np.int32), values)

    def _handles(self, writer: Ids, position: Ints, peer: int) -> Ints:
        """Tensors that folded tasks write at `position` for one class of peers."""
        row = self.row[writer]
        copy = np.where(row == self.shared, 0, self.slot[row, peer])
        return np.asarray(
            self.first_write[self.at(writer, peer)] + copy * self.writes_of_task[writer] + position
        )

    def _after(self) -> Ragged:
        """Control dependencies of every member, and program order where streams have different members.

        Between instances on one stream, program order needs no dependency.
        """
        after = self.graph.after
        previous = self.graph.stream_predecessor
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
    def _parted(self) -> Bools:
        """Whether the instances of a class in two rows are on different streams: (row, row, class)."""
        met = [
            [instances[local] for local in row.tolist()]
            for instances, row in zip(self.members, self.instance, strict=True)
        ]
        return np.array(
            [[[a != b for a, b in zip(left, right, strict=True)] for right in met] for left in met]
        )


# Replaces tasks by chains of tasks, such as a collective by the steps of its algorithm.


def expand(graph: TaskGraph, chains: Mapping[int, Sequence[Work]]) -> TaskGraph:
    """Replace every task of work w by the tasks `chains[w]`, in order on its stream.

    The first task of a chain inherits the dependencies, the last one the outputs; tensors keep their
    handles. Raises GraphError for a chain that is empty or whose last work writes other tensors.
    """
    for work, chain in chains.items():
        if not chain or len(chain[-1].writes) != len(graph.works[work].writes):
            raise GraphError(f"a chain for {graph.works[work].name} must end in work that writes the same")
    length = np.array([len(chains.get(work, (None,))) for work in range(len(graph.works))])
    first = offsets(length[graph.work])
    task = np.repeat(np.arange(len(graph)), length[graph.work])
    local = np.arange(len(task)) - first[task]
    is_last = local == length[graph.work][task] - 1
    works, begin = _works(graph, chains)
    return replace(
        graph,
        works=works,
        work=(begin[graph.work[task]] + local).astype(np.int32),
        stream=graph.stream[task],
        tag=graph.tag[task],
        block=graph.block[task],
        reads=_of_first(graph.reads, task, local, graph.reads.values),
        after=_of_first(graph.after, task, local, first[graph.after.values + 1] - 1),
        first_write=offsets(np.where(is_last, np.diff(graph.first_write)[task], 0)).astype(np.int32),
        step_ends=tuple(int(first[end]) for end in graph.step_ends),
    )


def _works(graph: TaskGraph, chains: Mapping[int, Sequence[Work]]) -> tuple[tuple[Work, ...], Ints]:
    """The works of the new graph, and where those of each old one begin."""
    works: list[Work] = []
    begin = []
    for number, work in enumerate(graph.works):
        begin.append(len(works))
        works += chains.get(number, (work,))
    return tuple(works), np.array(begin)


def _of_first(rows: Ragged, task: Ints, local: Ints, values: NDArray[np.integer]) -> Ragged:
    """The rows of the tasks for the first task of each chain; empty rows for the others."""
    lengths = np.where(local == 0, np.diff(rows.start)[task], 0)
    return Ragged(offsets(lengths).astype(np.int32), values.astype(np.int32))
