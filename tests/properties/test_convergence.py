"""Laws that hold for every batch, machine and critical batch."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.convergence.critical_batch import CriticalBatch, HyperbolaFit, examples, steps
from perfsim.convergence.laws import LOSS_LAWS, LossLaw, LossTarget
from perfsim.convergence.time_to_accuracy import TimeToAccuracy

batch_sizes = st.floats(1e3, 1e9)
targets = st.floats(1e8, 1e14)
step_times = st.floats(1e-3, 1e4)
errors = st.floats(0, 0.5)
criticals = st.builds(
    CriticalBatch, st.floats(1e4, 1e9), st.floats(1, 5), st.just("constant"), st.just("test")
)


@given(batch_sizes, targets, batch_sizes)
def test_steps_and_examples_lie_on_the_hyperbola(batch: float, d_min: float, b_crit: float) -> None:
    s = steps(batch, d_min, b_crit)
    e = examples(batch, d_min, b_crit)
    assert s * batch == pytest.approx(e, rel=1e-12)
    s_min = d_min / b_crit
    assert s == pytest.approx(s_min * (1 + b_crit / batch), rel=1e-12)
    assert (s / s_min - 1) * (e / d_min - 1) == pytest.approx(1, rel=1e-5, abs=1e-5)
    assert steps(np.array([batch, d_min]), d_min, b_crit).tolist() == [s, steps(d_min, d_min, b_crit)]


@given(
    st.floats(1e-4, 10), st.floats(1e-9, 1e-3), st.floats(1, 1e4), st.floats(1e4, 1e9), st.floats(0.01, 100)
)
def test_no_batch_beats_the_best_one(
    fixed_s: float, per_example_s: float, devices: float, b_crit: float, factor: float
) -> None:
    critical = CriticalBatch(b_crit, 1.0, "constant", "test")

    def time_at(batch: float) -> float:
        step_s = fixed_s + per_example_s * batch / devices
        return TimeToAccuracy(batch, step_s, 1e11, critical, 0.0).time_s

    best = math.sqrt(fixed_s * devices * b_crit / per_example_s)
    least = 1e11 / b_crit * (math.sqrt(fixed_s) + math.sqrt(per_example_s * b_crit / devices)) ** 2
    assert time_at(best) == pytest.approx(least, rel=1e-9)
    assert time_at(best * factor) >= least * (1 - 1e-9)


@given(batch_sizes, step_times, targets, criticals, errors)
def test_the_band_contains_its_centre_and_grows_with_the_step_time_error(
    batch: float, step_s: float, d_min: float, critical: CriticalBatch, error: float
) -> None:
    answer = TimeToAccuracy(batch, step_s, d_min, critical, error)
    wider = TimeToAccuracy(batch, step_s, d_min, critical, error + 0.1)
    assert answer.band_s[0] < answer.time_s < answer.band_s[1]
    assert wider.time_s == answer.time_s
    assert wider.band_s[0] < answer.band_s[0]
    assert wider.band_s[1] > answer.band_s[1]


runs = st.tuples(batch_sizes, step_times, errors)


@given(runs, runs, criticals)
def test_a_ratio_and_its_inverse_have_inverse_bands(
    one: tuple[float, float, float], other: tuple[float, float, float], critical: CriticalBatch
) -> None:
    a, b = (TimeToAccuracy(batch, step_s, 1e11, critical, error) for batch, step_s, error in (one, other))
    forward = a.ratio_to(b)
    backward = b.ratio_to(a)
    assert forward.low <= forward.typical * (1 + 1e-12)
    assert forward.typical <= forward.high * (1 + 1e-12)
    assert (forward.low, forward.high) == pytest.approx((1 / backward.high, 1 / backward.low))


@given(batch_sizes, batch_sizes, criticals, st.floats(0, 1))
def test_the_ratio_at_any_critical_batch_in_the_band_lies_in_the_ratio_band(
    batch_a: float, batch_b: float, critical: CriticalBatch, position: float
) -> None:
    other = TimeToAccuracy(batch_b, 1.0, 1e11, critical, 0.0)
    band = TimeToAccuracy(batch_a, 1.0, 1e11, critical, 0.0).ratio_to(other)
    low, high = critical.band_tokens
    b_crit = low * (high / low) ** position
    ratio = steps(batch_a, 1e11, b_crit) / steps(batch_b, 1e11, b_crit)
    assert band.low * (1 - 1e-9) <= ratio <= band.high * (1 + 1e-9)


@given(st.floats(0, 1), st.floats(1e2, 1e12), st.integers(4, 9))
def test_fit_finds_the_hyperbola_that_made_the_points(position: float, e_min: float, number: int) -> None:
    batches = [64.0 * 2**i for i in range(number)]
    b_crit = batches[0] * (batches[-1] / batches[0]) ** position
    fit = HyperbolaFit.of(batches, [e_min * (1 + batch / b_crit) for batch in batches])
    assert fit.b_crit == pytest.approx(b_crit, rel=1e-3)
    assert fit.e_min == pytest.approx(e_min, rel=1e-3)
    assert fit.examples(b_crit) == pytest.approx(2 * e_min, rel=1e-3)
    assert fit.rms_log == pytest.approx(0.0, abs=1e-4)
    assert fit.b_crit_interval[0] < b_crit < fit.b_crit_interval[1]


@given(st.sampled_from(list(LOSS_LAWS.values())), st.floats(0.5, 1), st.floats(0, 0.5))
def test_tokens_invert_the_loss_and_their_slope_is_the_derivative(law: LossLaw, x: float, y: float) -> None:
    """Of the larger models and fewer tokens of its runs, where tokens matter to the digits of a loss."""
    params, tokens = (low * (high / low) ** at for (low, high), at in ((law.params, x), (law.tokens, y)))
    loss = law.loss(params, tokens)
    assert law.tokens_to_loss(loss, params) == pytest.approx(tokens, rel=1e-6)
    fewer = law.tokens_to_loss(loss + 1e-6, params)
    slope = LossTarget(law, loss, params, tokens).slope
    assert slope == pytest.approx(1e6 * math.log(tokens / fewer), rel=1e-2)
