"""Goodput against published estimates."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfsim.convergence.goodput import (
    FAILURES_PER_NODE_DAY,
    LEAST_GOODPUT,
    linear_goodput,
    mean_time_to_failure_s,
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


def test_linear_form_warns_where_it_is_strained() -> None:
    mttf_s = mean_time_to_failure_s(12500, FAILURES_PER_NODE_DAY["rsc-2"])
    linear = linear_goodput(mttf_s, RESTART_S, 21 * MINUTE)
    assert linear.share == pytest.approx(0.685, abs=6e-4)
    assert "strained" in linear.warning


def test_linear_form_says_that_it_breaks_at_an_interval_of_the_time_between_failures() -> None:
    assert "breaks" in linear_goodput(HOUR, 0.0, HOUR).warning


def test_linear_form_is_silent_where_it_holds() -> None:
    assert linear_goodput(24 * HOUR, RESTART_S, 30 * MINUTE).warning == ""


def test_hopeless_machines_are_held_at_the_cap_with_a_warning() -> None:
    answer = linear_goodput(MINUTE, 10 * MINUTE, HOUR)
    assert answer.share == LEAST_GOODPUT
    assert "cap" in answer.warning


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


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: mean_time_to_failure_s(0), "num_nodes"),
        (lambda: mean_time_to_failure_s(8, 0.0), "failures_per_node_day"),
        (lambda: young_interval_s(0.0, 1.0), "write_s"),
        (lambda: linear_goodput(1.0, -1.0, 1.0), "restart_s"),
        (lambda: linear_goodput(1.0, 1.0, 0.0), "interval_s"),
    ],
)
def test_impossible_arguments_are_refused_by_name(call: Callable[[], object], match: str) -> None:
    with pytest.raises(InputError, match=match):
        call()
