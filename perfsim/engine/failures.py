"""A simulated run with failures: work since the last checkpoint is lost and repeated after a restart.

It checks the closed forms of `convergence.goodput` and uses their terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Floats, Ids
from perfsim.base.errors import InputError
from perfsim.base.limits import present_limits
from perfsim.work import Kind, TaskGraph

# Perturbations of a run: seeded changes of task durations, with the graph unchanged.
#
# A *straggler* is a rank whose computation always takes a factor longer; *jitter* is noise on every
# computation. Both need a graph with separate tasks for the perturbed ranks (`graph.unfold`).


def _computes(graph: TaskGraph) -> NDArray[np.bool_]:
    """Which tasks are computation, which a slow device slows down."""
    return np.array([work.kind is Kind.COMP for work in graph.works])[graph.work]


def with_stragglers(graph: TaskGraph, duration_s: Floats, ranks: Ids, factors: Mapping[int, float]) -> Floats:
    """Durations where rank r computes `factors[r]` times as long; `ranks` has one entry per task."""
    if not factors:
        return duration_s
    slow_ranks = np.array(list(factors))
    factor = np.ones(int(max(ranks.max(initial=0), slow_ranks.max())) + 1)
    factor[slow_ranks] = list(factors.values())
    return np.where(_computes(graph) & (ranks >= 0), duration_s * factor[np.maximum(ranks, 0)], duration_s)


def with_jitter(
    graph: TaskGraph, duration_s: Floats, sigma: float, together: Ids, rng: np.random.Generator
) -> Floats:
    """Durations with lognormal noise of mean 1 on every computation.

    `together` is how many of the ranks behind each task synchronise right after it, as tensor peers do:
    the slowest of that many draws counts. Sigma 0 changes nothing.
    """
    if not sigma:
        return duration_s
    tasks = np.flatnonzero(_computes(graph))
    worst = np.full(len(tasks), -np.inf)
    counts = together[tasks]
    for number in range(int(counts.max(initial=0))):
        drawn = rng.standard_normal(len(tasks))
        np.maximum(worst, drawn, out=worst, where=counts > number)
    noisy = duration_s.copy()
    noisy[tasks] *= np.exp(sigma * worst - sigma**2 / 2)  # the shift makes the mean of one draw 1
    return noisy


MOST_FAILURES = 100_000
MOST_CHECKPOINTS = 1_000_000
"""Of a run without failures: some seconds of simulation."""
CHECK_EVERY = 1_000
"""Chunks of training between two checks of the limits."""


@dataclass(frozen=True)
class Checkpoints:
    """Training stops for `write_s` after every `interval_s`; a failure costs `restart_s`."""

    interval_s: float
    restart_s: float
    write_s: float = 0.0


@dataclass(frozen=True)
class FailedRun:
    """The wall time of a run by use; the parts sum to it."""

    wall_s: float
    useful_s: float
    lost_s: float
    """Repeated training and unfinished checkpoints."""
    restart_s: float
    write_s: float
    failures: int

    @property
    def goodput(self) -> float:
        """Fraction of wall time that was useful training."""
        return self.useful_s / self.wall_s


def exponential_failures(mttf_s: float, seed: int) -> Iterator[float]:
    """Times of independent failures with mean interval `mttf_s`."""
    rng = np.random.default_rng(seed)
    now_s = 0.0
    while True:
        now_s += float(rng.exponential(mttf_s))
        yield now_s


def run_with_failures(useful_s: float, checkpoints: Checkpoints, failures: Iterator[float]) -> FailedRun:
    """Train for `useful_s` through failures at the given times, ascending.

    Training goes in chunks, each saved by a checkpoint after it; the last one needs none. A failure during a
    restart begins the restart again. Raises InputError after MOST_FAILURES failures and for more than
    MOST_CHECKPOINTS checkpoints.
    """
    number = useful_s / checkpoints.interval_s
    if MOST_CHECKPOINTS < number < math.inf:
        raise InputError(
            f"a checkpoint every {checkpoints.interval_s:g} s of {useful_s:.3g} s of training makes "
            f"{number:,.0f}; at most {MOST_CHECKPOINTS:,} are simulated: lengthen their interval"
        )
    now_s = 0.0
    failure_s = next(failures, math.inf)
    num_failures = 0

    def passes(seconds: float) -> bool:
        """Whether so much time passes without a failure, which ends it."""
        nonlocal now_s, failure_s, num_failures
        if now_s + seconds < failure_s:
            now_s += seconds
            return True
        now_s = failure_s
        num_failures += 1
        if num_failures > MOST_FAILURES:
            raise InputError(
                f"{MOST_FAILURES} failures and {left_s:.3g} s of training still to do: "
                "failures come faster than checkpoints; shorten their interval"
            )
        failure_s = max(now_s, next(failures, math.inf))
        return False

    def done() -> str:
        return f"{1 - left_s / useful_s:.1%} of the run with failures was simulated"

    limits = present_limits()
    left_s = useful_s
    lost_s = restart_s = write_s = 0.0
    chunk = 0
    is_restarted = True
    while left_s > 0.0:
        if chunk % CHECK_EVERY == 0:
            limits.in_time(done)
        chunk += 1
        began_s = now_s
        if not is_restarted:
            is_restarted = passes(checkpoints.restart_s)
            restart_s += now_s - began_s
            continue
        chunk_s = min(left_s, checkpoints.interval_s)
        is_last = chunk_s == left_s
        if passes(chunk_s) and (is_last or passes(checkpoints.write_s)):
            write_s += 0.0 if is_last else checkpoints.write_s
            left_s -= chunk_s
        else:
            lost_s += now_s - began_s
            is_restarted = False
    return FailedRun(now_s, useful_s, lost_s, restart_s, write_s, num_failures)
