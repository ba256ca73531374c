"""Which tasks of a graph the simulation has to follow: flows that contend, loads, and what these slow.

All others take their own time. The longest path gives a first guess; a run then shows tasks that the guess
left out, and is repeated with them until none is left. So the result is that of a run that follows all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.engine.beside import Beside
from perfsim.engine.overlap import (
    Spans,
    beside_computation,
    beside_loads,
    computing_meanwhile,
    contending,
    occupied,
)
from perfsim.engine.path_class import Flow
from perfsim.graph import TaskGraph
from perfsim.trace import Trace

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

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
    """Masks over tasks, shape (tasks,)."""

    flowing: Mask
    """Communications that share links."""
    aside: Mask
    """Communications that may slow a computation of a device that they occupy."""
    slowed: Mask
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


def own_device(graph: TaskGraph, occupied_devices: Sequence[tuple[int, ...]]) -> NDArray[np.int64]:
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
        flowing = contending(graph, *links, trace)
    if beside is not None:
        takes, bound = (np.any(shares, axis=1) for shares in beside)
        background = occupied(graph, np.flatnonzero(beside_computation(graph, takes)))
        aside[background.tasks] = every or computing_meanwhile(trace, background)
        loads = occupied(graph, np.flatnonzero(aside))
        own = own_device(graph, loads.devices)[graph.stream]
        limited = np.flatnonzero(bound[graph.work] & (own >= 0))
        spans = Spans(own[limited], trace.start_s[limited], trace.end_s[limited])
        margins = (WIDER, DRIFT) if near else (0.0, 0.0)
        slowed[limited[beside_loads(loads, trace, spans, *margins)]] = True
    return Involved(flowing, aside, slowed)


def _and_near(graph: TaskGraph, links: FlowsOnLinks, trace: Trace) -> Mask:
    """The flows that contend if each begins and ends by its length earlier and later; all, if many do."""
    every = _of_works(graph, links)
    some = contending(graph, *links, trace, wider=1.0)
    return some if np.count_nonzero(some) < MOST_CONTENDING * np.count_nonzero(every) else every


def _of_works(graph: TaskGraph, links: FlowsOnLinks) -> Mask:
    """All tasks that are flows."""
    flows = np.zeros(len(graph.works), dtype=bool)
    flows[list(links.flows)] = True
    return flows[graph.work]
