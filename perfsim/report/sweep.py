"""The answer to a sweep: its tables and figures, its lines on a terminal, its page and its JSON document."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from perfsim.base.units import DAY_S
from perfsim.report import draw, text
from perfsim.report.atlas import maps
from perfsim.report.page import Page, Section, caveats_section
from perfsim.report.study import inputs_section, wall_sentence
from perfsim.report.study_figures import where_steps_go
from perfsim.report.table import Cell, Table, Value, document_text, plain
from perfsim.specs.prices import Prices
from perfsim.studies.answers import PointResult, confidence
from perfsim.studies.variants import Change, Match, Series, SweepResult
from perfsim.version import __version__

WALL = "on the wall"
"""The column of the time to the target that a study has as well."""
BILLED = ("energy", "money")
"""The columns of what a run takes by the prices of its study."""
_MAX_HEAD_ROWS = 8
MAX_ON_TERMINAL = 40
"""Rows of points or variants on a terminal; the report has all."""
_MAX_DIFFERENCES = 12
"""Values that differ, in a row of many variants."""
MAX_ROWS = 2000
"""A table of points with more shows a sample of them."""
_MAX_MARKS = 200
"""Points of one line."""
_MAX_SERIES = 12
"""Lines of one chart."""
_MAX_STEPS = 40
"""Bars of where steps go."""


def _all_points(result: SweepResult) -> Section:
    """At most `MAX_ROWS` points of the grid, with an answer or the reason why there is none."""
    points = text.thinned(result.points, MAX_ROWS)
    paths = list(dict.fromkeys(path for point in result.points for path, _ in point.circumstances))
    billed = _billed(points)
    caption = "In the order of the grid; the reason says what would have to change."
    if len(points) < len(result.points):
        caption += (
            f" {len(points):,} of {len(result.points):,} points, evenly spread; summary.json has all, and so "
            "has the file of --table."
        )

    def row(point: PointResult) -> list[Cell | Value]:
        known = _answer_cells(point) if point.feasible else {}
        return [
            *(point.system, point.strategy, point.num_devices, point.batch_text or None),
            *map(dict(point.circumstances).get, paths),
            point.target_time.time_s if known else None,
            *map(known.get, (WALL, *billed, "step", "MFU", "layout")),
            "; ".join(point.reasons),
        ]

    columns = {
        "system": None,
        "strategy": None,
        "devices": text.COUNT,
        "batch": text.COUNT,
        **dict.fromkeys(map(text.human, paths)),
        **dict.fromkeys(("healthy steps", WALL), text.TIME),
        **{name: _units([]).get(name) for name in billed},
        "step": text.TIME,
        "MFU": text.SHARE,
        "layout": None,
        "reason": None,
    }
    without = len(result.points) - len(result.feasible)
    fold = f"{len(points):,} points" + (f", {without:,} without a plan" if without else "")
    table = Table.of(columns, map(row, points), caption)
    lead = "Every point of the grid in its order, with and without a plan."
    return Section("All points", lead, table=table, fold=fold if result.feasible else "", slug="points")


def sweep_lines(result: SweepResult) -> list[str]:
    """Each machine at its best batch by number of devices, or variants; the verdict last."""
    count = f"{len(result.points):,} points"
    if infeasible := len(result.points) - len(result.feasible):
        count += f", {infeasible:,} without a feasible plan"
    billed = _billed(result.feasible)
    if result.changes:
        table = _change_table(result.changes, max(2, MAX_ON_TERMINAL // len(result.changes)))
        names: tuple[str, ...] = ("in common", "variant", "batch", "step", "MFU", "change", WALL, *billed)
        rows = table.rows
        left_out = "more variants, of less effect, are in the report."
    else:
        table = _series_table(result.series)
        scaled = _EFFICIENCIES[: bool(result.scalings)]
        names = ("series", "machine", "batch", "step", "MFU", *scaled, WALL, *billed)
        fastest = table.sorted(WALL).rows[:MAX_ON_TERMINAL]
        rows = [row for row in table.rows if row in fastest][:MAX_ON_TERMINAL]
        left_out = "more points are in the report, all slower."
    more = (sum(map(len, result.changes.values())) or len(table.rows)) - len(rows)
    caption = " ".join([table.caption, *([f"{more} {left_out}"] if more else [])])
    points = replace(table, rows=rows, caption=caption).only(*names).grouped()
    shown, rest = text.split_caveats(result.caveats, result.verdict)
    return [
        *text.paragraphs(f"{result.sweep.spec.title} ({count})"),
        "",
        *(points.lines() if result.feasible else []),
        *text.caveat_lines(shown, len(shown) + len(rest)),
        "",
        *text.paragraphs(*result.said, _of_the_wall(result)),
    ]


def _of_the_wall(result: SweepResult) -> str:
    said = wall_sentence([point.prediction for point in result.feasible])
    return f"{text.capital(said)}." if result.feasible else ""


# The page: one sentence, the best of each machine, everything with a figure, then points and inputs.


def sweep_page(result: SweepResult) -> Page:
    """The report of a sweep; sections without anything to say are left out."""
    sections = []
    if result.feasible:
        sections = [*_drawn(result), *_differences(result)]
    at_head, rest = text.split_caveats(result.caveats, result.verdict)
    lead = "Further reasons to trust a figure less, besides those above."
    sections += caveats_section(rest, "Further caveats", lead)
    sections.append(_all_points(result))
    sections.append(inputs_section(result.assumptions))
    scale, note = (None, "") if result.changes and not result.scalings else _scale(result)
    sentences = list(result.sentences)
    if result.atlas is not None:  # its maps say the rest
        scale, note, sentences = None, "", sentences[:1]
    compared = result.feasible and not result.variants and len(result.targets) == 1
    headline = sentences.pop(0) if compared or result.atlas is not None else ""
    return Page(
        result.sweep.spec.title,
        sections,
        result.sweep.spec.question,
        headline,
        " ".join(sentences),
        text.capital(confidence(result.caveats)),
        scale if scale is not None and len(scale.rows) > 1 else None,
        note=" ".join(filter(None, [note, _of_the_wall(result)])),
        caveats=at_head,
        command=result.command,
        digest=result.inputs_digest,
    )


def _scale(result: SweepResult) -> tuple[Table | None, str]:
    """A row for each series in their order, the fastest of each target marked, and what the rows show."""
    series = result.series
    if not series:
        return None, ""
    one_target = len(result.targets) == 1
    fastest_s = attrgetter("fastest.prediction.wall_s")
    winners = [min(group, key=fastest_s) for group in result.targets if len(group) > 1]
    chosen = (sorted(series, key=fastest_s) if one_target else list(series))[:_MAX_HEAD_ROWS]
    shown = [member for member in series if member in chosen]
    words = ["Each machine at the number of devices that reaches the target first, at its best batch."]
    if not one_target:
        words = ["Each machine at its best batch. Targets differ, because models or their tokens do."]
    if any(member in winners for member in shown):
        words.append("Marked: the fastest." if one_target else "Marked: the fastest to each target.")
    if len(shown) < len(series):
        which = "the fastest" if one_target else "the first"
        words.append(f"These are {which} {len(shown)} of {len(series)}; the tables have all.")
    walls = [(own, own.fastest.outcome.wall_s) for own in shown]
    table = Table.of(
        {"machine": None, "On the wall": text.TIME},
        ((own.at(own.fastest), Cell.of(wall, mark=own in winners)) for own, wall in walls),
    )
    return table, " ".join(words)


def _differences(result: SweepResult) -> Iterator[Section]:
    """What each variant writes differently from the first, value by value."""
    first, *others = result.variants or [""]
    rows = []
    for number, name in enumerate(others, start=1):
        own = [
            f"{path}: {values[0] or text.NONE} \u2192 {values[number] or text.NONE}"
            for path, values in result.differences.items()
            if values[number] != values[0]
        ]
        left = len(own) - _MAX_DIFFERENCES
        rows.append((name, "; ".join([*own[:_MAX_DIFFERENCES], *([f"{left} more"] if left > 0 else [])])))
    if result.differences:
        table = Table.of(("variant", f"relative to \u201c{first}\u201d"), rows)
        lead = "All values that differ between the variants, in SI units."
        yield Section("What the variants change", lead, table=table, slug="differences")


def write_sweep(result: SweepResult, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page. The same result gives the same bytes."""
    return sweep_page(result).write(folder, sweep_text(result))


def sweep_document(result: SweepResult, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim sweep --json`: all points, which machines match, and the verdict."""
    return dict(plain({**_summary(result, report), "points": list(result.documents())}))


def sweep_text(result: SweepResult, *, report: str = "index.html") -> Iterator[str]:
    """The same document as text in parts, of which none holds more than a point."""
    document = document_text({**_summary(result, report), "points": []})
    before, after = document.split('\n  "points": []', 1)
    yield f'{before}\n  "points": ['
    end = ""
    for number, point in enumerate(result.documents()):
        yield (",\n    " if number else "\n    ") + document_text(point).rstrip().replace("\n", "\n    ")
        end = "\n  "
    yield f"{end}]{after}"


def _summary(result: SweepResult, report: str) -> dict[str, Any]:
    """The document without the points."""

    def as_fast_as(match: Match, **devices: Any) -> dict[str, Any]:
        rival = {"system": match.rival.system, "num_devices": match.rival.num_devices}
        return {"as_fast_as": rival, "system": match.series.first.system, **devices}

    def fewest(match: Match) -> dict[str, Any]:
        count = match.fewest and match.fewest.num_devices
        return as_fast_as(match, num_devices=count, possibly=match.possibly, surely=match.surely)

    matches = [match for pair in result.equal_times for direction in pair for match in direction]
    spec = result.sweep.spec
    return {
        "sweep": spec.name,
        "title": spec.title,
        "question": spec.question,
        "study": spec.study.name,
        "command": result.command,
        "inputs_digest": result.inputs_digest,
        "caveats": list(map(asdict, result.caveats)),
        "equals": list(map(fewest, result.matches)),
        "equal_time": [as_fast_as(match, num_devices=match.equal) for match in matches],
        "atlas": [] if result.atlas is None else list(map(asdict, result.atlas.places)),
        "verdict": result.verdict,
        "report": report,
        "version": __version__,
    }


# Sections with a figure: how machines scale, what variants change, what a shorter time costs.


def _drawn(result: SweepResult) -> Iterator[Section]:
    """What variants change, how machines scale, what a shorter time costs, and where steps go."""
    if result.atlas is not None:
        yield from maps(result.atlas)
    if result.changes:
        yield _changed_steps(result)
    if result.scalings or not (result.variants or result.atlas):
        yield _scaling(result)
        yield from () if result.variants else _matches(result)
        yield from _time_and_cost(result)
    # Each series at its best batches; where variants are compared, every point under what it shares.
    named = [
        (f"{group}, {change.point.variant}", change.point.prediction)
        for group, own in result.changes.items()
        for change in own
    ] or [(series.at(point), point.prediction) for series in result.series for point in series.points]
    yield where_steps_go(
        [(name, own.step_time_s, own.why.parts_s, own.why.sentence) for name, own in named[:_MAX_STEPS]],
        "Shows what to improve: computing, or a wait that nothing hides.",
    )


def _answer_cells(point: PointResult) -> dict[str, Cell | Value]:
    """What the tables of a sweep show of a point that has a plan, by column."""
    own = point.prediction
    paid = replace(text.FEW, name=point.study.prices.currency)  # which a grid may vary
    return {
        "machine": point.machine,
        "devices": point.num_devices,
        "batch": own.global_batch_size,
        "steps": point.target_time.steps,
        "step": own.step_time_s,
        "MFU": own.mfu,
        WALL: Cell.of(point.outcome.wall_s),
        "energy": Cell.of(point.outcome.energy_kwh),
        "money": Cell.of(point.outcome.money, unit=paid),
        "layout": text.layout_short(own.layout),
        "limited by": own.why.cause,
        "nearest remedy": own.why.remedy,
    }


def _billed(points: Sequence[PointResult]) -> tuple[str, ...]:
    """The columns of energy and money, where a point has prices."""
    return BILLED if any(point.study.prices_of(point.candidate) != Prices() for point in points) else ()


def _units(points: Sequence[PointResult]) -> dict[str, text.Unit]:
    """The units that suit these points together."""
    unit = text.TIME.of(point.prediction.wall_s for point in points)
    step = text.TIME.of([max((point.prediction.step_time_s for point in points), default=1.0)])
    counts = dict.fromkeys(("devices", "batch", "steps"), text.COUNT)
    fixed = {"energy": replace(text.FEW, name="kWh"), "MFU": text.WHOLE_SHARE}
    return {**counts, **fixed, "step": step, WALL: unit}


# Time to the target and efficiency by number of devices, next to the ideal.


def _series_table(series: Sequence[Series]) -> Table:
    """Every point of the series at its best batch, every column in one unit."""
    points = [(own, point) for own in series for point in text.thinned(own.points, _MAX_MARKS)]
    efficiencies = dict.fromkeys(_EFFICIENCIES, text.WHOLE_SHARE)
    units = _units([point for _, point in points]) | efficiencies
    return Table.each(
        (
            {
                "series": own.label,
                "efficiency": own.efficiency(point),
                "in throughput": own.throughput_efficiency(point),
                **_answer_cells(point),
            }
            for own, point in points
        ),
        {name: (units.get(name), name) for name in _OF_SERIES},
        "Efficiency holds for healthy steps to the target, relative to the smallest machine of the series."
        if any(len(own.points) > 1 for own in series)
        else "",
    )


_EFFICIENCIES = ("efficiency", "in throughput")
_OF_SERIES = (
    "series", "machine", "devices", "batch", "steps", "step", "MFU", *_EFFICIENCIES, WALL, *BILLED, "layout",
    "limited by",
)  # fmt: skip


def _scaling(result: SweepResult) -> Section:
    """The time of every series by its number of devices."""
    lead = (
        "Helps to choose the number of devices: the further a line leaves its dotted ideal, the less each "
        "further device saves. Shades are 90 % bands. Each point runs at its best batch of the grid. "
        "Efficiency in throughput is what each further device adds to the work; in time, a larger batch also "
        "needs more tokens."
        if result.scalings
        else "Each machine at its best batch of the grid, with its 90 % band."
    )
    if len(result.series) > _MAX_SERIES:
        lead += f" {len(result.series) - _MAX_SERIES} more lines are among all points below."
    scaled = _EFFICIENCIES if result.scalings else ()
    billed = _billed(result.feasible)
    columns = ("series", "devices", "batch", WALL, *billed, *scaled, "layout", "limited by")
    table = _series_table(result.series[:_MAX_SERIES]).only(*columns)
    figure = _scaling_curve(table) if len({*table.values("devices")}) > 1 else None
    return Section("Scaling", lead, figure, table, ("devices", WALL, *scaled[1:]))


def _scaling_curve(table: Table) -> go.Figure:
    """A line for each series with its band, and dotted the ideal from the first of several points."""
    traces = []
    for series in draw.Series.of(table, "devices"):
        devices = series.table.values("devices")
        traces += series.curve("devices", WALL, dash="solid")
        look = draw.IDEAL | {"color": series.colour}
        if len(devices) > 1:
            shares = zip(series.table.values(WALL), series.table.values("efficiency"), strict=True)
            ideal = [time * share for time, share in shares]
            traces.append(draw.line(devices, ideal, look, legendgroup=text.esc(series.name)))
    unit = table.unit(WALL).name
    counts = table.values("devices")
    times = [end for band in table.bands(WALL) for end in band]
    return draw.figure(
        f"Time on the wall ({unit}) by number of devices",
        traces,
        draw.log_axis("devices", counts, draw.ends(counts, 1.2), at_values=True),
        draw.log_axis(f"on the wall ({unit})", times, draw.ends(times, 1.3)),
        460,
        showlegend=True,
    )


# What a shorter time takes: money or device-days over the time to the target.


def _time_and_cost(result: SweepResult) -> Iterator[Section]:
    """By money for all machines, else device-days; nothing if targets differ or no series has two points."""
    points = [(member, point) for member in result.series for point in member.points]
    if len(result.targets) > 1 or all(len(member.points) == 1 for member in result.series):
        return
    money = [point.outcome.money for _, point in points]
    currencies = {point.study.prices.currency for _, point in points}
    priced = None not in money and len(currencies) == 1
    pairs = []
    for amount, (_, point) in zip(money, points, strict=True):
        time_s = point.prediction.wall_s
        pairs.append((time_s, amount.typical if priced and amount else time_s * point.num_devices / DAY_S))
    best = [
        not any(
            (priced or other.system == point.system) and (a <= pair[0] and b <= pair[1]) and (a, b) != pair
            for (_, other), (a, b) in zip(points, pairs, strict=True)
        )
        for (_, point), pair in zip(points, pairs, strict=True)
    ]
    cost = text.Unit(currencies.pop() if priced else "device-days")
    unit = text.TIME.of(time_s for time_s, _ in pairs)
    table = Table.of(
        {"series": None, "machine": None, WALL: unit, "cost": cost},
        (
            (member.label, member.at(point), time_s, Cell(amount, mark=worth))
            for (member, point), (time_s, amount), worth in zip(points, pairs, best, strict=True)
        ),
    )
    heading = "Time against cost"
    lead = "Shows what a shorter time costs. A star: worth taking, for no other point is faster and cheaper."
    if not priced:
        heading = "Time against device-days"
        lead = (
            "Shows what a shorter time takes. Points with a star are worth taking: no other of the same "
            "machine is faster with fewer device-days. Devices of unlike machines do not compare; with a "
            "price for each candidate the cost is money."
        )
    yield Section(heading, lead, table=table, slug="cost")


# How many devices of two machines finish on the same day.


def _matches(result: SweepResult) -> Iterator[Section]:
    for number, directions in enumerate(result.equal_times):
        first, rival = (matches[0].series.first.devices_noun for matches in directions)
        slug = f"equals-{number}" if number else "equals"
        heading = f"Equally fast: {first}, {rival}" if number else "Equally fast machines"
        told = directions[0][0].series.circumstance if len(result.targets) > 1 else ""
        lead = (
            f"How many {first} and how many {rival} finish on the same day{told and f' with {told}'}. The "
            "band (90 %) is the band of the ratio of the two times, which share one critical batch."
        )
        matches = text.thinned([match for matches in directions for match in matches], MAX_ROWS)
        yield Section(heading, lead, table=_matches_table(matches), slug=slug)


def _matches_table(matches: Sequence[Match]) -> Table:
    """For each machine, how many devices of another one are as fast."""

    def as_many(match: Match) -> str:
        low, middle, high = map(match.written, astuple(match.equal))
        alone = match.series.first is match.series.last  # nothing lies between its counts
        band = "" if alone or low == middle == high else f" ({low} to {high})"
        return f"{middle}{band} {match.series.first.devices_noun}"

    return Table.each(
        matches,
        {
            "machine": (None, lambda match: match.rival.machine),
            "its time": (text.TIME, lambda match: match.rival.prediction.wall_s),
            "as many": (None, as_many),
            "fewest of the grid": (
                text.COUNT,
                lambda match: match.written(match.fewest.num_devices if match.fewest else None),
            ),
            "their time": (text.TIME, "fewest.prediction.wall_s"),
        },
        "As many, with its 90 % band, is interpolated between the counts of the grid.",
    )


# How much longer or shorter a step becomes under each variant, and the time to the target of each.


def _change_table(changes: Mapping[str, Sequence[Change]], most: int | None = None) -> Table:
    """The first and the largest effects of each group, at most `most`: step, change, and what limits it."""
    rows = []
    for group, (first, *others) in changes.items():
        largest = sorted(others, key=lambda own: -max(own.ratio, 1.0 / own.ratio))[: most and most - 1]
        for own in [first, *filter(largest.__contains__, others)]:
            changed = None if own.point is own.base else own.ratio - 1.0
            mark = "*" if own.policy and changed is not None else ""
            row = {"in common": group, "variant": own.point.variant, "change": Cell(changed, note=mark)}
            rows.append(_answer_cells(own.point) | row | {"policy changed": own.policy or None})
    units = _units([own.point for group in changes.values() for own in group]) | {"change": text.CHANGE}
    names = ("in common", "variant", "machine", "batch", "step", "MFU", "change", WALL, *BILLED)
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
    table = _change_table(result.changes).only(*names, *_billed(result.feasible), "nearest remedy")
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
