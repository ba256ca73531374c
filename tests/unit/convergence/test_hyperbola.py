"""The hyperbola, its fit, and when the fit refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfsim.base.errors import InputError
from perfsim.convergence.critical_batch import (
    HyperbolaFit,
    NotIdentifiableError,
    examples,
    relative_error,
)

BATCHES = [100.0, 400.0, 1600.0, 6400.0]


def on_hyperbola(batches: list[float], e_min: float = 1e6, b_crit: float = 2000.0) -> list[float]:
    return [e_min * (1 + batch / b_crit) for batch in batches]


@pytest.mark.parametrize("batch", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_batches_are_refused(batch: float) -> None:
    with pytest.raises(InputError, match="batch must be positive"):
        examples(batch, 1.0, 1.0)


def test_fit_recovers_an_exact_hyperbola() -> None:
    fit = HyperbolaFit.of(BATCHES, on_hyperbola(BATCHES))
    assert fit.e_min == pytest.approx(1e6, rel=1e-4)
    assert fit.b_crit == pytest.approx(2000.0, rel=1e-4)
    assert fit.e_min / fit.b_crit == pytest.approx(500.0, rel=1e-4)
    assert fit.rms_log == pytest.approx(0.0, abs=1e-4)
    assert fit.examples(800.0) == pytest.approx(1.4e6, rel=1e-4)


def test_fit_does_not_care_about_the_order_of_its_points() -> None:
    measured = on_hyperbola(BATCHES)
    assert HyperbolaFit.of(BATCHES[::-1], measured[::-1]) == HyperbolaFit.of(BATCHES, measured)


def test_repeats_of_one_batch_weigh_as_one() -> None:
    measured = on_hyperbola(BATCHES)
    repeated = HyperbolaFit.of([100.0, 100.0, *BATCHES], [0.9 * measured[0], 1.1 * measured[0], *measured])
    assert repeated.b_crit == pytest.approx(2000.0, rel=1e-4)


def test_interval_holds_the_estimate_and_the_band_covers_it() -> None:
    fit = HyperbolaFit.of(BATCHES, on_hyperbola(BATCHES))
    low, high = fit.b_crit_interval
    assert low < fit.b_crit < high
    assert fit.b_crit / fit.band_factor < low
    assert fit.b_crit * fit.band_factor > high


def test_more_scatter_gives_a_wider_interval() -> None:
    measured = on_hyperbola(BATCHES)
    scattered = [value * factor for value, factor in zip(measured, (1.15, 0.85, 1.15, 0.9), strict=True)]
    assert HyperbolaFit.of(BATCHES, scattered).band_factor > HyperbolaFit.of(BATCHES, measured).band_factor


def test_interval_of_one_standard_error_covers_the_truth_as_often_as_students_t_says() -> None:
    # Six batch sizes leave four degrees of freedom: |t| < 1 in 63 % of draws.
    batches = [250.0 * 2**i for i in range(6)]
    noise = np.random.default_rng(7).normal(0, 0.1, size=(400, 6))
    intervals = [
        HyperbolaFit.of(batches, on_hyperbola(batches) * np.exp(row)).b_crit_interval for row in noise
    ]
    assert np.mean([low < 2000 < high for low, high in intervals]) == pytest.approx(0.63, abs=0.05)


def test_two_batch_sizes_are_too_few_however_often_repeated() -> None:
    # MLPerf v0.6 Transformer on 16 to 1,024 chips: six runs at two batch sizes.
    with pytest.raises(NotIdentifiableError, match="2 batch sizes"):
        HyperbolaFit.of([512, 512, 512, 2048, 2048, 2048], [2.2, 2.4, 2.3, 5.3, 5.2, 5.1])


def test_a_range_of_a_fifth_is_too_small() -> None:
    with pytest.raises(NotIdentifiableError, match=r"span 1\.20x"):
        HyperbolaFit.of([15360, 16384, 18432], [721920, 767317, 857088])


def test_constant_examples_leave_the_critical_batch_unbounded_above() -> None:
    with pytest.raises(NotIdentifiableError, match="does not grow with the batch"):
        HyperbolaFit.of(BATCHES, [1.0, 1.0, 1.0, 1.0])


def test_proportional_examples_leave_the_critical_batch_unbounded_below() -> None:
    with pytest.raises(NotIdentifiableError, match="grows in proportion"):
        HyperbolaFit.of(BATCHES, BATCHES)


def test_fine_tuning_is_refused_with_its_reason() -> None:
    with pytest.raises(NotIdentifiableError, match="fine-tuning"):
        HyperbolaFit.of(BATCHES, on_hyperbola(BATCHES), run_kind="fine-tuning")


def test_warm_start_is_fitted_but_marked_as_local() -> None:
    assert "pre-training" in HyperbolaFit.of(BATCHES, on_hyperbola(BATCHES), run_kind="warm-start").notes[0]


def test_unknown_kind_of_run_is_refused() -> None:
    with pytest.raises(InputError, match="unknown kind of run"):
        HyperbolaFit.of(BATCHES, on_hyperbola(BATCHES), run_kind="distillation")


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_digit_too_many_or_too_few_never_becomes_a_fit(position: int, factor: float) -> None:
    measured = on_hyperbola(BATCHES)
    measured[position] *= factor
    with pytest.raises((InputError, NotIdentifiableError)):
        HyperbolaFit.of(BATCHES, measured)


def test_an_outlier_among_many_batches_is_named() -> None:
    batches = [100.0 * 2**i for i in range(8)]
    measured = on_hyperbola(batches)
    measured[3] *= 10
    with pytest.raises(InputError, match=r"batch 800: .* 10 times off"):
        HyperbolaFit.of(batches, measured)


def test_the_published_seed_with_a_digit_too_many_is_found_among_its_repeats() -> None:
    # gpt3 4.1.0 at batch 3072; the other seeds stand near their printed mean.
    seeds = [1.22e9, 1.20e9, 1.23e9, 1.19e9, 1.22e9, 1.24e9, 13790871552.0]
    with pytest.raises(InputError, match=r"batch 3072: 1\.37909e\+10 is 11\.3 times off the median"):
        HyperbolaFit.of([1536, 2048, *([3072] * 7)], [1.2e9, 1.18e9, *seeds])


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="4 batches but 1 measured"):
        HyperbolaFit.of(BATCHES, [1.0])


def test_error_of_a_prediction_grows_with_the_distance_and_ends_in_refusal() -> None:
    errors = [relative_error(batch, BATCHES) for batch in (1600.0, 12800.0, 25600.0)]
    assert errors == pytest.approx([0.0987, 0.18, 0.31])
    assert relative_error(50.0, BATCHES) == 0.18
    with pytest.raises(NotIdentifiableError, match=r"5\.0 times the largest"):
        relative_error(32000.0, BATCHES)


def test_an_expected_critical_batch_bounds_what_flat_runs_leave_open() -> None:
    flat = [100.0, 100.0, 100.0, 100.0]
    with pytest.raises(NotIdentifiableError, match="B_crit has no bound"):
        HyperbolaFit.of([8, 16, 32, 64], flat)
    fit = HyperbolaFit.of([8, 16, 32, 64], flat, prior=True)
    low, high = fit.b_crit_interval
    assert 64 < low < fit.b_crit < high < math.inf
    assert fit.e_min_interval[0] < fit.e_min < fit.e_min_interval[1]


def test_runs_that_say_enough_overrule_the_expectation() -> None:
    batches = [8.0 * 2**number for number in range(9)]
    fit = HyperbolaFit.of(batches, [1000 * (1 + batch / 64) for batch in batches], prior=True)
    assert fit.b_crit == pytest.approx(64, rel=0.03)
    assert fit.rms_log < 0.01
