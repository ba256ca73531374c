"""Simulated runs with failures, which check the closed forms of `convergence.wall_clock`."""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain, starmap
from operator import itemgetter

import numpy as np
import simpy

from perfsim.base.errors import InputError
from perfsim.base.limits import present_limits
from perfsim.convergence.wall_clock import Failing, FailingRun

MOST_FAILURES = 100_000
CHECK_EVERY = 1_000
"""Failures between two checks of the limits."""
RUNS = 2_000
ROUNDING = 1e-9
"""Share of an interval by which a copy may be incomplete."""
MOST_SIMULATED = 200_000
"""Failures of all runs of an estimate, which has fewer runs where each has many."""


Failures = Iterator[tuple[float, int, Failing]]
"""Times of failures, ascending, each with the place of the nearest tier that survives it, and its domain."""


def exponential_failures(run: FailingRun, seed: int | Sequence[int]) -> Failures:
    """Independent failures of every domain at their rate."""
    rng = np.random.default_rng(seed)

    def of(place: int, domain: Failing) -> Failures:
        now_s = 0.0
        while domain.failures_per_s:
            now_s += float(rng.exponential(1 / domain.failures_per_s))
            yield now_s, place, domain

    domains = ((place, domain) for place, tier in enumerate(run.tiers) for domain in tier.domains)
    return merge(*starmap(of, domains), key=itemgetter(0))


def run_with_failures(run: FailingRun, failures: Failures) -> float:
    """Seconds of a run with failures at the given times; SimPy follows it from failure to failure.

    How far it is, is the time that it would have taken without failures, over which copies are spread: it
    says which are complete, so that none needs an event. The last stretch of work needs no copy. A failure
    during a restart begins it again; while a run waits for a repair it does not fail. Raises InputError after
    MOST_FAILURES failures.
    """
    env = simpy.Environment()
    spares = simpy.Container(env, init=math.inf if run.spares is None else run.spares)
    work_s = float(run.work_s)
    longer = 1.0 + sum(float(tier.write_s / tier.interval_s) for tier in run.tiers)
    cycles_s = [float(tier.interval_s) * longer for tier in run.tiers]
    end_s = work_s
    for tier in run.tiers if work_s < math.inf else ():
        end_s += max(math.ceil(work_s / tier.interval_s) - 1, 0) * float(tier.write_s)

    def repair(domain: Failing) -> Generator[simpy.Event, None, None]:
        yield env.timeout(float(domain.repair_s))
        yield spares.put(domain.nodes)

    def train() -> Generator[simpy.Event, None, None]:
        done_s = restart_s = 0.0
        complete_s = [0.0] * len(run.tiers)  # the newest complete copy of each
        for number, (at_s, place, domain) in enumerate(chain(failures, [(math.inf, 0, Failing(0.0))])):
            if number % CHECK_EVERY == 0:
                present_limits().in_time(lambda: "a run with failures was being simulated")
            if env.now + restart_s + end_s - done_s < at_s:
                break
            if number > MOST_FAILURES:
                raise InputError("failures come faster than checkpoints; shorten their interval")
            if (passed_s := at_s - env.now) < 0:
                continue
            yield env.timeout(passed_s)
            done_s += max(passed_s - restart_s, 0.0)
            for of, (tier, own_s) in enumerate(zip(run.tiers, cycles_s, strict=True)):
                copies = math.floor((done_s - float(tier.background_s)) / own_s + ROUNDING)
                complete_s[of] = max(complete_s[of], copies * own_s)
            done_s = max(complete_s[place:])
            complete_s[:place] = [done_s] * place
            restart_s = float(domain.restart_s)
            if domain.repair_s:
                env.process(repair(domain))
                yield spares.get(domain.nodes)
        yield env.timeout(restart_s + end_s - done_s)

    env.run(until=env.process(train()))
    return float(env.now)


def simulated(run: FailingRun) -> tuple[float, float, int]:
    """Mean seconds of simulated runs with its standard error, and how many they are."""
    number = sum(float(tier.failures_per_s) for tier in run.tiers) * float(run.expected_s)
    runs = max(2, min(RUNS, int(MOST_SIMULATED / max(number, 1.0))))
    failures = (exponential_failures(run, [0, turn]) for turn in range(runs))
    walls_s = [run_with_failures(run, known) for known in failures]
    return float(np.mean(walls_s)), float(np.std(walls_s, ddof=1)) / math.sqrt(runs), runs


def compared(run: FailingRun) -> str:
    """How much longer than the closed form simulated runs take, also with twice or half as many copies."""
    expected_s = float(run.expected_s + run.stopped_s)
    said = []
    for factor in (1.0, 0.5, 2.0):
        tiers = tuple(replace(tier, interval_s=factor * tier.interval_s) for tier in run.tiers)
        mean_s, error_s, runs = simulated(replace(run, tiers=tiers))
        more = round(100 * (mean_s / expected_s - 1), 2) + 0.0  # never -0.00
        said.append(f"{more:+.2f} ± {100 * error_s / expected_s:.2f} %")
    as_often, twice, half = said
    return (
        f"{runs:,} simulated runs take {as_often} longer than the closed form, {twice} with copies twice as "
        f"often, {half} with half as many"
    )
