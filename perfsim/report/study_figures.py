"""Sections of a study's page on batches, dates, steps, memory, network, tasks, and what would matter."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import plotly.graph_objects as go

from perfsim.base.errors import InputError
from perfsim.base.groups import listed
from perfsim.convergence.uncertain import Spread
from perfsim.costs.memory import MemoryUse
from perfsim.report import draw, text
from perfsim.report.page import Section
from perfsim.report.table import Cell, Table
from perfsim.studies.answers import Answer, Decision, Eras, Lever, StudyResult
from perfsim.studies.batches import BatchPoint
from perfsim.studies.timeline import TimelineBar, grouped
from perfsim.work.graph import compute_stream, computes

# Time to the target over global batch: a small batch takes many steps, a large one wastes tokens.


def batch(result: StudyResult) -> Section:
    """Every batch that was tried, of each candidate in their order; the best batch of each is marked."""
    lead = "The number of tokens is given, so no batch wastes any. A star marks the best batch."
    if result.critical_batch_tokens > 0:
        band = text.LARGE.text(result.critical_batch_tokens, result.critical_batch_band_tokens)
        lead = (
            "Helps to choose the global batch. Below the critical batch a larger batch saves time; above it, "
            f"it mostly wastes tokens. The critical batch is {band} tokens (shaded) by {result.law}. A star "
            "marks each candidate's best batch."
        )
    laws = [f"{text.large(tokens)} tokens by {law}" for law, tokens in result.suggested_batch_tokens.items()]
    if laws:
        lead += f" Starting points from published laws: {', '.join(laws)}."

    def time(pair: tuple[Answer, BatchPoint]) -> Cell:
        own, point = pair
        best = point.global_batch_size == own.global_batch_size
        return Cell(point.time_to_accuracy_s, point.time_to_accuracy_band_s, mark=best)

    table = Table.each(
        [(own, point) for own in result.candidates for point in own.batch_curve],
        {
            "candidate": (None, lambda pair: pair[0].short),
            "batch (sequences)": (text.COUNT, lambda pair: pair[1].global_batch_size),
            "batch (tokens)": (text.LARGE, lambda pair: pair[1].batch_tokens),
            "step": (text.TIME, lambda pair: pair[1].step_time_s),
            "steps": (text.COUNT, lambda pair: pair[1].steps),
            "time": (text.TIME.of(own.time_to_accuracy_s for own in result.candidates), time),
            "layout": (None, lambda pair: text.layout_long(pair[1].layout)),
        },
        "Time of the healthy steps to the target at each batch; the best batch of each candidate is marked.",
    )
    told = ("batch (sequences)", "time")
    drawn = _batch_curves(table, result)
    heading = "Healthy steps to the target by batch"
    return Section(heading, lead, drawn, table, told, slug="time-to-accuracy", short="Batch")


def _batch_curves(table: Table, result: StudyResult) -> go.Figure:
    """Each candidate's curve with its band and a star at its best batch, and the critical batch."""
    traces = []
    for series in draw.Series.of(table, "batch (tokens)"):
        best = [cell.mark for cell in series.table.column("time")]
        hover = series.table.hovers()
        traces += series.curve(
            "batch (tokens)",
            "time",
            [
                f"{words}<br>the best batch" if starred else words
                for words, starred in zip(hover, best, strict=True)
            ],
            symbol=["star" if starred else series.symbol for starred in best],
            size=[17 if starred else 6 for starred in best],
        )
    critical = result.critical_batch_tokens
    x_ends = draw.ends([*table.values("batch (tokens)"), critical], 1.4)
    shapes = []
    notes = []
    if critical > 0:
        low, high = result.critical_batch_band_tokens
        shade = {"type": "rect", "x1": high, "fillcolor": "rgba(128,128,128,0.15)", "layer": "below"}
        dashed = {"width": 2, "dash": "dash", "color": draw.GREY}
        shapes = [draw.rule(low, {"width": 0}) | shade, draw.rule(critical, dashed) | {"layer": "below"}]
        side = "left" if critical**2 < x_ends[0] * x_ends[1] else "right"
        place = {"x": math.log10(critical), "y": 1, "yref": "paper", "yanchor": "top", "showarrow": False}
        words = f" critical batch <br> {text.large(critical)} "
        notes = [place | {"text": words, "xanchor": side, "align": side}]
    unit = table.unit("time").name
    y_ends = draw.ends([end for band in table.bands("time") for end in band], 1.15)
    return draw.figure(
        f"Time of healthy steps ({unit}) by global batch (tokens)",
        traces,
        draw.log_axis("global batch (tokens)", x_ends, x_ends),
        draw.log_axis(f"healthy steps ({unit})", y_ends, y_ends),
        500,
        shapes=shapes,
        annotations=notes,
        showlegend=True,
    )


def loss(result: StudyResult) -> Iterator[Section]:
    """The loss over the days on the wall of each candidate; nothing without a law that reaches the target."""
    if len(result.losses) < 2:
        return

    def at(row: tuple[Answer, float, float]) -> Cell:
        own, share, _ = row
        wall = result.decision.of(own.label).wall_s
        return Cell(share * wall.typical, (share * wall.low, share * wall.high))

    unit = text.TIME.of(own.wall_s for own in result.candidates)
    table = Table.each(
        [(own, *point) for own in result.candidates for point in result.losses],
        {
            "candidate": (None, lambda row: row[0].short),
            "share of the run": (text.SHARE, lambda row: row[1]),
            "on the wall": (unit, at),
            "loss": (text.RATIO, lambda row: row[2]),
        },
        "Nats per token; in parentheses and shaded the 90 % range of the time, without the range of the law.",
    )
    lead = (
        f"Shows which loss each candidate reaches by when, by law {result.loss_law}. Every point is a run of "
        "its own, whose learning rate ends there: a longer one is above it at this time."
    )
    series = draw.Series.of(table, "on the wall")
    traces = [trace for own in series for trace in own.curve("on the wall", "loss")]
    x = draw.log_axis(f"on the wall ({unit.name})", table.values("on the wall"))
    drawn = draw.figure("Loss (nats per token) over time on the wall", traces, x, draw.axis("loss"))
    yield Section("Loss over time", lead, drawn, table, ("loss",), slug="loss", short="Loss", level=3)


# Who was first on which day: the first two candidates with what existed of each.


def over_dates(result: StudyResult) -> Iterator[Section]:
    """The ratio of the first two on every day that changed something; nothing for fewer than two days."""
    eras = result.eras
    if eras is None or len(eras.eras) < 2:
        return
    names = {own.label: own.short for own in result.candidates}
    first = names[eras.first]
    rival = names[eras.rival]
    unit = text.TIME.of(era.first_s for era in eras.eras)
    ratio = text.Unit(digits="{:.2f}".format)
    table = Table.each(
        eras.eras,
        {
            "since": (None, "day"),
            "newest part": (None, "newest"),
            first: (unit, "first_s"),
            rival: (unit, "rival_s"),
            "ratio": (ratio, lambda era: Cell(era.ratio, era.band, mark=era.day == eras.day)),
            "first": (None, lambda era: first if era.ratio >= 1 else rival),
        },
        f"Ratio: the time of {rival} over the time of {first}, with its 90 % band. Both keep the batch of "
        "the answer. A star marks its day.",
    )
    years = f"{eras.eras[0].day[:4]} to {eras.eras[-1].day[:4]}"
    lead = (
        "Helps to see how much of the answer is the date of the software: each machine has the newest "
        f"runtime or release that existed. The ratio is above 1 where the first is {first}, and below 1 "
        f"where it is {rival}."
    )
    drawn = _ratio_by_day(table, eras)
    heading = f"Who was first, {years}"
    yield Section(heading, lead, drawn, table, ("ratio",), slug="dates", short="Dates", level=3)


def _ratio_by_day(table: Table, eras: Eras) -> go.Figure:
    """The ratio with its band as steps over time, and the line on which both take as long."""
    values = table.values("ratio")
    marked = draw.marks(
        "ratio",
        [f"{era.day}-01"[:10] for era in eras.eras],
        values,
        {"size": 8, "color": draw.BLUE},
        table.hovers(),
        mode="lines+markers",
        line={"color": draw.BLUE, "width": 2, "shape": "hv"},
        error_y=draw.error_bars(values, table.bands("ratio"), draw.GREY),
    )
    x = draw.axis("date", type="date")
    y = draw.axis("ratio", rangemode="tozero")
    even = draw.rule(1.0, draw.IDEAL, across=True)
    return draw.figure("Ratio of the times to the target", [marked], x, y, shapes=[even], showlegend=False)


# What steps are made of, and what makes one longer than another.


def step(result: StudyResult) -> Section:
    """The parts of the step of every candidate."""
    return where_steps_go(
        [(own.short, own.step_time_s, own.breakdown_s, "") for own in result.candidates],
        "Shows what to improve first: the widest part that is not compute is what a faster link, another "
        "layout or more micro-batches could save.",
    )


def where_steps_go(steps: Sequence[tuple[str, float, Mapping[str, float], str]], lead: str) -> Section:
    """The seconds of each part and its share of the step, of steps given as (name, seconds, parts, why)."""
    parts = _parts(own for _, _, own, _ in steps)
    names = [text.human(part) for part in parts]
    whys = {"why": None} if any(why for *_, why in steps) else {}
    rows = []
    for name, step_s, own, why in steps:
        cells = [
            Cell(own[part], note=f"({text.percent(own[part] / step_s)})") if own.get(part) else None
            for part in parts
        ]
        rows.append([name, step_s, *cells, *([why] if whys else [])])
    columns = {"candidate": None, **dict.fromkeys(("step", *names), text.TIME), **whys}
    table = Table.of(columns, rows, "Seconds of each part and its share of the step.")
    # An invisible suffix keeps equal names apart.
    labels = [draw.in_lines(name) + "\u200b" * row for row, (name, *_) in enumerate(steps)]

    def shares(part: str) -> list[float]:
        return [100 * s / step_s for s, (_, step_s, *_) in zip(table.values(part), steps, strict=True)]

    traces = [
        draw.bars(part, labels, shares(part), style, table.hovers(part))
        for part, style in _part_styles(names).items()
    ]
    x = draw.axis("share of the step (%)", range=[0, 101])
    title = "Step time by what it is spent on (% of the step)"
    drawn = draw.rows(title, labels, traces, x, 44, barmode="stack")
    told = ("step", *names)
    return Section("Where a step goes", lead, drawn, table, told, slug="step-time", short="Step")


_PART_COLOURS: tuple[tuple[str, str], ...] = (
    ("rows", draw.SKY),
    ("attention", draw.GREEN),
    ("tensor_comm", draw.ORANGE),
    ("pipeline_comm", draw.GREY),
    ("data_comm", draw.VERMILLION),
    ("weight_stream", draw.PURPLE),
    ("gradient", draw.VERMILLION),
    ("spill", draw.ORANGE),
    ("offload", draw.ORANGE),
    ("input", draw.YELLOW),
    ("recompute", draw.YELLOW),
    ("optimizer", draw.GREEN),
    ("update", draw.GREEN),
    ("bubble", draw.PALE),
    ("forward", draw.BLUE),
    ("backward", draw.SKY),
    ("compute", draw.BLUE),
    ("parameter", draw.BLUE),
    ("weight", draw.PURPLE),
    ("activation", draw.ORANGE),
    ("logit", draw.YELLOW),
    ("workspace", draw.GREY),
)
"""The first of these words that a part's name contains decides its colour, in all figures."""

_SPARE = (draw.SKY, draw.GREY, draw.PURPLE, draw.YELLOW)
_HATCHES = ("", "/", "x", ".", "-", "|")


def _part_styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A bar marker for each part: its colour by meaning, a hatch where a colour repeats."""
    used = Counter[str]()
    styles: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(names):
        key = name.replace(" ", "_").replace("_communication", "_comm")
        colour = next((colour for word, colour in _PART_COLOURS if word in key), _SPARE[index % len(_SPARE)])
        styles[name] = {"color": colour, "line": {"width": 0.5, "color": "rgba(60,60,60,0.55)"}}
        if times := used[colour]:
            shape = _HATCHES[times % len(_HATCHES)]
            hatch = {"fgcolor": "#222222", "fgopacity": 0.75, "size": 7, "solidity": 0.2}
            styles[name]["pattern"] = {"shape": shape, "fillmode": "overlay"} | hatch
        used[colour] += 1
    return styles


def _parts(groups: Iterable[Mapping[str, float]]) -> list[str]:
    """Every part with a value somewhere, in the order of first sight."""
    return list(dict.fromkeys(name for group in groups for name, value in group.items() if value))


# What each pipeline stage or wafer holds at its peak, against its capacity.


def memory(result: StudyResult) -> Section:
    """Every place with its parts, total and capacity; neighbours that hold exactly the same share a row."""
    rows: list[tuple[str, str, MemoryUse]] = []
    for candidate in result.candidates:
        for _, alike in groupby(candidate.memory, lambda bar: (bar.parts_bytes, bar.capacity_bytes)):
            first, *others = alike
            holder = f"{first.place} to {others[-1].place.split(' ')[-1]}" if others else first.place
            rows.append((candidate.short, holder, first))
    parts = _parts(bar.parts_bytes for *_, bar in rows)
    names = [text.human(part) for part in parts]
    cells = []
    for name, holder, bar in rows:
        total = sum(bar.parts_bytes.values())
        share = f"({text.percent(total / bar.capacity_bytes)} of the capacity)"
        held = [bar.parts_bytes.get(part) or None for part in parts]
        cells.append([name, holder, *held, Cell(total, note=share), bar.capacity_bytes])
    unit = text.MEMORY.of(bar.capacity_bytes for *_, bar in rows)
    columns = {"candidate": None, "place": None} | dict.fromkeys((*names, "total", "capacity"), unit)
    table = Table.of(columns, cells, "Peak memory of one device.")
    labels = [f"{draw.in_lines(name)}<br>{text.esc(holder)}" for name, holder, _ in rows]
    capacities = table.values("capacity")
    sizes = [*table.values("total"), *filter(math.isfinite, capacities)]
    traces: list[Any] = [
        draw.bars(part, labels, table.values(part), style, table.hovers("place", part))
        for part, style in _part_styles(names).items()
    ]
    traces.append(draw.limits("capacity", capacities, labels, table.hovers("place", "total", "capacity")))
    x = draw.axis(f"{unit.name} per device", range=[0, 1.1 * max(sizes, default=1.0)])
    title = f"Peak memory by what it holds ({unit.name})"
    drawn = draw.rows(title, labels, traces, x, 44, barmode="stack")
    lead = (
        "Shows how much memory the layout leaves free: a bar near the line limits the micro-batch and the "
        "size of the model."
    )
    return Section("Memory", lead, drawn, table, ("total", "capacity"))


# How much of its network each candidate's step uses.

_KINDS = {
    "scale_up": "NVLink port",
    "host": "GPU to NIC",
    "nic": "NIC",
    "uplink": "leaf to spine",
    "io": "ports of a system",
    "swarmx": "SwarmX",
    "memoryx": "MemoryX to SwarmX",
    "server": "weight server",
    "dram": "DRAM of a server",
    "flash": "flash of a server",
    "feed": "activation server",
    "pcie": "PCIe",
    "nvme": "drives of a host",
}
"""Kinds of links in words, from the devices outwards."""


def network(result: StudyResult) -> Section:
    """Mean and peak use of every candidate's links, from the devices outwards."""
    order = [*_KINDS, *(kind for own in result.candidates for kind in own.utilisation)]
    table = Table.of(
        {"candidate": None, "kind of link": None, "mean": text.SHARE, "peak": text.SHARE},
        (
            (own.short, _KINDS.get(kind, text.human(kind)), use.mean, use.peak)
            for own in result.candidates
            for kind, use in sorted(own.utilisation.items(), key=lambda item: order.index(item[0]))
        ),
        "Mean: bytes of the step over what all links of the kind could carry in it, in both directions. "
        "Peak: the most that the busiest link carries at once.",
    )
    lead = (
        "Shows which links a faster network would have to improve: one that is busy all the time limits the "
        "step, one that is full only at its peak makes communication wait for other communication."
    )
    note = ""
    if (peak := max(table.values("peak"), default=0.0)) > 1.0:
        note = (
            f"A peak of {text.percent(peak, 0)} is more than a link carries: samples, or updates in a weight "
            "server's memory, run at the same time as streamed weights, and in the simulation neither waits "
            f"for the other. While both run they would take up to {text.percent(peak - 1, 0)} longer."
        )
    return Section("Use of the network", lead, table=table, slug="network", note=note, short="Network")


# The tasks of a step as a Gantt chart: one lane per stream, coloured by category.
#
# A page has a budget of bars, so that it stays below two megabytes and is drawn in two seconds. Short bars
# are joined by kind until they fit.

_MAX_BARS = 9000
_NOT_QUITE_OPAQUE = 0.99
_OUTLINED = 150
"""Up to so many bars of a category have a grey outline; of thinner ones it would hide the colour."""


def timelines(
    candidates: Sequence[Answer], trace_names: Sequence[str] = (), most_bars: int = _MAX_BARS
) -> Iterator[Section]:
    """A tab for each candidate's step, with the file of its trace; nothing where no tasks are known."""
    files = [*trace_names, *[""] * (len(candidates) - len(trace_names))]
    shown = [(own, file) for own, file in zip(candidates, files, strict=True) if own.timeline]
    if shown:
        lead = (
            "Shows why a step takes as long as it does: gaps in a compute stream are waits, and the streams "
            "above or below show what it waits for. Drag to zoom, double-click to return."
        )
        yield Section("Timeline of a step", lead, slug="timeline", short="Timeline")
    for index, (own, file) in enumerate(shown):
        bars = grouped(own.timeline, most_bars // len(shown))
        notes = []
        tasks = sum(bar.tasks for bar in bars)
        if tasks > len(bars):
            notes.append(
                f"{text.integer(tasks)} tasks are drawn as {text.integer(len(bars))} bars: short neighbours "
                "of one kind are one, idle time after it; a tooltip has their number."
            )
        lanes = len({bar.lane for bar in own.timeline if computes(bar.lane)})
        if lanes < own.timeline_devices:
            devices = f"{own.timeline_devices} devices that were simulated on their own"
            notes.insert(0, f"Lanes of {lanes} of the {devices}.")
        if own.simulated is not None:
            notes.append(f"Simulated: {text.simulated(own.simulated)}.")
        yield Section(
            own.short,
            "",
            _timeline(own, bars),
            _timeline_table(own),
            ("busy",),
            slug=f"timeline-{index}",
            tab="timelines",
            note=" ".join(notes),
            trace=file,
            level=3,
        )


def _timeline(candidate: Answer, bars: Sequence[TimelineBar]) -> go.Figure:
    """One lane per stream in the order given by the candidate, time from left to right."""
    unit = text.TIME.of([max((bar.end_s for bar in bars), default=1.0)])
    kept = {bar.lane for bar in bars}
    known = list(dict.fromkeys(bar.lane for bar in candidate.timeline))

    def home(lane: str) -> str:
        owner = lane.split("/", 1)[0]
        return owner if compute_stream(owner) in known else lane

    # Lanes are in the order of their first bars; a device's other lanes follow its computation.
    homes = list(dict.fromkeys(map(home, known)))
    in_order = sorted(known, key=lambda lane: (homes.index(home(lane)), not computes(lane)))
    lanes = [text.esc(lane) for lane in in_order if lane in kept]
    categories = dict.fromkeys(bar.category for bar in bars)
    traces = []
    for category, style in _part_styles(list(categories)).items():
        own = [bar for bar in bars if bar.category == category]
        # Plotly widens an opaque bar without outline to a whole pixel, which would hide its neighbours.
        edge = {"width": 0.5, "color": "rgba(60,60,60,0.45)" if len(own) <= _OUTLINED else style["color"]}
        look = {"color": draw.translucent(style["color"], _NOT_QUITE_OPAQUE), "line": edge}
        lengths = [(bar.end_s - bar.start_s) / unit.scale for bar in own]
        starts = [bar.start_s / unit.scale for bar in own]
        on = [text.esc(bar.lane) for bar in own]
        hover = list(map(_told, own))
        traces.append(draw.bars(text.human(category), on, lengths, style | look, hover, starts=starts))
    return draw.figure(
        f"Tasks of each stream over time ({unit.name})",
        traces,
        draw.axis(f"time since the start of the step ({unit.name})", fixedrange=False, rangemode="tozero"),
        draw.axis("", categoryorder="array", categoryarray=lanes, autorange="reversed"),
        150 + 24 * len(lanes),
        barmode="overlay",
        bargap=0.2,
        dragmode="zoom",
    )


def _told(bar: TimelineBar) -> str:
    """A task's name; its layers, FLOPs and bytes, and of how many tasks it is; when, and how long."""
    low, high = bar.layers or (0, 0)
    layers = f"layer {low}" if low == high else f"layers {low} to {high}"
    name = bar.name if bar.microbatch < 0 else f"{bar.name}, micro-batch {bar.microbatch}"
    flop = text.si(bar.flop, "FLOP") if bar.flop else ""
    moved = text.si(bar.n_bytes, "B") if bar.n_bytes else ""
    work = ", ".join(
        filter(None, [layers if bar.layers else "", flop, moved, text.counted(bar.tasks, "task")])
    )
    when = f"from {text.duration(bar.start_s)}, takes {text.duration(bar.end_s - bar.start_s)}"
    return f"<b>{text.esc(name)}</b><br>{work}<br>{when}"


def _timeline_table(candidate: Answer) -> Table:
    """Busy seconds by lane and category, of all bars, drawn or not."""
    busy = listed(((bar.lane, bar.category), bar) for bar in candidate.timeline)
    return Table.each(
        busy.items(),
        {
            "stream": (None, lambda item: item[0][0]),
            "category": (None, lambda item: text.human(item[0][1])),
            "tasks": (text.COUNT, lambda item: sum(bar.tasks for bar in item[1])),
            "busy": (text.TIME, lambda item: sum(bar.end_s - bar.start_s for bar in item[1])),
            "FLOPs": (text.FLOP, lambda item: sum(bar.flop for bar in item[1])),
            "bytes": (text.BYTES, lambda item: sum(bar.n_bytes for bar in item[1])),
        },
        "Tasks and busy time by stream. Bytes are those that communication sends, and those that computation "
        "moves in the device's memory.",
    )


# A tornado: how far each input that is not sure moves the ratio of two times, over its 90 % range.

_NEAR = 0.12
"""Share of the axis within which the names of two lines would cover one another."""
_LEVER_UNITS = {
    "tokens": text.Unit("tokens", digits=text.large),
    "s": text.TIME,
    "B/s": text.Unit("GB/s", 1e9),
    "times": text.Unit(text.TIMES),
}
"""Other units are written as they are."""


def tornados(decision: Decision) -> Iterator[Section]:
    """What would change the order, in time and in money."""
    if decision.levers:
        yield replace(
            _tornado("time on the wall", decision, decision.levers, decision.ratio),
            heading="What would change the order?",
            lead="Helps to choose what to measure next: the widest bar is the input worth knowing better. A "
            "bar that crosses the dotted line flips the order within its range.",
            slug="tornado",
            short="Sensitivity",
        )
    if decision.money_levers:
        yield replace(
            _tornado("money", decision, decision.money_levers, decision.money_ratio),
            heading="What would change which costs less?",
            lead="The same for money, where both have a price: the inputs that move the ratio of what the "
            "two cost, with the value at which the order flips.",
            slug="tornado-money",
            short="Sensitivity of cost",
        )


def _tornado(quantity: str, decision: Decision, levers: Sequence[Lever], ratio: Spread | None) -> Section:
    """A bar for each input, from the ratio at its low end to the ratio at its high end."""

    def typical(lever: Lever) -> Cell:
        return Cell(lever.typical, (lever.low, lever.high), unit=_lever_unit(lever))

    def flips(lever: Lever) -> Cell | str:
        return "never" if lever.flips_at is None else Cell(lever.flips_at, unit=_lever_unit(lever))

    table = Table.each(
        levers,
        {
            "input": (None, "name"),
            "typical (90 % range)": (text.NUMBER, typical),
            "ratio at low": (text.NUMBER, "ratio_at_low"),
            "ratio at high": (text.NUMBER, "ratio_at_high"),
            "order flips at": (text.NUMBER, flips),
            "standard deviations away": (text.Unit(digits="{:.1f}".format), "distance"),
        },
        f"Ratio: {quantity} of {decision.rival} over the same of {decision.first}. One input is moved at a "
        "time; never: not within three standard deviations.",
    )
    middle = ratio.typical if ratio else 1.0
    ratios = [1.0]
    traces = []
    labels = [draw.in_lines(lever.name) for lever in levers]
    for end, colour, pattern in (("low", draw.BLUE, ""), ("high", draw.ORANGE, "/")):
        at_end = table.values(f"ratio at {end}")
        ratios += at_end
        look = {"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay"}}
        lengths = [ratio - middle for ratio in at_end]
        starts = [middle] * len(levers)
        name = f"input at its {end} end"
        traces.append(draw.bars(name, labels, lengths, look, table.hovers(), starts=starts))
    near = abs(1.0 - middle) <= _NEAR * (max(ratios) - min(ratios))
    said = {middle: f"{middle:.2f}"} | ({} if near else {1.0: "order flips"})
    above = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    drawn = draw.rows(
        f"{text.capital(quantity)} over the first's (times)",
        labels,
        traces,
        draw.axis("ratio"),
        barmode="overlay",
        shapes=[
            draw.rule(middle, {"color": draw.INK, "width": 1}),
            draw.rule(1.0, {"color": draw.INK, "width": 1.5, "dash": "dot"}),
        ],
        annotations=[above | {"x": at, "text": words} for at, words in said.items()],
    )
    return Section("", "", drawn, table, ("ratio at low", "ratio at high"))


def _lever_unit(lever: Lever) -> text.Unit:
    return _LEVER_UNITS.get(lever.unit, text.Unit(lever.unit))


@dataclass(frozen=True)
class StudyFigures:
    """The figures of a study's report, as Plotly figures."""

    result: StudyResult

    def time_to_accuracy(self) -> go.Figure:
        """Time to the target against the global batch."""
        return batch(self.result).figure

    def step_time(self) -> go.Figure:
        """Where the seconds of a step go."""
        return step(self.result).figure

    def over_dates(self) -> go.Figure:
        """The ratio of the first two by day; InputError where the study asks for no equal dates."""
        for section in over_dates(self.result):
            return section.figure
        raise InputError("the study asks for one day at most: write as_of: equal")

    def memory(self) -> go.Figure:
        """Memory of each pipeline stage or wafer under its capacity."""
        return memory(self.result).figure

    def timeline(self, candidate: int = 0) -> go.Figure:
        """One step of a candidate, task by task."""
        candidates = self.result.candidates
        if not 0 <= candidate < len(candidates):
            raise InputError(f"candidate {candidate}: the candidates are 0 to {len(candidates) - 1}")
        return list(timelines([candidates[candidate]]))[-1].figure
