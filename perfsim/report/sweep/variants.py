"""The sections of a sweep that tell its variants apart, its speed-up, and where its steps go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfsim.report import text
from perfsim.report.figures.parts import PartsRow, parts_alt, parts_figure, parts_table
from perfsim.report.figures.scaling import ScalingPoint, efficiency_curve, efficiency_table
from perfsim.report.figures.variants import Changes, change_bars, change_table, time_dots, time_table
from perfsim.report.sections import Section
from perfsim.report.table import Table
from perfsim.sweeps.analysis import Analysis
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.scaling import Series

MAX_LINES = 12
MAX_MARKS = 200
"""Points of one line."""
MAX_ROWS = 40
MAX_DIFFERENCES = 12
MAX_COLUMNS = 8
"""Variants that stand side by side in one table."""


def efficiency(analysis: Analysis) -> list[Section]:
    """How much of the ideal throughput further devices give, and why not all; only where devices vary."""
    scalings = analysis.scalings[:MAX_LINES]
    if not scalings:
        return []
    points = [
        ScalingPoint(
            scaling.series.label,
            point.num_devices,
            scaling.efficiency(point),
            scaling.series.efficiency(point),
            _note(point),
        )
        for scaling in scalings
        for point in text.thinned(scaling.series.points, MAX_MARKS)
    ]
    alt = "; ".join(
        f"{scaling.series.label}: {text.percent(scaling.efficiency(scaling.last))} with "
        f"{scaling.last.num_devices:,} devices"
        for scaling in scalings
    )
    return [
        Section(
            "Scaling efficiency",
            "Shows how much work each further device adds: throughput over that of as many devices which "
            "work like those of the smallest machine. Dashed: the same in time to the target, where a larger "
            "batch needs more tokens.",
            figure=efficiency_curve(points),
            table=efficiency_table(points),
            alt=f"Scaling efficiency against devices. {alt}.",
            slug="efficiency",
        )
    ]


def _note(point: PointResult) -> str:
    batch = text.integer(point.prediction.global_batch_size)
    return f"batch {batch}, {text.layout_short(point.prediction.layout)}, {point.prediction.why.cause}"


def changed_steps(analysis: Analysis) -> list[Section]:
    """How much longer or shorter a step is under each variant; only where variants do the same work."""
    changes = analysis.changes
    if not changes:
        return []
    replanned = any(change.policy for own in changes.values() for change in own)
    equal = (
        "all else equal. At a bar with a star the planner also chose another policy (see the table): the "
        "change is that of both together."
        if replanned
        else "all else equal."
    )
    return [
        Section(
            "Step time by variant",
            f"Shows which part of the machine a step depends on. Each bar is the change relative to "
            f"\u201c{analysis.variants[0]}\u201d, {equal}",
            figure=change_bars(changes),
            table=change_table(changes),
            alt=_change_alt(changes),
            slug="variants",
        )
    ]


def _change_alt(changes: Changes) -> str:
    words = [
        f"{name}, {change.point.variant} {text.percent(change.ratio - 1)}"
        for name, own in changes.items()
        for change in own[1:]
    ]
    return f"Bars of the change of the step time. {'; '.join(words)}."


def policies(analysis: Analysis) -> list[Section]:
    """What the planner changed from each variant to the next, machine by machine, where models differ."""
    if not analysis.successions:
        return []
    rows = [
        [
            f"{machine}, {step.base.variant} \u2192 {step.point.variant}",
            step.policy or "nothing",
            text.layout_long(step.point.prediction.layout),
        ]
        for machine, steps in analysis.successions.items()
        for step in steps
    ]
    lead = (
        "Shows what has to be retuned when the model grows: the fields of the layout or of the memory policy "
        "that the planner chose differently."
    )
    table = Table(("machine, from and to", "changed", "new layout"), rows)
    return [Section("What changes from one to the next", lead, table=table, slug="policies")]


def times(series: Sequence[Series]) -> list[Section]:
    """Time to the target of each variant with its band, where variants differ in what they train."""
    return [
        Section(
            "Time by variant",
            "Helps to plan: the time to the target of each variant, with its 90 % band.",
            figure=time_dots(series),
            table=time_table(series),
            alt="; ".join(
                f"{member.label}: {text.duration(point.target_time.time_s)}"
                for member in series
                for point in member.points
            ),
            slug="times",
        )
    ]


def differences(analysis: Analysis) -> list[Section]:
    """What is written differently in the variants, value by value; of many variants, what each changes."""
    names, rows = analysis.variants, analysis.differences
    if not rows:
        return []
    lead = "All values that differ between the variants, in SI units."
    table = _side_by_side(names, rows) if len(names) <= MAX_COLUMNS else _row_by_row(names, rows)
    return [Section("What the variants change", lead, table=table, slug="differences")]


def _side_by_side(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    cells = [[path, *(value or text.NONE for value in values)] for path, values in rows.items()]
    return Table(["", *names], cells)


def _row_by_row(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """A row for each variant with its values beside those of the first."""
    cells = []
    for index, name in enumerate(names[1:], start=1):
        own = [
            f"{path}: {values[0] or text.NONE} \u2192 {values[index] or text.NONE}"
            for path, values in rows.items()
            if values[index] != values[0]
        ]
        left = len(own) - MAX_DIFFERENCES
        more = [f"{left} more"] if left > 0 else []
        cells.append([name, "; ".join([*own[:MAX_DIFFERENCES], *more]) or text.NONE])
    return Table(["variant", f"relative to \u201c{names[0]}\u201d"], cells)


def where_steps_go(points: Sequence[tuple[str, PointResult]]) -> list[Section]:
    """Every second of a step by cause, of points under their names."""
    rows = [
        PartsRow(name, point.prediction.step_time_s, point.parts_s, point.prediction.why.sentence)
        for name, point in points[:MAX_ROWS]
    ]
    return [
        Section(
            "Where a step goes",
            "Shows what to improve: computing, or a wait that nothing hides.",
            figure=parts_figure(rows),
            table=parts_table(rows),
            alt=parts_alt(rows),
            slug="step-time",
        )
    ]


def named_points(analysis: Analysis) -> list[tuple[str, PointResult]]:
    """Each series at its best batches; where variants are compared, every point under what it shares."""
    if analysis.changes:
        return [
            (f"{group}, {change.point.variant}", change.point)
            for group, own in analysis.changes.items()
            for change in own
        ]
    return [(series.at(point), point) for series in analysis.series for point in series.points]
