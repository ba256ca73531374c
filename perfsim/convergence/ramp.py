"""A run whose batch grows: steps, tokens and seconds summed over segments of progress.

The hyperbola is exact at a fixed batch. A segment that makes the share s of the progress at batch B, with a
critical batch of its own, takes

    dS = s D_min (1 / B + 1 / B_crit),   dE = B dS,   dT = dS t_step(B)

(McCandlish et al. 2018, arXiv 1812.06162: steps and examples add up over a run.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfsim.convergence.hyperbola import steps
from perfsim.errors import InputError


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
