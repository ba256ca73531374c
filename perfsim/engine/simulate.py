"""The discrete-event engine: SimPy events with callbacks, and fair shares on contended links.

A task whose duration is known ends that long after the last task it waits for; such ends are
propagated at once, chain by chain. Only a *flow*, a communication on links that others may use at the
same time, has to wait for SimPy's clock to learn how long it takes. Without flows the result is
bitwise that of `critical_path`.
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
"""Chains between two looks at the limits."""
FLOWS_CHECKED = 64
"""Flows between two looks at the time; where every end changes all rates each takes a millisecond."""


def simulate(
    graph: TaskGraph,
    duration_s: Floats,
    flows: Mapping[int, Flow] | None = None,
    capacities: Floats | None = None,
    *,
    ahead: bool = True,
) -> Trace:
    """Run `graph` and return its trace.

    `duration_s` has one entry a task: its time when nothing else uses its links. `flows` maps a work
    id to what its tasks put on which links; `capacities` are the links' bytes/s. What happens before
    links are first contended is taken from the longest path, unless `ahead` is false; that saves
    time, and moves no end by more than a rounding of the grid.

    Raises DeadlockError, saying who waits for what, when tasks remain that nothing can start, and
    LimitError where the run is longer than the present limits allow.
    """
    if len(duration_s) != len(graph):
        raise ValueError(f"{len(duration_s)} durations for {len(graph)} tasks")
    carried = capacities if capacities is not None else np.zeros(0)
    asked = flows if flows is not None and capacities is not None else {}
    shared = {work: flow for work, flow in asked.items() if work < len(graph.works)}

    present_limits().begin(len(graph))

    def run(took: Ticks, exponent: int) -> Trace:
        flowing = _any_of(shared, len(graph.works))[graph.work]
        links = FlowsOnLinks(shared, carried)
        if not ahead:
            return _Run(graph, took, exponent, flowing, links).run()
        known = longest_path(graph, took, exponent)
        until_s = first_contention_s(known, shared, carried)
        flowing &= known.end_s > until_s
        ended = int(np.count_nonzero(known.end_s <= until_s)) if flowing.any() else len(graph)
        present_limits().check(ended, 0, len(graph))
        if not flowing.any():
            return known
        return _Run(graph, took, exponent, flowing, links, ended).run(known, until_s)

    return on_exact_grid(run, duration_s)


class FlowsOnLinks(NamedTuple):
    """Flows by work id, and the bytes/s of the links that they name."""

    flows: Mapping[int, Flow]
    capacities: Floats


def _any_of(chosen: Collection[int], count: int) -> NDArray[np.bool_]:
    """Which of so many numbers are among the chosen."""
    found = np.zeros(count, dtype=bool)
    found[list(chosen)] = True
    return found


class _Run:
    """One run on one grid. A chain is settled when its start is known, and with it all of its ends."""

    def __init__(
        self,
        graph: TaskGraph,
        took: Ticks,
        exponent: int,
        flowing: NDArray[np.bool_],
        links: FlowsOnLinks,
        ended: int = 0,
    ) -> None:
        self.graph, self.flows, self.took_s = graph, links.flows, in_seconds(took, exponent)
        self.env = simpy.Environment()
        self.share = FairShare(self.env, links.capacities, grid_s=2.0**exponent)
        tasks = np.flatnonzero(flowing)
        self.chains = chains = graph.chains_around(flowing) if len(tasks) else graph.chains
        self.since_s = in_seconds(chains.since_start(took), exponent)
        self.flow_of = dict(zip(chains.chain[tasks].tolist(), tasks.tolist(), strict=True))
        self.end_of_flow: dict[int, float] = {}
        self.limits = present_limits()
        self.ended = ended
        self.settled = 0

    def _link_up(self, known: NDArray[np.bool_], ends_s: Floats) -> None:
        """Lists of which chains each one holds up, and how long after its own start; flows from their end.

        What chains with a known start hold up is settled here, from when their tasks end.
        """
        chains = self.chains
        task, after = chains.waits_for.values, chains.waits_for.row_of_value
        before = chains.chain[task]
        flows = _any_of(self.flow_of, len(chains))
        ready = np.zeros(len(chains))
        settled = (known & ~flows)[before]
        np.maximum.at(ready, after[settled], ends_s[task[settled]])
        task, after, before = (column[~settled & ~known[after]] for column in (task, after, before))
        since = np.where(flows[before], 0.0, self.since_s[chains.place[task]])
        order = np.argsort(before, kind="stable")
        self.next_first = np.searchsorted(before[order], np.arange(len(chains) + 1)).tolist()
        self.next_chain = after[order].tolist()
        self.next_after = since[order].tolist()
        self.missing = np.bincount(after, minlength=len(chains)).tolist()
        self.ready = ready.tolist()

    def run(self, before: Trace | None = None, until_s: float = -1.0) -> Trace:
        """Run all of it, or what starts after `until_s` where `before` is known to hold until then."""
        chains = self.chains
        heads = chains.order[chains.first[:-1]]
        ready_s = before.start_s[heads] if before is not None else np.zeros(len(chains))
        known = ready_s <= until_s
        self._link_up(known, before.end_s if before is not None else ready_s)
        begin = [chain for chain in np.flatnonzero(~known).tolist() if not self.missing[chain]]
        begin_flows = [chain for chain in self.flow_of if known[chain]]
        for chain in begin_flows:
            self._start_flow(chain, self.ready[chain])
        for chain in begin:
            self.begin(chain, self.ready[chain])
        self.env.run()
        trace = self._trace()
        self.limits.check(len(self.graph), self.ended, len(self.graph))
        return trace

    def _trace(self) -> Trace:
        """When everything started and ended. Raises DeadlockError where something never did."""
        chains, ready_s = self.chains, np.array(self.ready)
        end_s = np.empty(len(self.graph))
        end_s[chains.order] = np.repeat(ready_s, chains.length) + self.since_s
        start_s = end_s - self.took_s
        flows = list(self.flow_of.values())
        start_s[flows] = ready_s[chains.chain[flows]]
        end_s[flows] = [self.end_of_flow.get(chain, -1.0) for chain in self.flow_of]
        stuck = np.array(self.missing) > 0
        if stuck.any() or len(self.end_of_flow) < len(self.flow_of):
            end_s[stuck[chains.chain]] = -1.0
            raise DeadlockError(deadlock_report(self.graph, end_s))
        return Trace(self.graph, start_s, end_s)

    def begin(self, chain: int, ready_s: float) -> None:
        """Start a chain that waits for nothing any more, and whatever can be known to follow it."""
        if chain in self.flow_of:
            self._start_flow(chain, ready_s)
        else:
            self.settle(chain, ready_s)

    def settle(self, chain: int, from_s: float) -> None:
        """A chain starts, or a flow ends: find when those behind it can start, as far as that is known."""
        first, behind, after = self.next_first, self.next_chain, self.next_after
        ready, missing, flow_of = self.ready, self.missing, self.flow_of
        stack = [(chain, from_s)]
        while stack:
            chain, from_s = stack.pop()
            self.settled += 1
            if self.settled == CHECKED_EVERY:
                self._check()
            for edge in range(first[chain], first[chain + 1]):
                other, when_s = behind[edge], from_s + after[edge]
                if when_s > ready[other]:
                    ready[other] = when_s
                missing[other] -= 1
                if not missing[other]:
                    if other in flow_of:
                        self._start_flow(other, ready[other])
                    else:
                        stack.append((other, ready[other]))

    def _start_flow(self, chain: int, ready_s: float) -> None:
        """Have a communication put on its links when simulated time has come to it."""
        task = self.flow_of[chain]
        flow = self.flows[int(self.graph.work[task])]
        self.share.start_at(ready_s, flow, float(self.took_s[task]), partial(self._flow_ends, chain))

    def _flow_ends(self, chain: int) -> None:
        self.end_of_flow[chain] = self.share.now_s
        if not len(self.end_of_flow) % FLOWS_CHECKED:
            self.limits.in_time(self._so_far)
        self.settle(chain, self.share.now_s)

    def _so_far(self) -> str:
        return f"{len(self.end_of_flow):,} of {len(self.flow_of):,} flows of the present simulation had ended"

    def _check(self) -> None:
        """Tell the limits how many tasks have ended; chains are taken to be equally long."""
        total, before = len(self.graph), self.ended
        self.ended = min(total, before + round(self.settled * total / len(self.chains)))
        self.settled = 0
        self.limits.check(self.ended, before, total)
