"""The sections of a sweep that tell its variants apart, its speed-up, and where its steps go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfsim.report import text
from perfsim.report.figures.parts import PartsRow, parts_alt, parts_figure, parts_table
from perfsim.report.figures.scaling import ScalingPoint, scaling_curve, scaling_table
from perfsim.report.figures.variants import Changes, change_bars, change_table, time_dots, time_table
from perfsim.report.sections import Section
from perfsim.report.tables import Table
from perfsim.sweep.knee import Scaling, knee_sentence, parts_of, scalings
from perfsim.sweep.policy import ARROW
from perfsim.sweep.runner import PointResult, SweepResult
from perfsim.sweep.scaling import Series, time_of
from perfsim.sweep.succession import successions
from perfsim.sweep.variants import changes_of, differing, variants_of

MAX_LINES = 12
MAX_ROWS = 40
MAX_DIFFERENCES = 12
MAX_COLUMNS = 8
"""Variants that stand side by side in one table."""


def speedup(series: Sequence[Series]) -> list[Section]:
    """Tokens a second over devices beside the ideal, and why a line leaves it; only where devices vary."""
    scaled = scalings(list(series))[:MAX_LINES]
    if not scaled:
        return []
    points = [
        ScalingPoint(one.series.label, each.point.num_devices, one.speedup(each), _note(each))
        for one in scaled
        for each in one.series.points
    ]
    alt = "; ".join(f"{one.series.label}: {one.speedup(one.last):.3g} times" for one in scaled)
    return [
        Section(
            "Speed-up",
            "Helps to see how many devices still do the work of as many. Tokens a second over those of the "
            "smallest machine; the broad pale line is the ideal. " + " ".join(_explained(scaled)),
            figure=scaling_curve(points, quantity="speed-up", unit="times", better="higher", linear=True),
            table=scaling_table(points, unit="times", better="higher"),
            alt=f"Speed-up against devices, beside the ideal. {alt}.",
            slug="speed-up",
        )
    ]


def _explained(scaled: Sequence[Scaling]) -> list[str]:
    return [knee_sentence(one) for one in scaled[:4]]


def _note(each: PointResult) -> str:
    batch = text.integer(each.answer["global_batch_size"])
    return f"batch {batch}, {text.layout_short(each.answer['layout'])}, {each.answer['why']['cause']}"


def changed_steps(result: SweepResult) -> list[Section]:
    """How much longer or shorter a step is under each variant; only where variants do the same work."""
    changes = changes_of(result)
    if not changes:
        return []
    base = variants_of(result)[0]
    anew = any(one.policy for own in changes.values() for one in own)
    equal = (
        "all else equal but for bars with a star: there the planner chose another policy as well, which the "
        "table names, and the change is that of both together."
        if anew
        else "all else equal."
    )
    return [
        Section(
            "Step time by variant",
            f"Helps to see which part of the machine a step depends on. Each bar is the change against "
            f"\u201c{base}\u201d, {equal}",
            figure=change_bars(changes),
            table=change_table(changes),
            alt=_change_alt(changes),
            slug="variants",
        )
    ]


def _change_alt(changes: Changes) -> str:
    words = [
        f"{name}: " + ", ".join(f"{one.each.point.variant} {text.percent(one.ratio - 1)}" for one in own[1:])
        for name, own in changes.items()
    ]
    return f"Bars of the change of the step time. {'; '.join(words)}."


def policies(result: SweepResult) -> list[Section]:
    """What the planner changed from each variant to the next, machine by machine, where models differ."""
    found = successions(result)
    if not found:
        return []
    rows = [
        [
            f"{machine}, {each.before.point.variant} \u2192 {each.after.point.variant}",
            each.changes.replace(ARROW, "\u2192") or "nothing",
            text.layout_long(each.after.answer["layout"]),
        ]
        for machine, steps in found.items()
        for each in steps
    ]
    lead = (
        "Helps to see the work of growing: the fields of the layout or of the memory policy that the planner "
        "chose anew. Degrees (tp, pp, dp) say how the model is cut and by whom; the rest is a setting."
    )
    table = Table(("machine, from and to", "changed", "then"), rows)
    return [Section("What changes from one to the next", lead, table=table, slug="policies")]


def times(series: Sequence[Series]) -> list[Section]:
    """Time to the target of each variant with its band, where variants differ in what they train."""
    return [
        Section(
            "Time by variant",
            "Helps to plan: how long each takes to its target, with the 90 % band.",
            figure=time_dots(series),
            table=time_table(series),
            alt="; ".join(
                f"{one.label}: {text.duration(time_of(each).time_s)}" for one in series for each in one.points
            ),
            slug="times",
        )
    ]


def differences(result: SweepResult) -> list[Section]:
    """What is written differently in the variants, value by value; of many variants, what each changes."""
    rows = differing(result)
    if not rows:
        return []
    names = variants_of(result)
    lead = "Everything that differs between them; all else is the same. Values in SI units."
    table = _side_by_side(names, rows) if len(names) <= MAX_COLUMNS else _one_by_one(names, rows)
    return [Section("What the variants change", lead, table=table, slug="differences")]


def _side_by_side(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    cells = [[path, *(value or text.NONE for value in values)] for path, values in rows.items()]
    return Table(["", *names], cells)


def _one_by_one(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
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
    return Table(["variant", f"beside \u201c{names[0]}\u201d"], cells)


def where_steps_go(points: Sequence[tuple[str, PointResult]]) -> list[Section]:
    """Every second of a step by cause, of points under their names."""
    rows = [
        PartsRow(name, each.answer["step_time_s"], parts_of(each), each.answer["why"]["sentence"])
        for name, each in points[:MAX_ROWS]
    ]
    return [
        Section(
            "Where a step goes",
            "Helps to see what to change: computing, or what is waited for because nothing hides it.",
            figure=parts_figure(rows),
            table=parts_table(rows),
            alt=parts_alt(rows),
            slug="step-time",
        )
    ]


def named_points(result: SweepResult, series: Sequence[Series]) -> list[tuple[str, PointResult]]:
    """Each series at its best batches; where variants are compared, every point under what it shares."""
    changes = changes_of(result)
    if changes:
        return [
            (f"{group}, {one.each.point.variant}", one.each) for group, own in changes.items() for one in own
        ]
    return [
        (f"{text.integer(each.point.num_devices)} {text.TIMES} {one.label}", each)
        for one in series
        for each in one.points
    ]
