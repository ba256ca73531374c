"""Symmetry of ranks: the peers that a device of a folded graph stands for, and what distinguishes them.

A folded graph has one device per pipeline rank (one wafer for all). Device `gpu{base}` stands for its
*peers*, ranks base .. base + width - 1: tensor peers innermost, then replicas. Peers meet only in work of a
group, such as a collective; sends stay among ranks of equal offset. So symmetry is a property of offsets,
and *classes* number them: peers of one class have equal times.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Ids, Ints
from perfsim.base.errors import GraphError
from perfsim.work.graph import Kind, TaskGraph, Work


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


def meetings_of(graph: TaskGraph) -> list[Meeting]:
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
    meetings = meetings_of(graph)
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
    inner = [meeting for meeting in meetings_of(graph) if meeting.stride == 1 and meeting.size > 1]
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


class Gatherings(NamedTuple):
    """The instances of each meeting among classes of peers.

    `instance[m, k]` is the instance of meeting m that class k is in, `slot[m, k]` its place there;
    `members[m]` lists the classes of every instance.
    """

    instance: Ints
    slot: Ints
    members: list[list[tuple[int, ...]]]


def gatherings(classes: Ids, meetings: Sequence[Meeting]) -> Gatherings:
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
    return Gatherings(instance, slot, members)
