"""The discrete-event engine: SimPy events with callbacks, and fair shares on contended links.

A task of known duration ends that long after its last dependency; such ends are propagated at once, chain
by chain. Only a *flow*, a communication on links that others may use at the same time, needs SimPy's clock
to find its duration. Without flows the result is bitwise equal to that of `critical_path`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from perfsim.engine.critical_path import longest_path
from perfsim.engine.deadlock import deadlock_report
from perfsim.engine.fairshare import FairShare, Flow
from perfsim.engine.first_contention import first_contention_s
from perfsim.engine.grid import Floats, Ticks, in_seconds, on_exact_grid
from perfsim.engine.limits import present_limits
from perfsim.errors import DeadlockError
from perfsim.graph import TaskGraph
from perfsim.trace import Trace

CHECKED_EVERY = 4096
"""Chains between two checks of the limits."""
FLOWS_CHECKED = 64
"""Flows between two checks of the time: a flow whose end changes all rates takes a millisecond."""


def simulate(
    graph: TaskGraph,
    duration_s: Floats,
    flows: Mapping[int, Flow] | None = None,
    capacities: Floats | None = None,
    *,
    ahead: bool = True,
) -> Trace:
    """Run `graph` and return its trace.

    `duration_s` has one entry per task: its time when nothing else uses its links. `flows` maps a work id
    to the load of its tasks; `capacities` are the links' bytes/s. Until links are first contended, times
    are taken from the critical path, unless `ahead` is false; this saves time and changes no end by more
    than a rounding of the grid.

    Raises DeadlockError with the waiting tasks if some can never start, and LimitError if the run exceeds
    the limits in force.
    """
    if len(duration_s) != len(graph):
        raise ValueError(f"{len(duration_s)} durations for {len(graph)} tasks")
    carried = capacities if capacities is not None else np.zeros(0)
    asked = flows if flows is not None and capacities is not None else {}
    shared = {work: flow for work, flow in asked.items() if work < len(graph.works)}

    present_limits().begin(len(graph))

    def run(ticks: Ticks, exponent: int) -> Trace:
        flowing = _any_of(shared, len(graph.works))[graph.work]
        links = FlowsOnLinks(shared, carried)
        if not ahead:
            return _Run(graph, ticks, exponent, flowing, links).run()
        uncontended = longest_path(graph, ticks, exponent)
        until_s = first_contention_s(uncontended, shared, carried)
        flowing &= uncontended.end_s > until_s
        ended = int(np.count_nonzero(uncontended.end_s <= until_s)) if flowing.any() else len(graph)
        present_limits().check(ended, 0, len(graph))
        if not flowing.any():
            return uncontended
        return _Run(graph, ticks, exponent, flowing, links, ended).run(uncontended, until_s)

    return on_exact_grid(run, duration_s)


class FlowsOnLinks(NamedTuple):
    """Flows by work id, and the bytes/s of the links that they name."""

    flows: Mapping[int, Flow]
    capacities: Floats


def _any_of(chosen: Collection[int], count: int) -> NDArray[np.bool_]:
    """A mask of `count` entries, true for the chosen numbers."""
    mask = np.zeros(count, dtype=bool)
    mask[list(chosen)] = True
    return mask


class _Run:
    """One run on one grid. A chain is settled once its start, and so the end of each task, is known."""

    def __init__(
        self,
        graph: TaskGraph,
        ticks: Ticks,
        exponent: int,
        flowing: NDArray[np.bool_],
        links: FlowsOnLinks,
        ended: int = 0,
    ) -> None:
        self.graph, self.flows, self.duration_s = graph, links.flows, in_seconds(ticks, exponent)
        self.env = simpy.Environment()
        self.share = FairShare(self.env, links.capacities, grid_s=2.0**exponent)
        tasks = np.flatnonzero(flowing)
        # A flow's duration is unknown, so it must be a chain of its own.
        self.chains = chains = graph.chains_around(flowing) if len(tasks) else graph.chains
        self.since_s = in_seconds(chains.since_start(ticks), exponent)
        self.flow_of = dict(zip(chains.chain[tasks].tolist(), tasks.tolist(), strict=True))
        self.end_of_flow: dict[int, float] = {}
        self.limits = present_limits()
        self.ended = ended
        self.settled = 0

    def _link_up(self, started: NDArray[np.bool_], ends_s: Floats) -> None:
        """List the chains that wait for each chain, and the delay from its start (a flow's: from its end).

        Waits for chains that have started are settled here, from the ends of their tasks.
        """
        chains = self.chains
        task, after = chains.waits_for.values, chains.waits_for.row_of_value
        before = chains.chain[task]
        flows = _any_of(self.flow_of, len(chains))
        ready = np.zeros(len(chains))
        settled = (started & ~flows)[before]
        np.maximum.at(ready, after[settled], ends_s[task[settled]])
        task, after, before = (column[~settled & ~started[after]] for column in (task, after, before))
        since = np.where(flows[before], 0.0, self.since_s[chains.place[task]])
        order = np.argsort(before, kind="stable")
        self.next_first = np.searchsorted(before[order], np.arange(len(chains) + 1)).tolist()
        self.next_chain = after[order].tolist()
        self.next_after = since[order].tolist()
        self.missing = np.bincount(after, minlength=len(chains)).tolist()
        self.ready = ready.tolist()

    def run(self, before: Trace | None = None, until_s: float = -1.0) -> Trace:
        """Run everything, or only what starts after `until_s` if the trace `before` holds until then."""
        chains = self.chains
        heads = chains.order[chains.first[:-1]]
        ready_s = before.start_s[heads] if before is not None else np.zeros(len(chains))
        started = ready_s <= until_s
        self._link_up(started, before.end_s if before is not None else ready_s)
        begin = [chain for chain in np.flatnonzero(~started).tolist() if not self.missing[chain]]
        begin_flows = [chain for chain in self.flow_of if started[chain]]
        for chain in begin_flows:
            self._start_flow(chain, self.ready[chain])
        for chain in begin:
            self.begin(chain, self.ready[chain])
        self.env.run()
        trace = self._trace()
        self.limits.check(len(self.graph), self.ended, len(self.graph))
        return trace

    def _trace(self) -> Trace:
        """The trace of the run. Raises DeadlockError if a task never started or ended."""
        chains, ready_s = self.chains, np.array(self.ready)
        end_s = np.empty(len(self.graph))
        end_s[chains.order] = np.repeat(ready_s, chains.length) + self.since_s
        start_s = end_s - self.duration_s
        flows = list(self.flow_of.values())
        start_s[flows] = ready_s[chains.chain[flows]]
        end_s[flows] = [self.end_of_flow.get(chain, -1.0) for chain in self.flow_of]
        stuck = np.array(self.missing) > 0
        if stuck.any() or len(self.end_of_flow) < len(self.flow_of):
            end_s[stuck[chains.chain]] = -1.0
            raise DeadlockError(deadlock_report(self.graph, end_s))
        return Trace(self.graph, start_s, end_s)

    def begin(self, chain: int, ready_s: float) -> None:
        """Start a chain without open dependencies, and every follower whose start is then known."""
        if chain in self.flow_of:
            self._start_flow(chain, ready_s)
        else:
            self.settle(chain, ready_s)

    def settle(self, chain: int, from_s: float) -> None:
        """Propagate the start of a chain, or the end of a flow, to the chains that wait for it."""
        first, behind, after = self.next_first, self.next_chain, self.next_after
        ready, missing, flow_of = self.ready, self.missing, self.flow_of
        stack = [(chain, from_s)]
        while stack:
            chain, from_s = stack.pop()
            self.settled += 1
            if self.settled == CHECKED_EVERY:
                self._check()
            for edge in range(first[chain], first[chain + 1]):
                follower, when_s = behind[edge], from_s + after[edge]
                if when_s > ready[follower]:
                    ready[follower] = when_s
                missing[follower] -= 1
                if not missing[follower]:
                    if follower in flow_of:
                        self._start_flow(follower, ready[follower])
                    else:
                        stack.append((follower, ready[follower]))

    def _start_flow(self, chain: int, ready_s: float) -> None:
        """Put a communication on its links at its start time."""
        task = self.flow_of[chain]
        flow = self.flows[int(self.graph.work[task])]
        self.share.start_at(ready_s, flow, float(self.duration_s[task]), partial(self._flow_ends, chain))

    def _flow_ends(self, chain: int) -> None:
        self.end_of_flow[chain] = self.share.now_s
        if not len(self.end_of_flow) % FLOWS_CHECKED:
            self.limits.in_time(self._so_far)
        self.settle(chain, self.share.now_s)

    def _so_far(self) -> str:
        return f"{len(self.end_of_flow):,} of {len(self.flow_of):,} flows of the present simulation had ended"

    def _check(self) -> None:
        """Report the tasks that have ended to the limits, counting every chain as equally long."""
        total, before = len(self.graph), self.ended
        self.ended = min(total, before + round(self.settled * total / len(self.chains)))
        self.settled = 0
        self.limits.check(self.ended, before, total)
