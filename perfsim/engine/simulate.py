"""The discrete-event engine: every start and end of a step on one SimPy calendar.

Tasks whose start follows from one other task form chains (`graph.chains`). The calendar holds the starts of
chains, the ends of flows on shared links, and the points that slowed computations reach; SimPy's clock
advances once per instant. Without flows and without slowed computation the result is bitwise equal to that
of `critical_path`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from perfsim.base.arrays import Floats, Ints
from perfsim.base.errors import DeadlockError
from perfsim.engine.calendar import Calendar, in_seconds, on_exact_grid
from perfsim.engine.critical_path import longest_path
from perfsim.engine.fairshare import FairShare, Flow
from perfsim.engine.involved import FlowsOnLinks, Involved, changes_of_device, loaded_device, occupied
from perfsim.engine.limits import present_limits
from perfsim.engine.slowdown import UNIT, Beside, Devices, Load, Points, Stretched
from perfsim.engine.trace import Simulated, Trace
from perfsim.work import TaskGraph
from perfsim.work.graph import Chains

# The report of a run that cannot proceed: its stuck tasks and what they wait for.

MOST_LINES = 8
NO_CAPACITY = "a link without capacity"


def deadlock_report(graph: TaskGraph, end_s: NDArray[np.float64]) -> str:
    """Name the first stuck task of each stream and the tasks that it waits for.

    A task that waits for none has started but cannot end, because a link on its route has no capacity.
    """
    stuck = np.flatnonzero(end_s < 0)
    streams, first = np.unique(graph.stream[stuck], return_index=True)
    lines = []
    for task in sorted(stuck[first].tolist())[:MOST_LINES]:
        waiting = [source for source in graph.dependencies.row(task) if end_s[source] < 0]
        names = ", ".join(f"{graph.task(source).name} on {graph.task(source).stream}" for source in waiting)
        lines.append(f"  {graph.task(task).stream}: {graph.task(task).name} waits for {names or NO_CAPACITY}")
    left_out = len(streams) - len(lines)
    if left_out > 0:
        lines.append(f"  and {left_out} more streams")
    head = f"the run cannot proceed: {len(stuck)} of {len(graph)} tasks never ended"
    return "\n".join([head, *lines])


CHECKED_EVERY = 4096
"""Chains between two checks of the limits."""
LONG_COLUMN = 200_000
"""Elements from which on a list, which is faster, would take too much memory."""
FLOWS_CHECKED = 64
"""Flows between two checks of the time: a flow whose end changes all rates takes a millisecond."""


def simulate(
    graph: TaskGraph,
    duration_s: Floats,
    flows: Mapping[int, Flow] | None = None,
    capacities: Floats | None = None,
    beside: Beside | None = None,
) -> Trace:
    """Run `graph` and return its trace.

    `duration_s` has one entry per task: its time when nothing else uses its links or its device. `flows` maps
    a work id to the load of its tasks on links; `capacities` are the links' bytes/s. With `beside`,
    communication slows the computation that runs at the same time.

    Raises DeadlockError with the waiting tasks if some can never start, and LimitError if the run exceeds
    the limits in force.
    """
    if len(duration_s) != len(graph):
        raise ValueError(f"{len(duration_s)} durations for {len(graph)} tasks")
    carried = np.zeros(0) if capacities is None else capacities
    asked = {} if flows is None or capacities is None else flows
    links = FlowsOnLinks({work: flow for work, flow in asked.items() if work < len(graph.works)}, carried)
    present_limits().begin(len(graph))

    def run(ticks: Ints, exponent: int) -> Trace:
        slowing = beside if beside is not None and beside.taken.any() else None
        if slowing is None and not links.flows:
            return _Run(graph, ticks, exponent, links, None, Involved.none(graph)).run()
        involved = Involved.expected(graph, links, slowing, longest_path(graph, ticks, exponent))
        for repeats in count():
            one = _Run(graph, ticks, exponent, links, slowing, involved)
            involved = involved._replace(slowed=one.may_be_slowed(slowing))
            trace = one.run()
            more = involved.with_those_of(graph, links, slowing, trace, repeats)
            if more is None:
                break
            involved = more
        return trace

    return on_exact_grid(run, duration_s)


class _Run:
    """One run on one grid."""

    def __init__(
        self,
        graph: TaskGraph,
        ticks: Ints,
        exponent: int,
        links: FlowsOnLinks,
        beside: Beside | None,
        involved: Involved,
    ) -> None:
        self.graph = graph
        self.flows = links.flows
        self.grid_s = 2.0**exponent
        self.duration_s = in_seconds(ticks, exponent)
        self.env = simpy.Environment()
        self.calendar = Calendar(self.env)
        self.share = FairShare(self.calendar, links.capacities, grid_s=self.grid_s)
        flowing, aside, _ = involved
        self.chains = chains = self._chains(flowing | aside, beside)
        self.since_s = in_seconds(chains.since_start(ticks), exponent)
        tasks = np.flatnonzero(flowing)
        self.flow_of = dict(zip(chains.chain[tasks].tolist(), tasks.tolist(), strict=True))
        self.end_of_flow: dict[int, float] = {}
        self.loads: dict[int, Load] = {}
        self.slowed: dict[int, int] = {}
        """Device of the chains of computation that may be slowed."""
        self.progress = self.since_s[None].repeat(3, axis=0)
        """Seconds from the start of a chain to the end of each task, by place: all, those that compute units
        limit, and those that memory bandwidth limits."""
        if beside is not None and aside.any():
            self._find_loads(beside, involved)
            self.progress[1:] = self._limited_s(beside)
        self.points = self._points()
        self.devices = Devices(
            self.calendar,
            self.num_devices,
            self.points,
            [row.data for row in self.progress],
            _column(chains.first),
            self._release,
            self.grid_s,
        )
        self.limits = present_limits()
        self.begun = self.ended = 0
        special = _any_of((*self.flow_of, *self.loads, *self.slowed), len(chains))
        special |= np.diff(self.points.first) == 0
        self.plain = (~special).tolist()
        """Chains that only pass their start on."""
        self.length_s = _column(self.since_s[chains.first[1:] - 1])

    # ---------------------------------------------------------------------------------- preparation
    num_devices = 0

    def _chains(self, apart: NDArray[np.bool_], beside: Beside | None) -> Chains:
        """The chains; the end of a flow or of a load is an event, so its task is a chain of its own."""
        if not apart.any():
            return self.graph.chains
        chains = self.graph.chains_around(apart)
        if beside is None:
            return chains
        # A chain is slowed on one device.
        changes = changes_of_device(self.graph, chains, np.any(beside.bound, axis=1)[self.graph.work])
        return (
            self.graph.chains_around(apart | _any_of(changes.tolist(), len(self.graph)))
            if len(changes)
            else chains
        )

    def _find_loads(self, beside: Beside, involved: Involved) -> None:
        """Find what communications take on which devices, and the chains that they may slow."""
        graph = self.graph
        chains = self.chains
        self.num_devices = 1 + max(
            (number for numbers in graph.stream_devices for number in numbers), default=-1
        )
        shares = np.rint(beside.taken * UNIT).astype(np.int64).tolist()
        tasks, kind, devices = occupied(graph, np.flatnonzero(involved.aside))
        self.loads = {
            chain: Load(devices[number], *shares[work])
            for chain, number, work in zip(
                chains.chain[tasks].tolist(), kind.tolist(), graph.work[tasks].tolist(), strict=True
            )
        }
        slowed = np.flatnonzero(involved.slowed)
        own = loaded_device(graph, devices)
        # Of several computations in a chain the first decides where it runs.
        chain, first = np.unique(chains.chain[slowed], return_index=True)
        self.slowed = dict(zip(chain.tolist(), own[graph.stream[slowed[first]]].tolist(), strict=True))

    def may_be_slowed(self, beside: Beside | None) -> NDArray[np.bool_]:
        """The computations of all chains that communication may slow; shape (tasks,).

        Communications of such chains are none: in a repeated run they may be chains of their own.
        """
        of_chains = _any_of(self.slowed, len(self.chains))[self.chains.chain]
        return of_chains if beside is None else of_chains & np.any(beside.bound, axis=1)[self.graph.work]

    def _limited_s(self, beside: Beside) -> Floats:
        """Seconds from the start of a chain that units, and memory bandwidth, limit; shape (2, tasks)."""
        chains = self.chains
        work = self.graph.work[self.chains.order]
        limited_s = beside.bound.T[:, work] * self.duration_s[chains.order]
        total_s = limited_s.cumsum(axis=1)
        heads = chains.first[:-1]
        return total_s - (total_s[:, heads] - limited_s[:, heads]).repeat(chains.length, axis=1)

    def _points(self) -> Points:
        """The chains that wait for each chain, by the time from its start (from its end, for a flow)."""
        chains = self.chains
        task = chains.waits_for.values
        after = chains.waits_for.row_of_value
        before = chains.chain[task]
        flows, slowed = (_any_of(chosen, len(chains)) for chosen in (self.flow_of, self.slowed))
        since_s = np.where(flows[before], 0.0, self.since_s[chains.place[task]])
        self.missing = np.bincount(after, minlength=len(chains)).tolist()
        self.ready_s = [0.0] * len(chains)
        last = np.flatnonzero(slowed)
        before = np.concatenate([before, last])
        place = np.concatenate([chains.place[task], chains.first[1:][last] - 1])
        since_s = np.concatenate([since_s, self.since_s[chains.first[1:][last] - 1]])
        after = np.concatenate([after, np.full(len(last), -1, dtype=after.dtype)])
        order = np.lexsort((since_s, before)) if len(last) else np.argsort(before, kind="stable")
        first = np.searchsorted(before[order], np.arange(len(chains) + 1))
        return Points(*(_column(column) for column in (first, since_s[order], place[order], after[order])))

    # ------------------------------------------------------------------------------------------ run
    def run(self) -> Trace:
        """Run from the first event to the last."""
        for chain, missing in enumerate(self.missing):
            if not missing:
                self.calendar.at(0.0, chain, self._begin)
        self.env.run()
        trace = self._trace()
        self.limits.check(len(self.graph), self.ended, len(self.graph))
        # A run refers to itself through its acts: its columns would stay until the next garbage collection.
        vars(self).clear()
        return trace

    def _begin(self, chain: int) -> None:
        """Start a chain whose dependencies have ended."""
        self.begun += 1
        if not self.begun % CHECKED_EVERY:
            self._check()
        if self.plain[chain]:
            self._settle(chain, self.ready_s[chain])
        else:
            self._begin_special(chain)

    def _begin_special(self, chain: int) -> None:
        """Start a flow, a slowed computation, a load on a device, or a chain that nothing waits for."""
        device = self.slowed.get(chain)
        if device is not None:
            self.devices.begin(chain, device, self.ready_s[chain])
            return
        load = self.loads.get(chain)
        if load is not None:
            self.devices.take(load, 1)
        task = self.flow_of.get(chain)
        if task is not None:
            flow = self.flows[int(self.graph.work[task])]
            self.share.start(flow, float(self.duration_s[task]), partial(self._flow_ends, chain))
        else:
            self._settle(chain, self.ready_s[chain])
            self.calendar.at(self.ready_s[chain] + self.length_s[chain], ~chain, self._end)

    def _settle(self, chain: int, from_s: float) -> None:
        """Pass the start of a chain, or the end of a flow, on to the chains that wait for it."""
        first, after_s, _, behind = self.points
        ready_s = self.ready_s
        missing = self.missing
        for point in range(first[chain], first[chain + 1]):
            follower = behind[point]
            when_s = from_s + after_s[point]
            if when_s > ready_s[follower]:
                ready_s[follower] = when_s
            missing[follower] -= 1
            if not missing[follower]:
                self.calendar.at(ready_s[follower], follower, self._begin)

    def _release(self, follower: int) -> None:
        """Pass on to a chain that the point of a slowed computation that it waits for is reached."""
        now_s = self.calendar.now_s
        missing = self.missing
        if now_s > self.ready_s[follower]:
            self.ready_s[follower] = now_s
        missing[follower] -= 1
        if not missing[follower]:
            self.calendar.at(self.ready_s[follower], follower, self._begin)

    def _end(self, key: int) -> None:
        """End a chain that takes part of a device, or for which nothing waits."""
        load = self.loads.get(~key)
        if load is not None:
            self.devices.take(load, -1)

    def _flow_ends(self, chain: int) -> None:
        self.end_of_flow[chain] = self.calendar.now_s
        if not len(self.end_of_flow) % FLOWS_CHECKED:
            self.limits.in_time(self._so_far)
        self._end(~chain)
        self._settle(chain, self.calendar.now_s)

    # -------------------------------------------------------------------------------------- outcome
    def _trace(self) -> Trace:
        """The trace of the run. Raises DeadlockError if a task never started or ended."""
        chains = self.chains
        ready_s = np.array(self.ready_s)
        order = self.chains.order
        paces = self.devices.paces
        ends_s = Stretched(paces, chains, ready_s, self.grid_s).times_s(self.progress)
        starts_s = np.empty_like(ends_s)  # a task of a chain starts when the one before it ends
        starts_s[1:], starts_s[chains.first[:-1]] = ends_s[:-1], ready_s
        start_s = np.empty(len(self.graph))
        end_s = np.empty(len(self.graph))
        start_s[order], end_s[order] = starts_s, ends_s
        flows = list(self.flow_of.values())
        start_s[flows] = ready_s[chains.chain[flows]]
        end_s[flows] = [self.end_of_flow.get(chain, -1.0) for chain in self.flow_of]
        stuck = np.array(self.missing) > 0
        if stuck.any() or len(self.end_of_flow) < len(self.flow_of):
            end_s[stuck[chains.chain]] = -1.0
            raise DeadlockError(deadlock_report(self.graph, end_s))
        changes = self.share.rate_changes + len(paces)
        simulated = Simulated(
            events=len(chains) + len(flows) + changes,
            flows=len(flows),
            links=self.share.num_links,
            contended_s=self.share.contended_s,
        )
        return Trace(self.graph, start_s, end_s, simulated)

    def _so_far(self) -> str:
        return f"{len(self.end_of_flow):,} of {len(self.flow_of):,} flows of the present simulation had ended"

    def _check(self) -> None:
        """Report the tasks that have ended to the limits, counting every chain as equally long."""
        total = len(self.graph)
        before = self.ended
        self.ended = min(total, round(self.begun * total / len(self.chains)))
        self.limits.check(self.ended, before, total)


def _column(values: NDArray[Any]) -> Any:
    """An array to be read and written by element: a list, or the array's own memory where it is long."""
    return values.tolist() if len(values) < LONG_COLUMN else values.data


def _any_of(chosen: Collection[int], count: int) -> NDArray[np.bool_]:
    """A mask of `count` entries, true for the chosen numbers."""
    mask = np.zeros(count, dtype=bool)
    mask[list(chosen)] = True
    return mask
