"""Time to a target: optimizer steps times step time, each with its band, and runs whose batch grows.

    TTA(B) = S(B) t_step(B),   S(B) = D_min (1/B + 1/B_crit)

Three errors combine in quadrature in log time: B_crit divided or multiplied by its band factor,
ln(1 + step_time_error) and ln(1 + d_min_error). Low and high ends are computed separately, because the
band of B_crit is not symmetric in time. All are 90 % bands of independent errors; `ratio_to` is for two
answers, which share B_crit, and on one machine a part of the step-time error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from perfsim.base.errors import InputError
from perfsim.convergence.critical_batch import CriticalBatch, examples, steps

WEAK_BELOW = 0.2
STRONG_ABOVE = 0.5
LEAST_EXAMPLES_ERROR = 0.05
"""Least error of the examples: seeds alone scatter them by 4 % (median of MLPerf reference runs)."""

_REGIMES = {
    "weak": "the batch costs few extra samples, whatever the critical batch is within its band",
    "moderate": "the batch costs extra samples; how many depends on the critical batch",
    "strong": "the batch costs many extra samples and the critical batch decides the answer: read the band",
}
"""What the critical batch matters, by regime."""


@dataclass(frozen=True, slots=True)
class RatioBand:
    """TTA of one machine over another's, with its 90 % band."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class EqualDevices:
    """A number of devices with its 90 % band; an end is None where no tried number reaches it."""

    low: float | None
    typical: float | None
    high: float | None

    @classmethod
    def of(cls, ratios: Sequence[tuple[int, RatioBand]]) -> Self:
        """Where a machine's time over a rival's is 1, from the ratios at ascending numbers of devices."""

        def crossing(end: str) -> float | None:
            logs = [math.log(getattr(band, end)) for _, band in ratios]
            at = next((place for place, ratio in enumerate(logs) if ratio <= 0), None)
            if not at:  # below the smallest number it is that number: fewer were not tried
                return None if at is None else float(ratios[0][0])
            # Between tried numbers the log of the ratio is linear in the log of the devices.
            fewer, more = (math.log(count) for count, _ in ratios[at - 1 : at + 1])
            return math.exp(np.interp(0.0, (logs[at], logs[at - 1]), (more, fewer)))

        return cls(crossing("low"), crossing("ratio"), crossing("high"))


@dataclass(frozen=True, slots=True)
class TimeToAccuracy:
    """Time of one machine to the target at one batch; times and tokens are positive."""

    batch_tokens: float
    """Tokens of a step."""
    step_time_s: float
    d_min_tokens: float
    critical: CriticalBatch
    step_time_error: float
    """Half-width of the step time's 90 % band, as a fraction (0.12 for 12 %)."""
    unshared_error: float = math.inf
    """The part of it that remains in a ratio to another run of the same machine; at most all."""
    d_min_error: float = 0.0
    """Half-width of the 90 % band of D_min, as a fraction; 0 where D_min is given and comes from no loss."""
    examples_error: float = LEAST_EXAMPLES_ERROR
    """Least error of the examples, whatever the critical batch."""
    later_s: tuple[float, ...] = ()
    """Seconds of each later phase, of tokens that are given."""

    @property
    def examples_tokens(self) -> float:
        """Tokens to the target."""
        return examples(self.batch_tokens, self.d_min_tokens, self.critical.tokens)

    @property
    def steps(self) -> float:
        """Optimizer steps to the target."""
        return steps(self.batch_tokens, self.d_min_tokens, self.critical.tokens)

    @property
    def time_s(self) -> float:
        """Seconds to the target, and of later phases."""
        return self.steps * self.step_time_s + sum(self.later_s)

    @property
    def band_s(self) -> tuple[float, float]:
        """90 % band of the time, low and high."""
        low_crit, high_crit = self.critical.band_tokens
        # A given length has no error of the examples: every batch trains on the same tokens.
        least = 0.0 if self.critical.given_length else math.log1p(self.examples_error)
        down = max(-self.examples_shift(high_crit), least)
        up = max(self.examples_shift(low_crit), least)
        symmetric = (math.log1p(self.step_time_error), math.log1p(self.d_min_error))
        time_s = self.time_s
        return time_s * math.exp(-math.hypot(down, *symmetric)), time_s * math.exp(math.hypot(up, *symmetric))

    def examples_shift(self, b_crit_tokens: float) -> float:
        """Logarithm of the examples at another critical batch over those at its own."""
        there, here = (examples(self.batch_tokens, 1.0, b) for b in (b_crit_tokens, self.critical.tokens))
        return math.log(there / here)

    @property
    def regime_text(self) -> str:
        """How much B_crit matters, as a sentence for a report."""
        if self.critical.given_length:
            return "a run of a given number of tokens, whatever its batch"
        fraction = self.batch_tokens / self.critical.tokens
        regime = "weak" if fraction < WEAK_BELOW else "strong" if fraction > STRONG_ABOVE else "moderate"
        extra = f"B is {fraction:.2f} B_crit, {100 * fraction:.0f} % extra samples"
        return f"{regime}: {extra}; {_REGIMES[regime]}"

    def ratio_to(self, other: TimeToAccuracy, *, same_machine: bool = False) -> RatioBand:
        """Its time over another one with the 90 % band; InputError if targets or laws differ."""
        if self.critical != other.critical or self.d_min_tokens != other.d_min_tokens:
            raise InputError("two times to accuracy compare only at one target and one critical batch")
        # D_min cancels. Both share the same unknown B_crit, so its error is the change of (1 + B_a/B_crit) /
        # (1 + B_b/B_crit) over its band: zero at equal batch. The step-time errors are independent; of the
        # `same_machine` they share a part that cancels, and `unshared_error` is left. Errors combine in
        # quadrature in log time. Expected times have no seed noise.
        ratio = self.time_s / other.time_s
        errors = (
            min(time.unshared_error if same_machine else math.inf, time.step_time_error)
            for time in (self, other)
        )
        step = math.hypot(*(math.log1p(error) for error in errors))
        ends = self.critical.band_tokens
        shifts = [self.examples_shift(b_crit) - other.examples_shift(b_crit) for b_crit in ends]
        low = ratio * math.exp(-math.hypot(min(0.0, *shifts), step))
        high = ratio * math.exp(math.hypot(max(0.0, *shifts), step))
        return RatioBand(ratio, low, high)


def split_speedup(
    speedup: float, device_ratio: float, examples_small: float, examples_large: float
) -> tuple[float, float]:
    """Split a larger machine's loss of speedup into statistical (extra samples) and hardware (slower)."""
    # speedup = device ratio x hardware x statistical; 1 and 1 would be linear scaling.
    statistical = examples_small / examples_large
    return statistical, speedup / (device_ratio * statistical)


@dataclass(frozen=True, slots=True)
class RampedRun:
    """A run whose batch grows.

    The hyperbola is exact at a fixed batch. A part that makes the share s of the progress at batch B, with a
    critical batch of its own, takes

        dS = s D_min (1 / B + 1 / B_crit),   dE = B dS,   dT = dS t_step(B)

    (McCandlish et al. 2018, arXiv 1812.06162: steps and examples add up over a run.)
    """

    steps: float
    examples_tokens: float
    time_s: float

    @classmethod
    def of(cls, parts: Iterable[tuple[float, float, float, float]]) -> Self:
        """Parts one after the other: progress, batch, seconds a step, critical batch; tokens otherwise."""
        counts = [(steps(batch, d_min, b_crit), batch, step_s) for d_min, batch, step_s, b_crit in parts]
        number = sum(count for count, *_ in counts)
        tokens = sum(count * batch for count, batch, _ in counts)
        return cls(number, tokens, sum(count * step_s for count, _, step_s in counts))
