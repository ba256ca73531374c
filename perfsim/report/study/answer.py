"""The head of a study's page: one sentence, how sure it is, intervals of all, three differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfsim.prediction.shared_caveats import confidence
from perfsim.report import text
from perfsim.report.scale import Row, scale_of
from perfsim.report.sections import Badge, Card, Scale
from perfsim.report.study.verdict import ratios_to_first
from perfsim.studies.decided import Outcome
from perfsim.studies.decision_words import amount, verb
from perfsim.studies.result import CandidateResult, StudyResult

COMPUTING = ("forward", "backward", "compute")
SAME = 0.02
"""Differences below this share are not worth a card."""


def headline(result: StudyResult) -> str:
    """Who is first and when, and how many times as long the next machine takes; empty where none arrives."""
    pair = first_and_rival(result)
    if pair is None:
        return ""
    first, rival = pair
    names = names_of(result)
    unit, scale = _unit(result)
    low, middle, high = (
        text.number(end / scale)
        for end in (
            first.time_to_accuracy_band_s[0], first.time_to_accuracy_s, first.time_to_accuracy_band_s[1],
        )
    )  # fmt: skip
    time = f"{middle} {unit} ({low} to {high})"
    if rival is None:
        return f"{names[id(first)]} {verb(first.num_devices, 'reach', 'reaches')} the target in {time}."
    least, most = result.ratio_bands.get(rival.label, (math.nan, math.nan))
    ratio = rival.time_to_accuracy_s / first.time_to_accuracy_s
    open_order = ", so the order is not certain" if least <= 1 else ""
    return (
        f"{names[id(first)]} {verb(first.num_devices, 'finish', 'finishes')} first, in {time}. "
        f"{names[id(rival)]} {verb(rival.num_devices, 'take', 'takes')} {ratio:.2f} times as long "
        f"({least:.2f} to {most:.2f}){open_order}."
    )


def names_of(result: StudyResult) -> dict[int, str]:
    """The short name of each candidate, by its identity."""
    return dict(zip(map(id, result.candidates), text.names(result.candidates), strict=True))


def _unit(result: StudyResult) -> tuple[str, float]:
    """The unit of all times to the target, with its seconds."""
    return text.time_unit(own.time_to_accuracy_s for own in result.candidates)


def shortened(words: str, result: StudyResult) -> str:
    """Words in which candidates have their short names."""
    labels, names = text.labels(result.candidates), text.names(result.candidates)
    for label, name in sorted(zip(labels, names, strict=True), key=lambda pair: -len(pair[0])):
        words = words.replace(label, name)
    return words


def first_and_rival(result: StudyResult) -> tuple[CandidateResult, CandidateResult | None] | None:
    """The fastest candidate, and the fastest on another machine or with another strategy, else the next."""
    arriving = [own for own in result.candidates if math.isfinite(own.time_to_accuracy_s)]
    if not arriving:
        return None
    first, *others = sorted(arriving, key=lambda own: own.time_to_accuracy_s)
    unlike = [own for own in others if (own.system, own.strategy) != (first.system, first.strategy)]
    return first, next(iter([*unlike, *others]), None)


def badge(result: StudyResult) -> Badge | None:
    """How much to trust the answer, with the worst reason; None where no caveat is more than information."""
    said = confidence(result.caveats)
    if not said:
        return None
    return Badge("serious" if said.startswith("low") else "warning", f"{said[0].upper()}{said[1:]}")


def intervals(result: StudyResult) -> Scale | None:
    """All candidates, fastest first, on one logarithmic scale of time to the target."""
    unit, scale = _unit(result)
    outcomes = result.decision.outcomes if result.decision else ()
    currency = result.decision.currency if result.decision else ""
    notes = [_extra(outcome, currency, unit, scale) for outcome in outcomes]
    extra = dict(zip(text.labels(result.candidates), notes, strict=False))
    names = dict(zip(text.labels(result.candidates), text.names(result.candidates), strict=True))
    return scale_of(
        [
            Row(names[own.name], own.time_s, own.band_s, own.is_first, extra.get(own.name, ""))
            for own in ratios_to_first(result)
        ]
    )


def _extra(outcome: Outcome, currency: str, unit: str, scale: float) -> str:
    """What else a candidate takes: time on the wall, and money where prices are given."""
    wall = f"{text.number(outcome.wall_s.typical / scale)} {unit} on the wall"
    money = "" if outcome.money is None else amount(outcome.money, currency)
    return "; ".join(filter(None, [wall, money]))


def differences(result: StudyResult) -> Sequence[Card]:
    """What explains the ratio of the first two: speed, tokens, and the largest wait of the slower one."""
    pair = first_and_rival(result)
    first, rival = pair or (None, None)
    if first is None or rival is None:
        return []
    names = names_of(result)
    speed = first.tokens_per_s / rival.tokens_per_s
    shares = f"at {text.percent(first.mfu, 0)} and {text.percent(rival.mfu, 0)} of peak"
    rates = f"{_rate(first)} against {_rate(rival)}, {shares}"
    cards = [Card(_times(speed), rates, f"{'more' if speed >= 1 else 'fewer'} tokens a second")]
    needed = [own.steps * own.global_batch_size * result.seq_length for own in (first, rival)]
    tokens = needed[1] / needed[0] if needed[0] else math.nan
    if math.isfinite(tokens):
        alike = abs(tokens - 1) < SAME
        many = "as many" if alike else "fewer" if tokens > 1 else "more"
        sizes = [text.large(own.global_batch_size * result.seq_length) for own in (first, rival)]
        batches = f"batch {' against '.join(sizes)} tokens"
        cards.append(Card("1 \u00d7" if alike else _times(tokens), batches, f"{many} tokens to the target"))
    share, own, part = _largest(first, rival)
    if share >= SAME:
        name = f"of the step of {names[id(own)]} is {text.human(part)}"
        cards.append(Card(text.percent(share, 0), f"nearest remedy: {own.why.remedy}", name))
    return cards


def _largest(*candidates: CandidateResult) -> tuple[float, CandidateResult, str]:
    """The largest part of a step that is no forward or backward pass: its share, step and name."""
    parts = [
        (seconds / own.step_time_s, place, part)
        for place, own in enumerate(candidates)
        for part, seconds in own.breakdown_s.items()
        if part not in COMPUTING
    ]
    share, place, part = max(parts, default=(0.0, 0, ""))
    return share, candidates[place], part


def _times(ratio: float) -> str:
    return f"{max(ratio, 1 / ratio):.2f} \u00d7"


def _rate(candidate: CandidateResult) -> str:
    rate = candidate.tokens_per_s
    return f"{text.large(rate)}/s" if rate >= 1e6 else f"{rate / 1e3:,.3g} k/s"
