"""The sentence that ends a study, and the bands of ratios beside it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perfsim.base.units import DAY_S
from perfsim.convergence.critical_batch import CriticalBatch
from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.prediction.why import Why
from perfsim.studies.answers import CandidateResult
from perfsim.studies.decision import ratio_bands, verdict

CRITICAL = CriticalBatch(1e7, 2.0, "constant", "a test")
OPEN = "the range includes 1, so the order is not certain"


def answer(
    days: float,
    *,
    strategy: str = "3d",
    system: str = "gpus",
    devices: int = 8,
    batch_tokens: float = 1e6,
    error: float = 0.05,
) -> CandidateResult:
    """A machine that needs about so many days: its step time is chosen to that end."""
    unit = TimeToAccuracy(batch_tokens, 1.0, 1e11, CRITICAL, error)
    step_s = days * DAY_S / unit.time_s
    time = TimeToAccuracy(batch_tokens, step_s, 1e11, CRITICAL, error, unshared_error=error / 2)
    fields: dict[str, Any] = {
        "model": "toy",
        "why": Why("compute", {}, "", ""),
        "strategy": strategy,
        "system": system,
        "num_devices": devices,
        "machine": f"{devices} {system}",
        "devices_noun": system,
        "layout": {},
        "global_batch_size": 1,
        "step_time_s": step_s,
        "tokens_per_s": batch_tokens / step_s,
        "mfu": 0.4,
        "hfu": 0.4,
        "bubble_fraction": 0.0,
        "exposed_communication_fraction": 0.0,
        "peak_memory_bytes": 1.0,
        "time": time,
        "breakdown_s": {},
        "memory": (),
        "batch_curve": (),
        "timeline": (),
    }
    return CandidateResult(**fields)


def wafers(days: float, devices: int = 1, **changes: Any) -> CandidateResult:
    return answer(days, strategy="weight-streaming", system="wafers", devices=devices, **changes)


def test_one_candidate_is_told_with_its_band() -> None:
    alone = answer(10.0)
    low, high = (bound / DAY_S for bound in alone.time.band_s)
    assert verdict([alone]) == f"8 gpus, 3d reach the target in 10.0 days ({low:.1f} to {high:.1f})."


def test_of_two_the_sooner_leads_with_ratio_range_and_reason() -> None:
    said = verdict([answer(30.0), wafers(10.0)])
    assert said.startswith(
        "1 wafers, weight-streaming reaches the target first, in 10.0 days: 3.00 times (2.80 to 3.21) "
        "faster than 8 gpus, 3d with 30.0 days. Why: 3.00 times its tokens a second"
    )
    assert OPEN not in said


def test_the_reason_multiplies_up_to_the_ratio() -> None:
    slow = answer(30.0, batch_tokens=8e6)
    fast = wafers(10.0, batch_tokens=5e5)
    said = verdict([slow, fast])
    samples = slow.time.examples_tokens / fast.time.examples_tokens
    throughput = fast.tokens_per_s / slow.tokens_per_s
    assert throughput * samples == pytest.approx(3.0)
    assert f"{throughput:.2f} times its tokens a second" in said
    assert f"{samples:.2f} times fewer tokens to the target (batch 0.5 M against 8.0 M tokens)" in said


def test_a_range_that_includes_1_leaves_the_order_open() -> None:
    assert OPEN in verdict([answer(10.2), wafers(10.0)])
    assert OPEN not in verdict([answer(10.2, error=0.001), wafers(10.0, error=0.001)])


def test_one_layout_that_answers_several_strategies_is_no_race() -> None:
    zero3 = answer(10.0, strategy="zero3")
    said = verdict([answer(10.0), zero3])
    assert OPEN not in said
    assert "faster" not in said
    assert said.endswith("; the same layout answers 8 gpus, zero3.")
    assert ratio_bands([answer(10.0), zero3])["8 gpus, zero3"] == (1.0, 1.0)
    said = verdict([answer(10.0), zero3, wafers(20.0)])
    assert (
        "faster than 1 wafers, weight-streaming with 20.0 days; the same layout answers 8 gpus, zero3" in said
    )


def test_the_rival_is_another_machine_where_there_is_one() -> None:
    said = verdict([answer(40.0), wafers(10.0, 16), wafers(12.0, 8)])
    assert said.startswith("16 wafers")
    assert "faster than 8 gpus, 3d with 40.0 days" in said


def test_two_sizes_of_one_machine_share_a_part_of_the_error_of_their_step_time() -> None:
    answers = [wafers(12.0, 8, error=0.3), wafers(10.0, 16, error=0.3), answer(13.0, error=0.3)]
    bands = ratio_bands(answers)
    assert bands["16 wafers, weight-streaming"] == (1.0, 1.0), "the fastest beside itself"
    low, high = bands["8 wafers, weight-streaming"]
    unshared = math.exp(math.sqrt(2) * math.log1p(0.15))
    assert (low, high) == pytest.approx((1.2 / unshared, 1.2 * unshared))
    other_low, other_high = bands["8 gpus, 3d"]
    assert 1 < high / low < other_high / other_low


def test_ratio_bands_do_not_depend_on_the_order_asked() -> None:
    answers = [answer(30.0), wafers(10.0), wafers(20.0, 2, batch_tokens=4e6)]
    assert ratio_bands(answers) == ratio_bands(answers[::-1])
    assert verdict(answers) == verdict(answers[::-1])
