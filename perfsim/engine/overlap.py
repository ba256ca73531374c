"""Which communications of a graph can run beside computation, and on which devices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Kind, TaskGraph
from perfsim.trace import Trace

COMPUTE = "/compute"
"""End of the name of a stream that computes."""


def beside_computation(graph: TaskGraph, takes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Of the tasks that take part of a device, those beside which their device may compute.

    `takes` has one entry per class of work. Collectives in a row between two computations of one stream run
    alone if they wait for the first one and the second one waits for them.
    """
    aside = takes[graph.work]
    follows, before = graph.follows, graph.stream_predecessor
    second = np.flatnonzero((before >= 0) & (follows >= 0) & (follows != before) & ~aside)
    last = follows[second]
    back, alone = last.copy(), np.zeros(len(second), dtype=bool)
    left = np.flatnonzero(aside[last])
    while len(left):
        back[left] = follows[back[left]]
        alone[left] = back[left] == before[second[left]]
        left = left[(back[left] >= 0) & ~alone[left]]
        left = left[aside[back[left]]]
    first, between = before[second[alone]], last[alone]
    while len(between):
        aside[between] = False
        between = follows[between]
        go_on = between != first
        first, between = first[go_on], between[go_on]
    return aside


def computing_meanwhile(trace: Trace, tasks: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Of some tasks, those during which their own stream's device computes; shape (tasks,).

    A task of a stream of several devices counts for the first of them.
    """
    graph = trace.graph
    device = np.array([min(numbers, default=-1) for numbers in devices_of_streams(graph)])[graph.stream]
    computes = np.array([name.endswith(COMPUTE) for name in graph.streams])[graph.stream]
    computing = np.flatnonzero(computes)
    computing = computing[np.argsort(device[computing], kind="stable")]  # then by start, as ids are in order
    apart_s = 2.0 * trace.makespan_s + 1.0  # so that times of different devices are never compared
    begun = np.searchsorted(device[computing] * apart_s + trace.start_s[computing], device[tasks] * apart_s + trace.end_s[tasks])
    ended = np.searchsorted(device[computing] * apart_s + trace.end_s[computing], device[tasks] * apart_s + trace.start_s[tasks], side="right")
    return begun > ended


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


def receives(graph: TaskGraph) -> NDArray[np.bool_]:
    """Tasks that occupy the device that waits for them as well as their own: messages between two ranks."""
    return np.array([work.kind is Kind.COMM_SEND for work in graph.works])[graph.work]
