"""Runs whose batch grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.base.errors import InputError
from perfsim.convergence.critical_batch import examples, steps
from perfsim.convergence.time_to_accuracy import RampedRun, Segment

SHARES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6)


@given(SHARES, st.floats(1e4, 1e8), st.floats(1e5, 1e8))
def test_a_flat_ramp_is_no_ramp(weights: list[float], batch: float, b_crit: float) -> None:
    segments = [Segment(weight / sum(weights), batch, 3.0, b_crit) for weight in weights]
    run = RampedRun.of(segments, 4e11)
    assert run.steps == pytest.approx(steps(batch, 4e11, b_crit), rel=1e-9)
    assert run.examples_tokens == pytest.approx(examples(batch, 4e11, b_crit), rel=1e-9)
    assert run.time_s == pytest.approx(3.0 * run.steps, rel=1e-9)


@given(SHARES, st.floats(1e4, 1e8))
def test_smaller_batches_take_more_steps_and_fewer_tokens(weights: list[float], batch: float) -> None:
    whole = sum(weights) + 1.0
    small = [Segment(weight / whole, batch / 4, 1.0, 1e7) for weight in weights]
    run = RampedRun.of([*small, Segment(1 / whole, batch, 3.0, 1e7)], 4e11)
    fixed = [Segment(1.0, batch, 3.0, 1e7)]
    assert run.steps > RampedRun.of(fixed, 4e11).steps
    assert run.examples_tokens < RampedRun.of(fixed, 4e11).examples_tokens


def test_a_critical_batch_that_grows_is_summed_part_by_part() -> None:
    run = RampedRun.of([Segment(0.5, 1e6, 2.0, 1e6), Segment(0.5, 4e6, 5.0, 4e6)], 1e10)
    assert run.steps == pytest.approx(0.5 * 2e4 + 0.5 * 5e3)
    assert run.time_s == pytest.approx(0.5 * 2e4 * 2 + 0.5 * 5e3 * 5)


def test_segments_that_are_no_whole_run_are_refused() -> None:
    with pytest.raises(InputError, match=r"sum to 0\.9 of the run"):
        RampedRun.of([Segment(0.9, 1e6, 1.0, 1e7)], 1e10)
