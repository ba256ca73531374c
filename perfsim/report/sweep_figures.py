"""Sections of a sweep's page that have a figure: how machines scale, what variants change, where steps go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from perfsim.base.units import DAY_S
from perfsim.report import draw, text
from perfsim.report.page import Section, slugify
from perfsim.report.study_figures import where_steps_go
from perfsim.report.table import Cell, Table, Value
from perfsim.studies.answers import PointResult
from perfsim.studies.decision import outcome_of
from perfsim.studies.scaling import Match, Series
from perfsim.studies.variants import Change, SweepResult, TimeMap

MAX_ROWS = 2000
"""A table of points with more shows a sample of them."""
_MAX_MARKS = 200
"""Points of one line."""
_MAX_SERIES = 12
"""Lines of one chart."""
_MAX_STEPS = 40
"""Bars of where steps go."""
_MAX_MAPS = 8
_MAX_SIDE = 60
"""Rows and columns of a map."""
_NAMED = 3
"""Most series that are named at their lines; more have a legend."""
_SAME = 0.02
"""Differences of efficiencies below this are not drawn."""


def drawn(result: SweepResult) -> Iterator[Section]:
    """The answer, then why, then what the variants are."""
    lead = (
        "Helps to choose the number of devices: the further a line leaves its dotted ideal, the less each "
        "further device saves. Shades are 90 % bands. Each point runs at its best batch of the grid."
    )
    if len(result.series) > _MAX_SERIES:
        lead += f" {len(result.series) - _MAX_SERIES} more lines are among all points below."
    columns = ("series", "devices", "batch", "time", "efficiency", "layout")
    table = series_table(result.series[:_MAX_SERIES]).only(*columns)
    scaling = Section("Scaling", lead, scaling_curve(table), table, ("devices", "time"))
    scaled = [scaling, *_time_and_cost(result), *_efficiency(result)]
    # Each series at its best batches; where variants are compared, every point under what it shares.
    named = [
        (f"{group}, {change.point.variant}", change.point.prediction)
        for group, own in result.changes.items()
        for change in own
    ] or [(series.at(point), point.prediction) for series in result.series for point in series.points]
    steps = where_steps_go(
        [(name, own.step_time_s, own.parts_s, own.why.sentence) for name, own in named[:_MAX_STEPS]],
        "Shows what to improve: computing, or a wait that nothing hides.",
    )
    if not result.variants:
        yield from (scaled[0], *_matches(result), *scaled[1:], steps)
        yield from map(_map, result.maps[:_MAX_MAPS])
        return
    if result.changes:
        yield _changed_steps(result)
    if result.scalings:
        yield from scaled
    elif not result.changes:
        yield _times(result.series)
    yield steps


def answer_cells(point: PointResult) -> dict[str, Cell | Value]:
    """What the tables of a sweep show of a point that has a plan, by column."""
    own = point.prediction
    return {
        "machine": point.machine,
        "devices": point.num_devices,
        "batch": own.global_batch_size,
        "steps": point.target_time.steps,
        "step": own.step_time_s,
        "MFU": own.mfu,
        "time": Cell(point.target_time.time_s, point.target_time.band_s),
        "wall": own.wall_s,
        "layout": text.layout_short(own.layout),
        "limited by": own.why.cause,
        "nearest remedy": own.why.remedy,
    }


def _units(points: Sequence[PointResult]) -> dict[str, text.Unit]:
    """The units that suit these points together."""
    unit = text.TIME.of(point.target_time.time_s for point in points)
    step = text.TIME.of([max((point.prediction.step_time_s for point in points), default=1.0)])
    counts = dict.fromkeys(("devices", "batch", "steps"), text.COUNT)
    return {**counts, "step": step, "MFU": text.WHOLE_SHARE, "time": unit, "wall": unit}


# Time to the target and efficiency by number of devices, next to the ideal.


def series_table(series: Sequence[Series]) -> Table:
    """Every point of the series at its best batch, every column in one unit."""
    points = _thinned_points(series)
    units = _units([point for _, point in points]) | {"efficiency": text.WHOLE_SHARE}
    names = ("series", "machine", "devices", "batch", "steps", "step", "MFU", "efficiency", "time", "wall")
    return Table.each(
        (
            {"series": own.label, "efficiency": own.efficiency(point), **answer_cells(point)}
            for own, point in points
        ),
        {name: (units.get(name), name) for name in (*names, "layout")},
        "Efficiency is relative to the smallest machine of the series.",
    )


def _thinned_points(series: Sequence[Series]) -> list[tuple[Series, PointResult]]:
    return [(own, point) for own in series for point in text.thinned(own.points, _MAX_MARKS)]


def scaling_curve(table: Table) -> go.Figure:
    """A line for each series with its band, and dotted the ideal from its first point."""
    traces = []
    curves = {}
    for own in draw.Series.of(table, "devices"):
        hover = own.table.hovers("devices", "time", "efficiency", "layout")
        traces += own.curve("devices", "time", hover, dash="solid")
        curves[own.name] = own.points("devices", "time")
        shares = own.table.values("efficiency")
        ideal = [time * share for (_, time), share in zip(curves[own.name], shares, strict=True)]
        look = draw.IDEAL | {"color": own.colour}
        name = f"{own.name}, ideal"
        group = text.esc(own.name)
        traces.append(draw.line(own.table.values("devices"), ideal, look, name, legendgroup=group))
    unit = table.unit("time").name
    counts = table.values("devices")
    times = [end for band in table.bands("time") for end in band]
    x_ends = draw.ends(counts, 1.2)
    y_ends = draw.ends(times, 1.3)
    names = draw.Canvas(x_ends, y_ends).names(curves)
    named = len(names) == len(curves) <= _NAMED
    return draw.figure(
        f"Time to the target ({unit}) by number of devices",
        traces,
        draw.log_axis("devices", counts, x_ends, at_values=True),
        draw.log_axis(f"time to the target ({unit})", times, y_ends),
        460,
        showlegend=not named,
        annotations=names if named else [],
    )


def _efficiency(result: SweepResult) -> Iterator[Section]:
    """How much of the ideal throughput further devices give, and why not all; only where devices vary."""
    if not result.scalings:
        return

    def note(pair: tuple[Series, PointResult]) -> str:
        own = pair[1].prediction
        return f"{text.layout_short(own.layout)}, {own.why.cause}"

    table = Table.each(
        _thinned_points(result.scalings[:_MAX_SERIES]),
        {
            "series": (None, lambda pair: pair[0].label),
            "devices": (text.COUNT, lambda pair: pair[1].num_devices),
            "in throughput": (text.SHARE, lambda pair: pair[0].throughput_efficiency(pair[1])),
            "in time to the target": (text.SHARE, lambda pair: pair[0].efficiency(pair[1])),
            "note": (None, note),
        },
        "Relative to the smallest machine of the series.",
    )
    lead = (
        "Shows how much work each further device adds: the throughput, over that of as many devices "
        "which work like those of the smallest machine. Dashed: the same in time to the "
        "target, where a larger batch needs more tokens."
    )
    told = ("devices", "in throughput")
    yield Section("Scaling efficiency", lead, efficiency_curve(table), table, told, slug="efficiency")


def efficiency_curve(table: Table) -> go.Figure:
    """The efficiency in throughput by devices; dashed the efficiency in time, where it differs."""
    traces = []
    for own in draw.Series.of(table, "devices"):
        hover = own.table.hovers()
        traces += own.curve("devices", "in throughput", hover, dash="solid")
        in_time = "in time to the target"
        pairs = own.points("in throughput", in_time)
        if max(abs(a - b) for a, b in pairs) >= _SAME:
            traces += own.curve("devices", in_time, hover, in_time, dash="dash", size=5)
    top = max([1.0, *table.values("in throughput"), *table.values("in time to the target")])
    return draw.figure(
        "Scaling efficiency by number of devices",
        traces,
        draw.log_axis("devices", table.values("devices"), at_values=True),
        draw.axis("scaling efficiency", range=[0, 1.08 * top], tickformat=".0%"),
        400,
        shapes=[draw.rule(1.0, draw.IDEAL, across=True)],
        showlegend=True,
    )


# What a shorter time takes: money or device-days over the time to the target.


def _time_and_cost(result: SweepResult) -> Iterator[Section]:
    """By money for all machines, else device-days; nothing if targets differ or no series has two points."""
    points = [(member, point) for member in result.series for point in member.points]
    if len(result.targets) > 1 or all(len(member.points) == 1 for member in result.series):
        return
    money = [outcome_of(point).money for _, point in points]
    priced = None not in money
    pairs = []
    for amount, (_, point) in zip(money, points, strict=True):
        time_s = point.target_time.time_s
        pairs.append((time_s, amount.typical if priced and amount else time_s * point.num_devices / DAY_S))
    best = [
        not any(
            (priced or other.system == point.system) and (a <= pair[0] and b <= pair[1]) and (a, b) != pair
            for (_, other), (a, b) in zip(points, pairs, strict=True)
        )
        for (_, point), pair in zip(points, pairs, strict=True)
    ]
    cost = text.Unit(points[0][1].study.currency if priced else "device-days")
    unit = text.TIME.of(time_s for time_s, _ in pairs)
    table = Table.of(
        {"series": None, "machine": None, "time to the target": unit, "cost": cost},
        (
            (member.label, member.at(point), time_s, Cell(amount, mark=worth))
            for (member, point), (time_s, amount), worth in zip(points, pairs, best, strict=True)
        ),
        "A star marks the points worth taking: no comparable one is both faster and cheaper.",
    )
    heading = "Time against cost"
    lead = (
        "Shows what a shorter time costs. Filled marks are worth taking: no other point is both faster and "
        "cheaper."
    )
    if not priced:
        heading = "Time against device-days"
        lead = (
            "Shows what a shorter time takes. Filled marks are worth taking: no other point of the same "
            "machine is faster with fewer device-days. Devices of unlike machines do not compare; with a "
            "price for each candidate the axis is money."
        )
    yield Section(heading, lead, cost_curve(table), table, ("time to the target", "cost"), slug="cost")


def cost_curve(table: Table) -> go.Figure:
    """A line for each series, from cheap and slow to dear and fast; points not worth taking are open."""
    x, y = "time to the target", "cost"
    traces = []
    for own in draw.Series.of(table, x):
        symbols = ["circle" if cell.mark else "circle-open" for cell in own.table.column(y)]
        hover = own.table.only("machine", x, y).hovers()
        traces += own.curve(x, y, hover, dash="solid", symbol=symbols)
    across, up = (draw.log_axis(f"{name} ({table.unit(name).name})", table.values(name)) for name in (x, y))
    title = f"Cost ({table.unit(y).name}) by time to the target"
    return draw.figure(title, traces, across, up, showlegend=True)


# How many devices of two machines finish on the same day.


def _matches(result: SweepResult) -> Iterator[Section]:
    for number, (forward, backward) in enumerate(result.equal_times):
        first = forward[0].series.first.devices_noun
        rival = backward[0].series.first.devices_noun
        slug = f"equals-{number}" if number else "equals"
        heading = f"Equally fast: {first}, {rival}" if number else "Equally fast machines"
        lead = (
            f"How many {first} and how many {rival} finish on the same day. The band is that of the ratio of "
            "the two times (90 %), which share one critical batch."
        )
        drawn = _equal_time(forward, backward)
        yield Section(heading, lead, drawn, _matches_table(forward), (f"as many {first}",), slug=slug)
        lead = f"The other way: how many {rival} replace {first}."
        table = _matches_table(backward)
        yield Section(f"{heading}, the other way", lead, table=table, slug=f"{slug}-back", level=3)


def _matches_table(matches: Sequence[Match]) -> Table:
    """For each machine, how many devices of another one are as fast."""

    def as_many(match: Match) -> str:
        ends = (match.equal.low, match.equal.typical, match.equal.high)
        low, middle, high = (_count(end, match, text.NUMBER) for end in ends)
        return middle if low == middle == high else f"{middle} ({low} to {high})"

    def fewest(match: Match) -> str:
        return _count(match.fewest.num_devices if match.fewest else None, match)

    return Table.each(
        text.thinned(matches, MAX_ROWS),
        {
            "machine": (None, lambda match: match.rival.machine),
            "its time": (text.TIME, lambda match: match.rival.target_time.time_s),
            f"as many {matches[0].series.first.devices_noun}": (text.NUMBER, as_many),
            "fewest of the grid": (text.COUNT, fewest),
            "their time": (text.TIME, "fewest.target_time.time_s"),
            "at least": (text.COUNT, lambda match: _count(match.possibly, match)),
            "at most": (text.COUNT, lambda match: _count(match.surely, match)),
        },
        "As many, with its 90 % band, is interpolated between the counts of the grid; the other columns are "
        "such counts.",
    )


def _count(count: float | None, match: Match, unit: text.Unit = text.COUNT) -> str:
    """A number of devices, which the grid may end before."""
    least, most = match.series.first.num_devices, match.series.last.num_devices
    if count is None:
        return f"> {text.integer(most)}"
    return f"\u2264 {text.integer(least)}" if count <= least else unit.text(count)


def _equal_time(forward: Sequence[Match], backward: Sequence[Match]) -> go.Figure:
    """Devices of the first machine over devices of the other, from the counts of both, with 90 % bands.

    `forward` matches the other machine's counts by the first, `backward` the first's by the other. The bands
    are vertical for the former and horizontal for the latter.
    """
    first = forward[0].series.first.devices_noun
    rival = backward[0].series.first.devices_noun
    directions = (
        (forward, draw.BLUE, "circle", "error_y", f"counts of {rival}"),
        (backward, draw.VERMILLION, "square", "error_x", f"counts of {first}"),
    )
    marked = []
    points: list[tuple[float, float]] = []
    for matches, colour, symbol, side, name in directions:
        inside = [own for own in matches if (own.equal.typical or 0.0) > own.series.first.num_devices]
        if not inside:
            continue
        counts: list[float] = [own.rival.num_devices for own in inside]
        equals = [own.equal.typical or 0.0 for own in inside]
        bands = [
            (own.equal.low or middle, own.equal.high or middle)
            for own, middle in zip(inside, equals, strict=True)
        ]
        hover = [
            text.esc(
                f"{own.rival.machine} ({text.duration(own.rival.target_time.time_s)}): "
                f"{text.number(middle)} {own.series.first.devices_noun}"
            )
            for own, middle in zip(inside, equals, strict=True)
        ]
        x, y = (counts, equals) if side == "error_y" else (equals, counts)
        points += zip(x, y, strict=True)
        reach = {side: draw.error_bars(equals, bands, colour) | {"thickness": 1}}
        look = {"color": colour, "symbol": symbol, "size": 8}
        marked.append(draw.marks(name, x, y, look, hover, **reach))
    points.sort()
    rivals = [x for x, _ in points]
    firsts = [y for _, y in points]
    return draw.figure(
        f"{first} and {rival} that finish on the same day",
        [draw.line(rivals, firsts, {"color": draw.BLUE, "width": 2}, "on the same day"), *marked],
        draw.log_axis(rival, rivals),
        draw.log_axis(first, firsts),
    )


# A quantity over two swept fields, as coloured cells.


def _map(time_map: TimeMap) -> Section:
    """Times to the target: numbers of devices in columns, one more field in rows."""
    fixed = [f"{text.human(path.rpartition('.')[2])} {value}" for path, value in time_map.fixed]
    name = ", ".join(filter(None, [time_map.machine, *fixed]))
    if time_map.path is None:
        field = "machine"
    else:
        field = "batch, sequences" if time_map.of_batch else text.human(time_map.path.rpartition(".")[2])
    unit = text.TIME.of(time_map.times_s.values())
    counts = text.thinned(time_map.counts, _MAX_SIDE)
    table = Table.of(
        {field: None, **{text.integer(count): replace(unit, name="") for count in counts}},
        (
            [row, *(time_map.times_s.get((row, count)) for count in counts)]
            for row in text.thinned(time_map.rows, _MAX_SIDE)
        ),
        f"Time to the target ({unit.name}); columns are numbers of devices.",
    )
    lead = (
        "Shows what a choice costs: where a row or a column hardly changes, the choice may follow other "
        "needs. An empty cell has no feasible plan."
    )
    if max(len(time_map.counts), len(time_map.rows)) > _MAX_SIDE:
        lead += f" Of longer axes {_MAX_SIDE} places are drawn, evenly spread."
    heading = f"Devices and {field.partition(',')[0]}" + (f": {name}" if name else "")
    drawn = draw.heat_map(table, f"Time to the target ({unit.name})", "devices")
    told = [column.name for column in table.columns[1:]]
    return Section(heading, lead, drawn, table, told, slug=f"map-{slugify(name)}" if name else "map")


# How much longer or shorter a step becomes under each variant, and the time to the target of each.


def change_table(changes: Mapping[str, Sequence[Change]]) -> Table:
    """Every variant in every group, the largest effect first: its step, the change, and what limits it."""
    rows = []
    for group, (first, *others) in changes.items():
        for own in [first, *sorted(others, key=lambda own: -max(own.ratio, 1.0 / own.ratio))]:
            changed = None if own.point is own.base else own.ratio - 1.0
            mark = "*" if own.policy and changed is not None else ""
            row = {"in common": group, "variant": own.point.variant, "change": Cell(changed, note=mark)}
            rows.append(answer_cells(own.point) | row | {"policy changed": own.policy or None})
    units = _units([own.point for group in changes.values() for own in group]) | {"change": text.CHANGE}
    names = ("in common", "variant", "machine", "batch", "step", "MFU", "change", "time", "wall")
    return Table.each(
        rows,
        {
            name: (units.get(name), name)
            for name in (*names, "policy changed", "limited by", "nearest remedy")
        },
        "Changes are relative to the first variant of each group. * the planner's policy changed too.",
    )


def _changed_steps(result: SweepResult) -> Section:
    """How much longer or shorter a step is under each variant, where variants do the same work."""
    names = ("in common", "variant", "machine", "step", "change", "policy changed", "limited by")
    table = change_table(result.changes).only(*names, "nearest remedy")
    lead = (
        "Shows which part of the machine a step depends on. Each bar is the change relative to "
        f"\u201c{result.variants[0]}\u201d, all else equal."
    )
    if any(change.policy for own in result.changes.values() for change in own):
        lead += (
            " At a bar with a star the planner also chose another policy (see the table): the change is that "
            "of both together."
        )
    return Section("Step time by variant", lead, _change_bars(table), table, ("change",), slug="variants")


def _change_bars(table: Table) -> go.Figure:
    """Bars in per cent, the variant of the largest effect in any group first, one colour a group."""
    changed = replace(table, rows=[row for row in table.rows if row[4].value is not None])
    effects: dict[str, float] = defaultdict(float)
    for name, change in zip(changed.texts("variant"), changed.column("change"), strict=True):
        effects[name] = max(1.0 + change.number, 1.0 / (1.0 + change.number), effects[name])
    names = sorted(effects, key=lambda name: -effects[name])
    before = {group: own.texts("step")[0] for group, own in table.by("in common").items()}
    traces = []
    for index, (group, whole) in enumerate(changed.by("in common").items()):
        rows = sorted(whole.rows, key=lambda row: names.index(str(row[1].value)))
        own = replace(whole, rows=rows).only("variant", "step", "change", "policy changed")
        hover = own.hovers("change", "step", "policy changed")
        traces.append(
            draw.bars(
                group,
                list(map(draw.in_lines, own.texts("variant"))),
                [100.0 * change for change in own.values("change")],
                {"color": draw.SERIES[index % len(draw.SERIES)]},
                [f"{words}<br>step before: {before[group]}" for words in hover],
                written=own.texts("change"),
            )
        )
    values = [0.0, *(100.0 * change for change in changed.values("change"))]
    low = min(values)
    high = max(values)
    room = 0.32 * max(high - low, 1.0)  # for what is written next to the bars
    ends = [low - (room if low < 0 else 0.0), high + 1.7 * room]
    title = "Change of the step time (%)"
    labels = list(map(draw.in_lines, names))
    x = draw.axis("change of the step time (%)", range=ends)
    return draw.rows(title, labels, traces, x, 14 + 22 * max(1, len(before)), barmode="group", bargap=0.25)


def _times(series: Sequence[Series]) -> Section:
    """Time to the target of each variant with its band, where variants differ in what they train."""
    table = series_table(series).only("series", "batch", "steps", "step", "time", "layout")
    times = table.values("time")
    bands = table.bands("time")
    labels = [draw.in_lines(row[0].value) for row in table.rows]
    reach = draw.error_bars(times, bands, draw.GREY)
    look = {"color": draw.BLUE, "size": 9}
    hover = table.hovers("time", "steps", "step")
    dots = draw.marks("", times, labels, look, hover, error_x=reach, showlegend=False)
    title = f"time to the target ({table.unit('time').name})"
    x = draw.log_axis(title, [end for band in bands for end in band])
    drawn = draw.rows(text.capital(title), labels, [dots], x, 38)
    lead = "Helps to plan: the time to the target of each variant, with its 90 % band."
    return Section("Time by variant", lead, drawn, table, ("time",), slug="times")
