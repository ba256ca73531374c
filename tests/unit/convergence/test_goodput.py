"""Goodput against published estimates, and against a simulation of failures."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

import pytest
import simpy

from perfsim.convergence.goodput import (
    FAILURES_PER_NODE_DAY,
    LEAST_GOODPUT,
    Goodput,
    exponential_goodput,
    linear_goodput,
    mean_time_to_failure_s,
    straggling_step_time_s,
    young_interval_s,
)
from perfsim.errors import InputError

MINUTE, HOUR = 60.0, 3600.0
RESTART_S = 5 * MINUTE


def test_time_between_failures_of_16384_and_1024_gpus() -> None:
    assert mean_time_to_failure_s(2048) / HOUR == pytest.approx(1.80, rel=5e-3)
    assert mean_time_to_failure_s(128) / HOUR == pytest.approx(28.8, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "failures", "days", "nodes"), [("llama-3", 419, 54, 2048), ("opt-175b", 105, 60, 124)]
)
def test_rates_follow_from_the_counts_they_cite(name: str, failures: int, days: int, nodes: int) -> None:
    assert FAILURES_PER_NODE_DAY[name] == pytest.approx(failures / days / nodes, rel=5e-3)


@pytest.mark.parametrize(
    ("nodes", "interval_min", "expected"), [(2000, 60, 0.684), (2000, 5, 0.932), (1000, 30, 0.910)]
)
def test_linear_form_at_the_published_points(nodes: int, interval_min: float, expected: float) -> None:
    answer = linear_goodput(mean_time_to_failure_s(nodes), RESTART_S, interval_min * MINUTE)
    assert answer.share == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("interval_min", "expected"), [(60, 0.720), (5, 0.934)])
def test_exponential_form_at_the_published_points(interval_min: float, expected: float) -> None:
    answer = exponential_goodput(mean_time_to_failure_s(2000), RESTART_S, interval_min * MINUTE)
    assert answer.share == pytest.approx(expected, abs=6e-4)
    assert "unverified" in answer.form


def test_linear_form_warns_where_it_is_strained() -> None:
    mttf_s = mean_time_to_failure_s(12500, FAILURES_PER_NODE_DAY["rsc-2"])
    linear = linear_goodput(mttf_s, RESTART_S, 21 * MINUTE)
    assert linear.share == pytest.approx(0.685, abs=6e-4)
    assert "strained" in linear.warning
    assert exponential_goodput(mttf_s, RESTART_S, 21 * MINUTE).share == pytest.approx(0.724, abs=6e-4)


def test_linear_form_says_that_it_breaks_at_an_interval_of_the_time_between_failures() -> None:
    assert "breaks" in linear_goodput(HOUR, 0.0, HOUR).warning


def test_linear_form_is_silent_where_it_holds() -> None:
    assert linear_goodput(24 * HOUR, RESTART_S, 30 * MINUTE).warning == ""


@pytest.mark.parametrize("form", [linear_goodput, exponential_goodput])
def test_hopeless_machines_are_held_at_the_cap_with_a_warning(form: Callable[..., Goodput]) -> None:
    answer = form(MINUTE, 10 * MINUTE, HOUR)
    assert answer.share == LEAST_GOODPUT
    assert "cap" in answer.warning


def test_exponential_form_survives_an_interval_of_many_times_between_failures() -> None:
    assert exponential_goodput(1.0, 1.0, 1e6).share == LEAST_GOODPUT


def test_young_interval_of_the_worked_examples() -> None:
    assert young_interval_s(0.1 * HOUR, 5 * HOUR) == pytest.approx(HOUR)
    interval_s = young_interval_s(MINUTE, 12 * HOUR)
    assert interval_s / MINUTE == pytest.approx(37.9, rel=5e-3)
    assert 1 - linear_goodput(12 * HOUR, 0.0, interval_s, write_s=MINUTE).share == pytest.approx(
        0.053, rel=8e-3
    )


def test_young_interval_beats_its_neighbours_in_the_linear_form() -> None:
    best_s = young_interval_s(MINUTE, 12 * HOUR)
    shares = [linear_goodput(12 * HOUR, 0.0, factor * best_s, MINUTE).share for factor in (0.8, 1.0, 1.25)]
    assert max(shares) == shares[1]


def simulated_goodput(mttf_s: float, restart_s: float, interval_s: float, write_s: float) -> float:
    """Share of productive time of a job that fails at exponential intervals, also while it restarts."""
    rng = random.Random(20240131)
    env = simpy.Environment()
    segments = 20_000

    def attempt(needed_s: float) -> Generator[simpy.Event, Any, None]:
        while True:
            failure_s = rng.expovariate(1 / mttf_s)
            if failure_s >= needed_s:
                yield env.timeout(needed_s)
                return
            yield env.timeout(failure_s)
            if needed_s != restart_s:
                yield env.process(attempt(restart_s))

    def job() -> Generator[simpy.Event, Any, None]:
        for _ in range(segments):
            yield env.process(attempt(interval_s + write_s))

    env.run(until=env.process(job()))
    return segments * interval_s / env.now


@pytest.mark.parametrize(
    ("interval_s", "write_s"), [(10 * MINUTE, 0.0), (40 * MINUTE, 2 * MINUTE)], ids=["short", "long"]
)
def test_exponential_form_agrees_with_simulated_failures(interval_s: float, write_s: float) -> None:
    arguments = (2 * HOUR, RESTART_S, interval_s, write_s)
    assert exponential_goodput(*arguments).share == pytest.approx(simulated_goodput(*arguments), rel=0.01)


def test_straggler_factor_slows_every_step() -> None:
    assert straggling_step_time_s(2.0) == pytest.approx(2.2)
    assert straggling_step_time_s(2.0, factor=1.0) == 2.0


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: mean_time_to_failure_s(0), "num_nodes"),
        (lambda: mean_time_to_failure_s(8, 0.0), "failures_per_node_day"),
        (lambda: young_interval_s(0.0, 1.0), "write_s"),
        (lambda: linear_goodput(1.0, -1.0, 1.0), "restart_s"),
        (lambda: exponential_goodput(1.0, 1.0, 0.0), "interval_s"),
        (lambda: straggling_step_time_s(1.0, 0.9), "straggler factor"),
    ],
)
def test_impossible_arguments_are_refused_by_name(call: Callable[[], object], match: str) -> None:
    with pytest.raises(InputError, match=match):
        call()
