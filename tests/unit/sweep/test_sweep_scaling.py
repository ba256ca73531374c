"""Best batches by device count, and how many of one machine are as fast as another."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfsim.convergence.time_to_accuracy import time_to_accuracy
from perfsim.sweep.runner import PointResult, SweepResult, load_sweep, run_sweep
from perfsim.sweep.scaling import match, matches, series_of, time_of
from perfsim.sweep.verdict import sweep_verdict

Write = Callable[[str], Path]


@pytest.fixture
def result(write_sweep: Write, tmp_path: Path) -> SweepResult:
    path = write_sweep("  devices: [1, 2, 4]\n  recipe.global_batch_size: [2, 96]")
    return run_sweep(load_sweep(str(path)), tmp_path / "points.sqlite", jobs=1)


def at_speed(each: PointResult, factor: float) -> PointResult:
    """The same point with steps so many times as long."""
    time = time_of(each)
    slower = time_to_accuracy(
        time.batch_tokens,
        time.step_time_s * factor,
        time.d_min_tokens,
        time.critical,
        time.step_time_error,
    )
    return replace(each, time=slower)


def test_each_device_count_runs_at_the_batch_of_least_time(result: SweepResult) -> None:
    (series,) = series_of(result)
    assert series.counts == (1, 2, 4)
    for best in series.points:
        rivals = [each for each in result.feasible if each.point.num_devices == best.point.num_devices]
        assert time_of(best).time_s == min(time_of(each).time_s for each in rivals)


def test_efficiency_is_one_for_the_smallest_and_the_speedup_over_the_devices_for_others(
    result: SweepResult,
) -> None:
    (series,) = series_of(result)
    first, second = series.points[:2]
    assert series.efficiency(first) == 1.0
    assert series.efficiency(second) == pytest.approx(time_of(first).time_s / time_of(second).time_s / 2)


def test_circumstances_make_series_and_batches_do_not(write_sweep: Write, tmp_path: Path) -> None:
    grid = "  system.memoryx.server.bandwidth: [5 GB/s, 1 TB/s]\n  recipe.global_batch_size: [2, 8]"
    result = run_sweep(load_sweep(str(write_sweep(grid))), tmp_path / "points.sqlite", jobs=1)
    assert [series.label for series in series_of(result)] == [
        "cs-2, weight-streaming, bandwidth 5 GB/s",
        "cs-2, weight-streaming, bandwidth 1 TB/s",
    ]


def test_the_fewest_devices_that_match_are_the_first_as_fast(result: SweepResult) -> None:
    (series,) = series_of(result)
    for wanted in series.points:
        found = match(wanted, series)
        assert found.fewest is wanted
        assert found.possibly is not None
        assert found.possibly <= wanted.point.num_devices
    assert match(series.points[0], series).surely == 2


def test_what_is_faster_than_the_largest_machine_is_matched_by_none(result: SweepResult) -> None:
    (series,) = series_of(result)
    found = match(at_speed(series.points[-1], 0.01), series)
    assert (found.fewest, found.possibly, found.surely) == (None, None, None)


def test_one_machine_alone_is_matched_with_nobody_and_its_scaling_is_told(result: SweepResult) -> None:
    assert matches(result) == []
    verdict = sweep_verdict(result)
    assert verdict.startswith("Soonest at the target: 4 x cs-2")
    assert "From 1 to 4 x cs-2 the time falls" in verdict


def renamed(each: PointResult, name: str, factor: float) -> PointResult:
    """The point on a system of another name, with steps so many times as long."""
    candidate = each.point.candidate
    system = candidate.system.model_copy(update={"name": name})
    other = candidate.model_copy(update={"system": system})
    study = each.point.study.model_copy(update={"candidates": (other,)})
    return replace(at_speed(each, factor), point=replace(each.point, study=study))


def in_days(each: PointResult, days: float) -> PointResult:
    """The same point with a step that makes it take so many days."""
    return at_speed(each, days * 86400 / time_of(each).time_s)


def test_the_verdict_says_how_many_match_and_how_surely(result: SweepResult) -> None:
    (series,) = series_of(result)
    own = [in_days(each, days) for each, days in zip(series.points, (100, 50, 25), strict=True)]
    rival = in_days(renamed(series.points[-1], "rival", 1.0), 50.5)
    verdict = sweep_verdict(replace(result, points=(*own, rival)))
    assert verdict.startswith("Soonest at the target: 4 x cs-2, 25 days (")
    assert verdict.endswith(
        "As fast as 4 x rival (50.5 days) are about 1.98 x cs-2: 1 take 100 days, 2 take 50 days "
        "(within the 90 % band possibly 2, surely 4)."
    )


def test_the_verdict_says_where_nothing_matches(result: SweepResult) -> None:
    rival = [renamed(each, "rival", 0.001) for each in result.feasible]
    verdict = sweep_verdict(replace(result, points=(*result.feasible, *rival)))
    assert "No number of cs-2 up to 4 is as fast as 1 x rival" in verdict


def test_a_machine_of_the_verdict_is_named_with_its_setting(write_sweep: Write, tmp_path: Path) -> None:
    grid = (
        "  devices: [1, 2]\n  system.memoryx.server.bandwidth: [5 GB/s, 1 TB/s]\n"
        "  recipe.global_batch_size: [8]"
    )
    result = run_sweep(load_sweep(str(write_sweep(grid))), tmp_path / "points.sqlite", jobs=1)
    slow, fast = series_of(result)
    verdict = sweep_verdict(result)
    assert verdict.startswith("Soonest at the target: 2 x cs-2 with bandwidth ")
    assert "From 1 to 2 x cs-2 with bandwidth 5 GB/s the time falls" in verdict
    own = [in_days(each, days) for each, days in zip(slow.points, (100, 50), strict=True)]
    other = [in_days(each, days) for each, days in zip(fast.points, (90, 40), strict=True)]
    rivals = [in_days(renamed(each, "rival", 1.0), days) for each, days in zip(own, (60, 30), strict=True)]
    verdict = sweep_verdict(replace(result, points=(*own, *other, *rivals)))
    assert "Soonest at the target: 2 x rival with bandwidth 5 GB/s" in verdict
    assert "As fast as 1 x rival with bandwidth 5 GB/s (60 days) are about" in verdict
    assert "x cs-2 with bandwidth 5 GB/s: 1 take 100 days" in verdict


def test_what_a_larger_machine_loses_is_split_into_throughput_and_tokens(result: SweepResult) -> None:
    (series,) = series_of(result)
    said = re.search(
        r"does (\d+) %.*: (\d+) % of its tokens a second, and (\d+) % for", sweep_verdict(result)
    )
    assert said is not None
    whole, hardware, statistical = (int(each) / 100 for each in said.groups())
    assert whole == pytest.approx(series.efficiency(series.points[-1]), abs=0.005)
    assert hardware * statistical == pytest.approx(whole, abs=0.011)
    tokens = [time_of(series.points[i]).examples_tokens for i in (0, -1)]
    assert statistical == pytest.approx(tokens[0] / tokens[1], abs=0.005)


def test_a_machine_at_peak_is_called_a_bound_in_the_verdict(write_sweep: Write, tmp_path: Path) -> None:
    grid = "  recipe.global_batch_size: [8]\n  system: [cs-2, cs-2-peak]"
    verdict = sweep_verdict(run_sweep(load_sweep(str(write_sweep(grid))), tmp_path / "p.sqlite", jobs=1))
    assert verdict.endswith(" At peak, an upper bound that was never observed: cs-2-peak.")
