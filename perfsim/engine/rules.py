"""What is decided at the end of an instant: rates of flows, in plain loops that a compiler also takes.

Max-min fairness: no rate can grow without lowering one that is no larger. Progressive filling raises all
rates together and fixes the rate of a flow when it reaches its own speed or when a link on its route is full
(D. Bertsekas and R. Gallager, Data Networks, 2nd edition (1992), section 6.5.2).

`tables` are those of `engine.tables`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ids, Ints
from perfsim.engine.tables import Tables

# SimPy keeps lists, in which it reads one element at a time faster than in columns.
Numbers = list[int] | Ints
Flags = list[bool] | Bools
Rates = list[float] | Floats


def reached(
    tables: Tables,
    live: Numbers,
    hot: Flags,
    changed: Numbers,
    seen_link: Flags,
    seen_flow: Flags,
    touched: Numbers,
    limit: Rates,
) -> tuple[int, int]:
    """Flows whose rate may change when the live numbers of the `changed` ones do, ascending.

    Only a contended link joins the rates of flows. `hot` is updated for all links of the flows that are
    reached. Returns the number of flows, which stand at the head of `touched`, and the change of hot links.
    """
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
            hot[link] = demand > limit[link]
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


def fill(
    tables: Tables,
    flows: Numbers,
    live: Numbers,
    hot: Flags,
    scratch: list[list[float]] | Floats,
    waiting: Numbers,
    bounds: list[list[float]] | Floats,
    fraction: Rates,
) -> None:
    """Set `fraction` of their own speed at which `flows` run.

    `scratch` has four columns over links, zeros; `waiting` one over flows, and `bounds` two, of any content.

    A round fixes a flow at its own speed, if no link allows it less, or at a link's equal share, if that is
    the tightest limit of every flow on the link; so the shares of later rounds never shrink.
    """
    first, crossed = tables.links
    left = scratch[0]
    load = scratch[1]
    taken = scratch[2]
    tightest = scratch[3]
    rate = bounds[0]
    bounded = bounds[1]
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
        for number in range(count):
            flow = flows[waiting[number]]
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
        fraction[flow] = rate[index] / tables.bytes_per_s[flow]


def longest_path(
    duration_s: Sequence[float] | Floats,
    first: Sequence[int] | Ids,
    values: Sequence[int] | Ids,
    start_s: list[float] | Floats,
    end_s: list[float] | Floats,
) -> None:
    """Fill in the start and the end of every task when nothing is shared.

    Task i waits for `values[first[i]:first[i + 1]]`, which all come before it.
    """
    for task in range(len(duration_s)):
        ready_s = 0.0
        for at in range(first[task], first[task + 1]):
            ready_s = max(ready_s, end_s[values[at]])
        start_s[task] = ready_s
        end_s[task] = ready_s + duration_s[task]
