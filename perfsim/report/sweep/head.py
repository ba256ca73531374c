"""The head of a sweep's page: one sentence, the best of each machine on one scale, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.prediction.shared_caveats import confidence
from perfsim.report import text
from perfsim.report.caveats import head_remarks
from perfsim.report.scale import Row, scale_of
from perfsim.report.sections import Badge, Head
from perfsim.report.study.whole_run import production_rate
from perfsim.studies.decision_words import verb
from perfsim.sweeps.analysis import Analysis
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.result import SweepResult
from perfsim.sweeps.scaling import Series
from perfsim.sweeps.verdict import first_sentence

MAX_ROWS = 8
MAX_NAMED = 3
"""Variants that the headline names."""


def head_of(result: SweepResult) -> Head:
    """What stands above the sections."""
    analysis = result.analysis
    drawn_below = bool(analysis.variants) and not analysis.scalings
    rows, note = ([], "") if drawn_below else rows_of(analysis)
    trust = confidence(result.caveats)
    said = f"{trust[0].upper()}{trust[1:]}" if trust else ""
    verdict = result.verdict.removesuffix(f" {said}.")
    if result.feasible:
        verdict = verdict.removeprefix(first_sentence(result.analysis)).strip()
    return Head(
        result.question,
        verdict,
        head_remarks(result.caveats, result.verdict),
        cards_note=" ".join(filter(None, [note, *production_notes(result.feasible)])),
        command=result.command,
        digest=result.inputs_digest,
        headline=headline(result.analysis),
        badge=Badge("serious" if said.startswith("Low") else "warning", said) if said else None,
        scale=scale_of(rows) if len(rows) > 1 else None,
    )


def headline(analysis: Analysis) -> str:
    """The answer in one short sentence; empty where no point has a plan."""
    if not analysis.feasible:
        return ""
    if analysis.changes:
        return _most_change(analysis)
    if analysis.variants and analysis.scalings:
        grown = ", ".join(
            f"{text.number(own.speedup(own.last))} times ({own.series.circumstance})"
            for own in analysis.scalings[:MAX_NAMED]
        )
        first, last = analysis.scalings[0].first, analysis.scalings[0].last
        return f"From {first.num_devices:,} to {last.machine}, throughput grows {grown}."
    if analysis.variants or len(analysis.targets) > 1:
        return _of_targets(analysis)
    return first_sentence(analysis)


def _most_change(analysis: Analysis) -> str:
    """The variants that change a step most, in any group."""
    effects: dict[str, float] = {}
    for change in (change for own in analysis.changes.values() for change in own[1:]):
        known = effects.get(change.point.variant, 1.0)
        effects[change.point.variant] = max(known, change.ratio, key=lambda ratio: max(ratio, 1 / ratio))
    largest = sorted(effects.items(), key=lambda own: -max(own[1], 1 / own[1]))[:MAX_NAMED]
    words = ", ".join(f"{name} ({_times(ratio)})" for name, ratio in largest)
    return f"The step changes most with: {words}."


def _times(ratio: float) -> str:
    return f"{text.number(ratio)} times as long" if ratio >= 2 else f"{100 * (ratio - 1):+.0f} %"


def _of_targets(analysis: Analysis) -> str:
    """Which machine is the fastest to how many targets; of one machine, its shortest and longest time."""
    times = sorted((own.fastest for own in analysis.series), key=lambda point: point.target_time.time_s)
    machines = dict.fromkeys(member.machine for member in analysis.series)
    if len(machines) == 1 or len(times) == 1:
        ends = [f"{text.duration(own.target_time.time_s)} ({own.variant})" for own in (times[0], times[-1])]
        return f"{times[0].devices_noun}: from {ends[0]} to {ends[1]}."
    winners = [min(group, key=_time_s) for group in analysis.targets]
    wins: dict[tuple[str, str], list[PointResult]] = {}
    for own in winners:
        wins.setdefault(own.machine, []).append(own.fastest)
    if len(wins) == 1:
        return f"{_winners(*wins.values())} first to all {len(winners)} targets."
    words = [f"{_winners(points)} first to {len(points)}" for points in wins.values()]
    return f"Of {len(winners)} targets, {', '.join(words)}."


def _winners(points: Sequence[PointResult]) -> str:
    """`256 H100-80GB (32 DGX) are`; or `64 to 512 H100-80GB are` where their number differs."""
    machines = {point.machine for point in points}
    if len(machines) > 1:
        counts = sorted(point.num_devices for point in points)
        return f"{text.integer(counts[0])} to {text.integer(counts[-1])} {points[0].devices_noun} are"
    return f"{points[0].machine} {verb(points[0].num_devices, 'are', 'is')}"


def rows_of(analysis: Analysis) -> tuple[list[Row], str]:
    """A row for each series in their order, the fastest of each target marked; and what the rows show.

    Where there are more than fit, the fastest are shown if all have one target, else the first.
    """
    series, targets = analysis.series, analysis.targets
    if not series:
        return [], ""
    winners = [min(group, key=_time_s) for group in targets if len(group) > 1]
    chosen = sorted(series, key=_time_s) if len(targets) == 1 else list(series)
    shown = [member for member in series if member in chosen[:MAX_ROWS]]
    rows = [_row(member, marked=member in winners) for member in shown]
    return rows, _note(len(shown), len(series), len(targets), marked=any(row.marked for row in rows))


def _time_s(series: Series) -> float:
    return series.fastest.target_time.time_s


def _row(series: Series, *, marked: bool) -> Row:
    time = series.fastest.target_time
    return Row(series.at(series.fastest), time.time_s, time.band_s, marked)


def production_notes(feasible: Sequence[PointResult]) -> list[str]:
    """A sentence for each production ratio of the points."""
    ratios = dict.fromkeys(point.production for point in feasible)
    return [
        f"Times are of healthy steps; runs take longer, at {production_rate(production)}."
        for production in filter(None, ratios)
    ]


def _note(shown: int, count: int, targets: int, *, marked: bool) -> str:
    words = ["Each machine at the number of devices that reaches the target first, at its best batch."]
    if targets > 1:
        words = ["Each machine at its best batch. Targets differ, because models or their tokens do."]
    if marked:
        words.append("Marked: the fastest." if targets == 1 else "Marked: the fastest to each target.")
    if shown < count:
        which = "the fastest" if targets == 1 else "the first"
        words.append(f"These are {which} {shown} of {count}; the tables have all.")
    return " ".join(words)
