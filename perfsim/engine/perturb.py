"""Perturbations of a run: seeded changes of task durations, with the graph unchanged.

A *straggler* is a rank whose computation always takes a factor longer; *jitter* is noise on every
computation. Both need a graph with separate tasks for the perturbed ranks (`graph.unfold`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Kind, TaskGraph

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def computes(graph: TaskGraph) -> NDArray[np.bool_]:
    """Which tasks are computation, which a slow device slows down."""
    return np.array([work.kind is Kind.COMP for work in graph.works])[graph.work]


def with_stragglers(
    graph: TaskGraph, duration_s: Floats, ranks: Ints, factors: Mapping[int, float]
) -> Floats:
    """Durations where rank r computes `factors[r]` times as long; `ranks` has one entry per task."""
    if not factors:
        return duration_s
    slow_ranks = np.array(list(factors))
    factor = np.ones(int(max(ranks.max(initial=0), slow_ranks.max())) + 1)
    factor[slow_ranks] = list(factors.values())
    slow = computes(graph) & (ranks >= 0)
    return np.where(slow, duration_s * factor[np.maximum(ranks, 0)], duration_s)


def with_jitter(
    graph: TaskGraph, duration_s: Floats, sigma: float, together: Ints, rng: np.random.Generator
) -> Floats:
    """Durations with lognormal noise of mean 1 on every computation.

    `together` is how many of the ranks behind each task synchronise right after it, as tensor peers do:
    the slowest of that many draws counts. Sigma 0 changes nothing.
    """
    if not sigma:
        return duration_s
    tasks = np.flatnonzero(computes(graph))
    worst = np.full(len(tasks), -np.inf)
    counts = together[tasks]
    for number in range(int(counts.max(initial=0))):
        drawn = rng.standard_normal(len(tasks))
        np.maximum(worst, drawn, out=worst, where=counts > number)
    noisy = duration_s.copy()
    noisy[tasks] *= np.exp(sigma * worst - sigma**2 / 2)  # the shift makes the mean of one draw 1
    return noisy
