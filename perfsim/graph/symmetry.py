"""Who does the same as whom: the peers that a written device stands for, and what parts them.

A folded graph writes one device for each pipeline rank (one wafer for all); device `gpu{base}` stands
for its *peers*, ranks base .. base + width - 1: tensor peers innermost, then replicas. Peers meet in
collectives and nowhere else; what else crosses ranks stays among those of equal offset. So it is
offsets that are alike or not, and *classes* number them: peers of one class have equal times.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from perfsim.errors import GraphError
from perfsim.graph.ragged import Ints, Wide
from perfsim.graph.task_graph import TaskGraph
from perfsim.graph.work import Kind, Work

_DEVICE = re.compile(r"([a-z]+)(\d+)")


class Meeting(NamedTuple):
    """Peers that a collective joins: offsets `stride` apart, `size` of them. (1, 1): each on its own."""

    stride: int
    size: int

    def first(self, offset: int) -> int:
        """The lowest offset of the group that a peer belongs to."""
        return offset - offset // self.stride % self.size * self.stride

    def offsets(self, offset: int) -> range:
        """All offsets of the group that a peer belongs to."""
        first = self.first(offset)
        return range(first, first + self.stride * self.size, self.stride)


ALONE = Meeting(1, 1)


def rank_of(stream: str) -> int | None:
    """The rank whose stream this is; None on a stream that all share, as those of MemoryX are."""
    found = _DEVICE.fullmatch(stream.split("/", 1)[0])
    return int(found[2]) if found else None


def width_of(graph: TaskGraph) -> int:
    """How many ranks a written device stands for. Raises GraphError where that differs among devices."""
    widths = {
        ranks
        for ranks, name in zip(graph.stands_for, graph.streams, strict=True)
        if rank_of(name) is not None
    }
    if len(widths) > 1:
        raise GraphError("this graph is partly unfolded: its devices stand for unlike numbers of ranks")
    return widths.pop() if widths else 1


def bases_of(graph: TaskGraph) -> list[int]:
    """The rank of every written device, ascending."""
    return sorted({rank for name in graph.streams if (rank := rank_of(name)) is not None})


def meeting_of(work: Work, width: int) -> Meeting:
    """Which peers take part in work of one class. Raises GraphError for a group that parts them unevenly."""
    group = work.group
    if work.kind is not Kind.COMM_COLL or group is None or group.size == 1 or group.stride >= width:
        return ALONE
    if group.stride < 1 or width % (group.stride * group.size):
        raise GraphError(f"the group of {work.name} does not part {width} peers evenly: {group}")
    return Meeting(group.stride, group.size)


def meetings_of(graph: TaskGraph) -> list[Meeting]:
    """Every way in which peers meet in a graph, on their own first."""
    width, found = width_of(graph), {ALONE}
    used = np.unique(graph.stream.astype(np.int64) * len(graph.works) + graph.work).tolist()
    for stream, work in (divmod(each, len(graph.works)) for each in used):
        rank, group = rank_of(graph.streams[stream]), graph.works[work].group
        if rank is None:
            continue
        found.add(meeting := meeting_of(graph.works[work], width))
        if meeting != ALONE and group is not None and group.start != rank:
            name = graph.works[work].name
            raise GraphError(f"the group of {name} on rank {rank} must begin with it: {group}")
    return sorted(found)


def peer_classes(graph: TaskGraph, marks: Mapping[int, Hashable] | None = None) -> Ints:
    """Class of each peer, by offset: the fewest classes whose members do the same.

    `marks` tells apart ranks that are not alike (a straggler, a slow NIC); unmarked ranks are. Two
    peers are of one class if their marks are the same at every pipeline rank and the peers that they
    meet are of the same classes: colour refinement, which ends since classes are only ever parted. A
    single class means that the graph is rightly folded.
    """
    width, bases, meetings = width_of(graph), bases_of(graph), meetings_of(graph)
    known = marks or {}
    classes = _numbered([tuple(known.get(base + offset) for base in bases) for offset in range(width)])
    while True:
        seen = [_groups(classes, meeting) for meeting in meetings]
        refined = _numbered(list(zip(classes.tolist(), *seen, strict=True)))
        if refined.max(initial=0) == classes.max(initial=0):
            return refined
        classes = refined


def as_slowest_peers(graph: TaskGraph, factors: Mapping[int, float]) -> dict[int, float]:
    """How many times as long every rank computes (1 if absent), if tensor peers act with their slowest.

    They meet after every block, so they wait for the slowest anyway: with stragglers in one tensor
    group the step takes as long to the bit, with more of them no less. As marks these factors leave
    half as many classes, whose chains stay whole.
    """
    inner = [meeting for meeting in meetings_of(graph) if meeting.stride == 1 and meeting.size > 1]
    meeting = min(inner, key=lambda each: each.size, default=ALONE)
    found: dict[int, float] = {}
    for base in bases_of(graph):
        for first in {meeting.first(offset) for offset in range(width_of(graph))}:
            group = [base + offset for offset in meeting.offsets(first)]
            slowest = max(factors.get(rank, 1.0) for rank in group)
            found |= dict.fromkeys(group, slowest) if slowest != 1.0 else {}
    return found


def _groups(classes: Ints, meeting: Meeting) -> list[tuple[int, ...]]:
    """The classes that each peer meets, each once."""
    found: dict[int, tuple[int, ...]] = {}
    for first in {meeting.first(offset) for offset in range(len(classes))}:
        found[first] = tuple(sorted(set(classes[list(meeting.offsets(first))].tolist())))
    return [found[meeting.first(offset)] for offset in range(len(classes))]


def _numbered(colours: Sequence[Hashable]) -> Ints:
    """Colours as numbers, in the order in which they appear."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(colour, len(numbers)) for colour in colours], dtype=np.int32)


class Gatherings(NamedTuple):
    """How classes of peers meet: the instances of each meeting, as rows of tables.

    `instance[m, k]` is the instance of meeting m that class k is in, `slot[m, k]` its place there;
    `members[m]` lists the classes of every instance.
    """

    instance: Wide
    slot: Wide
    members: list[list[tuple[int, ...]]]


def gatherings(classes: Ints, meetings: Sequence[Meeting]) -> Gatherings:
    """The instances of every meeting. Raises GraphError for classes whose members meet unlike classes."""
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
