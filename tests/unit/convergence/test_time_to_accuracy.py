"""Time to accuracy, its band, the comparison of two machines, and runs whose batch grows."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.base.errors import InputError
from perfsim.convergence.critical_batch import CriticalBatch
from perfsim.convergence.time_to_accuracy import RampPart, TimeToAccuracy, split_speedup

CRITICAL = CriticalBatch(2e7, 2.5, "constant", "test")
CERTAIN = CriticalBatch(2e7, 1.0, "constant", "test")


def at(
    batch: float, step_time_s: float = 1.0, step_time_error: float = 0.0, **changes: Any
) -> TimeToAccuracy:
    fields = {"d_min_tokens": 4e11, "critical": CRITICAL, **changes}
    return TimeToAccuracy(batch, step_time_s, step_time_error=step_time_error, **fields)


def test_time_is_steps_times_step_time() -> None:
    answer = at(2e7, 3.0)
    assert answer.steps == pytest.approx(4e4)
    assert answer.examples_tokens == pytest.approx(8e11)
    assert answer.time_s == pytest.approx(4e4 * 3.0)


# By how much a critical batch 2.5 times larger or smaller moves the examples, by B / B_crit.
@pytest.mark.parametrize(
    ("fraction", "down", "up"),
    [(0.1, 0.05, 0.14), (0.2, 0.10, 0.25), (0.5, 0.20, 0.50), (1.0, 0.30, 0.75), (2.0, 0.40, 1.00)],
)
def test_band_of_the_critical_batch_alone(fraction: float, down: float, up: float) -> None:
    answer = at(fraction * CRITICAL.tokens)
    ends = [end / answer.time_s for end in answer.band_s]
    assert ends == pytest.approx([1 - down, 1 + up], abs=6e-3)


def test_widths_combine_in_quadrature_in_log_time_and_are_never_narrower_than_seed_noise() -> None:
    for step, tokens in ((0.0, 0.0), (0.12, 0.2)):
        answer = at(1e5, 1.0, step, critical=CERTAIN, d_min_error=tokens)
        width = math.hypot(math.log(1.05), math.log(1 + step), math.log(1 + tokens))
        assert [math.log(end / answer.time_s) for end in answer.band_s] == pytest.approx([-width, width])


@pytest.mark.parametrize(
    ("fraction", "regime"), [(0.05, "weak"), (0.21, "moderate"), (0.49, "moderate"), (0.51, "strong")]
)
def test_regime_by_batch_over_critical(fraction: float, regime: str) -> None:
    answer = at(fraction * CRITICAL.tokens)
    extra = f"{100 * fraction:.0f} % extra samples"
    assert answer.regime_text.startswith(f"{regime}: B is {fraction:.2f} B_crit, {extra}")


def test_a_ratio_spans_the_ends_of_the_shared_critical_batch_which_says_nothing_at_an_equal_batch() -> None:
    equal = at(1e7, 2.0).ratio_to(at(1e7, 1.0))
    assert (equal.low, equal.typical, equal.high) == pytest.approx((2.0, 2.0, 2.0))
    band = at(2e7).ratio_to(at(2e6))
    ends = [(1 / 2e7 + 1 / b_crit) / (1 / 2e6 + 1 / b_crit) for b_crit in (2e7 / 2.5, 2e7 * 2.5)]
    assert (band.low, band.high) == pytest.approx((min(ends), max(ends)))
    assert band.low < band.typical < band.high


def test_independent_step_time_errors_combine_in_quadrature() -> None:
    band = at(1e7, 1.0, 0.1).ratio_to(at(1e7, 1.0, 0.2))
    width = math.hypot(math.log(1.1), math.log(1.2))
    assert (math.log(band.low), math.log(band.high)) == pytest.approx((-width, width))


@pytest.mark.parametrize("changes", [{"critical": CERTAIN}, {"d_min_tokens": 1e11}])
def test_ratio_of_different_targets_or_laws_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="one target and one critical batch"):
        at(1e7).ratio_to(at(1e7, **changes))


# MLPerf v1.1 against the smallest NVIDIA system: speedup, GPU ratio, samples or epochs, printed efficiencies.
@pytest.mark.parametrize(
    ("speedup", "devices", "small", "large", "statistical", "hardware"),
    [
        (20.003 / 0.22622, 540, 2775225, 4624128, 0.600, 0.273),
        (8.2583 / 0.4542, 128, 51.0, 75.0, 0.680, 0.209),
        (10.198 / 0.84764, 64, 2.2, 5.1, 0.431, 27.9 / 64),  # more was lost to samples than to hardware
    ],
    ids=["bert", "ssd", "transformer"],
)
def test_split_of_published_speedups(
    speedup: float, devices: float, small: float, large: float, statistical: float, hardware: float
) -> None:
    split = split_speedup(speedup, devices, small, large)
    assert split == pytest.approx((statistical, hardware), abs=6e-4)
    assert devices * math.prod(split) == pytest.approx(speedup)


SHARES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6)


@given(SHARES, st.floats(1e4, 1e8), st.floats(1e5, 1e8))
def test_a_flat_ramp_is_no_ramp(weights: list[float], batch: float, b_crit: float) -> None:
    flat = at(batch, 3.0, 0.1, critical=CriticalBatch(b_crit, 2.5, "constant", "test"))
    run = replace(flat, ramp=tuple(RampPart(weight / sum(weights)) for weight in weights[1:]))
    assert run.steps == pytest.approx(flat.steps, rel=1e-9)
    assert run.examples_tokens == pytest.approx(flat.examples_tokens, rel=1e-9)
    assert run.time_s == pytest.approx(3.0 * run.steps, rel=1e-9)
    assert run.band_s == pytest.approx(flat.band_s, rel=1e-9)


def test_a_critical_batch_that_grows_is_summed_part_by_part_of_a_whole_run() -> None:
    critical = CriticalBatch(4e6, 1.0, "constant", "test")
    run = at(4e6, 5.0, critical=critical, d_min_tokens=1e10, ramp=(RampPart(0.5, 0.25, 0.25, 0.4),))
    assert run.steps == pytest.approx(0.5 * 2e4 + 0.5 * 5e3)
    assert run.examples_tokens == pytest.approx(0.5 * 2e4 * 1e6 + 0.5 * 5e3 * 4e6)
    assert run.time_s == pytest.approx(0.5 * 2e4 * 2 + 0.5 * 5e3 * 5)
    assert run.shift(math.inf) == pytest.approx(math.log(0.5))  # each part is at its critical batch
