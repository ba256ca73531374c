"""A sweep's answer on a terminal."""

from __future__ import annotations

from perfsim.report import text
from perfsim.report.sweep.cards import production_notes
from perfsim.report.sweep.tables import wall_text
from perfsim.report.table import Table
from perfsim.report.terminal.layout import caveat_lines, cut, paragraph, table_lines, terminal_width
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.result import SweepResult
from perfsim.sweeps.variants import Change

MAX_LINES = 24
"""One less than a terminal shows: the caller adds where the report is."""
MAX_VERDICT_LINES = 8
MARK = " *"


def sweep_lines(result: SweepResult) -> list[str]:
    """Each machine at its best batch by number of devices, the verdict, the worst caveats.

    At most 24 lines, unless serious caveats need more.
    """
    width = terminal_width()
    infeasible = len(result.points) - len(result.feasible)
    count = f"{len(result.points):,} points"
    if infeasible:
        count += f", {infeasible:,} without a feasible plan"
    said = " ".join([result.verdict, *production_notes(result.feasible)])
    verdict = paragraph(said, width, MAX_VERDICT_LINES)
    caveats = caveat_lines(result.caveats, result.verdict, width)
    table = _table(result, width, MAX_LINES - len(verdict) - len(caveats) - 2)
    return [cut(f"{result.title} ({count})", width), "", *table, *verdict, *caveats]


def _table(result: SweepResult, width: int, room: int) -> list[str]:
    """The table with a line on what it leaves out, in so many lines."""
    analysis = result.analysis
    changes = [change for own in analysis.changes.values() for change in own]
    rows = [_row(change.point.variant, change.point, _change(change)) for change in changes] or [
        _row(series.label, point, text.percent(series.efficiency(point), 0))
        for series in analysis.series
        for point in series.points
    ]
    if not rows:
        return []
    names = ("variant", "change") if changes else ("machine", "efficiency")
    columns = (names[0], "devices", "batch", "step", "MFU", names[1], "time", "90 % band", "wall")
    foot = ["* the planner's policy changed too"] if any(change.policy for change in changes) else []
    for count in range(min(len(rows), max(room, 1)), 0, -1):
        left_out = len(rows) - count
        more = [f"... {left_out} more row{'s' if left_out > 1 else ''} in the report"] if left_out else []
        table = Table(columns, text.thinned(rows, count), numeric=frozenset(range(1, 9)))
        lines = [*table_lines(table, width), "; ".join([*more, *foot])]
        if len(lines) <= room:
            break
    return lines


def _change(change: Change) -> str:
    if change.point is change.base:
        return text.NONE
    return f"{100 * (change.ratio - 1):+.1f} %" + (MARK if change.policy else "")


def _row(name: str, point: PointResult, share: str) -> list[str]:
    step = point.prediction
    return [
        name,
        text.integer(point.num_devices),
        text.integer(step.global_batch_size),
        text.duration(step.step_time_s),
        text.percent(step.mfu, 0),
        share,
        text.duration(point.target_time.time_s),
        text.duration_band(point.target_time.band_s),
        wall_text(point),
    ]
