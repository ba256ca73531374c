"""Max-min fair rates: no rate can grow without lowering one that is no larger.

Progressive filling raises all rates together and fixes the rate of a flow when it reaches its cap or
when a link on its route is full. D. Bertsekas and R. Gallager, Data Networks, 2nd edition (1992), section
6.5.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Loads = Sequence[Sequence[tuple[int, int]]]
"""For each class: (link, load per unit of the class's rate), for links that may bind."""

TOLERANCE = 1e-9
"""A link is contended when its demand exceeds its capacity by more than this fraction."""
VECTOR_CLASSES = 64
"""From this many classes on NumPy is faster than a Python loop; both give bitwise equal rates."""


def fill(loads: Loads, caps: list[float], capacity: Sequence[float]) -> list[float]:
    """Rate of each class, given its loads and its cap, and the capacity of every link by id."""
    if len(loads) == 1:
        return [min([caps[0], *(capacity[link] / units for link, units in loads[0])])]
    if len(loads) < VECTOR_CLASSES:
        return fill_by_loop(loads, caps, capacity)
    return fill_by_numpy(loads, caps, capacity)


def fill_one_link(units: list[int], caps: list[float], capacity: float) -> list[float]:
    """`fill_by_loop` for one link: a class whose cap is below the equal share gets its cap."""
    rates = list(caps)
    live = list(range(len(caps)))
    while live:
        share = capacity / sum([units[c] for c in live])
        waiting = [c for c in live if caps[c] > share]
        if len(waiting) == len(live):
            for c in live:
                rates[c] = share
            break
        taken = 0.0  # a plain loop adds in the same order as `fill_by_loop`, so results are bitwise equal
        for c in live:
            if caps[c] <= share:
                taken += units[c] * caps[c]
        capacity = max(0.0, capacity - taken)
        live = waiting
    return rates


def fill_by_loop(loads: Loads, caps: list[float], capacity: Sequence[float]) -> list[float]:
    """Progressive filling, class by class.

    A round fixes a class at its cap, if no link allows it less, or at a link's equal share, if that is
    the tightest limit of every class on the link; so the shares of later rounds never shrink.
    """
    left = {link: capacity[link] for row in loads for link, _ in row}
    rates = list(caps)
    live = [c for c, row in enumerate(loads) if row]
    while live:
        load = dict.fromkeys(left, 0)
        for c in live:
            for link, units in loads[c]:
                load[link] += units
        share = {link: left[link] / units if units else math.inf for link, units in load.items()}
        limit = {c: min(caps[c], *(share[link] for link, _ in loads[c])) for c in live}
        tightest = dict.fromkeys(left, math.inf)
        for c in live:
            for link, _ in loads[c]:
                tightest[link] = min(tightest[link], limit[c])
        taken = dict.fromkeys(left, 0.0)
        waiting = []
        for c in live:
            if limit[c] < caps[c] and not any(limit[c] == share[k] == tightest[k] for k, _ in loads[c]):
                waiting.append(c)
                continue
            rates[c] = limit[c]
            for link, units in loads[c]:
                taken[link] += units * limit[c]
        left = {link: max(0.0, room - taken[link]) for link, room in left.items()}
        live = waiting
    return rates


def fill_by_numpy(loads: Loads, caps: list[float], capacity: Sequence[float]) -> list[float]:
    """`fill_by_loop` vectorised for many classes, with the same order of additions."""
    names = sorted({link for row in loads for link, _ in row})
    index = {link: i for i, link in enumerate(names)}
    left = np.array([capacity[link] for link in names], dtype=np.float64)
    cap = np.array(caps, dtype=np.float64)
    rates = cap.copy()
    owner = np.array([c for c, row in enumerate(loads) for _ in row], dtype=np.intp)
    link = np.array([index[name] for row in loads for name, _ in row], dtype=np.intp)
    units = np.array([unit for row in loads for _, unit in row], dtype=np.float64)
    while len(owner):
        load = np.bincount(link, weights=units, minlength=len(left))
        share = np.divide(left, load, out=np.full(len(left), np.inf), where=load > 0)
        limit = cap.copy()
        np.minimum.at(limit, owner, share[link])
        tightest = np.full(len(left), np.inf)
        np.minimum.at(tightest, link, limit[owner])
        settled = limit == cap
        binds = (limit[owner] == share[link]) & (share[link] == tightest[link])
        settled[owner[binds]] = True
        done = settled[owner]
        rates[owner[done]] = limit[owner[done]]
        taken = np.bincount(link[done], weights=units[done] * limit[owner[done]], minlength=len(left))
        left = np.maximum(0.0, left - taken)
        owner, link, units = owner[~done], link[~done], units[~done]
    return [float(rate) for rate in rates]
