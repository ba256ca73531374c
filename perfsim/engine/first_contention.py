"""The first instant at which the demand on a link exceeds its capacity.

Until then every flow runs at full speed, as the critical path assumes, so its times hold for all flows that
have ended by then. Only later flows have to be simulated; often there are none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfsim.engine.max_min import TOLERANCE, Floats
from perfsim.engine.path_class import Flow
from perfsim.trace import Trace


def first_contention_s(uncontended: Trace, flows: Mapping[int, Flow], capacities: Floats) -> float:
    """Time at which a link is first contended; infinity if never."""
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
    # Half the engine's tolerance, so that the engine sees no contention before this instant.
    too_much = total - before > np.asarray(capacities)[where] * (1 + TOLERANCE / 2)
    return float(when_s[too_much].min(initial=np.inf))


def _crossings(
    flows: Mapping[int, Flow], num_works: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Links that each work's flow crosses: where its rows begin, link ids, requested bytes/s."""
    lengths = np.zeros(num_works, dtype=np.int64)
    link: list[int] = []
    asked: list[float] = []
    for work in sorted(flows):
        flow = flows[work]
        lengths[work] = len(flow.route)
        link += flow.route
        asked += [flow.bytes_per_s * flow.weight] * len(flow.route)
    return np.append(0, np.cumsum(lengths)), np.array(link, dtype=np.int64), np.array(asked, dtype=np.float64)
