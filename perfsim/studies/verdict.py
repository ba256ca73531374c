"""What a study decides, in words: one sentence, and at most four lines on what stands behind it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from operator import itemgetter

from perfsim.base.text import number
from perfsim.convergence.uncertain import Spread
from perfsim.studies.answers import UNITS, Answer, Decision, Eras, Lever
from perfsim.studies.decision import SPEED, amount, chance, duration, times, verb


def sentence(rows: Sequence[Answer], decision: Decision) -> str:
    """Who is first, how surely, when, and how much longer the rival takes on the wall; at most 35 words."""
    first, rival = pair_of(rows, decision)
    wall_s = decision.of(first.label).wall_s
    if not math.isfinite(wall_s.typical):
        return "No candidate reaches the target."
    when = duration(wall_s.typical, wall_s.band)
    if rival is None:
        reach = verb(first.num_devices, "reach", "reaches")
        return f"{first.short} {reach} the target after {when}."
    ratio = decision.of(rival.label).ratio
    longer = f"{times(ratio.typical)} times ({times(ratio.low)} to {times(ratio.high)})"
    take = f"{verb(rival.num_devices, 'take', 'takes')} {longer} as long"
    return (
        f"{first.short} {verb(first.num_devices, 'are', 'is')} first with a probability of "
        f"{chance(decision.sure)}: {when}, while {rival.short} {take}."
    )


def pair_of(rows: Sequence[Answer], decision: Decision) -> tuple[Answer, Answer | None]:
    """The first on the wall and the one that it is compared with."""
    by_label = {row.label: row for row in rows}
    return by_label[decision.first], by_label.get(decision.rival)


def grounds(rows: Sequence[Answer], decision: Decision, eras: Eras | None) -> Mapping[str, str]:
    """The lines below the sentence, by what they tell: why, rests on, costs, other reading."""
    first, rival = pair_of(rows, decision)
    lines = {"costs": _costs(rows, decision)}
    even = Spread(1.0, 1.0, 1.0)
    alike = [row.label for row in rows if row is not first and decision.of(row.label).ratio == even]
    same = f"The same layout answers {', '.join(alike)}." if alike else ""
    lines["why"] = same
    if rival is not None:
        lines["why"] = " ".join(filter(None, [_why(first, rival, decision), same]))
        lines["rests on"] = _rests_on(first, rival, decision)
    readings = [*_other_layouts(rows, decision), *([eras.sentence] if eras else [])]
    lines["other reading"] = " ".join(filter(None, readings))
    return {name: lines[name] for name in ("why", "rests on", "costs", "other reading") if lines.get(name)}


def _why(first: Answer, rival: Answer, decision: Decision) -> str:
    """The factors of the ratio of the two times, the largest first; their product is the ratio."""
    waits = [decision.of(row.label).wall_s.typical / row.time.time_s for row in (first, rival)]
    # Of one batch it is 1: what a ramp's batches and later phases, at a pace of their own, add to the rest.
    paces = [row.time.time_s * row.tokens_per_s / row.time.examples_tokens for row in (first, rival)]
    rates = [number(row.tokens_per_s) for row in (first, rival)]
    shares = [f"{100 * row.mfu:.1f} %" for row in (first, rival)]
    batches = [f"{row.time.batch_tokens / 1e6:.2g} M" for row in (first, rival)]
    terms = [
        (
            first.tokens_per_s / rival.tokens_per_s,
            f"speed: {' against '.join(rates)} tokens a second, {' and '.join(shares)} of peak",
        ),
        (
            rival.time.examples_tokens / first.time.examples_tokens,
            f"tokens to the target: batches of {' against '.join(batches)} tokens",
        ),
        (paces[1] / paces[0], "the pace of a batch ramp and of later phases"),
        (waits[1] / waits[0], "what the wall holds besides healthy steps"),
    ]
    terms.sort(reverse=True)
    return "; ".join(f"{times(by)} times by {what}" for by, what in terms if round(by, 2) != 1) + "."


def _rests_on(first: Answer, rival: Answer, decision: Decision) -> str:
    """The input that is nearest to turning the order, with the value at which it does."""
    said = ""
    if len({outcome.basis for outcome in decision.outcomes}) > 1:
        said = "Times on the wall hold different parts: name a wall clock for every candidate or none. "
    levers = [lever for lever in decision.levers if lever.flips_at is not None]
    if not levers:
        return f"{said}No input alone turns the order within three standard deviations."
    nearest = min(levers, key=lambda lever: abs(lever.distance or 0.0))
    turning = nearest.flips_at or 0.0
    limits = (_value(nearest, turning), _value(nearest, nearest.typical))
    low = turning < nearest.typical
    keep = f"with {nearest.name}"
    for row in (first, rival):
        if nearest.name in (f"{SPEED}{row.device}, shared", f"{SPEED}{row.label}"):
            limits = (f"{100 * row.mfu / turning:.1f} % of peak", f"{100 * row.mfu:.1f} %")
            low = row is first
            keep = f"while {row.short} {verb(row.num_devices, 'stay', 'stays')}"
    return (
        f"{said}First only {keep} {'above' if low else 'below'} {limits[0]} ({limits[1]} here, "
        f"{abs(nearest.distance or 0.0):.1f} standard deviations away); {'below' if low else 'above'} it "
        f"{rival.short} {verb(rival.num_devices, 'are', 'is')} first."
    )


def _value(lever: Lever, value: float) -> str:
    return amount(Spread(value, value, value), lever.unit)


def _costs(rows: Sequence[Answer], decision: Decision) -> str:
    """Money, energy and carbon of the first and of its rival, who costs least, and what is not given."""
    pair = [own for own in decision.outcomes if own.label in (decision.first, decision.rival)]
    pair.sort(key=lambda own: own.label != decision.first)
    said = []
    if any(own.money for own in pair):
        said.append(" against ".join(amount(own.money, decision.currency) for own in pair))
    priced = [own for own in decision.outcomes if own.money is not None]
    least = min(priced, key=lambda own: own.money.typical if own.money else math.inf, default=None)
    if least is not None and least.cheapest is not None and least.label != decision.first:
        spent = "" if least in pair else f", {amount(least.money, decision.currency)}"
        name = next(row.short for row in rows if row.label == least.label)
        said.append(f"least money, with a probability of {chance(least.cheapest)}: {name}{spent}")
    for figure in UNITS:
        unit, scale = decision.unit(figure)
        known = [getattr(own, figure) for own in pair]
        scaled = [spread and Spread(*(end / scale for end in astuple(spread))) for spread in known]
        if any(scaled):
            said.append(" against ".join(amount(spread, unit) for spread in scaled))
    gaps = list(dict.fromkeys(gap for own in decision.outcomes for gap in own.not_given))
    if not priced and all(own.carbon_kg is None for own in decision.outcomes):
        gaps = ["prices"]
    if not said and gaps == ["prices"]:
        return "Prices are not given."
    return "; ".join([*said, *([f"not given: {', '.join(gaps)}"] if gaps else [])]) + "."


def _other_layouts(rows: Sequence[Answer], decision: Decision) -> Iterator[str]:
    """Who is first where every candidate runs its proven layout, or its fastest, if that is another."""
    for place, words in enumerate(("the layouts nearest to published runs", "the fastest of all layouts")):
        slower = [row.ranks[place].step_time_s / row.planned_step_s if row.ranks else 1.0 for row in rows]
        walls_s = [decision.of(row.label).wall_s.typical * by for row, by in zip(rows, slower, strict=True)]
        wall_s, first = min(zip(walls_s, rows, strict=True), key=itemgetter(0))
        if first.label != decision.first:
            yield f"With {words} first after {duration(wall_s)}: {first.short}."
