"""Times to a target in figures: by batch, for equal time, against cost, and what would move them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Cell, Table
from perfsim.studies.answers import Lever, StudyResult
from perfsim.studies.scaling import Match

# Time to the target over global batch: a small batch takes many steps, a large one wastes tokens.


def batch_table(result: StudyResult) -> Table:
    """Every batch that was tried, of each candidate in their order; the best batch of each is marked."""
    unit = text.time_unit(candidate.time_to_accuracy_s for candidate in result.candidates)
    return Table.of(
        {
            "candidate": None,
            "batch (sequences)": text.COUNT,
            "batch (tokens)": text.LARGE,
            "step": text.TIME,
            "steps": text.COUNT,
            "time": unit,
            "layout": None,
        },
        (
            (
                name,
                point.global_batch_size,
                point.batch_tokens,
                point.step_time_s,
                point.steps,
                Cell(
                    point.time_to_accuracy_s,
                    point.time_to_accuracy_band_s,
                    mark=point.global_batch_size == candidate.global_batch_size,
                ),
                text.layout_long(point.layout),
            )
            for name, candidate in text.named(result.candidates)
            for point in candidate.batch_curve
        ),
        "Time to the target at each batch; the best batch of each candidate is marked.",
    )


def batch_curves(table: Table, result: StudyResult) -> go.Figure:
    """Each candidate's curve with its band and a star at its best batch, and the critical batch."""
    unit = table.columns[5].unit or text.TIME
    curves: dict[str, list[Sequence[Cell]]] = {name: [] for name, _ in text.named(result.candidates)}
    for row in sorted(table.rows, key=lambda row: row[2].number):
        curves[str(row[0].value)].append(row)
    traces = [
        trace
        for index, (name, rows) in enumerate(curves.items())
        for trace in _curve(name, rows, base.series_style(index), unit)
    ]
    tokens = [row[2].number for row in table.rows]
    critical = _critical_batch(result, tokens)
    x_ends = _ends(tokens, result.critical_batch_tokens, 1.4)
    y_ends = _ends([end / unit.scale for row in table.rows for end in row[5].band or ()], 0.0, 1.15)
    points = {
        name: [(row[2].number, row[5].number / unit.scale) for row in rows if math.isfinite(row[5].number)]
        for name, rows in curves.items()
    }
    style = base.layout(
        f"Time to the target ({unit.name}) by global batch (tokens)",
        height=500,
        xaxis=base.log_axis("global batch (tokens)", x_ends, range=[math.log10(end) for end in x_ends]),
        yaxis=base.log_axis(
            f"time to the target ({unit.name})", y_ends, range=[math.log10(end) for end in y_ends]
        ),
        shapes=critical["shapes"],
        annotations=[*critical["annotations"], *_curve_names(points, base.Canvas(x_ends, y_ends))],
        showlegend=False,
    )
    return go.Figure(traces, style)


def _ends(values: Sequence[float], also: float, room: float) -> tuple[float, float]:
    """The ends of a logarithmic axis over finite values, and over another one if it is positive."""
    known = [value for value in (*values, also) if value > 0 and math.isfinite(value)] or [1.0, 10.0]
    return min(known) / room, max(known) * room


def _curve_names(curves: dict[str, list[tuple[float, float]]], canvas: base.Canvas) -> list[dict[str, Any]]:
    """The name of each candidate at its curve, with a leader in the colour of the curve."""
    taken = [canvas.around(*point, 8) for curve in curves.values() for point in curve]
    asked = []
    for index, (whole, curve) in enumerate(curves.items()):
        name = "\n".join(textwrap.wrap(whole, base.LABEL_CHARS, break_on_hyphens=False))
        half = base.half_px(name)
        spots = [
            base.Spot(*point, right, up)
            for up in (22.0, -22.0, 40.0, -40.0, 60.0, -60.0, 90.0, -90.0)
            for point in curve[::-1]
            for right in (0.0, -half, half)
        ]
        if spots:
            colour = base.series_style(index)["color"]
            asked.append((name, spots, {"arrowcolor": colour, "arrowwidth": 1.5, "standoff": 4}))
    return base.notes(canvas, asked, taken, always=True)


def _curve(
    name: str, rows: Sequence[Sequence[Cell]], look: dict[str, Any], unit: text.Unit
) -> list[go.Scatter]:
    """The two ends of the band, the line, and a star at the best batch."""
    tokens = [row[2].number for row in rows]
    ends = [row[5].band or (row[5].number, row[5].number) for row in rows]
    hidden: dict[str, Any] = {
        "x": tokens,
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": base.esc(name),
    }
    hover = [
        "<br>".join(
            base.esc(words)
            for words in (
                f"{text.integer(row[1].number)} sequences, {text.large(row[2].number)} tokens",
                unit.text(row[5].number, row[5].band),
                f"{text.integer(row[4].number)} steps of {text.duration(row[3].number)}",
                row[6].value,
            )
            if words
        )
        for row in rows
    ]
    line = go.Scatter(
        x=tokens,
        y=[base.rounded(row[5].number / unit.scale) for row in rows],
        name=base.esc(name),
        legendgroup=base.esc(name),
        mode="lines+markers",
        line={"color": look["color"], "dash": look["dash"], "width": 2},
        marker={"symbol": look["symbol"], "size": 6},
        customdata=hover,
        hovertemplate="<b>%{fullData.name}</b><br>%{customdata}<extra></extra>",
    )
    band = [
        go.Scatter(**hidden, y=[base.rounded(low / unit.scale) for low, _ in ends]),
        go.Scatter(
            **hidden,
            y=[base.rounded(high / unit.scale) for _, high in ends],
            fill="tonexty",
            fillcolor=base.translucent(look["color"]),
        ),
    ]
    stars = [
        go.Scatter(
            x=[row[2].number],
            y=[base.rounded(row[5].number / unit.scale)],
            mode="markers",
            marker={
                "symbol": "star",
                "size": 17,
                "color": look["color"],
                "line": {"width": 1, "color": "#FFFFFF"},
            },
            legendgroup=base.esc(name),
            showlegend=False,
            customdata=[words],
            hovertemplate=f"<b>{base.esc(name)}</b>: best batch<br>%{{customdata}}<extra></extra>",
        )
        for row, words in zip(rows, hover, strict=True)
        if row[5].mark
    ]
    return [*band, line, *stars]


def _critical_batch(result: StudyResult, tokens: Sequence[float]) -> dict[str, list[dict[str, Any]]]:
    """The critical batch as a line in its band, with its name; nothing where no batch wastes tokens."""
    critical = result.critical_batch_tokens
    if not critical > 0:
        return {"shapes": [], "annotations": []}
    low, high = result.critical_batch_band_tokens
    common: dict[str, Any] = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    band = {
        "type": "rect",
        "x0": low,
        "x1": high,
        "fillcolor": "rgba(128,128,128,0.15)",
        "line": {"width": 0},
    }
    dashed = {"width": 2, "dash": "dash", "color": base.GREY}
    line = {"type": "line", "x0": critical, "x1": critical, "line": dashed}
    on_the_left = bool(tokens) and critical**2 < min(tokens) * max(tokens)
    note = {
        "x": math.log10(critical),
        "xref": "x",
        "y": 1,
        "yref": "paper",
        "yanchor": "top",
        **dict.fromkeys(("xanchor", "align"), "left" if on_the_left else "right"),
        "showarrow": False,
        "text": f" critical batch <br> {text.large(critical)} ",
    }
    return {"shapes": [common | band, common | line], "annotations": [note]}


# How many devices of two machines finish on the same day: a curve with its 90 % band.


def equal_time(forward: Sequence[Match], backward: Sequence[Match]) -> go.Figure:
    """Devices of the first machine over those of the other, from the counts of both, with 90 % bands.

    `forward` matches the other machine's counts by the first, `backward` the first's by the other. The bands
    are vertical for the former and horizontal for the latter.
    """
    first = base.esc(forward[0].series.devices_noun)
    rival = base.esc(backward[0].series.devices_noun)
    up, across = (
        [match for match in matches if (match.equal.typical or 0.0) > match.series.counts[0]]
        for matches in (forward, backward)
    )
    points = sorted(
        [(match.rival.num_devices, match.equal.typical or 0.0) for match in up]
        + [(match.equal.typical or 0.0, match.rival.num_devices) for match in across]
    )
    line = go.Scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        mode="lines",
        line={"color": base.BLUE, "width": 2},
        name="on the same day",
        hoverinfo="skip",
    )
    style = base.layout(
        f"{first} and {rival} that finish on the same day",
        height=440,
        xaxis=base.log_axis(rival, [x for x, _ in points]),
        yaxis=base.log_axis(first, [y for _, y in points]),
    )
    looks = (
        (up, base.BLUE, "circle", "xy", f"counts of {rival}"),
        (across, base.VERMILLION, "square", "yx", f"counts of {first}"),
    )
    return go.Figure([line, *(_marks(*look) for look in looks if look[0])], style)


def _marks(matches: Sequence[Match], colour: str, symbol: str, axes: str, name: str) -> go.Scatter:
    """The matches of one direction: counts on the first of `axes`, equal numbers with bands on the other."""
    equal = [match.equal for match in matches]
    middles = [own.typical or 0.0 for own in equal]
    ends = [
        [middle if end is None else end for end in (own.low, own.high)]
        for own, middle in zip(equal, middles, strict=True)
    ]
    hover = [
        f"{match.rival.machine} ({text.duration(match.rival.target_time.time_s)}): "
        f"{text.NUMBER.text(middle)} {match.series.devices_noun}"
        for match, middle in zip(matches, middles, strict=True)
    ]
    return go.Scatter(
        **{axes[0]: [match.rival.num_devices for match in matches], axes[1]: middles},
        **{f"error_{axes[1]}": base.error_bars(middles, ends, colour) | {"thickness": 1}},
        mode="markers",
        marker={"color": colour, "symbol": symbol, "size": 8},
        name=name,
        customdata=list(map(base.esc, hover)),
        hovertemplate="%{customdata}<extra></extra>",
    )


# What a shorter time takes: money or device-days over the time to the target.


def cost_table(points: Sequence[tuple[str, str, float, float, bool]], cost: text.Unit) -> Table:
    """Points as (series, machine, seconds, cost, worth taking); those worth taking are marked."""
    unit = text.time_unit(time_s for _, _, time_s, *_ in points)
    return Table.of(
        {"series": None, "machine": None, "time to the target": unit, "cost": cost},
        (
            (series, machine, time_s, Cell(amount, mark=best))
            for series, machine, time_s, amount, best in points
        ),
        "A star marks the points worth taking: no comparable one is both faster and cheaper.",
    )


def cost_curve(table: Table) -> go.Figure:
    """A line for each series, from cheap and slow to dear and fast; points not worth taking are open."""
    unit, cost = (column.unit or text.NUMBER for column in table.columns[2:])
    traces = []
    for index, (name, unsorted) in enumerate(table.by("series").items()):
        rows = sorted(unsorted, key=lambda row: row[2].number)
        traces.append(
            go.Scatter(
                x=[row[2].number / unit.scale for row in rows],
                y=[row[3].number for row in rows],
                name=base.esc(name),
                mode="lines+markers",
                line={"color": base.series_style(index)["color"], "width": 1.5},
                marker={"symbol": ["circle" if row[3].mark else "circle-open" for row in rows], "size": 9},
                customdata=[base.esc(row[1].value) for row in rows],
                hovertemplate=f"<b>%{{customdata}}</b><br>%{{x:.4g}} {unit.name}, %{{y:,.4g}} "
                f"{base.esc(cost.name)}<extra></extra>",
            )
        )
    title = f"cost ({cost.name})"
    style = base.layout(
        base.esc(f"{text.capital(title)} by time to the target"),
        height=440,
        xaxis=base.log_axis(
            f"time to the target ({unit.name})", [row[2].number / unit.scale for row in table.rows]
        ),
        yaxis=base.log_axis(base.esc(title), [row[3].number for row in table.rows]),
        showlegend=True,
    )
    return go.Figure(traces, style)


# A tornado: how far each input that is not sure moves the ratio of two times, over its 90 % range.

NEAR = 0.12
"""Share of the axis within which the names of two lines would cover one another."""
_LEVER_UNITS = {
    "tokens": text.Unit("tokens", digits=text.large),
    "s": text.TIME,
    "B/s": text.Unit("GB/s", 1e9),
    "times": text.Unit(text.TIMES),
}
"""Other units are written as they are."""


def tornado_table(levers: Sequence[Lever], caption: str) -> Table:
    """Every input with its range, the ratio at both ends, and the value at which the order flips."""
    rows = []
    for lever in levers:
        unit = _LEVER_UNITS.get(lever.unit, text.Unit(lever.unit))
        rows.append(
            (
                lever.name,
                Cell(lever.typical, (lever.low, lever.high), unit=unit),
                lever.ratio_at_low,
                lever.ratio_at_high,
                "never" if lever.flips_at is None else Cell(lever.flips_at, unit=unit),
            )
        )
    names = ("typical (90 % range)", "ratio at low", "ratio at high", "order flips at")
    return Table.of({"input": None} | dict.fromkeys(names, text.NUMBER), rows, caption)


def tornado(table: Table, title: str, middle: float) -> go.Figure:
    """A bar for each row of `tornado_table`, from the ratio at its low end to that at its high end."""
    rows = list(reversed(table.rows))
    labels = [base.in_lines(str(row[0].value)) for row in rows]
    traces = [
        go.Bar(
            y=labels,
            x=[row[2 + end].number - middle for row in rows],
            base=middle,
            orientation="h",
            name=words,
            marker={"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay"}},
            customdata=[
                [(row[1].unit or text.NUMBER).text((row[1].band or (0.0, 0.0))[end]), row[2 + end].number]
                for row in rows
            ],
            hovertemplate="<b>%{y}</b><br>at %{customdata[0]}: ratio %{customdata[1]:.3f}<extra></extra>",
        )
        for end, words, colour, pattern in (
            (0, "input at its low end", base.BLUE, ""),
            (1, "input at its high end", base.ORANGE, "/"),
        )
    ]
    ratios = [1.0, *(cell.number for row in rows for cell in row[2:4])]
    span = max(ratios) - min(ratios)
    lines = (
        (middle, {"color": base.INK, "width": 1}),
        (1.0, {"color": base.INK, "width": 1.5, "dash": "dot"}),
    )
    style = base.layout(
        title,
        height=150 + sum(base.row_px([label], 34) for label in labels),
        barmode="overlay",
        xaxis=base.axis("ratio"),
        yaxis=base.axis(""),
        shapes=[
            {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}
            for at, line in lines
        ],
        annotations=[
            {"x": at, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "text": words}
            for at, words in ((middle, f"{middle:.2f}"), (1.0, "order flips"))
            if at == middle or abs(at - middle) > NEAR * span
        ],
    )
    return go.Figure(traces, style)
