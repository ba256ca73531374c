"""The verdict of a study: which candidate is fastest, by how much, and with what certainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfsim.convergence.time_to_accuracy import RatioBand, TimeToAccuracy, ratio_band
from perfsim.prediction.shared_caveats import confidence, shared_caveats
from perfsim.studies.result import CandidateResult
from perfsim.units import DAY_S


@dataclass(frozen=True)
class Answer:
    """A candidate and its time to the target."""

    candidate: CandidateResult
    time: TimeToAccuracy


def verdict(answers: Sequence[Answer]) -> str:
    """One comparison sentence with a range, and the reason for the difference."""
    ranked = sorted(answers, key=lambda answer: answer.time.time_s)
    first = ranked[0]
    if len(ranked) == 1:
        low, high = (bound / DAY_S for bound in first.time.band_s)
        return (
            f"{first.candidate.label} reaches the target in {first.time.time_s / DAY_S:.1f} days "
            f"({low:.1f} to {high:.1f}){_trust(first)}."
        )
    rival = _rival(ranked)
    band = ratio_of(rival, first)
    certainty = "" if band.decided else "; the range includes 1, so the order is open"
    certainty += _trust(first, rival)
    return (
        f"{first.candidate.label} reaches the target first, in {first.time.time_s / DAY_S:.1f} days: "
        f"{band.ratio:.2f} times ({band.low:.2f} to {band.high:.2f}) faster than "
        f"{rival.candidate.label} with {rival.time.time_s / DAY_S:.1f} days{certainty}. "
        f"Why: {_reason(first, rival)}."
    )


def ratio_bands(answers: Sequence[Answer]) -> dict[str, tuple[float, float]]:
    """By candidate label, the 90 % band of the ratio of its time to the fastest candidate's."""
    first = min(answers, key=lambda answer: answer.time.time_s)
    bands = {}
    for answer in answers:
        band = ratio_of(answer, first)
        bands[answer.candidate.label] = (band.low, band.high)
    return bands


def ratio_of(answer: Answer, first: Answer) -> RatioBand:
    """The 90 % band of the ratio of two times; on one system a part of the step-time error cancels."""
    if answer.time is first.time:
        return RatioBand(1.0, 1.0, 1.0)
    same = answer.candidate.system == first.candidate.system
    return ratio_band(answer.time, first.time, same_machine=same)


def _trust(*compared: Answer) -> str:
    """The worst caveat of the candidates that the sentence names, as its last clause."""
    clause = confidence(shared_caveats([answer.candidate for answer in compared]))
    return f"; {clause}" if clause else ""


def _rival(ranked: Sequence[Answer]) -> Answer:
    """The fastest candidate with another strategy or system, else the second fastest."""
    first = ranked[0].candidate
    unlike = [
        answer
        for answer in ranked[1:]
        if (answer.candidate.strategy, answer.candidate.system) != (first.strategy, first.system)
    ]
    return unlike[0] if unlike else ranked[1]


def _tokens(samples: float) -> str:
    """How many times fewer or more tokens the first candidate needs."""
    if round(samples, 2) == 1.0:
        return "as many tokens"
    return f"{samples:.2f} times fewer tokens" if samples > 1 else f"{1 / samples:.2f} times more tokens"


def _reason(first: Answer, rival: Answer) -> str:
    """The ratio of times split into throughput and samples."""
    throughput = first.candidate.tokens_per_s / rival.candidate.tokens_per_s
    samples = rival.time.examples_tokens / first.time.examples_tokens
    return (
        f"{throughput:.2f} times its tokens a second (MFU {100 * first.candidate.mfu:.0f} % against "
        f"{100 * rival.candidate.mfu:.0f} %) and {_tokens(samples)} to the target "
        f"(batch {first.time.batch_tokens / 1e6:.1f} M against {rival.time.batch_tokens / 1e6:.1f} M tokens)"
    )
