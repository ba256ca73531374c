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
from perfsim.report.sweep.maps import map_sections
from perfsim.report.sweep.tables import inputs_table, matches_table, points_table
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
from perfsim.sweep.analysis import Analysis
from perfsim.sweep.points import PointResult
from perfsim.sweep.result import SweepResult
from perfsim.sweep.scaling import Series
from perfsim.sweep.variants import Change

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
    scales = scale_notes(point.prediction.cluster_calibration for point in result.feasible)
    sentences = [result.verdict, *(f"Scaled: {note}." for note in scales)]
    verdict = textwrap.wrap(" ".join(sentences), width)
    changes = [change for own in result.analysis.changes.values() for change in own]
    rows = [_changed_cells(change) for change in changes] or [
        _cells(series, point) for series in result.analysis.series for point in series.points
    ]
    room = MAX_LINES - len(verdict) - 5  # title, blank, head, rule, blank
    lines = [f"{result.title} ({note})"[:width], ""]
    if rows:
        shown = _thinned(rows, room)
        left_out = f"... {len(rows) - len(shown)} more rows in the report" if len(rows) > len(shown) else ""
        replanned = any(change.policy for change in changes)
        marked = f"{MARK.strip()} the planner's policy changed too" if replanned else ""
        foot = "; ".join(filter(None, [left_out, marked]))
        lines += [*_grid(_HEAD_OF_CHANGES if changes else _HEAD, shown), foot]
    lines += verdict
    return [text.encodable(line, encoding)[:width].rstrip() for line in lines[:MAX_LINES]]


def _cells(series: Series, point: PointResult) -> list[str]:
    return _row(series.label, point, text.percent(series.efficiency(point), 0))


def _changed_cells(change: Change) -> list[str]:
    share = text.NONE if change.point is change.base else f"{100 * (change.ratio - 1):+.1f} %"
    return _row(change.point.variant, change.point, share + (MARK if change.policy else ""))


def _row(name: str, point: PointResult, share: str) -> list[str]:
    return [
        name,
        text.integer(point.num_devices),
        text.integer(point.prediction.global_batch_size),
        text.duration(point.prediction.step_time_s),
        text.percent(point.prediction.mfu, 0),
        share,
        text.duration(point.target_time.time_s),
        text.duration_band(point.target_time.band_s),
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
    """What `perfsim sweep --json` prints: all points, which machines match, and the verdict."""
    equals = [
        {
            "as_fast_as": {"system": match.rival.system, "num_devices": match.rival.num_devices},
            "system": match.series.system,
            "num_devices": None if match.fewest is None else match.fewest.num_devices,
            "possibly": match.possibly,
            "surely": match.surely,
        }
        for match in result.analysis.matches
    ]
    document = {**result.as_dict(), "equals": equals, "verdict": result.verdict, "report": report}
    return {name: plain(value) for name, value in document.items()}


def write_sweep_report(result: SweepResult, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page. The same result gives the same bytes."""
    page = write_page(result.title, sweep_sections(result), folder / "index.html", head=_head(result))
    (folder / "summary.json").write_bytes(summary_text(sweep_document(result)).encode("utf-8"))
    return page


def sweep_sections(result: SweepResult) -> list[Section]:
    """The page: curve, matches, maps, every point, inputs."""
    sections = _drawn(result.analysis) if result.feasible else []
    sections.append(
        Section(
            "All points",
            "Every point of the grid in its order. For a point without a feasible plan the reason says what "
            "would have to change.",
            table=points_table(result),
            slug="points",
        )
    )
    inputs = "What every answer above rests on. To change an input, change the sweep's file and run it again."
    return [*sections, Section("Inputs", inputs, table=inputs_table(result), slug="inputs")]


def _drawn(analysis: Analysis) -> list[Section]:
    """Everything with a figure; what variants are comes first where there are any."""
    series = analysis.series
    parts = where_steps_go(named_points(analysis))
    if not analysis.variants:
        return [
            _scaling(series),
            *speedup(analysis),
            *parts,
            *_matches(analysis),
            *map_sections(analysis.maps),
        ]
    scaled = [*speedup(analysis), _scaling(series)] if analysis.scalings else []
    changed = changed_steps(analysis)
    return [
        *changed,
        *policies(analysis),
        *differences(analysis),
        *(scaled or ([] if changed else times(series))),
        *parts,
    ]


def _head(result: SweepResult) -> Head:
    cards, note = ([], "") if result.analysis.changes else cards_of(result.analysis)
    return Head(result.question, result.verdict, cards, note)


def _scaling(series: Sequence[Series]) -> Section:
    unit, scale = text.time_unit(point.target_time.time_s for member in series for point in member.points)
    points = [
        ScalingPoint(
            member.label,
            point.num_devices,
            point.target_time.time_s / scale,
            member.efficiency(point),
            _note(point),
        )
        for member in series[:MAX_SERIES]
        for point in member.points
    ]
    left_out = f" The tables have {len(series) - MAX_SERIES} more lines." if len(series) > MAX_SERIES else ""
    return Section(
        "Scaling",
        "Helps to choose the number of devices: the further a line leaves its dotted ideal, the less each "
        f"further device saves. Each point runs at its best batch of the grid.{left_out}",
        figure=scaling_curve(points, unit=unit),
        table=scaling_table(points, unit=unit),
        alt="; ".join(_alt(member) for member in series[:MAX_SERIES]),
        slug="scaling",
    )


def _note(point: PointResult) -> str:
    step = point.prediction
    return f"batch {text.integer(step.global_batch_size)}, {text.layout_short(step.layout)}"


def _alt(series: Series) -> str:
    first, last = series.points[0], series.points[-1]
    return (
        f"{series.label}: {text.duration(first.target_time.time_s)} with {first.num_devices:,} devices, "
        f"{text.duration(last.target_time.time_s)} with {last.num_devices:,}"
    )


def _matches(analysis: Analysis) -> list[Section]:
    if not analysis.matches:
        return []
    lead = (
        f"How many {analysis.matches[0].series.system} replace another machine. At least and at most are the "
        "ends of the 90 % band of the ratio of the two times; both times share one critical batch."
    )
    table = matches_table(analysis.matches)
    return [Section("Equally fast machines", lead, table=table, slug="equals")]
