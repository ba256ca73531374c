"""The maps of a sweep over models: who is first, in colours, with published runs as points."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from perfsim.report import draw, text
from perfsim.report.page import Section, slugify
from perfsim.report.table import Table
from perfsim.studies.atlas import AS_SIZED, IN_TIME, SAID, Atlas, Place

_SURE = 0.75
_UNSURE = 0.3
"""Opacity of a place where the next may be first, within the 90 % band of their ratio."""


def maps(atlas: Atlas) -> Iterator[Section]:
    """A map for each reading."""
    unit = text.LARGE if atlas.upward else text.Unit(atlas.unit)
    upward = text.human(atlas.upward.rpartition(".")[2]) or atlas.rate
    for reading in dict.fromkeys(place.reading for place in atlas.places):
        title, lead = _words(reading, atlas)
        places = [place for place in atlas.places if place.reading == reading]
        table = Table.each(
            places,
            {
                "model": (None, "model"),
                upward: (unit, "level"),
                "first": (None, "first"),
                "next": (None, "rival"),
                "next takes": (text.Unit("times"), "ratio"),
                "sure": (None, lambda place: "yes" if place.sure else "no"),
            },
            "Sure: the next takes more throughout the 90 % band of the ratio.",
        )
        own = " at their own batch" if atlas.upward else ""
        lead += (
            " The number: how many times as much the next takes. Pale: within the 90 % band of their ratio "
            f"the next may be first.{f' Marks are published runs{own}.' if atlas.published else ''}"
        )
        figure = _map(table, places, atlas)
        yield Section(title, lead, figure, table, ("first",), tab="maps", slug=slugify(f"map {reading}"))


def _words(reading: str, atlas: Atlas) -> tuple[str, str]:
    """The title of a map, and what its colours are."""
    words = SAID.get(reading, f"with as much {atlas.rate}")
    if reading == AS_SIZED:
        return f"First {words}", f"The colour: who is at the target first {words}."
    beyond = "Beyond the sizes of the grid times are in proportion to devices."
    if reading == IN_TIME:
        who = f"who needs least {atlas.rate} to be as fast as the first machine of the grid with a plan."
    else:
        least = " as the first machine of the grid with a plan" if atlas.upward else ""
        who = f"who is at the target first {words}{least}."
    return f"First {words}", f"The colour: {who} {beyond}"


def _map(table: Table, places: Sequence[Place], atlas: Atlas) -> go.Figure:
    """Fields in the colour of the machine that is first, and marks of published runs."""
    machines = list(atlas.machines)
    models = {place.num_parameters: place.model for place in places}
    sizes = sorted(models)
    levels = sorted({place.level for place in places})
    x = _edges(sizes)
    y = _edges(levels)
    colours = [draw.translucent(colour, alpha) for colour in draw.SERIES for alpha in (_UNSURE, _SURE)]
    numbers: list[list[int | None]] = [[None] * len(sizes) for _ in levels]
    hovers = [[""] * len(sizes) for _ in levels]
    written = [[""] * len(sizes) for _ in levels]
    for place, hover in zip(places, table.hovers(), strict=True):
        row = levels.index(place.level)
        column = sizes.index(place.num_parameters)
        numbers[row][column] = 2 * (machines.index(place.first) % len(draw.SERIES)) + place.sure
        hovers[row][column] = hover
        written[row][column] = f"{place.ratio:.1f}{text.TIMES}"
    traces: list[Any] = [draw.fields(x, y, numbers, colours, written, hovers)]
    for index, machine in enumerate(machines):
        runs = [
            (level, run)
            for name, level, run in atlas.published
            if name == machine and x[0] <= run.parameters <= x[-1] and y[0] <= level <= y[-1]
        ]
        words = [
            f"<b>{text.esc(run.id)}</b><br>{run.num_devices:,} {machine}<br>"
            f"{text.large(run.parameters)} parameters<br>MFU {text.percent(run.mfu)}"
            for _, run in runs
        ]
        look = {
            "color": draw.SERIES[index % len(draw.SERIES)],
            "symbol": draw.SYMBOLS[index % len(draw.SYMBOLS)],
            "size": 9,
            "line": {"color": "white", "width": 1},
        }
        across = [run.parameters for _, run in runs]
        up = [level for level, _ in runs]
        # A mark nowhere keeps a machine without runs in the legend.
        traces.append(draw.marks(machine, [*across, None], [*up, None], look, words))
    named = {
        "tickvals": sizes,
        "ticktext": [models[size] for size in sizes],
        "range": list(np.log10([x[0], x[-1]])),
        "autotickangles": [0, -30, -90],
    }
    return draw.figure(
        f"Model by {table.columns[1].name}",
        traces,
        draw.axis("model", type="log", tickmode="array", **named),
        draw.log_axis(table.heads()[1], levels, (y[0], y[-1]), at_values=bool(atlas.upward)),
        460,
        showlegend=True,
    )


def _edges(places: Sequence[float]) -> list[float]:
    """The sides of fields around places of a logarithmic axis."""
    logs = np.log(places)
    gaps = np.diff(logs)
    first, last = (gaps[0], gaps[-1]) if len(gaps) else (1.0, 1.0)
    sides = np.exp([logs[0] - first / 2, *(logs[:-1] + gaps / 2), logs[-1] + last / 2])
    return [float(side) for side in sides]
