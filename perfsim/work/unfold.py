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

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from perfsim.base.arrays import Ids, Ints
from perfsim.base.errors import GraphError
from perfsim.work.graph import Kind, Ragged, TaskGraph, Work, offsets, rank_of

Offsets = TypeVar("Offsets", int, Ints)


class Meeting(NamedTuple):
    """The peers in a collective: `size` offsets, `stride` apart; (1, 1) for work without peers."""

    stride: int
    size: int

    def first(self, offset: Offsets) -> Offsets:
        """The lowest offset of a peer's group."""
        return offset - offset // self.stride % self.size * self.stride

    def offsets(self, offset: int) -> range:
        """All offsets of a peer's group."""
        first = self.first(offset)
        return range(first, first + self.stride * self.size, self.stride)


ALONE = Meeting(1, 1)


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
    one class if they have the same marks at every pipeline rank and meet peers of the same classes. This is
    colour refinement; it ends because classes are only ever split. With one class the folded graph is exact.
    """
    width = graph.width
    bases = graph.bases
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


class Unfolded:
    """An unfolded graph and its mapping to the folded one.

    Tables have one row per meeting; the last row is for shared streams. `members[m]` lists the classes in
    every instance of meeting m; `instance[m, k]` is the instance that class k is in, `slot[m, k]` its place
    there.
    """

    def __init__(self, graph: TaskGraph, classes: Ids) -> None:
        self.folded = graph
        self.classes = classes
        """Class of each peer, by offset."""
        # `offset` is the first peer of each class: its ranks name the devices of the new graph.
        numbers, self.offset, self.size = np.unique(classes, return_index=True, return_counts=True)
        self.meetings = _meetings_of(graph)
        self.members: list[list[tuple[int, ...]]] = []
        for meeting in self.meetings:
            groups = _groups(classes, meeting)
            self.members.append(list(dict.fromkeys(groups[first] for first in self.offset)))
        self.shared = len(self.members)
        self.members.append([tuple(range(len(numbers)))])
        self.instance, self.slot = np.zeros((2, len(self.members), len(numbers)), dtype=np.int64)
        most = max(len(instances) for instances in self.members)
        self.num_members, first_offset = np.zeros((2, len(self.members), most), dtype=np.int64)
        for row, instances in enumerate(self.members):
            for local, group in enumerate(instances):
                self.instance[row, list(group)] = local
                self.slot[row, list(group)] = range(len(group))
                self.num_members[row, local] = len(group)
                first_offset[row, local] = self.offset[group[0]]
        row_of_meeting = {meeting: row for row, meeting in enumerate(self.meetings)}
        of_work = np.array([row_of_meeting.get(meeting_of(work, len(classes)), 0) for work in graph.works])
        self.row = np.where(graph.stream_ranks[graph.stream] < 0, self.shared, of_work[graph.work])
        """Of each folded task."""
        counts = np.array([len(instances) for instances in self.members])[self.row]
        self.first = offsets(counts)
        """The first instance of each folded task, and the end of the last."""
        self.task = np.repeat(np.arange(len(graph), dtype=np.int32), counts)
        """The folded task that each task is an instance of."""
        self.local = np.arange(len(self.task)) - self.first[self.task]
        """Number of each instance among those of its folded task."""
        of_instance = self.row[self.task]
        ranks = graph.stream_ranks[graph.stream[self.task]] + first_offset[of_instance, self.local]
        self.rank = np.where(of_instance == self.shared, -1, ranks).astype(np.int32)
        """The (first) rank that runs each task; -1 on a shared stream."""
        # A collective writes its tensors once for each member, in order.
        self.num_writes = np.diff(graph.first_write).astype(np.int64)
        copies = np.where(of_instance == self.shared, 1, self.num_members[of_instance, self.local])
        self.first_write = offsets(self.num_writes[self.task] * copies)
        self.graph = self._written()

    def _written(self) -> TaskGraph:
        graph = self.folded
        works, work = self._works()
        names, stands_for, stream = self._streams()
        return TaskGraph(
            works=works,
            streams=names,
            work=work,
            stream=stream[graph.stream[self.task], self.row[self.task], self.local],
            tag=graph.tag[self.task],
            block=graph.block[self.task],
            reads=self._reads(),
            after=self._after(),
            first_write=self.first_write.astype(np.int32),
            step_ends=tuple(int(self.first[end]) for end in graph.step_ends),
            stands_for=stands_for,
        )

    def of_peer(self, offset: int) -> Ints:
        """The instance of each folded task for the peer at this offset."""
        return self.at(np.arange(len(self.folded)), int(self.classes[offset]))

    def at(self, tasks: Ints | Ids, peer: int) -> Ints:
        """The instances of folded tasks for one class of peers."""
        return np.asarray(self.first[tasks] + self.instance[self.row[tasks], peer])

    def _works(self) -> tuple[tuple[Work, ...], Ids]:
        """The works of all instances, which differ where they have ranks in them, and the work of each."""
        graph = self.folded
        row_of_work = np.zeros(len(graph.works), dtype=np.int64)
        row_of_work[graph.work] = self.row
        alone = set(np.unique(graph.work[self.row == self.shared]).tolist())
        moves = np.zeros(len(graph.works), dtype=np.int32)
        first = []
        works: list[Work] = []
        for number, work in enumerate(graph.works):
            first.append(len(works))
            if work.group is None or number in alone:
                works.append(work)
                continue
            moves[number] = 1
            row = int(row_of_work[number])
            for members in self.members[row]:
                offset = self.meetings[row].first(int(self.offset[members[0]]))
                moved = work.group._replace(start=work.group.start + offset)
                stays = not offset and len(members) == 1
                works.append(work if stays else replace(work, group=moved, writes=work.writes * len(members)))
        of_task = graph.work[self.task]
        numbers = np.array(first)[of_task] + moves[of_task] * self.local
        return tuple(works), numbers.astype(np.int32)

    def _streams(self) -> tuple[tuple[str, ...], tuple[int, ...], Ids]:
        """Streams of the new graph, the ranks each stands for, and their ids by (stream, row, instance)."""
        graph = self.folded
        number = np.full((len(graph.streams), *self.num_members.shape), -1, dtype=np.int32)
        ids: dict[tuple[int, tuple[int, ...]], int] = {}
        names = []
        stands_for = []
        used = np.unique(graph.stream * len(self.members) + self.row)
        for stream, row in (divmod(code, len(self.members)) for code in used.tolist()):
            for local, members in enumerate(self.members[row]):
                if (stream, members) not in ids:
                    ids[stream, members] = len(ids)
                    name = graph.streams[stream]
                    base = rank_of(name)
                    if base is not None:
                        device, purpose = name.split("/", 1)
                        kind = device.removesuffix(str(base))
                        devices = (f"{kind}{base + self.offset[member]}" for member in members)
                        name = f"{'+'.join(devices)}/{purpose}"
                    names.append(name)
                    stands_for.append(1 if row == self.shared else int(self.size[list(members)].sum()))
                number[stream, row, local] = ids[stream, members]
        return tuple(names), tuple(stands_for), number

    def _reads(self) -> Ragged:
        """Tensors that each instance reads: the tensors of the folded task, once for every member."""
        reads = self.folded.reads
        reader = reads.row_of_value
        writer = self.folded.writer[reads.values]
        row = self.row[reader]
        # A read has one value per member of the reading instance, but only one if its writer is shared.
        single = self.row[writer] == self.shared
        before = np.stack([offsets(~single), offsets(single)])
        at_start = before[:, reads.start]
        counts = np.diff(at_start, axis=1)
        before = before[:, :-1] - at_start[:, reader]
        task = self.task
        length = counts[0, task] * self.num_members[self.row[task], self.local] + counts[1, task]
        start = offsets(length)
        values = np.empty(int(start[-1]), dtype=np.int32)
        position = reads.values - self.folded.first_write[writer]
        for peer in range(len(self.size)):
            members = self.num_members[row, self.instance[row, peer]]
            where = start[self.at(reader, peer)] + before[0] * members + before[1]
            where += np.where(single, 0, self.slot[row, peer])
            copy = np.where(single, 0, self.slot[self.row[writer], peer])
            first = self.first_write[self.at(writer, peer)]
            values[where] = first + copy * self.num_writes[writer] + position
        return Ragged(start.astype(np.int32), values)

    def _after(self) -> Ragged:
        """Control dependencies of every member, and program order, which may go to another stream."""
        after = self.folded.after
        previous = self.folded.stream_predecessor
        follows = np.flatnonzero((previous >= 0) & (self.row[previous] != self.row))
        # Where program order does not, the graph leaves the dependency out again.
        pairs = []
        for peer in range(len(self.size)):
            pairs.append((self.at(after.row_of_value, peer), self.at(after.values, peer)))
            if len(self.size) > 1:
                pairs.append((self.at(follows, peer), self.at(previous[follows], peer)))
        instance, values = (np.concatenate(column) for column in zip(*pairs, strict=True))
        return Ragged.grouped(values, instance, len(self.task))


def unfold(graph: TaskGraph, classes: Ids | None = None) -> Unfolded:
    """`graph` with a device for every class of peers, by default for every rank.

    `classes` has one entry per peer, as from `peer_classes`. Raises GraphError for a graph that is not
    folded.
    """
    width = graph.width
    classes = np.arange(width, dtype=np.int32) if classes is None else np.asarray(classes, dtype=np.int32)
    return Unfolded(graph, classes)
