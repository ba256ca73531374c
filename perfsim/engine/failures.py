"""A simulated run with failures: work since the last checkpoint is lost and repeated after a restart.

It checks the closed forms of `convergence.goodput` and uses their terms.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

import numpy as np
import simpy
from numpy.typing import NDArray

from perfsim.base.arrays import Floats, Ids
from perfsim.base.errors import InputError
from perfsim.engine.limits import present_limits
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
    slow = _computes(graph) & (ranks >= 0)
    return np.where(slow, duration_s * factor[np.maximum(ranks, 0)], duration_s)


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

    A failure during a restart begins the restart again. Raises InputError after MOST_FAILURES failures and
    for more than MOST_CHECKPOINTS checkpoints.
    """
    number = useful_s / checkpoints.interval_s
    if MOST_CHECKPOINTS < number < math.inf:
        raise InputError(
            f"a checkpoint every {checkpoints.interval_s:g} s of {useful_s:.3g} s of training makes "
            f"{number:,.0f}; at most {MOST_CHECKPOINTS:,} are simulated: lengthen their interval"
        )
    env = simpy.Environment()
    run = _Run(env, useful_s, checkpoints)
    env.process(run.fail(failures))
    env.run(until=run.process)
    return FailedRun(float(env.now), useful_s, run.lost_s, run.restart_s, run.write_s, run.failures)


class _Run:
    def __init__(self, env: simpy.Environment, useful_s: float, checkpoints: Checkpoints) -> None:
        self.env = env
        self.left_s = useful_s
        self.checkpoints = checkpoints
        self.lost_s = self.restart_s = self.write_s = 0.0
        self.failures = 0
        self.process = env.process(self.train())

    def train(self) -> Generator[simpy.Event, None, None]:
        """Train in chunks, each saved by a checkpoint after it; the last one needs none."""
        restarting = False
        useful_s = self.left_s
        limits = present_limits()
        for chunk in count():
            if self.left_s <= 0:
                return
            if chunk % CHECK_EVERY == 0:
                limits.in_time(
                    lambda: f"{1 - self.left_s / useful_s:.1%} of the run with failures was simulated"
                )
            began_s = self.env.now
            try:
                if restarting:
                    yield self.env.timeout(self.checkpoints.restart_s)
                    self.restart_s += self.env.now - began_s
                    restarting = False
                    began_s = self.env.now
                chunk_s = min(self.left_s, self.checkpoints.interval_s)
                yield self.env.timeout(chunk_s)
                if chunk_s < self.left_s:
                    yield self.env.timeout(self.checkpoints.write_s)
                    self.write_s += self.checkpoints.write_s
                self.left_s -= chunk_s
            except simpy.Interrupt:
                wasted_s = self.env.now - began_s
                if restarting:
                    self.restart_s += wasted_s
                else:
                    self.lost_s += wasted_s
                restarting = True

    def fail(self, failures: Iterator[float]) -> Generator[simpy.Event, None, None]:
        """Interrupt the training at each failure."""
        for when_s in failures:
            yield self.env.timeout(max(0.0, when_s - self.env.now))
            if not self.process.is_alive:
                return
            self.failures += 1
            if self.failures > MOST_FAILURES:
                raise InputError(
                    f"{MOST_FAILURES} failures and {self.left_s:.3g} s of training still to do: "
                    "failures come faster than checkpoints; shorten their interval"
                )
            self.process.interrupt()
