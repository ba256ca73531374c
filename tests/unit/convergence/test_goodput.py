"""Failing runs against published estimates, and against simulations of months of a run."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
import pytest
import simpy

from perfsim.base.errors import InputError
from perfsim.base.units import DAY_S
from perfsim.catalog import default_catalog
from perfsim.convergence.wall_clock import failing_time_s, stopped_share, young_interval_s
from perfsim.engine.failures import Checkpoints, exponential_failures, run_with_failures
from perfsim.specs.wall_clock import NumberRange

MINUTE = 60.0
HOUR = 3600.0
RESTART_S = 5 * MINUTE


@pytest.fixture(scope="module")
def rate() -> NumberRange:
    """Failures of a node and day: RSC-2, RSC-1 [2410.21680] and OPT-175B [2205.01068]."""
    return default_catalog().load("wall_clock", "gpu-cluster").failures_per_node_day


def test_rates_follow_from_the_counts_they_cite(rate: NumberRange) -> None:
    """105 restarts of OPT-175B in 60 days on 124 nodes; 419 of Llama 3 [2407.21783] lie in between."""
    assert rate.high == pytest.approx(105 / 60 / 124, rel=5e-3)
    assert rate.low < 419 / 54 / 2048 < rate.typical
    for nodes, hours in ((2048, 1.80), (128, 28.8)):
        assert 24 / (nodes * rate.typical) == pytest.approx(hours, rel=5e-3)


def goodput(nodes: int, interval_s: float, rate: float, write_s: float = 0.0) -> float:
    failing_s = failing_time_s(1e8, interval_s, write_s, RESTART_S, nodes * rate / DAY_S)
    return 1e8 / float(failing_s)


def test_goodput_at_the_published_points(rate: NumberRange) -> None:
    """Kokolis et al. print 0.7 and 0.93 for 2,000 nodes; then a checkpoint is as rare as a failure."""
    assert goodput(2000, 60 * MINUTE, 6.5e-3) == pytest.approx(0.720, abs=6e-4)
    assert goodput(2000, 5 * MINUTE, 6.5e-3) == pytest.approx(0.934, abs=6e-4)
    assert goodput(12500, 21 * MINUTE, rate.low) == pytest.approx(0.724, abs=1e-3)


@pytest.mark.parametrize(
    ("mttf_s", "interval_s", "write_s", "restart_s"),
    [
        (6 * HOUR, HOUR, MINUTE, 10 * MINUTE),
        (4 * HOUR, HOUR, 5 * MINUTE, 20 * MINUTE),
        (30 * HOUR, HOUR, 30.0, HOUR),
    ],
)
def test_failing_time_is_that_of_a_simulated_run_within_a_hundredth(
    mttf_s: float, interval_s: float, write_s: float, restart_s: float
) -> None:
    """4,000 failures and more, months to years of a run."""
    work_s = 4000 * mttf_s
    simulated = run_with_failures(
        work_s, Checkpoints(interval_s, restart_s, write_s), exponential_failures(mttf_s, seed=1)
    )
    assert simulated.failures > 3900
    expected_s = float(failing_time_s(work_s, interval_s, write_s, restart_s, 1 / mttf_s))
    assert expected_s == pytest.approx(simulated.wall_s, rel=0.01)


def test_a_run_takes_its_work_and_its_checkpoints_and_never_for_ever() -> None:
    for rate in (0.0, 1e-12):
        assert float(failing_time_s(1000.0, 100.0, 5.0, 60.0, rate)) == pytest.approx(1050.0)
    assert 1e20 < float(failing_time_s(1e6, 1e6, 0.0, 0.0, 1.0)) < math.inf


def run_on_spares(useful_s: float, spares: int, repair_s: float, mttf_s: float, seed: int) -> float:
    """Wall time of so much progress on a machine that fails every `mttf_s` of progress, on average.

    A spare replaces a failed unit at once; without one the machine stands still until a unit is repaired.
    Every unit is repaired on its own, in `repair_s`.
    """
    env = simpy.Environment()
    rng = np.random.default_rng(seed)
    shelf = simpy.Container(env, init=spares, capacity=spares + 1)

    def repair() -> Generator[simpy.Event, None, None]:
        yield env.timeout(repair_s)
        yield shelf.put(1)

    def run() -> Generator[simpy.Event, None, None]:
        left_s = useful_s
        while True:
            stretch_s = float(rng.exponential(mttf_s))
            if stretch_s >= left_s:
                yield env.timeout(left_s)
                return
            yield env.timeout(stretch_s)
            left_s -= stretch_s
            env.process(repair())
            yield shelf.get(1)

    env.run(until=env.process(run()))
    return float(env.now)


@pytest.mark.parametrize(("spares", "repair_days"), [(0, 0.1), (1, 1.0), (4, 3.0)])
def test_standing_still_for_lack_of_spares_is_that_of_a_simulated_machine_within_a_hundredth(
    spares: int, repair_days: float
) -> None:
    """A failure a day for years; the share of wall time is compared through the length of the run."""
    simulated_s = run_on_spares(20_000 * DAY_S, spares, repair_days * DAY_S, DAY_S, seed=3)
    stopped = float(stopped_share(spares, repair_days))
    assert 0.005 < stopped < 0.6
    assert 20_000 * DAY_S / (1 - stopped) == pytest.approx(simulated_s, rel=0.01)


def test_more_spares_stop_a_run_less() -> None:
    shares = [float(stopped_share(spares, 2.0)) for spares in range(8)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(2 / 3)
    assert float(stopped_share(3, 0.0)) == 0.0


def test_young_interval_of_the_worked_examples() -> None:
    assert young_interval_s(0.1 * HOUR, 5 * HOUR) == pytest.approx(HOUR)
    interval_s = young_interval_s(MINUTE, 12 * HOUR)
    assert interval_s / MINUTE == pytest.approx(37.9, rel=5e-3)
    assert 1 - HOUR / float(failing_time_s(HOUR, interval_s, MINUTE, 0.0, 1 / (12 * HOUR))) == pytest.approx(
        0.053, rel=0.03
    )


def test_young_interval_beats_its_neighbours() -> None:
    best_s = young_interval_s(MINUTE, 12 * HOUR)
    intervals_s = np.array([0.8, 1.0, 1.25]) * best_s
    assert failing_time_s(1e6, intervals_s, MINUTE, 60.0, 1 / (12 * HOUR)).argmin() == 1


def test_impossible_arguments_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="write_s"):
        young_interval_s(0.0, 1.0)
    with pytest.raises(InputError, match="mttf_s"):
        young_interval_s(1.0, 0.0)
