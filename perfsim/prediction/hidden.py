"""Communication that hides behind compute: its share of a step, and what it may cost.

A communication kernel takes multiprocessors and memory bandwidth from the compute beside it, so hiding is not
free. How much it costs was checked only up to the largest share of the step that a published run hides. Where
a plan hides a share h above that largest share m, its step may take up to (h - m) s longer, where s is the
largest slowdown of compute beside communication (`Machine.overlap_slowdown`); the band is wider by that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.graph.task_graph import owners_of
from perfsim.machines import Unknown
from perfsim.trace import Trace

Floats = NDArray[np.float64]
Spans = tuple[Floats, Floats]
"""Starts and ends of intervals."""
COMPUTE = "/compute"
"""End of the name of a stream on which a device computes."""


class Hidden(NamedTuple):
    """The share of a step in which communication hides behind compute, beside that of published runs."""

    share: float
    published: float
    """The largest share of the published runs."""
    slowdown: float
    """Most extra time of compute beside communication, as a fraction of its time."""

    @property
    def cost(self) -> float:
        """What the share beyond that of published runs costs at most, as a fraction of the step."""
        return max(0.0, self.share - self.published) * self.slowdown

    def unknown(self) -> list[Unknown]:
        """The width that it adds to a band; none inside the published range."""
        if not self.cost:
            return []
        most = f"{100 * self.published:.0f} % in any run"
        words = f"{100 * self.share:.0f} % of the step hides communication, at most {most}"
        return [Unknown("hidden-communication", float(np.log1p(self.cost)), words)]


def hidden_share(trace: Trace) -> float:
    """Share of the step in which a device computes while it communicates; the mean over computing devices.

    Communication is what runs on a device's streams besides its compute. Streams of no device (weights that
    a store sends to a wafer) do not count: they take nothing from a device's compute.
    """
    graph = trace.graph
    streams: dict[str, list[int]] = {}
    for stream, name in enumerate(graph.streams):
        for owner in owners_of(name):
            streams.setdefault(owner, []).append(stream)
    order = np.argsort(graph.stream, kind="stable")
    bounds = np.searchsorted(graph.stream[order], np.arange(len(graph.streams) + 1)).tolist()
    communicates = np.array([work.kind.is_communication for work in graph.works])[graph.work]

    def spans(own: Iterable[int], *, communication: bool) -> Spans:
        tasks = np.concatenate([order[bounds[stream] : bounds[stream + 1]] for stream in own])
        tasks = tasks[communicates[tasks] == communication]
        return _disjoint(
            *(np.clip(times[tasks], *trace.step_window_s) for times in (trace.start_s, trace.end_s))
        )

    seconds, devices = 0.0, 0
    for own in streams.values():
        computing = [stream for stream in own if graph.streams[stream].endswith(COMPUTE)]
        if not computing:
            continue
        ranks = min(graph.stands_for[stream] for stream in computing)
        devices += ranks
        if len(own) > len(computing):
            background = spans(set(own).difference(computing), communication=True)
            seconds += ranks * _both_s(spans(computing, communication=False), background)
    return seconds / devices / trace.step_time_s if devices else 0.0


def _disjoint(start_s: Floats, end_s: Floats) -> Spans:
    """Intervals in order, each without what an earlier one covers."""
    order = np.argsort(start_s, kind="stable")
    start_s, reach_s = start_s[order], np.maximum.accumulate(end_s[order])
    start_s[1:] = np.maximum(start_s[1:], reach_s[:-1])
    return start_s, np.maximum(start_s, reach_s)


def _both_s(busy: Spans, other: Spans) -> float:
    """Seconds that lie in both of two sets of disjoint intervals."""
    start_s, end_s = busy
    if not len(start_s):
        return 0.0
    sums_s = np.concatenate([[0.0], np.cumsum(end_s - start_s)])

    def busy_before(at_s: Floats) -> Floats:
        place = np.searchsorted(start_s, at_s, side="right")
        return sums_s[place] - np.maximum(0.0, np.where(place > 0, end_s[place - 1] - at_s, 0.0))

    return float((busy_before(other[1]) - busy_before(other[0])).sum())
