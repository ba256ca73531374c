"""Which tasks of a graph a simulation has to follow: flows that contend, loads, and what these slow.

All others take their own time. The longest path gives a first guess; a run then shows tasks that the guess
left out, and is repeated with them until none is left. So the result is that of a run that follows all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.engine.fairshare import TOLERANCE, Flow
from perfsim.engine.slowdown import Beside
from perfsim.engine.trace import Trace
from perfsim.work import Kind, TaskGraph
from perfsim.work.graph import Chains, computes

WIDER = 1.0
"""How much earlier and later than on the longest path a load may run, as a share of its length."""
DRIFT = 5e-4
"""The same as a share of the time since the run began: contention delays devices differently."""
FEW_CONTENDING = 0.02
"""Share of the flows up to which those that contend on the longest path are followed first, alone."""
MOST_CONTENDING = 0.25
"""Share of the flows from which on all of them are followed: once some are slowed, many more contend."""


class FlowsOnLinks(NamedTuple):
    """Flows by work id, and the bytes/s of the links that they name."""

    flows: Mapping[int, Flow]
    capacities: Floats


class Involved(NamedTuple):
    """Boolss over tasks, shape (tasks,)."""

    flowing: Bools
    """Communications that share links."""
    aside: Bools
    """Communications that may slow a computation of a device that they occupy."""
    slowed: Bools
    """Computations that they may slow."""

    @classmethod
    def none(cls, graph: TaskGraph) -> Involved:
        """No task."""
        return cls(*np.zeros((3, len(graph)), dtype=bool))

    @classmethod
    def expected(cls, graph: TaskGraph, links: FlowsOnLinks, beside: Beside | None, alone: Trace) -> Involved:
        """Those of the longest path, and computations near loads."""
        shown = _shown(graph, links, beside, alone, near=True)
        flows = np.count_nonzero(_of_works(graph, links))
        if np.count_nonzero(shown.flowing) > FEW_CONTENDING * flows:
            shown = shown._replace(flowing=_and_near(graph, links, alone))
        return shown

    def with_those_of(
        self, graph: TaskGraph, links: FlowsOnLinks, beside: Beside | None, trace: Trace, repeats: int
    ) -> Involved | None:
        """With those that a run shows, in a second repeat with many more; None if it shows no others."""
        shown = _shown(graph, links, beside, trace)
        if not any((new & ~old).any() for old, new in zip(self, shown, strict=True)):
            return None
        if repeats:  # each repeat may show a few others, without end
            shown = _shown(graph, links, beside, trace, near=True, every=True)
            shown = shown._replace(flowing=_and_near(graph, links, trace))
        return Involved(*(old | new for old, new in zip(self, shown, strict=True)))


def loaded_device(graph: TaskGraph, occupied_devices: Sequence[tuple[int, ...]]) -> Ints:
    """The device of every stream, of several the first one that communications occupy; -1: none."""
    loaded = {device for numbers in occupied_devices for device in numbers}
    return np.array([min(loaded.intersection(numbers), default=-1) for numbers in graph.stream_devices])


def _shown(
    graph: TaskGraph,
    links: FlowsOnLinks,
    beside: Beside | None,
    trace: Trace,
    *,
    near: bool = False,
    every: bool = False,
) -> Involved:
    """Those of a trace; with `near` also computations shortly before and after a load.

    With `every` all communications beside a computation's stream are loads.
    """
    flowing, aside, slowed = Involved.none(graph)
    if links.flows:
        flowing = _contending(graph, *links, trace)
    if beside is not None:
        takes, bound = (np.any(shares, axis=1) for shares in beside)
        background = occupied(graph, np.flatnonzero(_beside_computation(graph, takes)))
        aside[background.tasks] = every or _computing_meanwhile(trace, background)
        loads = occupied(graph, np.flatnonzero(aside))
        own = loaded_device(graph, loads.devices)[graph.stream]
        limited = np.flatnonzero(bound[graph.work] & (own >= 0))
        spans = _Spans(own[limited], trace.start_s[limited], trace.end_s[limited])
        margins = (WIDER, DRIFT) if near else (0.0, 0.0)
        slowed[limited[_beside_loads(loads, trace, spans, *margins)]] = True
    return Involved(flowing, aside, slowed)


def _and_near(graph: TaskGraph, links: FlowsOnLinks, trace: Trace) -> Bools:
    """The flows that contend if each begins and ends by its length earlier and later; all, if many do."""
    every = _of_works(graph, links)
    some = _contending(graph, *links, trace, wider=1.0)
    return some if np.count_nonzero(some) < MOST_CONTENDING * np.count_nonzero(every) else every


def _of_works(graph: TaskGraph, links: FlowsOnLinks) -> Bools:
    """All tasks that are flows."""
    flows = np.zeros(len(graph.works), dtype=bool)
    flows[list(links.flows)] = True
    return flows[graph.work]


def _beside_computation(graph: TaskGraph, takes: Bools) -> Bools:
    """Of the tasks that take part of a device, those on other streams than its computation.

    `takes` has one entry per class of work. A communication on a compute stream blocks the computation there.
    """
    blocking = np.array([computes(name) for name in graph.streams])
    return np.asarray(takes[graph.work] & ~blocking[graph.stream])


class _Occupied(NamedTuple):
    """The devices that some communications occupy: `devices[kind[i]]` those of communication i."""

    tasks: NDArray[np.intp]
    kind: NDArray[np.intp]
    devices: list[tuple[int, ...]]


def occupied(graph: TaskGraph, tasks: NDArray[np.intp]) -> _Occupied:
    """The devices that communications occupy: those of their stream, and those that receive a message."""
    of_stream = graph.stream_devices
    of_message = _ends_of_messages(graph)
    count = len(graph.works)
    codes, kind = np.unique(
        graph.stream[tasks].astype(np.int64) * count + graph.work[tasks], return_inverse=True
    )
    kinds = (divmod(code, count) for code in codes.tolist())
    devices = [
        tuple(dict.fromkeys((*of_stream[stream], *of_message.get(work, ())))) for stream, work in kinds
    ]
    return _Occupied(tasks, kind.reshape(-1), devices)


class _Spans(NamedTuple):
    """Intervals on devices."""

    device: Ints
    start_s: Floats
    end_s: Floats

    def meet(self, others: _Spans) -> Bools:
        """Which of these share time with any of the others on the same device."""
        ends_s = [self.end_s, others.end_s]
        apart_s = 4.0 * max(float(end_s.max(initial=0.0)) for end_s in ends_s) + 1.0
        # Times of different devices are too far apart to be compared.
        begins = np.sort(others.device * apart_s + others.start_s)
        ends = np.sort(others.device * apart_s + others.end_s)
        begun = np.searchsorted(begins, self.device * apart_s + self.end_s)
        ended = np.searchsorted(ends, self.device * apart_s + self.start_s, side="right")
        return np.asarray(begun > ended)


def _contending(
    graph: TaskGraph, flows: Mapping[int, Flow], capacities: Floats, trace: Trace, wider: float = 0.0
) -> Bools:
    """Which tasks cross a link while its flows together demand more than it can carry; shape (tasks,).

    `flows` has the load of the tasks of each work id, `capacities` the bytes/s of the links; with
    `wider` a flow begins and ends by this share of its length earlier and later.
    """
    contend = np.zeros(len(graph), dtype=bool)
    tasks, link, bytes_per_s = _crossings(graph, flows)
    start_s = trace.start_s[tasks]
    end_s = trace.end_s[tasks]
    more_s = wider * (end_s - start_s)
    count = len(tasks)
    number = np.tile(np.arange(count), 2)
    change = np.repeat([1.0, -1.0], count)
    # On one link at one time, flows end before others start.
    order = np.lexsort((change, np.concatenate([start_s - more_s, end_s + more_s]), link[number]))
    demand = np.cumsum((change * bytes_per_s[number])[order])
    beyond = np.cumsum(demand > capacities[link[number[order]]] * (1 + TOLERANCE))
    place = np.empty(2 * count, dtype=np.int64)
    place[order] = np.arange(2 * count)
    begin = place[:count]
    end = place[count:]
    before = np.where(begin > 0, beyond[begin - 1], 0)
    contend[tasks[beyond[end - 1] > before]] = True
    return contend


def _crossings(graph: TaskGraph, flows: Mapping[int, Flow]) -> tuple[NDArray[np.intp], Ints, Floats]:
    """A task, a link that its flow crosses, and the bytes/s that it demands there, for each such pair."""
    rows = [
        (work, link, times * flow.bytes_per_s * flow.weight)
        for work, flow in sorted(flows.items())
        for link, times in Counter(flow.route).items()
    ]
    counts = np.zeros(len(graph.works), dtype=np.int64)
    np.add.at(counts, np.array([work for work, _, _ in rows], dtype=np.int64), 1)
    first = np.cumsum(counts) - counts
    tasks = np.flatnonzero(counts[graph.work])
    work = graph.work[tasks]
    task = tasks.repeat(counts[work])
    place = np.arange(len(task)) - np.repeat(np.cumsum(counts[work]) - counts[work], counts[work])
    row = np.repeat(first[work], counts[work]) + place
    links = np.array([link for _, link, _ in rows], dtype=np.int64)
    bytes_per_s = np.array([demand for _, _, demand in rows], dtype=np.float64)
    return task, links[row], bytes_per_s[row]


def _spans_of(communications: _Occupied, trace: Trace) -> tuple[_Spans, NDArray[np.intp]]:
    """A span for every device that a communication occupies, and the communication of each."""
    tasks, kind, devices = communications
    counts = np.array([len(numbers) for numbers in devices], dtype=np.int64)
    numbers = np.array([number for numbers in devices for number in numbers], dtype=np.int64)
    first = np.cumsum(counts) - counts
    number = np.repeat(np.arange(len(tasks)), counts[kind])
    place = np.arange(len(number)) - np.repeat(np.cumsum(counts[kind]) - counts[kind], counts[kind])
    start_s = trace.start_s[tasks[number]]
    end_s = trace.end_s[tasks[number]]
    return _Spans(numbers[first[kind[number]] + place], start_s, end_s), number


def _computing_meanwhile(trace: Trace, communications: _Occupied) -> Bools:
    """Of some communications, those during which a device that they occupy computes."""
    graph = trace.graph
    own = np.array([min(numbers, default=-1) for numbers in graph.stream_devices])
    communicates = np.array([work.kind.is_communication for work in graph.works])
    blocking = np.array([computes(name) for name in graph.streams])
    computing = np.flatnonzero(blocking[graph.stream] & ~communicates[graph.work])
    busy = _Spans(own[graph.stream[computing]], trace.start_s[computing], trace.end_s[computing])
    spans, number = _spans_of(communications, trace)
    meanwhile = np.zeros(len(communications.tasks), dtype=bool)
    meanwhile[number[spans.meet(busy)]] = True
    return meanwhile


def _beside_loads(
    communications: _Occupied, trace: Trace, computations: _Spans, wider: float = 0.0, drift: float = 0.0
) -> Bools:
    """Of some computations those that meet a load.

    A load counts earlier and later by `wider` of its length and by `drift` of the time when it ends.
    """
    spans, _ = _spans_of(communications, trace)
    more_s = wider * (spans.end_s - spans.start_s) + drift * spans.end_s
    return computations.meet(_Spans(spans.device, spans.start_s - more_s, spans.end_s + more_s))


def _ends_of_messages(graph: TaskGraph) -> dict[int, tuple[int, ...]]:
    """The devices that send and receive the messages of each class of work, numbered as by streams."""
    of_stream = graph.stream_devices
    device = {
        rank: numbers[0]
        for rank, numbers in zip(graph.stream_ranks.tolist(), of_stream, strict=True)
        if rank >= 0 and numbers
    }
    return {
        number: tuple(device[rank] for rank in work.group.ranks if rank in device)
        for number, work in enumerate(graph.works)
        if work.kind is Kind.COMM_SEND and work.group is not None
    }


def changes_of_device(graph: TaskGraph, chains: Chains, limited: Bools) -> NDArray[np.intp]:
    """Tasks of `limited` whose chain came from another device, where the last such task before them ran."""
    own = np.array([min(numbers, default=-1) for numbers in graph.stream_devices])
    tasks = chains.order[limited[chains.order]]
    chain = chains.chain[tasks]
    device = own[graph.stream[tasks]]
    changed = (chain[1:] == chain[:-1]) & (device[1:] != device[:-1])
    return np.asarray(tasks[1:][changed])
