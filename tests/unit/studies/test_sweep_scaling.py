"""Best batches by device count, and how many of one machine are as fast as another."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from perfsim.base.errors import PlanError
from perfsim.base.text import number
from perfsim.convergence.critical_batch import LawInputs, critical_batch
from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.convergence.uncertain import Spread
from perfsim.prediction.question import Question
from perfsim.report.sweep import sweep_document, sweep_page
from perfsim.studies.answers import PointResult, Production
from perfsim.studies.batches import BatchPoint, Target
from perfsim.studies.loading import load_study, load_sweep
from perfsim.studies.runner import run_sweep
from perfsim.studies.variants import EqualDevices, SweepResult

Write = Callable[[str], Path]


@pytest.fixture
def result(write_sweep: Write, tmp_path: Path) -> SweepResult:
    path = write_sweep("  devices: [1, 2, 4]\n  recipe.global_batch_size: [2, 96]")
    return run_sweep(load_sweep(str(path)), tmp_path / "points.sqlite", jobs=1)


def at_speed(point: PointResult, factor: float) -> PointResult:
    """The same point with steps so many times as long."""
    slower = replace(point.target_time, step_time_s=point.target_time.step_time_s * factor)
    answer = replace(point.prediction, time=slower, step_time_s=slower.step_time_s)
    return replace(point, answer=answer)


def renamed(point: PointResult, name: str, factor: float) -> PointResult:
    """The point on another device, with steps so many times as long."""
    candidate = point.candidate
    system = candidate.system.model_copy(update={"name": name, "noun": None})
    other = candidate.model_copy(update={"system": system})
    study = point.study.model_copy(update={"candidates": (other,)})
    moved = at_speed(point, factor)
    return replace(moved, study=study, answer=replace(moved.prediction, device=name))


def in_days(points: Iterable[PointResult], *days: float) -> list[PointResult]:
    """The same points with steps that make them take so many days."""
    seconds = (number * 86400 for number in days)
    return [
        at_speed(one, takes_s / one.target_time.time_s) for one, takes_s in zip(points, seconds, strict=True)
    ]


def rivals_in_days(points: Iterable[PointResult], *days: float) -> list[PointResult]:
    return in_days((renamed(point, "rival", 1.0) for point in points), *days)


def test_the_verdict_says_how_many_match_and_how_surely_or_that_nothing_does(result: SweepResult) -> None:
    (series,) = result.series
    rival = rivals_in_days(series.points[-1:], 50.5)
    verdict = replace(result, points=(*in_days(series.points, 100, 50, 25), *rival)).verdict
    # Days on the wall, as in a study: steps at the rate of production.
    first, two, one, other = (number(days / Production.recorded().ratio) for days in (25, 50, 100, 50.5))
    assert verdict.startswith(f"4 CS-2 reach the target first, after {first} days on the wall (")
    match = replace(result, points=(*in_days(series.points, 100, 50, 25), *rival)).matches[0]
    ends = f"{number(match.equal.low)} to {number(match.equal.high)}"
    matched = (
        f"About 1.98 CS-2 match 4 devices of rival ({other} days): 1 takes {one} days, 2 take {two} days "
        f"(90 % band {ends})."
    )
    assert f"{matched} Limited confidence in CS-2: 2 times as many systems" in verdict
    rival = [renamed(point, "rival", 0.001) for point in result.feasible]
    verdict = replace(result, points=(*result.feasible, *rival)).verdict
    assert "No number of CS-2 up to 4 matches 1 device of rival" in verdict
    verdict = replace(result, points=(result.feasible[-1], *rival[-1:])).verdict
    assert re.search(r"\. 4 CS-2 take [\d.]+ days, longer than 4 devices of rival \(", verdict)


def test_a_machine_at_peak_is_called_a_bound_in_the_verdict(write_sweep: Write, tmp_path: Path) -> None:
    grid = "  recipe.global_batch_size: [8]\n  system: [cs-2, cs-2-peak]"
    verdict = run_sweep(load_sweep(str(write_sweep(grid))), tmp_path / "p.sqlite", jobs=1).verdict
    assert " Low confidence in CS-2 at peak (upper bound, never observed): peak efficiency" in verdict


def test_equal_time_is_asked_both_ways_with_its_band(result: SweepResult) -> None:
    (series,) = result.series
    rivals = rivals_in_days(series.points, 140, 70, 35)
    both = replace(result, points=(*in_days(series.points, 100, 50, 25), *rivals))
    ((forward, backward),) = both.equal_times
    assert [match.equal.typical for match in forward] == pytest.approx([1.0, 2**0.5 / 0.99, 2.857], rel=0.02)
    there = forward[2].equal
    back = backward[0].equal
    assert back.typical == pytest.approx(1.4, rel=0.01), "100 days are 1.4 rivals, so 140 days are 1 / 1.4"
    document = sweep_document(both)
    assert len(document["equal_time"]) == 6
    assert document["equal_time"][2]["num_devices"]["typical"] == pytest.approx(there.typical)
    assert [match["as_fast_as"]["system"] for match in document["equals"]] == ["rival"] * 3
    sections = {section.anchor: section for section in sweep_page(both).sections}
    rows = sections["equals"].table.shown()
    assert len(rows) == 6
    assert rows[2][2].startswith(f"{there.typical:.2f} (")
    assert (rows[2][0], rows[2][2].split()[-1]) == ("4 devices of rival", "CS-2")
    assert rows[3][2].endswith(" devices of rival"), "and the other way"


# Machines that finish on the same day, and the best batch that is inside the batches tried.


def band(ratio: float, error: float = 1.25) -> Spread:
    return Spread(ratio, ratio / error, ratio * error)


def test_equal_devices_follow_ideal_scaling_and_an_end_that_is_not_reached_is_none() -> None:
    """A rival as fast as 10 devices: the ratio on n devices is 10 / n."""
    equal = EqualDevices.of([(count, band(10 / count)) for count in (1, 2, 4, 8, 16, 32)])
    assert (equal.low, equal.typical, equal.high) == pytest.approx((8.0, 10.0, 12.5))
    beyond = EqualDevices.of([(4, band(3.0)), (8, band(1.1))])
    assert (beyond.typical, beyond.high) == (None, None)
    assert beyond.low is not None
    below = EqualDevices.of([(4, band(0.9))])
    assert (below.low, below.typical, below.high) == (4.0, 4.0, None)


@pytest.mark.parametrize(("fixed_s", "devices"), [(0.001, 8), (0.1, 64), (20.0, 4096), (0.0, 8)])
def test_the_best_batch_is_closed_form(monkeypatch: pytest.MonkeyPatch, fixed_s: float, devices: int) -> None:
    """A step of a + b B / n takes least time to the target at B = sqrt(a n B_crit / b)."""
    critical = critical_batch("data_law", LawInputs(d_min_tokens=4e11))
    target = Target(4e11, critical)
    a_token_s = 1e-6
    sequence = 2048

    def time_at(target: Target, _: Question, batch: int, **_how: bool) -> BatchPoint:
        step_s = fixed_s + a_token_s * batch * sequence / devices
        time = TimeToAccuracy(batch * sequence, step_s, target.d_min_tokens, target.critical, 0.1)
        return BatchPoint(batch, time.batch_tokens, step_s, time.steps, time.time_s, time.band_s)

    monkeypatch.setattr(Target, "at", time_at)
    question = load_study("gpt3_20b").points[0].question
    curve = target.curve(question, [512, 1024], extend=True)
    best = curve.best * sequence
    if fixed_s == 0.0:
        assert best == sequence, "without a fixed cost the smallest batch is best"
        return
    expected = math.sqrt(fixed_s * devices * critical.tokens / a_token_s)
    assert expected / math.sqrt(2) <= best <= expected * math.sqrt(2)
    tried = [point.batch_tokens for point in curve.points]
    assert tried == sorted(tried)
    assert min(tried) < best < max(tried)


def test_a_batch_that_fits_nowhere_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_at(*_: object, **_how: bool) -> None:
        raise PlanError("does not fit")

    monkeypatch.setattr(Target, "at", time_at)
    question = load_study("gpt3_20b").points[0].question
    target = Target(4e11, critical_batch("data_law", LawInputs(d_min_tokens=4e11)))
    with pytest.raises(PlanError, match="does not fit"):
        target.curve(question, [512, 1024], extend=True)
