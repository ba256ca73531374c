"""The summary of a sweep as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsim.base.files import write_file
from perfsim.base.units import DAY_S
from perfsim.prediction.caveats import confidence
from perfsim.report import text
from perfsim.report.caveats import caveats_section, head_remarks
from perfsim.report.document import plain, text_with_rows
from perfsim.report.figures.scaling import (
    ScalingPoint,
    efficiency_curve,
    efficiency_table,
    heat_map,
    heat_map_table,
    scaling_curve,
    scaling_table,
)
from perfsim.report.figures.step import (
    Changes,
    PartsRow,
    change_bars,
    change_table,
    parts_alt,
    parts_figure,
    parts_table,
    time_dots,
    time_table,
)
from perfsim.report.figures.time import (
    CostPoint,
    cost_alt,
    cost_curve,
    cost_table,
    equal_time,
    equal_time_alt,
    worth_taking,
)
from perfsim.report.page import Badge, Head, Row, Section, scale_of, slugify, write_page
from perfsim.report.study import production_rate
from perfsim.report.table import Table
from perfsim.studies.answers import PointResult
from perfsim.studies.decision import outcome_of, verb
from perfsim.studies.scaling import Match, Series, TimeMap
from perfsim.studies.variants import Analysis, SweepResult, first_sentence
from perfsim.version import __version__

# The head of a sweep's page: one sentence, the best of each machine on one scale, and how sure it is.

MAX_HEAD_ROWS = 8
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
        first = analysis.scalings[0].first
        last = analysis.scalings[0].last
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
    winners = [min(group, key=_head_time_s) for group in analysis.targets]
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
    series = analysis.series
    targets = analysis.targets
    if not series:
        return [], ""
    winners = [min(group, key=_head_time_s) for group in targets if len(group) > 1]
    chosen = sorted(series, key=_head_time_s) if len(targets) == 1 else list(series)
    shown = [member for member in series if member in chosen[:MAX_HEAD_ROWS]]
    rows = [_row(member, marked=member in winners) for member in shown]
    return rows, _head_note(len(shown), len(series), len(targets), marked=any(row.marked for row in rows))


def _head_time_s(series: Series) -> float:
    return series.fastest.target_time.time_s


def _row(series: Series, *, marked: bool) -> Row:
    time = series.fastest.target_time
    return Row(series.at(series.fastest), time.time_s, time.band_s, marked)


def production_notes(feasible: Sequence[PointResult]) -> list[str]:
    """A sentence for each production ratio of the points."""
    ratios = dict.fromkeys(point.prediction.production for point in feasible)
    return [
        f"Times are of healthy steps; runs take longer, at {production_rate(production)}."
        for production in filter(None, ratios)
    ]


def _head_note(shown: int, count: int, targets: int, *, marked: bool) -> str:
    words = ["Each machine at the number of devices that reaches the target first, at its best batch."]
    if targets > 1:
        words = ["Each machine at its best batch. Targets differ, because models or their tokens do."]
    if marked:
        words.append("Marked: the fastest." if targets == 1 else "Marked: the fastest to each target.")
    if shown < count:
        which = "the fastest" if targets == 1 else "the first"
        words.append(f"These are {which} {shown} of {count}; the tables have all.")
    return " ".join(words)


# The section of a sweep that sets time against money, or against device-days where no price is given.


def _time_and_cost(analysis: Analysis) -> list[Section]:
    """The section; nothing where targets differ or every series has one number of devices.

    Money compares all machines, device-days those of one machine.
    """
    series = analysis.series
    if len(analysis.targets) > 1:
        return []
    points = [(member, point) for member in series for point in member.points]
    if all(len(member.points) == 1 for member in series):
        return []
    money = [outcome_of(point).money for _, point in points]
    priced = None not in money
    currency = points[0][1].study.currency
    cost = f"cost ({currency})" if priced else "device-days"
    unit, scale = text.time_unit(point.target_time.time_s for _, point in points)
    costs = [
        amount.typical if priced and amount else _time_s(point) * point.num_devices / DAY_S
        for amount, (_, point) in zip(money, points, strict=True)
    ]
    pairs = [(_time_s(point) / scale, amount) for (_, point), amount in zip(points, costs, strict=True)]
    groups = ["" if priced else point.system for _, point in points]
    best = [
        worth_taking([pair for pair, other in zip(pairs, groups, strict=True) if other == group] + [own])[-1]
        for own, group in zip(pairs, groups, strict=True)
    ]
    drawn = [
        CostPoint(member.label, member.at(point), *pair, own)
        for (member, point), pair, own in zip(points, pairs, best, strict=True)
    ]
    lead = (
        "Shows what a shorter time costs: full marks are points than which none is both faster and cheaper."
        if priced
        else "Shows what a shorter time takes: full marks are points than which none of the same machine is "
        "faster with fewer device-days. Devices of unlike machines do not compare; with a price for each "
        "candidate the axis is money."
    )
    names = {"unit": unit, "cost": cost}
    return [
        Section(
            "Time against cost" if priced else "Time against device-days",
            lead,
            figure=cost_curve(drawn, **names),
            table=cost_table(drawn, **names),
            alt=cost_alt(drawn, **names),
            slug="cost",
        )
    ]


def _time_s(point: PointResult) -> float:
    return point.target_time.time_s


# Heat maps of a sweep: time to the target over devices and one more field, one map for each machine.

MAX_MAPS = 8
MAX_SIDE = 60
"""Rows and columns of a map."""
LEAD = (
    "Shows what a choice costs: where a row or a column hardly changes, the choice may follow other needs. "
    "An empty cell has no feasible plan."
)
SAMPLED = f" Of longer axes {MAX_SIDE} places are drawn, evenly spread."


def map_sections(maps: Sequence[TimeMap]) -> list[Section]:
    """A section for each map, as many as a page has room for."""
    return [_section(time_map) for time_map in maps[:MAX_MAPS]]


def _section(time_map: TimeMap) -> Section:
    name = _name(time_map)
    unit, scale = text.time_unit(time_map.times_s.values())
    cells = {place: time_s / scale for place, time_s in time_map.times_s.items()}
    counts = text.thinned(time_map.counts, MAX_SIDE)
    rows = text.thinned(time_map.rows, MAX_SIDE)
    z = [[cells.get((row, count)) for count in counts] for row in rows]
    labels = [text.integer(count) for count in counts]
    sampled = len(counts) < len(time_map.counts) or len(rows) < len(time_map.rows)
    y_name = _axis_name(time_map)
    axes = {"x_name": "devices", "y_name": y_name}
    heading = f"Devices and {y_name.partition(',')[0]}" + (f": {name}" if name else "")
    return Section(
        heading,
        LEAD + (SAMPLED if sampled else ""),
        figure=heat_map(labels, rows, z, z_name="Time to the target", unit=unit, **axes),
        table=heat_map_table(labels, rows, z, **axes),
        alt=_maps_alt(name or "all machines", y_name, unit, cells),
        slug=f"map-{slugify(name)}" if name else "map",
    )


def _name(time_map: TimeMap) -> str:
    """The machine and the settings that the map keeps fixed; empty for the map of all machines."""
    fixed = [f"{text.human(path.rpartition('.')[2])} {value}" for path, value in time_map.fixed]
    return ", ".join(filter(None, [time_map.machine, *fixed]))


def _axis_name(time_map: TimeMap) -> str:
    if time_map.path is None:
        return "machine"
    return "batch, sequences" if time_map.of_batch else text.human(time_map.path.rpartition(".")[2])


def _maps_alt(name: str, y_name: str, unit: str, cells: dict[tuple[str, int], float]) -> str:
    if not cells:
        return f"{name}: no cell has a feasible plan"
    (row, count), least = min(cells.items(), key=lambda item: item[1])
    return f"{name}: the least is {text.number(least)} {unit}, with {count:,} devices and {y_name} {row}"


# The tables of a sweep's page: machines that are equally fast, every point, and the inputs.

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
        _wall_text(point),
        text.duration(point.prediction.step_time_s),
        text.percent(point.prediction.mfu),
        text.layout_short(point.prediction.layout),
        "",
    ]


def _wall_text(point: PointResult) -> str:
    """Time on the wall of a point; a dash for healthy steps alone."""
    return text.NONE if point.prediction.wall_s is None else text.duration(point.prediction.wall_s)


def _inputs_tables(result: SweepResult) -> list[tuple[str, Table]]:
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


# The sections of a sweep that tell its variants apart, its speed-up, and where its steps go.

MAX_LINES = 12
MAX_MARKS = 200
"""Points of one line."""
MAX_ROWS = 40
MAX_DIFFERENCES = 12
MAX_COLUMNS = 8
"""Variants that stand side by side in one table."""


def _efficiency(analysis: Analysis) -> list[Section]:
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
            _variants_note(point),
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


def _variants_note(point: PointResult) -> str:
    batch = text.integer(point.prediction.global_batch_size)
    return f"batch {batch}, {text.layout_short(point.prediction.layout)}, {point.prediction.why.cause}"


def _changed_steps(analysis: Analysis) -> list[Section]:
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


def _policies(analysis: Analysis) -> list[Section]:
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


def _differences(analysis: Analysis) -> list[Section]:
    """What is written differently in the variants, value by value; of many variants, what each changes."""
    names = analysis.variants
    rows = analysis.differences
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


def _where_steps_go(points: Sequence[tuple[str, PointResult]]) -> list[Section]:
    """Every second of a step by cause, of points under their names."""
    rows = [
        PartsRow(name, point.prediction.step_time_s, point.prediction.parts_s, point.prediction.why.sentence)
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


def sweep_document(result: SweepResult, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim sweep --json`: all points, which machines match, and the verdict."""
    document = {**result.as_dict(), **_head(result, report)}
    return {name: plain(value) for name, value in document.items()}


def sweep_text(result: SweepResult, *, report: str = "index.html") -> Iterator[str]:
    """The same document as text in parts, of which none holds more than a point."""
    return text_with_rows(_head(result, report), "points", result.documents())


def _head(result: SweepResult, report: str) -> dict[str, Any]:
    """All but the points."""
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
    equal_time = [
        {
            "as_fast_as": {"system": match.rival.system, "num_devices": match.rival.num_devices},
            "system": match.series.system,
            "num_devices": match.equal,
        }
        for pair in result.analysis.equal_times
        for direction in pair
        for match in direction
    ]
    return {
        **result.head(),
        "equals": equals,
        "equal_time": equal_time,
        "verdict": result.verdict,
        "report": report,
        "version": __version__,
    }


# The page of a sweep: curves, maps, tables.

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
    every = points_table(result)
    words = "Every point of the grid in its order, with and without a plan."
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
    return [*sections, Section("Inputs", inputs, topics=_inputs_tables(result), slug="inputs")]


def _drawn(analysis: Analysis) -> list[Section]:
    """Everything with a figure: the answer, then why, then what the variants are."""
    series = analysis.series
    parts = _where_steps_go(named_points(analysis))
    scaled = [_scaling(series), *_time_and_cost(analysis), *_efficiency(analysis)]
    if not analysis.variants:
        return [*scaled[:1], *_matches(analysis), *scaled[1:], *parts, *map_sections(analysis.maps)]
    changed = _changed_steps(analysis)
    answer = scaled if analysis.scalings else [] if changed else times(series)
    return [*changed, *answer, *parts, *_policies(analysis), *_differences(analysis)]


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
    first = series.points[0]
    last = series.points[-1]
    return (
        f"{series.label}: {text.duration(first.target_time.time_s)} with {first.num_devices:,} devices, "
        f"{text.duration(last.target_time.time_s)} with {last.num_devices:,}"
    )


def _matches(analysis: Analysis) -> list[Section]:
    sections = []
    for number, (forward, backward) in enumerate(analysis.equal_times):
        first = forward[0].series
        rival = backward[0].series
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
