"""The tables of a sweep's page: machines that are equally fast, every point, and the inputs."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.report import text
from perfsim.report.tables import Table
from perfsim.sweep.axes import BATCH_PATHS
from perfsim.sweep.runner import PointResult, SweepResult
from perfsim.sweep.scaling import Match, shown, time_of


def equals_table(found: Sequence[Match]) -> Table:
    """For each machine, the fewest devices of the first one that are as fast."""
    rows = [
        [
            _machine(each.wanted),
            text.duration(time_of(each.wanted).time_s),
            _count(None if each.fewest is None else each.fewest.point.num_devices, each),
            text.NONE if each.fewest is None else text.duration(time_of(each.fewest).time_s),
            _count(each.possibly, each),
            _count(each.surely, each),
        ]
        for each in found
    ]
    columns = ("machine", "its time", f"fewest {found[0].series.system}", "their time", "possibly", "surely")
    caption = (
        "Only the counts of the grid are tried; the true number lies between one and the count before it."
    )
    return Table(columns, rows, caption, frozenset(range(1, len(columns))))


def _machine(each: PointResult) -> str:
    return f"{text.integer(each.point.num_devices)} {text.TIMES} {each.point.candidate.system.name}"


def _count(count: int | None, each: Match) -> str:
    counts = each.series.counts
    if count is None:
        return f"> {text.integer(counts[-1])}"
    return f"\u2264 {text.integer(count)}" if count == counts[0] else text.integer(count)


def points_table(result: SweepResult) -> Table:
    """Every point with its answer or the reason why it has none."""
    paths = list(dict.fromkeys(path for each in result.points for path in each.point.settings))
    paths = [path for path in paths if path not in BATCH_PATHS]
    columns = ("system", "strategy", "devices", "batch", *(text.human(path) for path in paths))
    metrics = ("time to the target", "90 % band", "step", "MFU", "layout", "reason")
    rows = [[*_asked(each, paths), *_answered(each)] for each in result.points]
    numeric = frozenset({2, 3, *range(len(columns), len(columns) + 4)})
    return Table((*columns, *metrics), rows, "In the order of the grid.", numeric)


def _asked(each: PointResult, paths: Sequence[str]) -> list[str]:
    point = each.point
    settings = point.settings
    given = [settings[path] for path in BATCH_PATHS if path in settings]
    batch = each.answer["global_batch_size"] if each.feasible else given[0] if given else text.NONE
    values = [shown(settings[path]) if path in settings else text.NONE for path in paths]
    candidate = point.candidate
    return [
        candidate.system.name,
        candidate.strategy,
        text.integer(point.num_devices),
        shown(batch),
        *values,
    ]


def _answered(each: PointResult) -> list[str]:
    if not each.feasible:
        return [*[text.NONE] * 5, "; ".join(each.reasons)]
    answer = each.answer
    return [
        text.duration(time_of(each).time_s),
        text.duration_band(time_of(each).band_s),
        text.duration(answer["step_time_s"]),
        text.percent(answer["mfu"]),
        text.layout_short(answer["layout"]),
        "",
    ]


def inputs_table(result: SweepResult) -> Table:
    """Inputs by topic, each with its source and whether it was read, fitted or assumed."""
    topics = dict.fromkeys(item.topic for item in result.assumptions)
    rows = [
        [item.name, item.value, item.kind, item.source, item.topic]
        for topic in topics
        for item in result.assumptions
        if item.topic == topic
    ]
    return Table(("input", "value", "kind", "source", "topic"), rows)
