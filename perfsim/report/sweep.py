"""The answer to a sweep: its tables, its lines on a terminal, its page and its JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfsim.base.files import write_file
from perfsim.base.units import DAY_S
from perfsim.report import text
from perfsim.report.document import plain, text_with_rows
from perfsim.report.figures import scaling, step, time
from perfsim.report.page import Head, Section, caveats_section, slugify, trust_of, write_page
from perfsim.report.study import assumptions_tables, production_rate
from perfsim.report.table import Cell, Table, Value
from perfsim.report.terminal import caveat_lines, paragraph, table_lines
from perfsim.studies.answers import PointResult
from perfsim.studies.decision import outcome_of, verb
from perfsim.studies.scaling import Match, Series
from perfsim.studies.variants import Analysis, SweepResult, TimeMap, first_sentence
from perfsim.version import __version__

MAX_NAMED = 3
"""Variants that the headline names."""
MAX_HEAD_ROWS = 8
MAX_ON_TERMINAL = 40
"""Rows of points or variants on a terminal; the report has all."""
MAX_ROWS = 2000
"""A table of points with more shows a sample of them."""
MAX_SERIES = 12
"""Lines of one chart."""
MAX_STEPS = 40
"""Bars of where steps go."""
MAX_MAPS = 8
MAX_SIDE = 60
"""Rows and columns of a map."""
MAX_COLUMNS = 8
"""Variants that stand side by side in one table."""
MAX_DIFFERENCES = 12
"""Values that differ, in a row of many variants."""


# Tables.


def points_table(result: SweepResult, *, feasible: bool = True) -> Table:
    """The points, at most `MAX_ROWS`, with their answers or the reasons why they have none.

    With `feasible` false only the points without a plan, and no columns of answers.
    """
    asked = [point for point in result.points if feasible or not point.feasible]
    points = text.thinned(asked, MAX_ROWS)
    paths = list(dict.fromkeys(path for point in asked for path, _ in point.circumstances))
    columns = {"system": None, "strategy": None, "devices": text.COUNT, "batch": text.COUNT}
    columns |= {text.human(path): None for path in paths}
    if feasible:
        columns |= dict.fromkeys(("time to the target", "on the wall", "step"), text.TIME)
        columns |= {"MFU": text.SHARE, "layout": None}
    rows = []
    for point in points:
        values = dict(point.circumstances)
        row: list[Cell | Value] = [point.system, point.strategy, point.num_devices, point.batch_text or None]
        row += [values.get(path) for path in paths]
        if feasible and point.feasible:
            prediction = point.prediction
            row += [Cell(point.target_time.time_s, point.target_time.band_s), prediction.wall_s]
            row += [prediction.step_time_s, prediction.mfu, text.layout_short(prediction.layout)]
        elif feasible:
            row += [None] * 5
        rows.append([*row, "; ".join(point.reasons)])
    caption = "In the order of the grid."
    if len(points) < len(asked):
        caption = (
            f"{len(points):,} of {len(asked):,} points, evenly spread in the order of the grid; "
            "summary.json has all, and so has the file of --table."
        )
    return Table.of(columns | {"reason": None}, rows, caption)


def matches_table(matches: Sequence[Match]) -> Table:
    """For each machine, how many devices of another one are as fast."""
    noun = matches[0].series.devices_noun
    return Table.of(
        {"machine": None, "its time": text.TIME, f"as many {noun}": text.NUMBER}
        | {"fewest of the grid": text.COUNT, "their time": text.TIME}
        | {"at least": text.COUNT, "at most": text.COUNT},
        (
            (
                match.rival.machine,
                match.rival.target_time.time_s,
                _equal(match),
                _count(None if match.fewest is None else match.fewest.num_devices, match),
                None if match.fewest is None else match.fewest.target_time.time_s,
                _count(match.possibly, match),
                _count(match.surely, match),
            )
            for match in text.thinned(matches, MAX_ROWS)
        ),
        "As many, with its 90 % band, is interpolated between the counts of the grid; the other columns are "
        "such counts.",
    )


def _equal(match: Match) -> str:
    low, middle, high = (
        _count(end, match, text.number) for end in (match.equal.low, match.equal.typical, match.equal.high)
    )
    return middle if low == middle == high else f"{middle} ({low} to {high})"


def _count(count: float | None, match: Match, written: Any = text.integer) -> str:
    """A number of devices, which the grid may end before."""
    least, most = match.series.counts[0], match.series.counts[-1]
    if count is None:
        return f"> {text.integer(most)}"
    return f"\u2264 {text.integer(least)}" if count <= least else str(written(count))


def _map_table(time_map: TimeMap, unit: text.Unit) -> Table:
    """Times to the target: numbers of devices in columns, one more field in rows."""
    counts = text.thinned(time_map.counts, MAX_SIDE)
    bare = text.Unit(scale=unit.scale)
    if time_map.path is None:
        name = "machine"
    else:
        name = "batch, sequences" if time_map.of_batch else text.human(time_map.path.rpartition(".")[2])
    return Table.of(
        {name: None, **{text.integer(count): bare for count in counts}},
        (
            [row, *(time_map.times_s.get((row, count)) for count in counts)]
            for row in text.thinned(time_map.rows, MAX_SIDE)
        ),
        f"Time to the target ({unit.name}); columns are numbers of devices.",
    )


def _on_terminal(analysis: Analysis) -> Table:
    """The fastest points of each series, or the variants of most effect in each group."""
    if analysis.changes:
        table = step.change_table(analysis.changes)
        most = max(2, MAX_ON_TERMINAL // len(analysis.changes))
        names = ("in common", "variant", "batch", "step", "MFU", "change", "time", "wall")
        seen = Counter[object]()
        rows = []
        for row in table.rows:
            seen[row[0].value] += 1
            rows += [row] if seen[row[0].value] <= most else []
        left_out = "more variants, of less effect, are in the report."
    else:
        table = scaling.series_table(analysis.series)
        names = ("series", "machine", "batch", "step", "MFU", "efficiency", "time", "wall")
        times = sorted(cell.number for cell in table.column("time"))[:MAX_ON_TERMINAL]
        rows = [
            row
            for row, cell in zip(table.rows, table.column("time"), strict=True)
            if cell.number <= times[-1]
        ][:MAX_ON_TERMINAL]
        left_out = "more points are in the report, all slower."
    more = len(table.rows) - len(rows)
    caption = " ".join([table.caption, *([f"{more} {left_out}"] if more else [])])
    return replace(table, rows=rows, caption=caption).only(*names).grouped()


def _time_s(point: PointResult) -> float:
    return point.target_time.time_s


# The answer on a terminal.


def sweep_lines(result: SweepResult) -> list[str]:
    """Each machine at its best batch by number of devices, or variants by effect; the verdict last."""
    infeasible = len(result.points) - len(result.feasible)
    count = f"{len(result.points):,} points"
    if infeasible:
        count += f", {infeasible:,} without a feasible plan"
    table = _on_terminal(result.analysis) if result.feasible else None
    return [
        *paragraph(f"{result.title} ({count})"),
        "",
        *(table_lines(table) if table is not None else []),
        *caveat_lines(result.caveats, result.verdict),
        "",
        *paragraph(" ".join([result.verdict, *_production_notes(result.feasible)])),
    ]


def _production_notes(feasible: Sequence[PointResult]) -> list[str]:
    """A sentence for each production ratio of the points."""
    ratios = dict.fromkeys(point.prediction.production for point in feasible)
    return [
        f"Times are of healthy steps; runs take longer, at {production_rate(production)}."
        for production in filter(None, ratios)
    ]


# The head of a page: one sentence, the best of each machine on one scale, and how sure it is.


def head_of(result: SweepResult) -> Head:
    """What stands above the sections."""
    analysis = result.analysis
    drawn_below = bool(analysis.variants) and not analysis.scalings
    scale, note = (None, "") if drawn_below else scale_of(analysis)
    first = first_sentence(analysis) if result.feasible else ""
    return Head(
        result.question,
        " ".join(words for words in analysis.sentences if words != first),
        text.split_caveats(result.caveats, result.verdict)[0],
        cards_note=" ".join(filter(None, [note, *_production_notes(result.feasible)])),
        command=result.command,
        digest=result.inputs_digest,
        headline=headline(analysis),
        trust=trust_of(result.caveats),
        scale=scale if scale is not None and len(scale.rows) > 1 else None,
    )


def headline(analysis: Analysis) -> str:
    """The answer in one short sentence; empty where no point has a plan."""
    if not analysis.feasible:
        return ""
    if analysis.changes:
        return _most_change(analysis)
    if analysis.variants and analysis.scalings:
        grown = ", ".join(
            f"{text.number(own.speedup(own.last))} times ({own.circumstance})"
            for own in analysis.scalings[:MAX_NAMED]
        )
        own = analysis.scalings[0]
        return f"From {own.first.num_devices:,} to {own.last.machine}, throughput grows {grown}."
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
    words = [
        f"{name} ({f'{text.number(ratio)} times as long' if ratio >= 2 else f'{100 * (ratio - 1):+.0f} %'})"
        for name, ratio in largest
    ]
    return f"The step changes most with: {', '.join(words)}."


def _of_targets(analysis: Analysis) -> str:
    """Which machine is the fastest to how many targets; of one machine, its shortest and longest time."""
    fastest = sorted((own.fastest for own in analysis.series), key=_time_s)
    machines = {member.machine for member in analysis.series}
    if len(machines) == 1 or len(fastest) == 1:
        ends = [f"{text.duration(_time_s(own))} ({own.variant})" for own in (fastest[0], fastest[-1])]
        return f"{fastest[0].devices_noun}: from {ends[0]} to {ends[1]}."
    wins: dict[tuple[str, str], list[PointResult]] = {}
    for group in analysis.targets:
        winner = min(group, key=_fastest_s)
        wins.setdefault(winner.machine, []).append(winner.fastest)
    if len(wins) == 1:
        return f"{_winners(*wins.values())} first to all {len(analysis.targets)} targets."
    words = [f"{_winners(points)} first to {len(points)}" for points in wins.values()]
    return f"Of {len(analysis.targets)} targets, {', '.join(words)}."


def _winners(points: Sequence[PointResult]) -> str:
    """`256 H100-80GB (32 DGX) are`; or `64 to 512 H100-80GB are` where their number differs."""
    if len({point.machine for point in points}) == 1:
        return f"{points[0].machine} {verb(points[0].num_devices, 'are', 'is')}"
    counts = sorted(point.num_devices for point in points)
    return f"{text.integer(counts[0])} to {text.integer(counts[-1])} {points[0].devices_noun} are"


def _fastest_s(series: Series) -> float:
    return _time_s(series.fastest)


def scale_of(analysis: Analysis) -> tuple[Table | None, str]:
    """A row for each series in their order, the fastest of each target marked; and what the rows show.

    Where there are more than fit, the fastest are shown if all have one target, else the first.
    """
    series = analysis.series
    if not series:
        return None, ""
    one_target = len(analysis.targets) == 1
    winners = [min(group, key=_fastest_s) for group in analysis.targets if len(group) > 1]
    chosen = (sorted(series, key=_fastest_s) if one_target else list(series))[:MAX_HEAD_ROWS]
    shown = [member for member in series if member in chosen]
    words = ["Each machine at the number of devices that reaches the target first, at its best batch."]
    if not one_target:
        words = ["Each machine at its best batch. Targets differ, because models or their tokens do."]
    if any(member in winners for member in shown):
        words.append("Marked: the fastest." if one_target else "Marked: the fastest to each target.")
    if len(shown) < len(series):
        which = "the fastest" if one_target else "the first"
        words.append(f"These are {which} {len(shown)} of {len(series)}; the tables have all.")
    table = Table.of(
        {"machine": None, "Time to the target": text.TIME},
        (
            (own.at(own.fastest), Cell(_fastest_s(own), own.fastest.target_time.band_s, mark=own in winners))
            for own in shown
        ),
    )
    return table, " ".join(words)


# The page: everything with a figure, then caveats, points without a plan, every point, inputs.


def sweep_sections(result: SweepResult) -> list[Section]:
    """The sections of the page in their order."""
    sections = list(_drawn(result.analysis)) if result.feasible else []
    sections += caveats_section(result.caveats, result.verdict)
    if 0 < len(result.feasible) < len(result.points):
        lead = "For each of these points the reason says what would have to change."
        table = points_table(result, feasible=False)
        sections.append(Section("Without a plan", lead, table=table, slug="without"))
    every = points_table(result)
    lead = "Every point of the grid in its order, with and without a plan."
    topics = [(f"{len(every.rows):,} points", every)] if result.feasible else []
    table_of_all = None if result.feasible else every
    sections.append(Section("All points", lead, table=table_of_all, topics=topics, slug="points"))
    lead = "What every answer above rests on. To change an input, change the sweep's file and run it again."
    return [*sections, Section("Inputs", lead, topics=assumptions_tables(result.assumptions), slug="inputs")]


def _drawn(analysis: Analysis) -> Iterator[Section]:
    """Everything with a figure: the answer, then why, then what the variants are."""
    scaled = [_scaling(analysis.series), *_time_and_cost(analysis), *_efficiency(analysis)]
    steps = _where_steps_go(named_points(analysis))
    if not analysis.variants:
        yield from (scaled[0], *_matches(analysis), *scaled[1:], steps)
        yield from map(_map, analysis.maps[:MAX_MAPS])
        return
    if analysis.changes:
        yield _changed_steps(analysis)
    if analysis.scalings:
        yield from scaled
    elif not analysis.changes:
        yield _times(analysis.series)
    yield steps
    yield from _policies(analysis)
    yield from _differences(analysis)


def _scaling(series: Sequence[Series]) -> Section:
    left_out = len(series) - MAX_SERIES
    table = scaling.series_table(series[:MAX_SERIES])
    return Section(
        "Scaling",
        "Helps to choose the number of devices: the further a line leaves its dotted ideal, the less each "
        "further device saves. Shades are 90 % bands. Each point runs at its best batch of the grid."
        + (f" {left_out} more lines are among all points below." if left_out > 0 else ""),
        scaling.scaling_curve(table),
        table.only("series", "devices", "batch", "time", "efficiency", "layout"),
        "Time to the target by number of devices, both logarithmic",
        ("devices", "time"),
        slug="scaling",
    )


def _time_and_cost(analysis: Analysis) -> Iterator[Section]:
    """Nothing where targets differ or every series has one number of devices.

    Money compares all machines, device-days those of one machine.
    """
    points = [(member, point) for member in analysis.series for point in member.points]
    if len(analysis.targets) > 1 or all(len(member.points) == 1 for member in analysis.series):
        return
    money = [outcome_of(point).money for _, point in points]
    priced = None not in money
    costs = [
        amount.typical if priced and amount else _time_s(point) * point.num_devices / DAY_S
        for amount, (_, point) in zip(money, points, strict=True)
    ]
    pairs = [(_time_s(point), cost) for (_, point), cost in zip(points, costs, strict=True)]
    best = [
        not any(
            (priced or other.system == point.system) and (a <= pair[0] and b <= pair[1]) and (a, b) != pair
            for (_, other), (a, b) in zip(points, pairs, strict=True)
        )
        for (_, point), pair in zip(points, pairs, strict=True)
    ]
    table = time.cost_table(
        [
            (member.label, member.at(point), *pair, worth)
            for (member, point), pair, worth in zip(points, pairs, best, strict=True)
        ],
        text.Unit(points[0][1].study.currency if priced else "device-days"),
    )
    lead = (
        "Shows what a shorter time costs. Filled marks are worth taking: no other point is both faster and "
        "cheaper."
        if priced
        else "Shows what a shorter time takes. Filled marks are worth taking: no other point of the same "
        "machine is faster with fewer device-days. Devices of unlike machines do not compare; with a price "
        "for each candidate the axis is money."
    )
    yield Section(
        "Time against cost" if priced else "Time against device-days",
        lead,
        time.cost_curve(table),
        table,
        "Cost over time to the target",
        ("time to the target", "cost"),
        slug="cost",
    )


def _efficiency(analysis: Analysis) -> Iterator[Section]:
    """How much of the ideal throughput further devices give, and why not all; only where devices vary."""
    if analysis.scalings:
        table = scaling.efficiency_table(analysis.scalings[:MAX_SERIES])
        yield Section(
            "Scaling efficiency",
            "Shows how much work each further device adds: the throughput, over that of as many devices "
            "which work like those of the smallest machine. Dashed: the same in time to the "
            "target, where a larger batch needs more tokens.",
            scaling.efficiency_curve(table),
            table,
            "Scaling efficiency against devices",
            ("devices", "in throughput"),
            slug="efficiency",
        )


def _matches(analysis: Analysis) -> Iterator[Section]:
    for number, (forward, backward) in enumerate(analysis.equal_times):
        first = forward[0].series.devices_noun
        rival = backward[0].series.devices_noun
        slug = f"equals-{number}" if number else "equals"
        heading = f"Equally fast: {first}, {rival}" if number else "Equally fast machines"
        yield Section(
            heading,
            f"How many {first} and how many {rival} finish on the same day. The band is that of the ratio of "
            "the two times (90 %), which share one critical batch.",
            time.equal_time(forward, backward),
            matches_table(forward),
            "A curve of equal time",
            (f"as many {first}",),
            slug=slug,
        )
        yield Section(
            f"{heading}, the other way",
            f"The other way: how many {rival} replace {first}.",
            table=matches_table(backward),
            slug=f"{slug}-back",
            level=3,
        )


def _map(time_map: TimeMap) -> Section:
    fixed = [f"{text.human(path.rpartition('.')[2])} {value}" for path, value in time_map.fixed]
    name = ", ".join(filter(None, [time_map.machine, *fixed]))
    unit = text.time_unit(time_map.times_s.values())
    table = _map_table(time_map, unit)
    field = table.columns[0].name
    lead = (
        "Shows what a choice costs: where a row or a column hardly changes, the choice may follow other "
        "needs. An empty cell has no feasible plan."
    )
    if max(len(time_map.counts), len(time_map.rows)) > MAX_SIDE:
        lead += f" Of longer axes {MAX_SIDE} places are drawn, evenly spread."
    return Section(
        f"Devices and {field.partition(',')[0]}" + (f": {name}" if name else ""),
        lead,
        scaling.heat_map(table, f"Time to the target ({unit.name})", "devices"),
        table,
        f"Time to the target ({unit.name}) by {field} and number of devices, {name or 'all machines'}",
        [column.name for column in table.columns[1:]],
        slug=f"map-{slugify(name)}" if name else "map",
    )


def _changed_steps(analysis: Analysis) -> Section:
    """How much longer or shorter a step is under each variant, where variants do the same work."""
    table = step.change_table(analysis.changes)
    replanned = any(change.policy for own in analysis.changes.values() for change in own)
    equal = (
        "all else equal. At a bar with a star the planner also chose another policy (see the table): the "
        "change is that of both together."
        if replanned
        else "all else equal."
    )
    return Section(
        "Step time by variant",
        "Shows which part of the machine a step depends on. Each bar is the change relative to "
        f"\u201c{analysis.variants[0]}\u201d, {equal}",
        step.change_bars(table),
        table.only(
            "in common",
            "variant",
            "machine",
            "step",
            "change",
            "policy changed",
            "limited by",
            "nearest remedy",
        ),
        "Bars of the change of the step time",
        ("change",),
        slug="variants",
    )


def _times(series: Sequence[Series]) -> Section:
    """Time to the target of each variant with its band, where variants differ in what they train."""
    table = scaling.series_table(series)
    return Section(
        "Time by variant",
        "Helps to plan: the time to the target of each variant, with its 90 % band.",
        step.time_dots(table),
        table.only("series", "batch", "steps", "step", "time", "layout"),
        "Time to the target of each variant",
        ("time",),
        slug="times",
    )


def named_points(analysis: Analysis) -> list[tuple[str, PointResult]]:
    """Each series at its best batches; where variants are compared, every point under what it shares."""
    if analysis.changes:
        return [
            (f"{group}, {change.point.variant}", change.point)
            for group, own in analysis.changes.items()
            for change in own
        ]
    return [(series.at(point), point) for series in analysis.series for point in series.points]


def _where_steps_go(points: Sequence[tuple[str, PointResult]]) -> Section:
    """Every second of a step by cause."""
    table = step.parts_table(
        [
            (name, point.prediction.step_time_s, point.prediction.parts_s, point.prediction.why.sentence)
            for name, point in points[:MAX_STEPS]
        ]
    )
    return Section(
        "Where a step goes",
        "Shows what to improve: computing, or a wait that nothing hides.",
        step.step_shares(table),
        table,
        "Stacked bars of the step time by cause",
        [column.name for column in table.columns[1:3]],
        slug="step-time",
    )


def _policies(analysis: Analysis) -> Iterator[Section]:
    """What the planner changed from each variant to the next, machine by machine, where models differ."""
    table = Table.of(
        ("machine, from and to", "changed", "new layout"),
        (
            (
                f"{machine}, {change.base.variant} \u2192 {change.point.variant}",
                change.policy or "nothing",
                text.layout_long(change.point.prediction.layout),
            )
            for machine, changes in analysis.successions.items()
            for change in changes
        ),
    )
    if table.rows:
        lead = (
            "Shows what has to be retuned when the model grows: the fields of the layout or of the memory "
            "policy that the planner chose differently."
        )
        yield Section("What changes from one to the next", lead, table=table, slug="policies")


def _differences(analysis: Analysis) -> Iterator[Section]:
    """What is written differently in the variants, value by value; of many variants, what each changes."""
    names = analysis.variants
    differing = analysis.differences
    if not differing:
        return
    table = Table.of(
        ["", *names], ([path, *(value or None for value in values)] for path, values in differing.items())
    )
    if len(names) > MAX_COLUMNS:
        table = Table.of(
            ("variant", f"relative to \u201c{names[0]}\u201d"),
            ((name, _changed(differing, place)) for place, name in enumerate(names[1:], start=1)),
        )
    lead = "All values that differ between the variants, in SI units."
    yield Section("What the variants change", lead, table=table, slug="differences")


def _changed(differing: Mapping[str, Sequence[str]], place: int) -> str:
    """The values of a variant next to those of the first."""
    own = [
        f"{path}: {values[0] or text.NONE} \u2192 {values[place] or text.NONE}"
        for path, values in differing.items()
        if values[place] != values[0]
    ]
    left = len(own) - MAX_DIFFERENCES
    return "; ".join([*own[:MAX_DIFFERENCES], *([f"{left} more"] if left > 0 else [])])


# Files.


def write_sweep(result: SweepResult, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page. The same result gives the same bytes."""
    page = write_page(result.title, sweep_sections(result), folder / "index.html", head=head_of(result))
    write_file(folder / "summary.json", sweep_text(result))
    return page


def sweep_document(result: SweepResult, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim sweep --json`: all points, which machines match, and the verdict."""
    document = {**result.as_dict(), **_summary(result, report)}
    return {name: plain(value) for name, value in document.items()}


def sweep_text(result: SweepResult, *, report: str = "index.html") -> Iterator[str]:
    """The same document as text in parts, of which none holds more than a point."""
    return text_with_rows(_summary(result, report), "points", result.documents())


def _summary(result: SweepResult, report: str) -> dict[str, Any]:
    """The document without the points."""
    equals = [
        _as_fast_as(match)
        | {
            "num_devices": None if match.fewest is None else match.fewest.num_devices,
            "possibly": match.possibly,
            "surely": match.surely,
        }
        for match in result.analysis.matches
    ]
    equal_time = [
        _as_fast_as(match) | {"num_devices": match.equal}
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


def _as_fast_as(match: Match) -> dict[str, Any]:
    rival = {"system": match.rival.system, "num_devices": match.rival.num_devices}
    return {"as_fast_as": rival, "system": match.series.system}
