"""Which links can bind at all: the others are dropped before a run, so that it costs no time for them.

A link allows its classes of flows the rates r with sum(count x r) <= capacity. A link is implied by
another whose counts over capacity are no smaller for any class: whatever the second allows, the first
allows too. Max-min fair rates depend on nothing but what all links allow together, so they stay the
same. All links of a tree that a broadcast crosses become one, however many leaves the tree has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfsim.engine.path_class import Flow

Loads = Mapping[int, int]
"""How often a flow crosses each link."""


def binding_links(loads: Sequence[Loads], capacities: Mapping[int, float]) -> list[int]:
    """The links that no other one implies, ascending; of equal ones the first."""
    columns: dict[int, dict[int, float]] = {}
    for row, load in enumerate(loads):
        for link, count in load.items():
            columns.setdefault(link, {})[row] = count / capacities[link] if capacities[link] else np.inf
    distinct = {tuple(column.items()): link for link, column in sorted(columns.items(), reverse=True)}
    kept: list[int] = []
    by_row: dict[int, list[int]] = {}
    order = {link: (-len(columns[link]), -sum(columns[link].values())) for link in distinct.values()}
    for link in sorted(order, key=order.__getitem__):
        column = columns[link]
        rarest = min(column, key=lambda row: len(by_row.get(row, ())))
        if any(_implies(columns[other], column) for other in by_row.get(rarest, ())):
            continue
        kept.append(link)
        for row in column:
            by_row.setdefault(row, []).append(link)
    return sorted(kept)


def _implies(column: Mapping[int, float], other: Mapping[int, float]) -> bool:
    return all(column.get(row, 0.0) >= load for row, load in other.items())


def flows_on(
    loads: Sequence[Loads], bytes_per_s: Sequence[float], capacities: Mapping[int, float]
) -> tuple[list[Flow], NDArray[np.float64]]:
    """Flows on the links that can bind, renumbered from 0, and the capacities of those.

    A link that everybody crosses a multiple of k times is one of a k-th of the capacity.
    """
    links = binding_links(loads, capacities)
    units = [gcd(*(load[link] for load in loads if link in load)) for link in links]
    flows = []
    for load, rate in zip(loads, bytes_per_s, strict=True):
        times = [load.get(link, 0) // unit for link, unit in zip(links, units, strict=True)]
        flows.append(Flow(tuple(np.repeat(np.arange(len(links)), times).tolist()), rate))
    return flows, np.array([capacities[link] / unit for link, unit in zip(links, units, strict=True)])


def reduced(flows: Sequence[Flow], capacities: ArrayLike) -> tuple[list[Flow], NDArray[np.float64]]:
    """The same flows on fewer links, with the same rates at all times."""
    loads: list[dict[int, int]] = []
    for flow in flows:
        load: dict[int, int] = {}
        for link in flow.route:
            load[link] = load.get(link, 0) + 1
        loads.append(load)
    capacity = dict(enumerate(np.asarray(capacities, dtype=np.float64).tolist()))
    fewer, kept = flows_on(loads, [flow.bytes_per_s for flow in flows], capacity)
    return [each._replace(weight=flow.weight) for each, flow in zip(fewer, flows, strict=True)], kept
