"""Time to a target: optimizer steps times step time, each with its band, and runs whose batch grows.

    TTA(B) = S(B) t_step(B),   S(B) = D_min (1/B + 1/B_crit)

Three errors combine in quadrature in log time: B_crit divided or multiplied by its band factor,
ln(1 + step_time_error) and ln(1 + d_min_error). Low and high ends are computed separately, because the
band of B_crit is not symmetric in time. All are 90 % bands of independent errors; `ratio_to` is for two
answers, which share B_crit, and on one machine a part of the step-time error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.errors import InputError
from perfsim.convergence.critical_batch import CriticalBatch, steps
from perfsim.convergence.uncertain import Spread

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
class EqualDevices:
    """A number of devices with its 90 % band; an end is None where no tried number reaches it."""

    low: float | None
    typical: float | None
    high: float | None

    @classmethod
    def of(cls, ratios: Sequence[tuple[int, Spread]]) -> Self:
        """Where a machine's time over a rival's is 1, from the ratios at ascending numbers of devices."""

        def crossing(end: str) -> float | None:
            logs = [math.log(getattr(band, end)) for _, band in ratios]
            at = next((place for place, ratio in enumerate(logs) if ratio <= 0), None)
            if not at:  # below the smallest number it is that number: fewer were not tried
                return None if at is None else float(ratios[0][0])
            # Between tried numbers the log of the ratio is linear in the log of the devices.
            fewer, more = (math.log(count) for count, _ in ratios[at - 1 : at + 1])
            return math.exp(np.interp(0.0, (logs[at], logs[at - 1]), (more, fewer)))

        return cls(crossing("low"), crossing("typical"), crossing("high"))


@dataclass(frozen=True, slots=True)
class RampPart:
    """A part of a run at another batch; all but the share are ratios to the values at the run's own batch.

    With the share s of the progress, batch B, critical batch B_crit and step time t of the part

        dS = s D_min (1 / B + 1 / B_crit),   dE = B dS,   dT = dS t

    which add up over a run (McCandlish et al. 2018, arXiv 1812.06162).
    """

    share: float
    """Of the progress: of the tokens that small batches would need."""
    batch: float = 1.0
    critical_batch: float = 1.0
    step_time: float = 1.0


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

    ramp: tuple[RampPart, ...] = ()
    """Parts at other batches; the batch itself makes what they leave of the progress."""

    def _steps(self, d_min_tokens: Any, b_crit_tokens: Any) -> Iterator[tuple[RampPart, Any]]:
        """The parts of the run with their steps; the last part is what the ramp leaves."""
        rest = 1.0 - sum(part.share for part in self.ramp)
        for part in (*self.ramp, RampPart(rest)) if rest > 0 else self.ramp:
            batch_tokens = part.batch * self.batch_tokens
            yield part, steps(batch_tokens, part.share * d_min_tokens, part.critical_batch * b_crit_tokens)

    def steps_s(self, d_min_tokens: float | Floats, b_crit_tokens: float | Floats) -> Any:
        """Seconds of the steps with other tokens to the target and another critical batch."""
        counts = self._steps(d_min_tokens, b_crit_tokens)
        return sum(part.step_time * count for part, count in counts) * self.step_time_s

    @property
    def examples_tokens(self) -> float:
        """Tokens to the target."""
        counts = self._steps(self.d_min_tokens, self.critical.tokens)
        return float(sum(part.batch * self.batch_tokens * count for part, count in counts))

    @property
    def steps(self) -> float:
        """Optimizer steps to the target."""
        return float(sum(count for _, count in self._steps(self.d_min_tokens, self.critical.tokens)))

    @property
    def time_s(self) -> float:
        """Seconds to the target, and of later phases."""
        return float(self.steps_s(self.d_min_tokens, self.critical.tokens)) + sum(self.later_s)

    @property
    def band_s(self) -> tuple[float, float]:
        """90 % band of the time, low and high."""
        low_crit, high_crit = self.critical.band_tokens
        # A given length has no error of the examples: every batch trains on the same tokens.
        least = 0.0 if self.critical.given_length else math.log1p(self.examples_error)
        down = max(-self.shift(high_crit), least)
        up = max(self.shift(low_crit), least)
        symmetric = (math.log1p(self.step_time_error), math.log1p(self.d_min_error))
        time_s = self.time_s
        return time_s * math.exp(-math.hypot(down, *symmetric)), time_s * math.exp(math.hypot(up, *symmetric))

    def shift(self, b_crit_tokens: float) -> float:
        """Logarithm of the steps' time at another critical batch over their time at its own."""
        return math.log(self.steps_s(1.0, b_crit_tokens) / self.steps_s(1.0, self.critical.tokens))

    @property
    def regime_text(self) -> str:
        """How much B_crit matters, as a sentence for a report."""
        if self.critical.given_length:
            return "a run of a given number of tokens, whatever its batch"
        fraction = self.batch_tokens / self.critical.tokens
        regime = "weak" if fraction < WEAK_BELOW else "strong" if fraction > STRONG_ABOVE else "moderate"
        extra = f"B is {fraction:.2f} B_crit, {100 * fraction:.0f} % extra samples"
        return f"{regime}: {extra}; {_REGIMES[regime]}"

    @property
    def ramp_text(self) -> str:
        """What a batch ramp changes, as a sentence for a report; empty without one."""
        if not self.ramp:
            return ""
        flat = replace(self, ramp=())
        steps_ratio = self.steps / flat.steps
        tokens_ratio = self.examples_tokens / flat.examples_tokens
        return (
            f"with its batch ramp the run takes {self.time_s / flat.time_s:.3f} times as long as at one "
            f"batch: {steps_ratio:.3f} times the steps, {tokens_ratio:.3f} times the tokens"
        )

    def ratio_to(self, other: TimeToAccuracy, *, same_machine: bool = False) -> Spread:
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
        shifts = [self.shift(b_crit) - other.shift(b_crit) for b_crit in ends]
        low = ratio * math.exp(-math.hypot(min(0.0, *shifts), step))
        high = ratio * math.exp(math.hypot(max(0.0, *shifts), step))
        return Spread(ratio, low, high)


def split_speedup(
    speedup: float, device_ratio: float, examples_small: float, examples_large: float
) -> tuple[float, float]:
    """Split a larger machine's loss of speedup into statistical (extra samples) and hardware (slower)."""
    # speedup = device ratio x hardware x statistical; 1 and 1 would be linear scaling.
    statistical = examples_small / examples_large
    return statistical, speedup / (device_ratio * statistical)
