"""A sweep's answer on a terminal."""

from __future__ import annotations

import math

from perfsim.report import text
from perfsim.report.sweep.head import production_notes
from perfsim.report.table import Table
from perfsim.report.terminal.layout import caveat_lines, paragraph, table_lines, terminal_width
from perfsim.sweeps.analysis import Analysis
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.result import SweepResult
from perfsim.sweeps.scaling import Series
from perfsim.sweeps.variants import Change

MOST_ROWS = 40
"""Rows of points or variants; the report has all."""
MARK = " *"


def sweep_lines(result: SweepResult) -> list[str]:
    """Each machine at its best batch by number of devices, or variants by effect; the verdict last."""
    width = terminal_width()
    infeasible = len(result.points) - len(result.feasible)
    count = f"{len(result.points):,} points"
    if infeasible:
        count += f", {infeasible:,} without a feasible plan"
    analysis = result.analysis
    rows = _changes(analysis) if analysis.changes else _series(analysis)
    said = " ".join([result.verdict, *production_notes(result.feasible)])
    return [
        *paragraph(f"{result.title} ({count})", width),
        "",
        *(table_lines(rows, width) if rows.rows else []),
        *caveat_lines(result.caveats, result.verdict, width),
        "",
        *paragraph(said, width),
    ]


def _series(analysis: Analysis) -> Table:
    """The series one below the other, each under its name, every column in one unit."""
    points = [(own, point) for own in analysis.series for point in own.points]
    slowest_s = max(sorted(point.target_time.time_s for _, point in points)[:MOST_ROWS], default=math.inf)
    kept = [(own, point) for own, point in points if point.target_time.time_s <= slowest_s][:MOST_ROWS]
    count = len(points)
    step_unit, steps = text.in_one_unit(point.prediction.step_time_s for _, point in kept)
    unit, scale = text.time_unit(point.target_time.time_s for _, point in kept)
    rows: list[list[str]] = []
    shown: Series | None = None
    for (own, point), step in zip(kept, steps, strict=True):
        if own is not shown:
            rows.append([own.label, *[""] * 7])
            shown = own
        rows.append(
            [
                f"  {point.machine}",
                *_of_step(point, step),
                text.percent(own.efficiency(point), 0),
                *_of_target(point, scale),
            ]
        )
    more = f"{count - len(kept)} more points are in the report, all slower." if count > len(kept) else ""
    columns = ("machine", "batch", f"step\n{step_unit}", "MFU", "efficiency", unit, "90 % band", "wall")
    return Table(columns, rows, more, numeric=frozenset(range(1, 8)))


def _changes(analysis: Analysis) -> Table:
    """The variants below what they have in common, the largest effect first."""
    changes = {name: [own[0], *sorted(own[1:], key=_effect)] for name, own in analysis.changes.items()}
    most = max(2, MOST_ROWS // max(len(changes), 1))
    kept = {name: own[:most] for name, own in changes.items()}
    points = [change.point for own in kept.values() for change in own]
    step_unit, steps = text.in_one_unit(point.prediction.step_time_s for point in points)
    unit, scale = text.time_unit(point.target_time.time_s for point in points)
    left = iter(steps)
    rows: list[list[str]] = []
    for name, own in kept.items():
        rows.append([name, *[""] * 7])
        for change in own:
            point = change.point
            cells = [*_of_step(point, next(left)), _change(change), *_of_target(point, scale)]
            rows.append([f"  {point.variant}", *cells])
    columns = ("variant", "batch", f"step\n{step_unit}", "MFU", "change", unit, "90 % band", "wall")
    notes = []
    if any(change.policy for own in kept.values() for change in own):
        notes.append("* the planner's policy changed too.")
    if (more := sum(map(len, changes.values())) - len(points)) > 0:
        notes.append(f"{more} more variants, of less effect, are in the report.")
    return Table(columns, rows, " ".join(notes), numeric=frozenset(range(1, 8)))


def _effect(change: Change) -> float:
    """A key that sorts the largest effect first, whether it shortens or lengthens the step."""
    return -max(change.ratio, 1.0 / change.ratio)


def _change(change: Change) -> str:
    if change.point is change.base:
        return text.NONE
    return f"{100 * (change.ratio - 1):+.1f} %" + (MARK if change.policy else "")


def _of_step(point: PointResult, step: str) -> list[str]:
    prediction = point.prediction
    return [text.integer(prediction.global_batch_size), step, text.percent(prediction.mfu, 0)]


def _of_target(point: PointResult, scale: float) -> list[str]:
    low, high = (text.number(end / scale) for end in point.target_time.band_s)
    wall = text.NONE if point.wall_s is None else text.number(point.wall_s / scale)
    return [text.number(point.target_time.time_s / scale), f"{low}{text.NONE}{high}", wall]
