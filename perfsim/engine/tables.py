"""A priced graph as columns: what both engines read, so that they follow the same rules.

Tasks of one stream that do the same work are of one *kind*. A kind says which flow its tasks are, what they
take from which devices while they run, and what limits them while others take something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from perfsim.base.arrays import Floats, Ids, Ints, distinct
from perfsim.costs.price import MOST_TAKEN
from perfsim.work import Kind, TaskGraph
from perfsim.work.graph import Ragged, computes

UNIT = 1 << 20
"""Shares of a device are added as whole multiples of 1 / UNIT, so that what ends leaves nothing behind."""
TOLERANCE = 1e-9
"""A link is contended when its demand exceeds its capacity by more than this fraction."""
NONE = -1


class Flow(NamedTuple):
    """The load of one communication on the network.

    `route` holds link ids, one entry each time a link is crossed. `bytes_per_s` is the nominal speed,
    reached when nothing else uses the links, and never exceeded.

    A flow has two parts: a latency, in which it uses no link, and then its bytes.
    """

    route: tuple[int, ...]
    bytes_per_s: float
    latency: float = 0.0
    """Share of the time alone that is latency."""
    late_s: float = 0.0
    """Latency of links on the route that the time alone does not count."""


class Slowdown(NamedTuple):
    """What communication takes and what limits computation, by work id: (works, 2), units and memory."""

    taken: Floats
    """Shares of a device that a communication takes while it runs; 0 for computation."""
    bound: Floats
    """Shares of a computation's time that compute units and memory bandwidth limit; 0 for communication."""


class Tables(NamedTuple):
    """All that a run needs; a kind, a flow, a link and a device are numbers from 0."""

    duration_s: Floats
    """Of every task, when nothing else uses its links or its device."""
    latency_s: Floats
    """The part of it before a task's bytes use links; 0 for tasks that are no flows."""
    stream: Ids
    missing: Ids
    """How many tasks every task waits for."""
    waiting: Ragged
    """Tasks that wait for each task."""
    kind: Ints
    """Of every task."""
    flow: Ints
    """Of every kind; -1: none."""
    device: Ints
    """Of every kind, the one on which others may slow it; -1: none."""
    bound: Floats
    """Of every kind, as in `Slowdown`; shape (kinds, 2)."""
    occupied: Ragged
    """Devices from which each kind takes something."""
    taken: Ints
    """Of every kind, in 1 / UNIT; shape (kinds, 2)."""
    links: Ragged
    """Links that each flow crosses, without repeats."""
    crossings: Ints
    """How often a flow crosses a link, next to `links.values`."""
    flows_on: Ragged
    """Flows that cross each link."""
    crossings_on: Ints
    """How often they do, next to `flows_on.values`."""
    bytes_per_s: Floats
    """Of every flow, alone."""
    capacity: Floats
    """Of every link, in bytes/s."""
    num_devices: int

    @classmethod
    def of(
        cls,
        graph: TaskGraph,
        duration_s: Floats,
        flows: Mapping[int, Flow],
        capacity: Floats,
        slowdown: Slowdown | None,
    ) -> Tables:
        """The columns of a graph with these durations; arguments as in `engine.simulate`."""
        works = len(graph.works)
        code = graph.stream.astype(np.int64) * works + graph.work
        codes, kind = distinct(code, len(graph.streams) * works)
        stream_of_kind, work_of_kind = np.divmod(codes, works)
        flow_of_work = np.full(works, NONE)
        carried: list[Flow] = []
        # A share and seconds by class of work: `late[work]` are (latency, late_s) of its flow.
        late = np.zeros((works, 2))
        for work in sorted(flows):
            if work < works:
                flow_of_work[work] = len(carried)
                carried.append(flows[work])
                late[work] = flows[work].latency, flows[work].late_s
        crossed = [sorted(Counter(flow.route).items()) for flow in carried]
        links = Ragged.of([[link for link, _ in row] for row in crossed])
        crossings = np.array([times for row in crossed for _, times in row], dtype=np.int64)
        share, late_s = late[graph.work].T
        whole_s = np.asarray(duration_s, dtype=np.float64)
        return cls(
            duration_s=whole_s + late_s,
            latency_s=share * whole_s + late_s,
            stream=graph.stream,
            missing=np.diff(graph.dependencies.start),
            waiting=graph.successors,
            kind=kind,
            flow=flow_of_work[work_of_kind],
            **_slowed(graph, [*zip(stream_of_kind.tolist(), work_of_kind.tolist(), strict=True)], slowdown),
            links=links,
            crossings=crossings,
            flows_on=Ragged.grouped(links.row_of_value, links.values, len(capacity)),
            crossings_on=crossings[np.argsort(links.values, kind="stable")],
            bytes_per_s=np.array([flow.bytes_per_s for flow in carried], dtype=np.float64),
            capacity=np.asarray(capacity, dtype=np.float64),
        )


def _slowed(graph: TaskGraph, kinds: list[tuple[int, int]], slowdown: Slowdown | None) -> dict[str, Any]:
    """How communication slows computation, as columns of `Tables`; `kinds` are each one's stream and work."""
    of_stream = graph.stream_devices
    num_devices = 1 + max((device for devices in of_stream for device in devices), default=-1)
    occupied: list[tuple[int, ...]] = [()] * len(kinds)
    taken = np.zeros((len(kinds), 2), dtype=np.int64)
    device = np.full(len(kinds), NONE)
    bound = np.zeros((len(kinds), 2))
    if slowdown is not None and slowdown.taken.any():
        blocking = [computes(name) for name in graph.streams]
        ends = zip(graph.stream_ranks.tolist(), of_stream, strict=True)
        device_of_rank = {rank: numbers[0] for rank, numbers in ends if rank >= 0 and numbers}
        # A message takes something from the devices that send and receive it.
        of_message = {
            number: [device_of_rank[rank] for rank in work.group.ranks if rank in device_of_rank]
            for number, work in enumerate(graph.works)
            if work.kind is Kind.COMM_SEND and work.group is not None
        }
        shares = np.rint(slowdown.taken * UNIT).astype(np.int64)
        for kind, (stream, work) in enumerate(kinds):
            # A communication on a compute stream blocks the computation there instead of slowing it.
            if shares[work].any() and not blocking[stream]:
                occupied[kind] = tuple(dict.fromkeys((*of_stream[stream], *of_message.get(work, ()))))
                taken[kind] = shares[work]
        loaded = {number for devices in occupied for number in devices}
        for kind, (stream, work) in enumerate(kinds):
            if slowdown.bound[work].any():
                device[kind] = min(loaded.intersection(of_stream[stream]), default=NONE)
                bound[kind] = slowdown.bound[work]
    return {
        "device": device.astype(np.int64),
        "bound": bound,
        "occupied": Ragged.of(occupied),
        "taken": taken,
        "num_devices": num_devices,
    }


def excess(taken: float) -> float:
    """Additional time of work, relative to its time alone, when a share of what limits it is taken."""
    share = min(taken, MOST_TAKEN)
    return share / (1.0 - share)


def slowed_speed(units_bound: float, memory_bound: float, units: float, memory: float) -> float:
    """Rate of a computation, limited so far by units and memory, next to work with this `excess` of each."""
    return 1.0 / (1.0 + units_bound * units + memory_bound * memory)
