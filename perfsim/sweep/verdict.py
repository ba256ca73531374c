"""The sentence that a sweep ends in: how many of one machine are as fast as so many of another."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.convergence.time_to_accuracy import split_speedup
from perfsim.prediction.metrics import at_peak
from perfsim.sweep.knee import knee_sentence, scalings
from perfsim.sweep.runner import PointResult, SweepResult
from perfsim.sweep.scaling import (
    Circumstances,
    Match,
    Series,
    circumstances,
    matches,
    series_of,
    targets_of,
    time_of,
    worded,
)
from perfsim.sweep.succession import policy_sentence
from perfsim.sweep.variants import variant_sentences, variants_of

DAY_S = 86_400.0
MOST_SENTENCES = 3
"""Of a verdict on variants; the page says the rest."""


def sweep_verdict(result: SweepResult) -> str:
    """Who is soonest, and what helps to decide: equally fast machines, or how well one scales."""
    if not result.feasible:
        reasons = result.points[0].reasons if result.points else ("the grid is empty",)
        return f"No point of the grid has a feasible plan: {'; '.join(reasons)}."
    return " ".join(filter(None, [_compared(result), _bounds(result)]))


def _bounds(result: SweepResult) -> str:
    """Which machines no release can be, because they lose nothing; empty where there are none."""
    points = [each.point for each in result.feasible]
    peak = {
        each.candidate.system.name for each in points if at_peak(each.candidate.system, each.study.recipe)
    }
    return f"At peak, an upper bound that was never observed: {', '.join(sorted(peak))}." if peak else ""


def _compared(result: SweepResult) -> str:
    soonest = min(result.feasible, key=lambda each: time_of(each).time_s)
    if variants_of(result):
        return " ".join(_of_variants(result))
    series = series_of(result)
    if len(targets_of(series)) > 1:
        return " ".join(_scales(each) for each in series[:MOST_SENTENCES])
    head = f"Soonest at the target: {_machine(soonest)}, {_days(soonest)} ({_band(soonest)})."
    found = matches(result)
    return f"{head} {_equals(found) if found else _scales(series[0])}"


def _of_variants(result: SweepResult) -> list[str]:
    """How each variant scales; where none has several device counts, what each changes."""
    scaled = scalings(series_of(result))
    sentences = [knee_sentence(each) for each in scaled] if scaled else variant_sentences(result)
    return [*sentences[:MOST_SENTENCES], *filter(None, [policy_sentence(result)])]


def _machine(each: PointResult) -> str:
    """`16 x cs-2`, and under which settings of the grid's further axes."""
    return _with_settings(
        f"{each.point.num_devices:,} x {each.point.candidate.system.name}", circumstances(each)
    )


def _with_settings(machine: str, settings: Circumstances) -> str:
    return " with ".join([machine, *filter(None, [", ".join(worded(settings))])])


def _days(each: PointResult) -> str:
    return f"{_number(time_of(each).time_s / DAY_S)} days"


def _band(each: PointResult) -> str:
    low, high = (_number(end / DAY_S) for end in time_of(each).band_s)
    return f"{low} to {high}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _equals(found: Sequence[Match]) -> str:
    """The largest machine that is matched and one a quarter of its size, or that none is."""
    wanted = found[0].wanted.point.candidate.system.name
    own = [each for each in found if each.wanted.point.candidate.system.name == wanted]
    matched = [each for each in own if each.fewest is not None]
    series = own[0].series
    if not matched:
        least = own[0].wanted
        system = _with_settings(series.system, series.circumstances)
        return (
            f"No number of {system} up to {series.counts[-1]:,} is as fast as "
            f"{_machine(least)} ({_days(least)})."
        )
    largest = matched[-1]
    quarter = [
        each for each in matched if 4 * each.wanted.point.num_devices <= largest.wanted.point.num_devices
    ]
    return " ".join(_equal(each) for each in [*quarter[-1:], largest])


def _equal(each: Match) -> str:
    fewest = each.fewest
    if fewest is None:
        return f"{_machine(each.wanted)} are matched by none."
    count = fewest.point.num_devices
    if each.between is not None:
        slower, about = each.between
        system = _with_settings(each.series.system, each.series.circumstances)
        return (
            f"As fast as {_machine(each.wanted)} ({_days(each.wanted)}) are about {_number(about)} x "
            f"{system}: {slower.point.num_devices:,} take {_days(slower)}, {count:,} take "
            f"{_days(fewest)} ({_certainty(each, count)})."
        )
    smallest = " or fewer" if 1 < count == each.series.counts[0] else ""
    return (
        f"To be as fast as {_machine(each.wanted)} ({_days(each.wanted)}) takes {_machine(fewest)}{smallest} "
        f"({_days(fewest)}; {_certainty(each, count)})."
    )


def _certainty(each: Match, count: int) -> str:
    if each.possibly == each.surely == count:
        return "so in the whole 90 % band"
    sure = f"{each.surely:,}" if each.surely else f"more than {each.series.counts[-1]:,}"
    return f"within the 90 % band possibly {each.possibly or count:,}, surely {sure}"


def _scales(series: Series) -> str:
    first, last = series.points[0], series.points[-1]
    if first is last:
        return f"{_machine(first)} takes {_days(first)} at its best batch."
    small, large = time_of(first), time_of(last)
    ratio = last.point.num_devices / first.point.num_devices
    split = split_speedup(small.time_s / large.time_s, ratio, small.examples_tokens, large.examples_tokens)
    share = 100 * series.efficiency(last)
    return (
        f"From {first.point.num_devices:,} to {_machine(last)} the time falls from {_days(first)} to "
        f"{_days(last)}, and a device does {share:.0f} % of what it does in the smallest machine: "
        f"{100 * split.hardware:.0f} % of its tokens a second, and {100 * split.statistical:.0f} % for the "
        "tokens that a larger batch costs."
    )
