"""Which communications of a graph can run beside computation, and on which devices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Kind, TaskGraph
from perfsim.graph.chains import Chains
from perfsim.trace import Trace

COMPUTE = "/compute"
"""End of the name of a stream that computes."""


def beside_computation(graph: TaskGraph, takes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of the tasks that take part of a device, those beside which their device may compute.

    `takes` has one entry per class of work. Collectives in a row between two computations of one stream run
    alone if they wait for the first one and the second one waits for them.
    """
    aside = takes[graph.work]
    own = np.array(
        [
            numbers[0] if len(numbers) == 1 else -1 - stream
            for stream, numbers in enumerate(devices_of_streams(graph))
        ]
    )
    device = own[graph.stream]
    follows, before = graph.follows, graph.stream_predecessor
    second = np.flatnonzero((before >= 0) & (follows >= 0) & (follows != before) & ~aside)
    last = follows[second]
    back, alone = last.copy(), np.zeros(len(second), dtype=bool)
    left = np.flatnonzero(aside[last] & (device[last] == device[second]))
    while len(left):
        back[left] = follows[back[left]]
        alone[left] = back[left] == before[second[left]]
        left = left[(back[left] >= 0) & ~alone[left]]
        left = left[aside[back[left]] & (device[back[left]] == device[second[left]])]
    first, between = before[second[alone]], last[alone]
    while len(between):
        aside[between] = False
        between = follows[between]
        go_on = between != first
        first, between = first[go_on], between[go_on]
    return aside


class Occupied(NamedTuple):
    """The devices that some communications occupy: `devices[kind[i]]` those of communication i."""

    tasks: NDArray[np.intp]
    kind: NDArray[np.intp]
    devices: list[tuple[int, ...]]


def occupied(graph: TaskGraph, tasks: NDArray[np.intp]) -> Occupied:
    """The devices that communications occupy: those of their stream, and those that receive a message."""
    of_stream, of_message = devices_of_streams(graph), _ends_of_messages(graph)
    count = len(graph.works)
    codes, kind = np.unique(
        graph.stream[tasks].astype(np.int64) * count + graph.work[tasks], return_inverse=True
    )
    kinds = (divmod(code, count) for code in codes.tolist())
    devices = [
        tuple(dict.fromkeys((*of_stream[stream], *of_message.get(work, ())))) for stream, work in kinds
    ]
    return Occupied(tasks, kind.reshape(-1), devices)


def computing_meanwhile(trace: Trace, communications: Occupied) -> NDArray[np.bool_]:
    """Of some communications, those during which a device that they occupy computes."""
    graph, (tasks, kind, devices) = trace.graph, communications
    own = np.array([min(numbers, default=-1) for numbers in devices_of_streams(graph)])
    computes = np.array([name.endswith(COMPUTE) for name in graph.streams])
    computing = np.flatnonzero(computes[graph.stream])
    order = np.argsort(own[graph.stream[computing]], kind="stable")  # ids of one stream are in order of time
    computing = computing[order]
    apart_s = 2.0 * trace.makespan_s + 1.0  # so that times of different devices are never compared
    from_s = own[graph.stream[computing]] * apart_s
    start_s, end_s = from_s + trace.start_s[computing], from_s + trace.end_s[computing]
    meanwhile = np.zeros(len(tasks), dtype=bool)
    for place in range(max((len(numbers) for numbers in devices), default=0)):
        device = np.array([numbers[place] if place < len(numbers) else -1 for numbers in devices])[kind]
        begun = np.searchsorted(start_s, device * apart_s + trace.end_s[tasks])
        ended = np.searchsorted(end_s, device * apart_s + trace.start_s[tasks], side="right")
        meanwhile |= (begun > ended) & (device >= 0)
    return meanwhile


def devices_of_streams(graph: TaskGraph) -> list[tuple[int, ...]]:
    """The computing devices of each stream, numbered from 0."""
    owners = [name.split("/", 1)[0].split("+") for name in graph.streams]
    computing = dict.fromkeys(
        owner
        for names, stream in zip(owners, graph.streams, strict=True)
        if stream.endswith(COMPUTE)
        for owner in names
    )
    number = {owner: index for index, owner in enumerate(computing)}
    return [tuple(number[owner] for owner in names if owner in number) for names in owners]


def _ends_of_messages(graph: TaskGraph) -> dict[int, tuple[int, ...]]:
    """The devices that send and receive the messages of each class of work, numbered as by streams."""
    of_stream = devices_of_streams(graph)
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


def changes_of_device(graph: TaskGraph, chains: Chains, limited: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Tasks of `limited` whose chain came from another device, where the last such task before them ran."""
    own = np.array([min(numbers, default=-1) for numbers in devices_of_streams(graph)])
    tasks = chains.order[limited[chains.order]]
    chain, device = chains.chain[tasks], own[graph.stream[tasks]]
    changed = (chain[1:] == chain[:-1]) & (device[1:] != device[:-1])
    return np.asarray(tasks[1:][changed])
