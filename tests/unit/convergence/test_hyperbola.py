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


def test_a_fit_sees_each_batch_once_whatever_the_order_and_is_less_sure_of_scattered_points() -> None:
    measured = on_hyperbola(BATCHES)
    fit = HyperbolaFit.of(BATCHES, measured)
    assert HyperbolaFit.of(BATCHES[::-1], measured[::-1]) == fit
    repeated = HyperbolaFit.of([100.0, 100.0, *BATCHES], [0.9 * measured[0], 1.1 * measured[0], *measured])
    assert repeated.b_crit == pytest.approx(2000.0, rel=1e-4)
    low, high = fit.b_crit_interval
    assert fit.b_crit / fit.band_factor < low < fit.b_crit < high < fit.b_crit * fit.band_factor
    scattered = [value * factor for value, factor in zip(measured, (1.15, 0.85, 1.15, 0.9), strict=True)]
    assert HyperbolaFit.of(BATCHES, scattered).band_factor > fit.band_factor


def test_interval_of_one_standard_error_covers_the_truth_as_often_as_students_t_says() -> None:
    # Six batch sizes leave four degrees of freedom: |t| < 1 in 63 % of draws.
    batches = [250.0 * 2**i for i in range(6)]
    noise = np.random.default_rng(7).normal(0, 0.1, size=(400, 6))
    intervals = [
        HyperbolaFit.of(batches, on_hyperbola(batches) * np.exp(row)).b_crit_interval for row in noise
    ]
    assert np.mean([low < 2000 < high for low, high in intervals]) == pytest.approx(0.63, abs=0.05)


FLAT = [1.0, 1.0, 1.0, 1.0]
OCTAVES = [100.0 * 2**i for i in range(8)]
SEEDS = [1.22e9, 1.20e9, 1.23e9, 1.19e9, 1.22e9, 1.24e9, 13790871552.0]
"""Of gpt3 4.1.0 at batch 3072, one with a digit too many; the others stand near their printed mean."""


@pytest.mark.parametrize(
    ("batches", "measured", "error", "words"),
    [
        # MLPerf v0.6 Transformer on 16 to 1,024 chips: six runs at two batch sizes.
        ([512] * 3 + [2048] * 3, [2.2, 2.4, 2.3, 5.3, 5.2, 5.1], NotIdentifiableError, "2 batch sizes"),
        ([15360, 16384, 18432], [721920, 767317, 857088], NotIdentifiableError, r"span 1\.20x"),
        (BATCHES, FLAT, NotIdentifiableError, "does not grow with the batch"),
        (BATCHES, BATCHES, NotIdentifiableError, "grows in proportion"),
        (BATCHES, [1.0], InputError, "4 batches but 1 measured"),
        (
            OCTAVES,
            [e * (10 if at == 3 else 1) for at, e in enumerate(on_hyperbola(OCTAVES))],
            InputError,
            r"batch 800: .* 10 times off",
        ),
        (
            [1536, 2048, *([3072] * 7)],
            [1.2e9, 1.18e9, *SEEDS],
            InputError,
            r"batch 3072: 1\.37909e\+10 is 11\.3 times off the median",
        ),
    ],
)
def test_points_that_determine_no_fit_are_refused_with_the_reason(
    batches: list[float], measured: list[float], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        HyperbolaFit.of(batches, measured)


def test_kinds_of_runs_are_told_apart() -> None:
    """Fine-tuning is refused, a warm start marked as local."""
    measured = on_hyperbola(BATCHES)
    assert "pre-training" in HyperbolaFit.of(BATCHES, measured, run_kind="warm-start").notes[0]
    with pytest.raises(NotIdentifiableError, match="fine-tuning"):
        HyperbolaFit.of(BATCHES, measured, run_kind="fine-tuning")
    with pytest.raises(InputError, match="unknown kind of run"):
        HyperbolaFit.of(BATCHES, measured, run_kind="distillation")


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_digit_too_many_or_too_few_never_becomes_a_fit(position: int, factor: float) -> None:
    measured = on_hyperbola(BATCHES)
    measured[position] *= factor
    with pytest.raises((InputError, NotIdentifiableError)):
        HyperbolaFit.of(BATCHES, measured)


def test_error_of_a_prediction_grows_with_the_distance_and_ends_in_refusal() -> None:
    errors = [relative_error(batch, BATCHES) for batch in (1600.0, 12800.0, 25600.0)]
    assert errors == pytest.approx([0.0987, 0.18, 0.31])
    assert relative_error(50.0, BATCHES) == 0.18
    with pytest.raises(NotIdentifiableError, match=r"5\.0 times the largest"):
        relative_error(32000.0, BATCHES)


def test_an_expected_critical_batch_bounds_what_flat_runs_leave_open() -> None:
    fit = HyperbolaFit.of([8, 16, 32, 64], FLAT, prior=True)
    low, high = fit.b_crit_interval
    assert 64 < low < fit.b_crit < high < math.inf
    assert fit.e_min_interval[0] < fit.e_min < fit.e_min_interval[1]


def test_runs_that_say_enough_overrule_the_expectation() -> None:
    batches = [8.0 * 2**number for number in range(9)]
    fit = HyperbolaFit.of(batches, [1000 * (1 + batch / 64) for batch in batches], prior=True)
    assert fit.b_crit == pytest.approx(64, rel=0.03)
    assert fit.rms_log < 0.01
