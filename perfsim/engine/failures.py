"""A run with failures: what is done since the last checkpoint is lost, and done again after a restart.

The words are those of `convergence.goodput`, whose closed forms this is the second way to.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import simpy

from perfsim.errors import InputError

MOST_FAILURES = 100_000


@dataclass(frozen=True)
class Checkpoints:
    """How a run survives: `interval_s` of training between checkpoints, `write_s` that each stands still."""

    interval_s: float
    restart_s: float
    write_s: float = 0.0


@dataclass(frozen=True)
class FailedRun:
    """What became of the wall time of a run; the parts add up to it."""

    wall_s: float
    useful_s: float
    lost_s: float
    """Training that was done again, and checkpoints that were not finished."""
    restart_s: float
    write_s: float
    failures: int

    @property
    def goodput(self) -> float:
        """Share of wall time that became training."""
        return self.useful_s / self.wall_s


def exponential_failures(mttf_s: float, seed: int) -> Iterator[float]:
    """Times of failures that come independently, `mttf_s` apart in the mean."""
    rng, now_s = np.random.default_rng(seed), 0.0
    while True:
        now_s += float(rng.exponential(mttf_s))
        yield now_s


def run_with_failures(useful_s: float, checkpoints: Checkpoints, failures: Iterator[float]) -> FailedRun:
    """Train for `useful_s` through failures at the given times, ascending.

    A failure during a restart begins it anew. Raises InputError for a run that does not get on:
    more failures than MOST_FAILURES.
    """
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
        """Chunks of training, each kept by the checkpoint behind it; the last needs none."""
        restarting = False
        while self.left_s > 0:
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
        """Interrupt the training at each time."""
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
