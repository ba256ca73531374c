"""The verdict of a study: which candidate is fastest, by how much, and with what certainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfsim.convergence.time_to_accuracy import RatioBand, TimeToAccuracy, ratio_band
from perfsim.prediction.caveats import confidence, shared_caveats
from perfsim.studies.decision import time_unit, verb
from perfsim.studies.result import CandidateResult


@dataclass(frozen=True)
class Answer:
    """A candidate and its time to the target."""

    candidate: CandidateResult
    time: TimeToAccuracy


def verdict(answers: Sequence[Answer]) -> str:
    """One comparison sentence with a range, and the reason for the difference."""
    first, *others = sorted(answers, key=lambda answer: answer.time.time_s)
    reach = verb(first.candidate.num_devices, "reach", "reaches")
    alike = [answer.candidate.label for answer in others if _is_same_plan(answer, first)]
    same = f"; the same layout answers {', '.join(alike)}" if alike else ""
    unlike = [answer for answer in others if not _is_same_plan(answer, first)]
    if not unlike:
        unit, scale = time_unit(first.time.time_s)
        low, high = (bound / scale for bound in first.time.band_s)
        return (
            f"{first.candidate.label} {reach} the target in {first.time.time_s / scale:.1f} {unit} "
            f"({low:.1f} to {high:.1f}){same}{_trust(first)}."
        )
    rival = _rival(first, unlike)
    band = ratio_of(rival, first)
    certainty = same + ("" if band.decided else "; the range includes 1, so the order is not certain")
    certainty += _trust(first, rival)
    unit, scale = time_unit(first.time.time_s)
    return (
        f"{first.candidate.label} {reach} the target first, in {first.time.time_s / scale:.1f} {unit}: "
        f"{band.ratio:.2f} times ({band.low:.2f} to {band.high:.2f}) faster than "
        f"{rival.candidate.label} with {rival.time.time_s / scale:.1f} {unit}{certainty}. "
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
    if answer.time is first.time or _is_same_plan(answer, first):
        return RatioBand(1.0, 1.0, 1.0)
    same = answer.candidate.system == first.candidate.system
    return ratio_band(answer.time, first.time, same_machine=same)


def _trust(*compared: Answer) -> str:
    """The worst caveat of the candidates that the sentence names, as its last clause."""
    clause = confidence(shared_caveats([answer.candidate for answer in compared]))
    return f"; {clause}" if clause else ""


def _is_same_plan(answer: Answer, first: Answer) -> bool:
    """Whether two candidates run the same layout of the same machine on the same batch, in the same time."""
    fields = ("system", "num_devices", "global_batch_size", "layout", "step_time_s")
    plans = [tuple(getattr(own.candidate, name) for name in fields) for own in (answer, first)]
    return plans[0] == plans[1] and answer.time.time_s == first.time.time_s


def _rival(first: Answer, others: Sequence[Answer]) -> Answer:
    """The fastest of the others with another strategy or system, else the fastest of them."""
    own = (first.candidate.strategy, first.candidate.system)
    unlike = [answer for answer in others if (answer.candidate.strategy, answer.candidate.system) != own]
    return unlike[0] if unlike else others[0]


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
