"""A sweep's answer: a few lines on a terminal, a page with curves and maps, and a summary for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfsim.report import text
from perfsim.report.figures.scaling import ScalingPoint, scaling_curve, scaling_table
from perfsim.report.page import write_page
from perfsim.report.sections import Head, Section
from perfsim.report.study.summary import plain, summary_text
from perfsim.report.sweep.cards import cards_of
from perfsim.report.sweep.maps import heat_maps
from perfsim.report.sweep.tables import equals_table, inputs_table, points_table
from perfsim.report.sweep.variants import (
    changed_steps,
    differences,
    named_points,
    policies,
    speedup,
    times,
    where_steps_go,
)
from perfsim.report.tables import scale_notes
from perfsim.sweep.runner import PointResult, SweepResult
from perfsim.sweep.scaling import Series, matches, series_of, time_of
from perfsim.sweep.variants import Change, changes_of, variants_of
from perfsim.sweep.verdict import sweep_verdict

MAX_LINES = 24
"""One less than a terminal shows: the caller adds where the report is."""
_HEAD = ("machine", "devices", "batch", "step", "MFU", "of ideal", "time", "90 % band")
_HEAD_OF_CHANGES = ("variant", "devices", "batch", "step", "MFU", "change", "time", "90 % band")
MARK = " *"
MAX_SERIES = 12
"""Lines of one chart."""


def sweep_lines(result: SweepResult, *, width: int = 100, encoding: str = "ascii") -> list[str]:
    """At most 24 lines: each machine at its best batch by number of devices, then the verdict."""
    infeasible = len(result.points) - len(result.feasible)
    note = f"{len(result.points):,} points" + (
        f", {infeasible:,} without a feasible plan" if infeasible else ""
    )
    scales = scale_notes(each.answer.get("cluster_calibration") for each in result.feasible)
    sentences = [sweep_verdict(result), *(f"Scaled: {note}." for note in scales)]
    verdict = textwrap.wrap(" ".join(sentences), width)
    changes = [one for own in changes_of(result).values() for one in own]
    rows = [_changed_cells(one) for one in changes] or [
        _cells(series, each) for series in series_of(result) for each in series.points
    ]
    room = MAX_LINES - len(verdict) - 5  # title, blank, head, rule, blank
    lines = [f"{result.title} ({note})"[:width], ""]
    if rows:
        shown = _thinned(rows, room)
        left_out = f"... {len(rows) - len(shown)} more rows in the report" if len(rows) > len(shown) else ""
        marked = (
            f"{MARK.strip()} the planner's policy changed too" if any(one.policy for one in changes) else ""
        )
        foot = "; ".join(filter(None, [left_out, marked]))
        lines += [*_grid(_HEAD_OF_CHANGES if changes else _HEAD, shown), foot]
    lines += verdict
    return [text.encodable(line, encoding)[:width].rstrip() for line in lines[:MAX_LINES]]


def _cells(series: Series, each: PointResult) -> list[str]:
    return _row(series.label, each, text.percent(series.efficiency(each), 0))


def _changed_cells(one: Change) -> list[str]:
    change = text.NONE if one.each is one.base else f"{100 * (one.ratio - 1):+.1f} %"
    if one.policy:
        change += MARK
    return _row(one.each.point.variant, one.each, change)


def _row(name: str, each: PointResult, share: str) -> list[str]:
    answer = each.answer
    return [
        name,
        text.integer(each.point.num_devices),
        text.integer(answer["global_batch_size"]),
        text.duration(answer["step_time_s"]),
        text.percent(answer["mfu"], 0),
        share,
        text.duration(time_of(each).time_s),
        text.duration_band(time_of(each).band_s),
    ]


def _thinned(rows: list[list[str]], room: int) -> list[list[str]]:
    """At most so many rows, evenly spread, with the first and the last."""
    if len(rows) <= room:
        return rows
    last = len(rows) - 1
    return [rows[round(place * last / (room - 1))] for place in range(room)]


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    widths[0] = max(12, min(widths[0], 34, 100 - sum(widths[1:]) - 2 * len(widths[1:])))
    lines = [_line(row, widths) for row in (head, *rows)]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name = cells[0] if len(cells[0]) <= widths[0] else cells[0][: widths[0] - 1] + "~"
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([name.ljust(widths[0]), *rest])


def sweep_document(result: SweepResult, *, report: str = "index.html") -> dict[str, Any]:
    """What `perfsim sweep --json` prints: all points, who matches whom, and the verdict."""
    equals = [
        {
            "as_fast_as": {
                "system": each.wanted.point.candidate.system.name,
                "num_devices": each.wanted.point.num_devices,
            },
            "system": each.series.system,
            "num_devices": None if each.fewest is None else each.fewest.point.num_devices,
            "possibly": each.possibly,
            "surely": each.surely,
        }
        for each in matches(result)
    ]
    document = {**result.as_dict(), "equals": equals, "verdict": sweep_verdict(result), "report": report}
    return {name: plain(value) for name, value in document.items()}


def write_sweep_report(result: SweepResult, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page. The same result gives the same bytes."""
    page = write_page(result.title, sweep_sections(result), folder / "index.html", head=_head(result))
    (folder / "summary.json").write_bytes(summary_text(sweep_document(result)).encode("utf-8"))
    return page


def sweep_sections(result: SweepResult) -> list[Section]:
    """The page: curve, equals, maps, every point, inputs."""
    series = series_of(result)
    sections = _drawn(result, series) if series else []
    sections.append(
        Section(
            "All points",
            "Every point of the grid in its order. One without a feasible plan is an answer too: the reason "
            "says what would have to change.",
            table=points_table(result),
            slug="points",
        )
    )
    inputs = "What every answer above rests on. Another value is another sweep: change it and run again."
    return [*sections, Section("Inputs", inputs, table=inputs_table(result), slug="inputs")]


def _drawn(result: SweepResult, series: Sequence[Series]) -> list[Section]:
    """Everything with a figure; what variants are comes first where there are any."""
    named = named_points(result, series)
    if not variants_of(result):
        return [
            _scaling(series),
            *speedup(series),
            *where_steps_go(named),
            *_equals(result),
            *heat_maps(result),
        ]
    scaled = [*speedup(series), _scaling(series)] if any(len(one.points) > 1 for one in series) else []
    changed = changed_steps(result)
    return [
        *changed,
        *policies(result),
        *differences(result),
        *(scaled or ([] if changed else times(series))),
        *where_steps_go(named),
    ]


def _head(result: SweepResult) -> Head:
    cards, note = ([], "") if changes_of(result) else cards_of(series_of(result))
    return Head(result.question, sweep_verdict(result), cards, note)


def _scaling(series: Sequence[Series]) -> Section:
    unit, scale = text.time_unit(time_of(each).time_s for one in series for each in one.points)
    points = [
        ScalingPoint(one.label, each.point.num_devices, time_of(each).time_s / scale, _note(each))
        for one in series[:MAX_SERIES]
        for each in one.points
    ]
    left_out = (
        f" {len(series) - MAX_SERIES} more lines stand in the tables." if len(series) > MAX_SERIES else ""
    )
    return Section(
        "Scaling",
        "Helps to decide how many devices are worth having: where a line leaves its dotted ideal, another "
        f"device buys less than the first one did. Each point runs at its best batch of the grid.{left_out}",
        figure=scaling_curve(points, unit=unit),
        table=scaling_table(points, unit=unit),
        alt="; ".join(_alt(one) for one in series[:MAX_SERIES]),
        slug="scaling",
    )


def _note(each: PointResult) -> str:
    return (
        f"batch {text.integer(each.answer['global_batch_size'])}, {text.layout_short(each.answer['layout'])}"
    )


def _alt(series: Series) -> str:
    first, last = series.points[0], series.points[-1]
    return (
        f"{series.label}: {text.duration(time_of(first).time_s)} with {first.point.num_devices:,} devices, "
        f"{text.duration(time_of(last).time_s)} with {last.point.num_devices:,}"
    )


def _equals(result: SweepResult) -> list[Section]:
    found = matches(result)
    if not found:
        return []
    lead = (
        f"Helps to decide how many {found[0].series.system} replace another machine. Possibly and surely are "
        "the ends of the 90 % band of the ratio of the two times, which share one critical batch."
    )
    return [Section("Equally fast machines", lead, table=equals_table(found), slug="equals")]
