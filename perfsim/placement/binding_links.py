"""Which links can limit flows; the others are dropped before a run, which saves the engine time.

A link with some capacity admits flow rates r with sum(count x r) <= capacity. Link A is implied by link B
where B's counts over capacity are at least A's for every flow: rates that B admits, A admits too. Max-min
fair rates depend only on the rates that all links together admit, so dropping implied links does not change
them. All links of a tree that a broadcast crosses become one, however many leaves the tree has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray

from perfsim.engine.path_class import Flow

Loads = Mapping[int, int]
"""How often a flow crosses each link."""
Capacities = Mapping[int, float] | Sequence[float]
"""Bytes/s of each link, by its id."""


def binding_links(loads: Sequence[Loads], capacities: Capacities) -> list[int]:
    """The links that no other link implies, ascending; of equal links the first."""
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
        if any(_implies(columns[link_b], column) for link_b in by_row.get(rarest, ())):
            continue
        kept.append(link)
        for row in column:
            by_row.setdefault(row, []).append(link)
    return sorted(kept)


def _implies(column: Mapping[int, float], implied: Mapping[int, float]) -> bool:
    return all(column.get(row, 0.0) >= load for row, load in implied.items())


def flows_on(
    loads: Sequence[Loads], bytes_per_s: Sequence[float], capacities: Capacities
) -> tuple[list[Flow], NDArray[np.float64]]:
    """Flows on the binding links, renumbered from 0, and the capacities of these links.

    A link that every flow crosses a multiple of k times becomes one with a k-th of the capacity.
    """
    links = binding_links(loads, capacities)
    units = dict.fromkeys(links, 0)
    for load in loads:
        for link, count in load.items():
            if link in units:
                units[link] = gcd(units[link], count)
    number = {link: index for index, link in enumerate(links)}
    flows = []
    for load, rate in zip(loads, bytes_per_s, strict=True):
        crossed = sorted(
            (number[link], count // units[link]) for link, count in load.items() if link in number
        )
        flows.append(Flow(tuple(index for index, times in crossed for _ in range(times)), rate))
    return flows, np.array([capacities[link] / unit for link, unit in units.items()])
