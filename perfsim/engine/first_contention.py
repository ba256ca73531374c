"""Until when a run without contention is right: the first instant at which a link is asked for too much.

Before it every flow runs at full speed, as the longest path takes for granted. So flows that end by
then end when that says, and only the others have to be simulated; often there are none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfsim.engine.max_min import TOLERANCE, Floats
from perfsim.engine.path_class import Flow
from perfsim.trace import Trace


def first_contention_s(uncontended: Trace, flows: Mapping[int, Flow], capacities: Floats) -> float:
    """When links are first asked for more than they carry; infinity if never."""
    work = uncontended.graph.work
    first, link, asked = _crossings(flows, len(uncontended.graph.works))
    tasks = np.flatnonzero(np.diff(first)[work])
    count = np.diff(first)[work[tasks]]
    row = np.repeat(first[work[tasks]] - np.append(0, np.cumsum(count)[:-1]), count) + np.arange(count.sum())
    task = np.repeat(tasks, count)
    lasts = uncontended.end_s[task] > uncontended.start_s[task]
    task, row = task[lasts], row[lasts]
    when_s = np.concatenate([uncontended.end_s[task], uncontended.start_s[task]])
    where, change = np.tile(link[row], 2), np.concatenate([-asked[row], asked[row]])
    starts = np.repeat([False, True], len(task))
    order = np.lexsort((starts, when_s, where))  # at one instant flows end before others start
    when_s, where, change = when_s[order], where[order], change[order]
    total = np.cumsum(change)
    before = np.append(0.0, total)[np.searchsorted(where, where)]
    too_much = total - before > np.asarray(capacities)[where] * (1 + TOLERANCE / 2)
    return float(when_s[too_much].min(initial=np.inf))


def _crossings(
    flows: Mapping[int, Flow], num_works: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """What the flows of each work cross: where its rows begin, the links, and the bytes/s asked of them."""
    lengths = np.zeros(num_works, dtype=np.int64)
    link: list[int] = []
    asked: list[float] = []
    for work in sorted(flows):
        flow = flows[work]
        lengths[work] = len(flow.route)
        link += flow.route
        asked += [flow.bytes_per_s * flow.weight] * len(flow.route)
    return np.append(0, np.cumsum(lengths)), np.array(link, dtype=np.int64), np.array(asked, dtype=np.float64)
