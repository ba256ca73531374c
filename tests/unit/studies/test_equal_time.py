"""Machines that finish on the same day, and the best batch that is inside the batches tried."""

from __future__ import annotations

import math

import pytest

from perfsim.api.planning import plan
from perfsim.base.errors import PlanError
from perfsim.convergence.critical_batch import LawInputs, critical_batch
from perfsim.convergence.time_to_accuracy import RatioBand, TimeToAccuracy
from perfsim.prediction.question import Question
from perfsim.studies import batches
from perfsim.studies.batches import BatchPoint, Target, batch_curve, best_of
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.studies.scaling import EqualDevices
from perfsim.studies.spec import question_of_candidate


def band(ratio: float, error: float = 1.25) -> RatioBand:
    return RatioBand(ratio, ratio / error, ratio * error)


def test_equal_devices_follow_ideal_scaling_to_the_digit() -> None:
    """A rival as fast as 10 devices: the ratio on n devices is 10 / n."""
    equal = EqualDevices.of([(count, band(10 / count)) for count in (1, 2, 4, 8, 16, 32)])
    assert (equal.low, equal.typical, equal.high) == pytest.approx((8.0, 10.0, 12.5))


def test_an_end_that_is_not_reached_is_none_and_one_below_the_smallest_is_the_smallest() -> None:
    beyond = EqualDevices.of([(4, band(3.0)), (8, band(1.1))])
    assert (beyond.typical, beyond.high) == (None, None)
    assert beyond.low is not None
    below = EqualDevices.of([(4, band(0.9))])
    assert (below.low, below.typical, below.high) == (4.0, 4.0, None)


@pytest.mark.slow
def test_no_match_is_slower_than_the_study_of_that_machine_and_both_ways_agree() -> None:
    study = load_study("gpt3_20b")
    asked = {"model": "gpt3_20b", "recipe": "gpt3_20b_chinchilla", "objective": "time-to-accuracy"}
    matched = plan(system="cs-2", devices=16, **asked).match("cs-2")
    answered = {row.num_devices: row.time_to_accuracy_s for row in run_study(study).result.candidates[1:]}
    for point in matched.points:
        assert point.time.time_s <= answered.get(point.devices, math.inf) * (1 + 1e-9)
    assert matched.equal.typical == pytest.approx(16.0, rel=1e-6)


# --------------------------------------------------------------------------------- the best batch
@pytest.mark.parametrize(("fixed_s", "devices"), [(0.001, 8), (0.1, 64), (20.0, 4096), (0.0, 8)])
def test_the_best_batch_is_that_of_the_closed_form_wherever_the_grid_begins(
    monkeypatch: pytest.MonkeyPatch, fixed_s: float, devices: int
) -> None:
    """A step of a + b B / n takes least time to the target at B = sqrt(a n B_crit / b)."""
    critical = critical_batch("data_law", LawInputs(d_min_tokens=4e11))
    target = Target(4e11, critical)
    a_token_s = 1e-6
    sequence = 2048

    def time_at(_: Question, target: Target, batch: int) -> BatchPoint:
        step_s = fixed_s + a_token_s * batch * sequence / devices
        time = TimeToAccuracy(batch * sequence, step_s, target.d_min_tokens, target.critical, 0.1)
        return BatchPoint(batch, time.batch_tokens, step_s, time.steps, time.time_s, time.band_s)

    monkeypatch.setattr(batches, "_point_at", time_at)
    study = load_study("gpt3_20b")
    curve, _ = batch_curve(
        question_of_candidate(study, study.candidates[0], 128), target, [512, 1024], extend=True
    )
    best = best_of(curve) * sequence
    if fixed_s == 0.0:
        assert best == sequence, "without a fixed cost the smallest batch is best"
        return
    expected = math.sqrt(fixed_s * devices * critical.tokens / a_token_s)
    assert expected / math.sqrt(2) <= best <= expected * math.sqrt(2)
    tried = [point.batch_tokens for point in curve]
    assert tried == sorted(tried)
    assert min(tried) < best < max(tried)


def test_a_batch_that_fits_nowhere_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_at(*_: object) -> BatchPoint:
        raise PlanError("does not fit")

    monkeypatch.setattr(batches, "_point_at", time_at)
    study = load_study("gpt3_20b")
    question = question_of_candidate(study, study.candidates[0], 128)
    target = Target(4e11, critical_batch("data_law", LawInputs(d_min_tokens=4e11)))
    with pytest.raises(PlanError, match="does not fit"):
        batch_curve(question, target, [512, 1024], extend=True)
