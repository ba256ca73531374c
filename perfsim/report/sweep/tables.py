"""The tables of a sweep's page: machines that are equally fast, every point, and the inputs."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.report import text
from perfsim.report.table import Table
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.result import SweepResult
from perfsim.sweeps.scaling import Match

MOST_ROWS = 2000
"""A table with more shows a sample of them."""


def matches_table(matches: Sequence[Match]) -> Table:
    """For each machine, how many devices of another one are as fast."""
    rows = [
        [
            match.rival.machine,
            text.duration(match.rival.target_time.time_s),
            _equal(match.equal.typical, match),
            f"{_equal(match.equal.low, match)} to {_equal(match.equal.high, match)}",
            _count(None if match.fewest is None else match.fewest.num_devices, match),
            text.NONE if match.fewest is None else text.duration(match.fewest.target_time.time_s),
            _count(match.possibly, match),
            _count(match.surely, match),
        ]
        for match in text.thinned(matches, MOST_ROWS)
    ]
    system = matches[0].series.devices_noun
    columns = (
        "machine", "its time", f"as many {system}", "90 % band", "fewest of the grid", "their time",
        "at least", "at most",
    )  # fmt: skip
    caption = (
        "As many, with its band, is interpolated between the counts of the grid; the other columns are such "
        "counts."
    )
    return Table(columns, rows, caption, frozenset(range(1, len(columns))))


def _equal(count: float | None, match: Match) -> str:
    if count is None:
        return f"> {text.integer(match.series.counts[-1])}"
    least = match.series.counts[0]
    return f"\u2264 {text.integer(least)}" if count <= least else text.number(count)


def _count(count: int | None, match: Match) -> str:
    counts = match.series.counts
    if count is None:
        return f"> {text.integer(counts[-1])}"
    return f"\u2264 {text.integer(count)}" if count == counts[0] else text.integer(count)


def points_table(result: SweepResult, *, feasible: bool = True) -> Table:
    """The points, at most `MOST_ROWS`, with their answers or the reasons why they have none.

    With `feasible` false only the points without a plan, and no columns of answers.
    """
    asked = [point for point in result.points if feasible or not point.feasible]
    paths = list(dict.fromkeys(path for point in asked for path, _ in point.circumstances))
    columns = ["system", "strategy", "devices", "batch", *(text.human(path) for path in paths)]
    metrics = ["time to the target", "90 % band", "on the wall", "step", "MFU", "layout"] if feasible else []
    points = text.thinned(asked, MOST_ROWS)
    rows = [[*_question(point, paths), *_answer(point)[-1 - len(metrics) :]] for point in points]
    numeric = frozenset({2, 3, *(len(columns) + index for index in range(len(metrics) - 1))})
    caption = "In the order of the grid."
    if len(points) < len(asked):
        caption = (
            f"{len(points):,} of {len(asked):,} points, evenly spread in the order of the grid; "
            "summary.json has all, and so has the file of --table."
        )
    return Table((*columns, *metrics, "reason"), rows, caption, numeric)


def _question(point: PointResult, paths: Sequence[str]) -> list[str]:
    values = dict(point.circumstances)
    return [
        point.system,
        point.strategy,
        text.integer(point.num_devices),
        point.batch_text or text.NONE,
        *(values.get(path, text.NONE) for path in paths),
    ]


def _answer(point: PointResult) -> list[str]:
    if not point.feasible:
        return [*[text.NONE] * 6, "; ".join(point.reasons)]
    return [
        text.duration(point.target_time.time_s),
        text.duration_band(point.target_time.band_s),
        wall_text(point),
        text.duration(point.prediction.step_time_s),
        text.percent(point.prediction.mfu),
        text.layout_short(point.prediction.layout),
        "",
    ]


def wall_text(point: PointResult) -> str:
    """Time on the wall of a point; a dash for healthy steps alone."""
    return text.NONE if point.wall_s is None else text.duration(point.wall_s)


def inputs_tables(result: SweepResult) -> list[tuple[str, Table]]:
    """For each topic its inputs, each with its source and whether it was read, fitted or assumed."""
    topics = dict.fromkeys(item.topic for item in result.assumptions)
    return [
        (
            topic,
            Table(
                ("input", "value", "kind", "source"),
                [
                    [item.name, item.value, item.kind, item.source]
                    for item in result.assumptions
                    if item.topic == topic
                ],
            ),
        )
        for topic in topics
    ]
