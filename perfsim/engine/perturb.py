"""What disturbs a run: durations that are longer than work alone explains, seeded, never in the graph.

A *straggler* is a rank whose computation takes a factor longer, always; *jitter* is noise on every
computation. Both change durations of tasks that are written for the ranks in question: fold a graph
back or unfold it first (`graph.unfold`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfsim.graph import Kind, TaskGraph

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def computes(graph: TaskGraph) -> NDArray[np.bool_]:
    """Which tasks are computation, and so run slow on a slow device."""
    return np.array([work.kind is Kind.COMP for work in graph.works])[graph.work]


def with_stragglers(
    graph: TaskGraph, duration_s: Floats, ranks: Ints, factors: Mapping[int, float]
) -> Floats:
    """Durations where rank r computes `factors[r]` times as long; `ranks` has one entry a task."""
    if not factors:
        return duration_s
    known = np.array(list(factors))
    factor = np.ones(int(max(ranks.max(initial=0), known.max())) + 1)
    factor[known] = list(factors.values())
    slow = computes(graph) & (ranks >= 0)
    return np.where(slow, duration_s * factor[np.maximum(ranks, 0)], duration_s)


def with_jitter(
    graph: TaskGraph, duration_s: Floats, sigma: float, together: Ints, rng: np.random.Generator
) -> Floats:
    """Durations with lognormal noise of mean 1 on every computation.

    `together` is how many ranks each task stands for that wait for one another right after it, as
    tensor peers do: the slowest of as many draws counts. Sigma 0 changes nothing.
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
    noisy[tasks] *= np.exp(sigma * worst - sigma**2 / 2)
    return noisy
