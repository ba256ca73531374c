"""What is decided at the end of an instant: rates of flows, in plain loops that a compiler also takes.

Max-min fairness: no rate can grow without lowering one that is no larger. Progressive filling raises all
rates together and fixes the rate of a flow when it reaches its own speed or when a link on its route is full
(D. Bertsekas and R. Gallager, Data Networks, 2nd edition (1992), section 6.5.2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ids, Ints
from perfsim.engine.tables import TOLERANCE, Tables


class Shares(NamedTuple):
    """How flows share links, and room to decide it; SimPy has lists, which it reads faster by the element."""

    live: Ints
    """Tasks of every flow that are under way."""
    fraction: Floats
    """Of its own speed, at which every flow runs."""
    hot: Bools
    """Whether every link is contended."""
    limit: Floats
    """The demand above which it is."""
    seen_link: Bools
    seen_flow: Bools
    touched: Ints
    waiting: Ints
    bounds: Floats
    on_links: Floats

    @classmethod
    def of(cls, tables: Tables) -> Shares:
        """The links before any flow."""
        links = np.zeros(len(tables.capacity), dtype=np.bool_)
        flows = np.zeros(len(tables.bytes_per_s), dtype=np.int64)
        return cls(
            live=flows,
            fraction=np.ones(len(flows)),
            hot=links,
            limit=tables.capacity * (1.0 + TOLERANCE),
            seen_link=links.copy(),
            seen_flow=flows > 0,
            touched=flows.copy(),
            waiting=flows.copy(),
            bounds=np.zeros((2, len(flows))),
            on_links=np.zeros((4, len(links))),
        )


def reached(tables: Tables, shares: Shares, changed: Ints) -> tuple[int, int]:
    """Flows whose rate may change when the live numbers of the `changed` ones do, ascending.

    Only a contended link joins the rates of flows. `hot` is updated for all links of the flows that are
    reached. Returns the number of flows, which stand at the head of `touched`, and the change of hot links.
    """
    live = shares.live
    hot = shares.hot
    seen_link = shares.seen_link
    seen_flow = shares.seen_flow
    touched = shares.touched
    first, crossed = tables.links
    # A breadth-first search over flows and the contended links between them; `touched` is its queue.
    count = 0
    for flow in changed:
        touched[count] = flow
        count += 1
        seen_flow[flow] = True
    more_hot = 0
    done = 0
    lowest = touched[0]
    highest = touched[0]
    while done < count:
        flow = touched[done]
        lowest = min(lowest, flow)
        highest = max(highest, flow)
        done += 1
        for link in crossed[first[flow] : first[flow + 1]]:
            if seen_link[link]:
                continue
            seen_link[link] = True
            # The demand is summed anew each time, in one order: a running sum would keep rounding errors.
            demand = 0.0
            for on in range(tables.flows_on.start[link], tables.flows_on.start[link + 1]):
                other = tables.flows_on.values[on]
                if live[other]:
                    demand += live[other] * tables.crossings_on[on] * tables.bytes_per_s[other]
            was_hot = hot[link]
            hot[link] = demand > shares.limit[link]
            more_hot += int(hot[link]) - int(was_hot)
            # A link that is no longer contended frees the flows on it, so they are reached as well.
            if was_hot or hot[link]:
                for on in range(tables.flows_on.start[link], tables.flows_on.start[link + 1]):
                    other = tables.flows_on.values[on]
                    if live[other] and not seen_flow[other]:
                        seen_flow[other] = True
                        touched[count] = other
                        count += 1
    # In ascending order rates do not depend on which flow changed first.
    count = 0
    for flow in range(lowest, highest + 1):
        if not seen_flow[flow]:
            continue
        touched[count] = flow
        count += 1
        seen_flow[flow] = False
        for link in crossed[first[flow] : first[flow + 1]]:
            seen_link[link] = False
    return count, more_hot


def fill(tables: Tables, shares: Shares, flows: Ints) -> None:
    """Set the fraction of their own speed at which `flows` run."""
    first, crossed = tables.links
    live = shares.live
    hot = shares.hot
    waiting = shares.waiting
    left = shares.on_links[0]
    load = shares.on_links[1]
    taken = shares.on_links[2]
    tightest = shares.on_links[3]
    rate = shares.bounds[0]
    bounded = shares.bounds[1]
    count = 0
    for index, flow in enumerate(flows):
        rate[index] = tables.bytes_per_s[flow]
        crosses = False
        for link in crossed[first[flow] : first[flow + 1]]:
            if hot[link]:
                left[link] = tables.capacity[link]
                crosses = True
        if crosses and live[flow]:
            waiting[count] = index
            count += 1
    # A round fixes a flow at its own speed, if no link allows it less, or at a link's equal share, if that is
    # the tightest limit of every flow on the link; so the shares of later rounds never shrink.
    while count:
        for number in range(count):
            flow = flows[waiting[number]]
            for link in crossed[first[flow] : first[flow + 1]]:
                load[link] = 0.0
                tightest[link] = np.inf
        for number in range(count):
            flow = flows[waiting[number]]
            for at in range(first[flow], first[flow + 1]):
                link = crossed[at]
                load[link] += live[flow] * tables.crossings[at]
        for number in range(count):
            flow = flows[waiting[number]]
            bounded[number] = tables.bytes_per_s[flow]
            for link in crossed[first[flow] : first[flow + 1]]:
                if hot[link]:
                    bounded[number] = min(bounded[number], left[link] / load[link])
            for link in crossed[first[flow] : first[flow + 1]]:
                tightest[link] = min(tightest[link], bounded[number])
        # Flows that nothing fixes in this round wait for the next one, packed at the head of `waiting`.
        later = 0
        for number in range(count):
            index = waiting[number]
            flow = flows[index]
            fixed = bounded[number] == tables.bytes_per_s[flow]
            for link in crossed[first[flow] : first[flow + 1]]:
                if hot[link] and bounded[number] == left[link] / load[link] == tightest[link]:
                    fixed = True
            if not fixed:
                waiting[later] = index
                later += 1
                continue
            rate[index] = bounded[number]
            for at in range(first[flow], first[flow + 1]):
                link = crossed[at]
                taken[link] += live[flow] * tables.crossings[at] * bounded[number]
        # Shares of the links are lowered only after all flows of the round have been compared with them.
        for flow in flows:
            for link in crossed[first[flow] : first[flow + 1]]:
                if taken[link] > 0.0:
                    left[link] = max(0.0, left[link] - taken[link])
                    taken[link] = 0.0
        count = later
    for index, flow in enumerate(flows):
        shares.fraction[flow] = rate[index] / tables.bytes_per_s[flow]


def longest_path(duration_s: Floats, first: Ids, values: Ids, start_s: Floats, end_s: Floats) -> None:
    """Fill in the start and the end of every task when nothing is shared.

    Task i waits for `values[first[i]:first[i + 1]]`, which all come before it.
    """
    for task in range(len(duration_s)):
        ready_s = 0.0
        for at in range(first[task], first[task + 1]):
            ready_s = max(ready_s, end_s[values[at]])
        start_s[task] = ready_s
        end_s[task] = ready_s + duration_s[task]
