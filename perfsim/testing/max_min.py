"""Max-min fair rates of flows that start together, without a simulation; flows on binding links only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from perfsim.engine.fairshare import Flow
from perfsim.engine.max_min import TOLERANCE, Floats, fill
from perfsim.placement.binding_links import flows_on


def max_min_rates(
    routes: Sequence[Sequence[int]],
    caps: Sequence[float],
    capacities: ArrayLike,
    weights: Sequence[int] | None = None,
) -> Floats:
    """Max-min fair rates of flows, in the unit of `caps` and `capacities`.

    Flow i crosses the links `routes[i]` (a link named twice is loaded twice) and never exceeds `caps[i]`;
    an entry stands for `weights[i]` identical flows. No rate can grow without lowering one that is no
    larger. Links that cannot bind, within a relative 1e-9, are left out, so an unlimited flow gets exactly
    its cap.
    """
    weights = [1] * len(routes) if weights is None else weights
    classes: dict[tuple[tuple[int, ...], float], int] = {}
    member = [
        classes.setdefault((tuple(sorted(route)), float(cap)), len(classes))
        for route, cap in zip(routes, caps, strict=True)
    ]
    total = [0] * len(classes)
    for index, weight in zip(member, weights, strict=True):
        total[index] += weight
    capacity = np.asarray(capacities, dtype=np.float64)
    demand = np.zeros(len(capacity))
    for (route, cap), weight in zip(classes, total, strict=True):
        np.add.at(demand, np.array(route, dtype=np.intp), weight * cap)
    hot = demand > capacity * (1 + TOLERANCE)
    loads = [
        [(link, weight * count) for link, count in Counter(route).items() if hot[link]]
        for (route, _), weight in zip(classes, total, strict=True)
    ]
    rates = fill(loads, [cap for _, cap in classes], capacity.tolist())
    return np.array(rates, dtype=np.float64)[member]


def reduced(flows: Sequence[Flow], capacities: ArrayLike) -> tuple[list[Flow], Floats]:
    """The flows on the binding links only, with the same rates, and the capacities of these links."""
    loads = [Counter(flow.route) for flow in flows]
    capacity = dict(enumerate(np.asarray(capacities, dtype=np.float64).tolist()))
    short, kept = flows_on(loads, [flow.bytes_per_s for flow in flows], capacity)
    return [new._replace(weight=flow.weight) for new, flow in zip(short, flows, strict=True)], kept
