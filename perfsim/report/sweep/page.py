"""The page of a sweep: curves, maps, tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfsim.files import write_file
from perfsim.report import text
from perfsim.report.caveats import caveats_section
from perfsim.report.figures.equal_time import equal_time, equal_time_alt
from perfsim.report.figures.scaling import ScalingPoint, scaling_curve, scaling_table
from perfsim.report.page import write_page
from perfsim.report.sections import Section
from perfsim.report.sweep.cost import time_and_cost
from perfsim.report.sweep.document import sweep_text
from perfsim.report.sweep.head import head_of
from perfsim.report.sweep.maps import map_sections
from perfsim.report.sweep.tables import inputs_tables, matches_table, points_table
from perfsim.report.sweep.variants import (
    MAX_MARKS,
    changed_steps,
    differences,
    efficiency,
    named_points,
    policies,
    times,
    where_steps_go,
)
from perfsim.sweeps.analysis import Analysis
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.result import SweepResult
from perfsim.sweeps.scaling import Series

MAX_SERIES = 12
"""Lines of one chart."""


def write_sweep(result: SweepResult, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page. The same result gives the same bytes."""
    page = write_page(result.title, sweep_sections(result), folder / "index.html", head=head_of(result))
    write_file(folder / "summary.json", sweep_text(result))
    return page


def sweep_sections(result: SweepResult) -> list[Section]:
    """The page: curves, matches, maps, caveats, points without a plan, every point, inputs."""
    sections = _drawn(result.analysis) if result.feasible else []
    sections += caveats_section(result.caveats, result.verdict)
    every, words = points_table(result), "Every point of the grid in its order, with and without a plan."
    if not result.feasible:
        sections.append(Section("All points", words, table=every, slug="points"))
    else:
        if len(result.feasible) < len(result.points):
            lead = "For each of these points the reason says what would have to change."
            table = points_table(result, feasible=False)
            sections.append(Section("Without a plan", lead, table=table, slug="without"))
        topics = [(f"{len(every.rows):,} points", every)]
        sections.append(Section("All points", words, topics=topics, slug="points"))
    inputs = "What every answer above rests on. To change an input, change the sweep's file and run it again."
    return [*sections, Section("Inputs", inputs, topics=inputs_tables(result), slug="inputs")]


def _drawn(analysis: Analysis) -> list[Section]:
    """Everything with a figure: the answer, then why, then what the variants are."""
    series = analysis.series
    parts = where_steps_go(named_points(analysis))
    scaled = [_scaling(series), *time_and_cost(analysis), *efficiency(analysis)]
    if not analysis.variants:
        return [*scaled[:1], *_matches(analysis), *scaled[1:], *parts, *map_sections(analysis.maps)]
    changed = changed_steps(analysis)
    answer = scaled if analysis.scalings else [] if changed else times(series)
    return [*changed, *answer, *parts, *policies(analysis), *differences(analysis)]


def _scaling(series: Sequence[Series]) -> Section:
    unit, scale = text.time_unit(point.target_time.time_s for member in series for point in member.points)
    points = [
        ScalingPoint(
            member.label,
            point.num_devices,
            point.target_time.time_s / scale,
            member.efficiency(point),
            _note(point),
            band=(point.target_time.band_s[0] / scale, point.target_time.band_s[1] / scale),
        )
        for member in series[:MAX_SERIES]
        for point in text.thinned(member.points, MAX_MARKS)
    ]
    left_out = f" The tables have {len(series) - MAX_SERIES} more lines." if len(series) > MAX_SERIES else ""
    return Section(
        "Scaling",
        "Helps to choose the number of devices: the further a line leaves its dotted ideal, the less each "
        "further device saves. Shades are 90 % bands. Each point runs at its best batch of the grid."
        f"{left_out}",
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
    sections = []
    for number, (forward, backward) in enumerate(analysis.equal_times):
        first, rival = forward[0].series, backward[0].series
        lead = (
            f"How many {first.devices_noun} and how many {rival.devices_noun} finish on the same day. "
            "Its band is that of the ratio of the two times (90 %), which share one critical batch."
        )
        slug = f"equals-{number}" if number else "equals"
        heading = (
            "Equally fast machines"
            if not number
            else f"Equally fast: {first.devices_noun}, {rival.devices_noun}"
        )
        sections.append(
            Section(
                heading,
                lead,
                figure=equal_time(forward, backward),
                table=matches_table(forward),
                alt=equal_time_alt(forward),
                slug=slug,
            )
        )
        words = f"The other way: how many {rival.devices_noun} replace {first.devices_noun}."
        sections.append(
            Section(
                f"{heading}, the other way",
                words,
                table=matches_table(backward),
                slug=f"{slug}-back",
                level=3,
            )
        )
    return sections
