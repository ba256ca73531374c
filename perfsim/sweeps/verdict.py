"""The verdict of a sweep: how many devices of one machine match another, or how well a machine scales."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.convergence.time_to_accuracy import split_speedup
from perfsim.prediction.result import SharedCaveat
from perfsim.prediction.shared_caveats import confidence
from perfsim.studies.decision_words import time_unit, verb
from perfsim.sweeps.analysis import Analysis
from perfsim.sweeps.points import Circumstances, PointResult, settings_text
from perfsim.sweeps.scaling import Match, Series
from perfsim.sweeps.variants import policy_sentence, sparsity_sentence, variant_sentences

MAX_SENTENCES = 3
"""Most sentences of one kind; the page shows the rest."""


def sweep_verdict(analysis: Analysis, caveats: Sequence[SharedCaveat] = ()) -> str:
    """Which machine reaches the target first, how machines compare or scale, and the worst caveat."""
    if not analysis.feasible:
        reasons = analysis.points[0].reasons if analysis.points else ("the grid is empty",)
        return f"No point of the grid has a feasible plan: {'; '.join(reasons)}."
    trust = confidence(caveats)
    return " ".join([_compared(analysis), *([f"{trust[0].upper()}{trust[1:]}."] if trust else [])])


def _compared(analysis: Analysis) -> str:
    if analysis.variants:
        return " ".join(_of_variants(analysis))
    series = analysis.series
    if len(analysis.targets) > 1:
        return " ".join(_scales(member) for member in series[:MAX_SENTENCES])
    return (
        f"{first_sentence(analysis)} {_matched(analysis.matches) if analysis.matches else _scales(series[0])}"
    )


def first_sentence(analysis: Analysis) -> str:
    """Which point reaches the one target first, and when."""
    first = min(analysis.feasible, key=lambda point: point.target_time.time_s)
    reach = verb(first.num_devices, "reach", "reaches")
    return f"{_machine(first)} {reach} the target first, in {_time(first)} ({_band(first)})."


def _of_variants(analysis: Analysis) -> list[str]:
    """How each variant scales; if none has several device counts, the effect of each."""
    sentences = [scaling.sentence for scaling in analysis.scalings]
    if not sentences:
        sentences = variant_sentences(analysis.feasible, analysis.changes)
    beside = [sparsity_sentence(analysis.successions), policy_sentence(analysis.successions)]
    return [*sentences[:MAX_SENTENCES], *filter(None, beside)]


def _machine(point: PointResult) -> str:
    """`16 CS-2`, with the settings of the grid."""
    return _with_settings(point.machine, point.circumstances)


def _with_settings(machine: str, settings: Circumstances) -> str:
    return " with ".join(filter(None, [machine, settings_text(settings)]))


def _time(point: PointResult) -> str:
    unit, scale = time_unit(point.target_time.time_s)
    return f"{_number(point.target_time.time_s / scale)} {unit}"


def _band(point: PointResult) -> str:
    _, scale = time_unit(point.target_time.time_s)
    low, high = (_number(end / scale) for end in point.target_time.band_s)
    return f"{low} to {high}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _matched(matches: Sequence[Match]) -> str:
    """The largest rival that is matched and one at most a quarter of its size, or that none is matched."""
    same_rival = [match for match in matches if match.rival.system == matches[0].rival.system]
    matched = [match for match in same_rival if match.fewest is not None]
    if not matched:
        series, rival = same_rival[0].series, same_rival[0].rival
        system = _with_settings(series.devices_noun, series.circumstances)
        most = f"{series.counts[-1]:,}"
        return f"No number of {system} up to {most} matches {_machine(rival)} ({_time(rival)})."
    largest = matched[-1]
    quarter = [match for match in matched if 4 * match.rival.num_devices <= largest.rival.num_devices]
    return " ".join(_match_sentence(match) for match in [*quarter[-1:], largest])


def _match_sentence(match: Match) -> str:
    fewest, rival = match.fewest, f"{_machine(match.rival)} ({_time(match.rival)})"
    if fewest is None:
        return f"Nothing matches {rival}."
    count = fewest.num_devices
    if match.between is not None:
        slower, about = match.between
        system = _with_settings(match.series.devices_noun, match.series.circumstances)
        return (
            f"About {_number(about)} {system} match {rival}: {_takes(slower)}, {_takes(fewest)} "
            f"({_certainty(match, count)})."
        )
    smallest = " or fewer" if 1 < count == match.series.counts[0] else ""
    matches = verb(count, "match", "matches")
    return f"{_machine(fewest)}{smallest} {matches} {rival}: {_time(fewest)} ({_certainty(match, count)})."


def _takes(point: PointResult) -> str:
    return f"{point.num_devices:,} {verb(point.num_devices, 'take', 'takes')} {_time(point)}"


def _certainty(match: Match, count: int) -> str:
    low = match.possibly or count
    if low == match.surely:
        return f"{count:,} throughout the 90 % band"
    high = f"{match.surely:,}" if match.surely else f"more than {match.series.counts[-1]:,}"
    return f"90 % band {low:,} to {high}"


def _scales(series: Series) -> str:
    first, last = series.points[0], series.points[-1]
    if first is last:
        return (
            f"{_machine(first)} {verb(first.num_devices, 'take', 'takes')} {_time(first)} at its best batch."
        )
    small, large = first.target_time, last.target_time
    ratio = last.num_devices / first.num_devices
    split = split_speedup(small.time_s / large.time_s, ratio, small.examples_tokens, large.examples_tokens)
    return (
        f"From {first.num_devices:,} to {_machine(last)} the time falls from {_time(first)} to "
        f"{_time(last)}: a scaling efficiency of {_percent(series.efficiency(last))} relative to the "
        f"smallest machine ({_percent(split.hardware)} in throughput, {_percent(split.statistical)} in "
        "tokens to the target)."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
