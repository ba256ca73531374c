"""A run whose batch grows: steps, tokens and seconds summed over segments of progress.

The hyperbola is exact at a fixed batch. A segment that makes the share s of the progress at batch B, with a
critical batch of its own, takes

    dS = s D_min (1 / B + 1 / B_crit),   dE = B dS,   dT = dS t_step(B)

(McCandlish et al. 2018, arXiv 1812.06162: steps and examples add up over a run.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfsim.base.errors import InputError
from perfsim.convergence.critical_batch import CriticalBatch, examples, overhead, steps, steps_for_tokens
from perfsim.convergence.uncertain import require_positive

# Time to a target: optimizer steps times step time, each with its band, and the batch that makes it least.
#
#     TTA(B) = S(B) t_step(B) / G,   S(B) = D_min (1/B + 1/B_crit),   G goodput
#
# Three errors combine in quadrature in log time: B_crit divided or multiplied by its band factor,
# ln(1 + step_time_error) and ln(1 + d_min_error). Low and high ends are computed separately, because the
# band of B_crit is not symmetric in time. All are 90 % bands of independent errors; `ratio_band` is for two
# answers, which share B_crit, and on one machine a part of the step-time error.

WEAK_BELOW = 0.2
STRONG_ABOVE = 0.5
LEAST_EXAMPLES_ERROR = 0.05
"""Least error of the examples: seeds alone scatter them by 4 % (median of MLPerf reference runs)."""

REGIME_TEXT = {
    "weak": "the batch costs few extra samples, whatever the critical batch is within its band",
    "moderate": "the batch costs extra samples; how many depends on the critical batch",
    "strong": "the batch costs many extra samples and the critical batch decides the answer: read the band",
}


@dataclass(frozen=True, slots=True)
class TimeToAccuracy:
    """Time of one machine to the target at one batch."""

    batch_tokens: float
    """Tokens of a step."""
    step_time_s: float
    d_min_tokens: float
    critical: CriticalBatch
    step_time_error: float
    """Relative half-width of the step time's 90 % band."""
    unshared_error: float
    """The part of the step-time error that remains in a ratio to another run of the same machine."""
    d_min_error: float
    examples_error: float
    """Least error of the examples, whatever the critical batch."""
    goodput: float

    @property
    def overhead(self) -> float:
        """E / E_min."""
        return overhead(self.batch_tokens, self.critical.tokens)

    @property
    def examples_tokens(self) -> float:
        """Tokens to the target."""
        return examples(self.batch_tokens, self.d_min_tokens, self.critical.tokens)

    @property
    def steps(self) -> float:
        """Optimizer steps to the target."""
        return steps_for_tokens(self.examples_tokens, self.batch_tokens)

    @property
    def time_s(self) -> float:
        """Seconds to the target."""
        return self.steps * self.step_time_s / self.goodput

    @property
    def band_s(self) -> tuple[float, float]:
        """90 % band of the time, low and high."""
        low_crit, high_crit = self.critical.band_tokens
        # A given length has no error of the examples: every batch trains on the same tokens.
        least = 0.0 if self.critical.given_length else math.log1p(self.examples_error)
        centre = math.log(self.overhead)
        down = max(centre - math.log(overhead(self.batch_tokens, high_crit)), least)
        up = max(math.log(overhead(self.batch_tokens, low_crit)) - centre, least)
        symmetric = (math.log1p(self.step_time_error), math.log1p(self.d_min_error))
        time_s = self.time_s
        return time_s * math.exp(-math.hypot(down, *symmetric)), time_s * math.exp(math.hypot(up, *symmetric))

    @property
    def regime(self) -> str:
        """What B_crit matters: weak (B below 0.2 B_crit), moderate, strong (above 0.5 B_crit)."""
        fraction = self.overhead - 1
        if fraction < WEAK_BELOW:
            return "weak"
        return "strong" if fraction > STRONG_ABOVE else "moderate"

    @property
    def batch_over_critical(self) -> float:
        """B / B_crit."""
        return self.batch_tokens / self.critical.tokens

    @property
    def regime_text(self) -> str:
        """The regime as a sentence for a report."""
        if self.critical.given_length:
            return "a run of a given number of tokens, whatever its batch"
        extra = 100 * (self.overhead - 1)
        return (
            f"{self.regime}: B is {self.batch_over_critical:.2f} B_crit, {extra:.0f} % extra samples; "
            + REGIME_TEXT[self.regime]
        )


@dataclass(frozen=True, slots=True)
class RatioBand:
    """TTA of one machine over another's, with its 90 % band."""

    ratio: float
    low: float
    high: float

    @property
    def decided(self) -> bool:
        """True if the whole band is on one side of 1."""
        return self.low > 1 or self.high < 1


@dataclass(frozen=True, slots=True)
class _SpeedupSplit:
    """speedup = device ratio x hardware x statistical; 1 and 1 would be linear scaling."""

    statistical: float
    """E of the small run over E of the large one."""
    hardware: float
    """Throughput per device of the large run over that of the small one."""


def time_to_accuracy(
    batch_tokens: float,
    step_time_s: float,
    d_min_tokens: float,
    critical: CriticalBatch,
    step_time_error: float,
    goodput: float = 1.0,
    d_min_error: float = 0.0,
    unshared_error: float | None = None,
    examples_error: float = LEAST_EXAMPLES_ERROR,
) -> TimeToAccuracy:
    """Steps, examples and seconds to the target, with the 90 % band that the module describes.

    `step_time_error` and `d_min_error` are relative half-widths of 90 % bands (0.12 for 12 %). With the
    default `d_min_error` the band is for a *given* D_min; a D_min from a target loss is far less certain.
    `unshared_error` is the part of `step_time_error` that other runs of the same machine do not have; by
    default all of it.
    """
    errors = {
        "step_time_error": step_time_error,
        "unshared_error": step_time_error if unshared_error is None else unshared_error,
        "d_min_error": d_min_error,
    }
    require_positive(step_time_s=step_time_s, batch=batch_tokens, d_min_tokens=d_min_tokens)
    if not 0 < goodput <= 1:
        raise InputError(f"goodput must lie above 0 and at most at 1, got {goodput:g}")
    for name, error in errors.items():
        if not (math.isfinite(error) and error >= 0):
            raise InputError(f"{name} must be a fraction of at least 0, got {error:g}")
    return TimeToAccuracy(
        batch_tokens=batch_tokens,
        step_time_s=step_time_s,
        d_min_tokens=d_min_tokens,
        critical=critical,
        **errors,
        examples_error=examples_error,
        goodput=goodput,
    )


def examples_shift(time: TimeToAccuracy, b_crit_tokens: float) -> float:
    """Logarithm of the examples at another critical batch over those at its own."""
    return math.log(overhead(time.batch_tokens, b_crit_tokens) / time.overhead)


def ratio_band(a: TimeToAccuracy, b: TimeToAccuracy, *, same_machine: bool = False) -> RatioBand:
    """TTA_a / TTA_b and its 90 % band: the headline number of a comparison.

    D_min cancels. Both share the same unknown B_crit, so its error is the change of (1 + B_a/B_crit) /
    (1 + B_b/B_crit) over its band: zero at equal batch. The two step-time errors are independent; of the
    `same_machine` they share a part that cancels, and `unshared_error` is left. Errors combine in quadrature
    in log time. Seed noise is left out, since expected times are compared. InputError if targets or laws
    differ.
    """
    if a.critical != b.critical or a.d_min_tokens != b.d_min_tokens:
        raise InputError("two times to accuracy compare only at one target and one critical batch")
    ratio = a.time_s / b.time_s
    errors = (time.unshared_error if same_machine else time.step_time_error for time in (a, b))
    step = math.hypot(*(math.log1p(error) for error in errors))
    centre = _log_overhead_ratio(a, b, a.critical.tokens)
    shifts = [_log_overhead_ratio(a, b, b_crit) - centre for b_crit in a.critical.band_tokens]
    return RatioBand(
        ratio,
        ratio * math.exp(-math.hypot(min(0.0, *shifts), step)),
        ratio * math.exp(math.hypot(max(0.0, *shifts), step)),
    )


def _log_overhead_ratio(a: TimeToAccuracy, b: TimeToAccuracy, b_crit: float) -> float:
    return math.log(overhead(a.batch_tokens, b_crit) / overhead(b.batch_tokens, b_crit))


def split_speedup(
    speedup: float, device_ratio: float, examples_small: float, examples_large: float
) -> _SpeedupSplit:
    """Split a larger machine's loss of speedup into extra samples and slower devices."""
    require_positive(
        speedup=speedup,
        device_ratio=device_ratio,
        examples_small=examples_small,
        examples_large=examples_large,
    )
    statistical = examples_small / examples_large
    return _SpeedupSplit(statistical, speedup / (device_ratio * statistical))


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a run at one batch."""

    share: float
    """Of the progress: of the tokens that small batches would need."""
    batch_tokens: float
    step_time_s: float
    b_crit_tokens: float


@dataclass(frozen=True, slots=True)
class RampedRun:
    """A whole run over its segments."""

    steps: float
    examples_tokens: float
    time_s: float


def ramped(segments: Sequence[Segment], d_min_tokens: float) -> RampedRun:
    """The run that these segments make. InputError unless their shares sum to 1."""
    if abs(sum(segment.share for segment in segments) - 1.0) > 1e-9:
        raise InputError(
            f"the segments of a ramp sum to {sum(s.share for s in segments):g} of the run, not 1"
        )
    counts = [
        segment.share * steps(segment.batch_tokens, d_min_tokens, segment.b_crit_tokens)
        for segment in segments
    ]
    pairs = list(zip(counts, segments, strict=True))
    return RampedRun(
        steps=sum(counts),
        examples_tokens=sum(count * segment.batch_tokens for count, segment in pairs),
        time_s=sum(count * segment.step_time_s for count, segment in pairs),
    )
