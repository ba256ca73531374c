"""The first instant at which the demand on a link exceeds its capacity.

Until then every flow runs at full speed, as the critical path assumes, so its times hold for all flows that
have ended by then. Only later flows have to be simulated; often there are none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from perfsim.engine.max_min import TOLERANCE, Floats
from perfsim.engine.path_class import Flow
from perfsim.graph.ragged import Ragged, offsets
from perfsim.trace import Trace

CHANGES_AT_ONCE = 1 << 14
"""Starts and ends of flows between two looks at the links; bounds the memory."""


def first_contention_s(uncontended: Trace, flows: Mapping[int, Flow], capacities: Floats) -> float:
    """Time at which a link is first contended; infinity if never."""
    work = uncontended.graph.work
    links, asked = _crossings(flows, len(uncontended.graph.works))
    entries = Ragged(links.start, np.arange(len(asked), dtype=np.int32))
    limits = np.asarray(capacities) * (1 + TOLERANCE / 2)  # so that the engine sees no contention before
    tasks = np.flatnonzero((np.diff(links.start) > 0)[work] & (uncontended.end_s > uncontended.start_s))
    # At one instant flows end before others start.
    task = np.concatenate([tasks, tasks])
    when_s = np.concatenate([uncontended.end_s[tasks], uncontended.start_s[tasks]])
    sign = np.repeat([-1.0, 1.0], len(tasks))
    order = np.lexsort((sign, when_s))
    carried = np.zeros(len(limits))
    for begin in range(0, len(order), CHANGES_AT_ONCE):
        changes = order[begin : begin + CHANGES_AT_ONCE]
        rows = entries.rows(work[task[changes]])
        where, change = links.values[rows.values], asked[rows.values] * sign[changes][rows.row_of_value]
        by_link = np.argsort(where, kind="stable")
        where, change = where[by_link], change[by_link]
        total = np.cumsum(change)
        before = np.append(0.0, total)[np.searchsorted(where, where)]
        too_much = carried[where] + (total - before) > limits[where]
        if too_much.any():
            return float(when_s[changes][rows.row_of_value[by_link[too_much]].min()])
        carried += np.bincount(where, change, minlength=len(limits))
    return math.inf


def _crossings(flows: Mapping[int, Flow], num_works: int) -> tuple[Ragged, Floats]:
    """Links that each work's flow crosses, and the bytes/s that it asks of each."""
    lengths = np.zeros(num_works, dtype=np.int64)
    links: list[int] = []
    asked: list[float] = []
    for work in sorted(flows):
        flow = flows[work]
        lengths[work] = len(flow.route)
        links += flow.route
        asked += [flow.bytes_per_s * flow.weight] * len(flow.route)
    return Ragged(offsets(lengths).astype(np.int32), np.array(links, dtype=np.int32)), np.array(asked)
