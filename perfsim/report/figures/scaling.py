"""Many answers in figures: scaling with devices, a quantity over two fields, errors of published runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Cell, Table
from perfsim.studies.scaling import Series

# Time to the target and efficiency by number of devices, next to the ideal.

MAX_MARKS = 200
"""Points of one line."""
LABELLED = 4
"""Most series that are named at their lines; more have a legend."""
APART = 0.09
"""Least distance of two names, as a share of the height of the axes."""
WIDTH = 0.4
"""Width of a name, as a share of that of the axes."""
SAME = 0.02
"""Differences of efficiencies below this are not drawn."""
IDEAL = {"color": base.GREY, "width": 1.5, "dash": "dot"}


def series_table(series: Sequence[Series]) -> Table:
    """Every point of the series at its best batch, every column in one unit."""
    points = [(own, point) for own in series for point in text.thinned(own.points, MAX_MARKS)]
    unit = text.time_unit(point.target_time.time_s for _, point in points)
    step = text.time_unit([max((point.prediction.step_time_s for _, point in points), default=1.0)])
    columns = {
        "series": None,
        "machine": None,
        "devices": text.COUNT,
        "batch": text.COUNT,
        "steps": text.COUNT,
        "step": step,
        "MFU": text.WHOLE_SHARE,
        "efficiency": text.WHOLE_SHARE,
        "time": unit,
        "wall": unit,
        "layout": None,
    }
    rows = (
        (
            own.label,
            point.machine,
            point.num_devices,
            point.prediction.global_batch_size,
            point.target_time.steps,
            point.prediction.step_time_s,
            point.prediction.mfu,
            own.efficiency(point),
            Cell(point.target_time.time_s, point.target_time.band_s),
            point.prediction.wall_s,
            text.layout_short(point.prediction.layout),
        )
        for own, point in points
    )
    return Table.of(columns, rows, "Efficiency is relative to the smallest machine of the series.")


def scaling_curve(table: Table) -> go.Figure:
    """A line for each series of `series_table` with its band, and dotted the ideal from its first point."""
    table = table.only("series", "devices", "time", "efficiency", "layout")
    unit = table.columns[2].unit or text.TIME
    series = _by_series(table)
    lines: list[go.Scatter] = []
    bands: list[go.Scatter] = []
    ends = {}
    for index, (name, rows) in enumerate(series.items()):
        look = base.series_style(index)
        devices = [row[1].number for row in rows]
        values = [row[2].number / unit.scale for row in rows]
        silent = {"hoverinfo": "skip", "legendgroup": base.esc(name), "mode": "lines"}
        lines += [
            go.Scatter(
                x=devices,
                y=values,
                name=base.esc(name),
                legendgroup=base.esc(name),
                mode="lines+markers",
                line={"color": look["color"], "width": 2},
                marker={"symbol": look["symbol"], "size": 8},
                customdata=[
                    f"{unit.text(row[2].number, row[2].band)}<br>"
                    + base.esc(f"scaling efficiency {text.percent(row[3].number)}, {row[4].value}")
                    for row in rows
                ],
                hovertemplate="<b>%{fullData.name}</b><br>%{x:,} devices: %{customdata}<extra></extra>",
            ),
            go.Scatter(
                **silent,
                x=devices,
                y=[value * row[3].number for value, row in zip(values, rows, strict=True)],
                name=f"{base.esc(name)}, ideal",
                line={"color": look["color"], "width": 1.5, "dash": "dot"},
            ),
        ]
        if rows[0][2].band is not None:
            low, high = zip(*(row[2].band or (row[2].number,) * 2 for row in rows), strict=True)
            bands.append(
                go.Scatter(
                    **silent,
                    x=[*devices, *reversed(devices)],
                    y=[end / unit.scale for end in (*high, *reversed(low))],
                    name=f"{base.esc(name)}, 90 % band",
                    line={"width": 0},
                    fill="toself",
                    fillcolor=base.translucent(look["color"]),
                    showlegend=False,
                )
            )
        ends[name] = [(devices[place], values[place]) for place in (0, -1)]
    drawn = [end / unit.scale for cell in table.column("time") for end in (cell.number, *(cell.band or ()))]
    style = base.layout(
        f"Time to the target ({unit.name}) by number of devices",
        height=460,
        xaxis=_devices_axis(cell.number for cell in table.column("devices")),
        yaxis=base.log_axis(f"time to the target ({unit.name})", drawn),
        **_direct_labels(ends),
    )
    return go.Figure([*lines, *bands], style)


def efficiency_table(scalings: Sequence[Series]) -> Table:
    """Every point with its efficiency in throughput and in time to the target."""
    columns = {"series": None, "devices": text.COUNT, "in throughput": text.SHARE}
    rows = (
        (
            *(own.label, point.num_devices, own.throughput_efficiency(point), own.efficiency(point)),
            f"{text.layout_short(point.prediction.layout)}, {point.prediction.why.cause}",
        )
        for own in scalings
        for point in text.thinned(own.points, MAX_MARKS)
    )
    caption = "Relative to the smallest machine of the series."
    return Table.of(columns | {"in time to the target": text.SHARE, "note": None}, rows, caption)


def efficiency_curve(table: Table) -> go.Figure:
    """The efficiencies of `efficiency_table` in per cent on a logarithmic axis of devices, and the ideal.

    That in time to the target is dashed, where it differs from that in throughput.
    """
    traces = []
    for index, (name, rows) in enumerate(_by_series(table).items()):
        look = base.series_style(index)
        kinds = [("solid", "throughput", 2)]
        if max(abs(row[2].number - row[3].number) for row in rows) >= SAME:
            kinds.append(("dash", "time to the target", 3))
        for dash, what, place in kinds:
            traces.append(
                go.Scatter(
                    x=[row[1].number for row in rows],
                    y=[round(100 * row[place].number, 3) for row in rows],
                    name=base.esc(name) if dash == "solid" else f"in {what}",
                    legendgroup=base.esc(name),
                    mode="lines+markers",
                    line={"color": look["color"], "width": 2, "dash": dash},
                    marker={"symbol": look["symbol"], "size": 8 if dash == "solid" else 5},
                    customdata=[base.esc(row[4].value) for row in rows],
                    hovertemplate=f"<b>{base.esc(name)}</b><br>%{{x:,}} devices: %{{y:.1f}} % in {what}"
                    "<br>%{customdata}<extra></extra>",
                )
            )
    top = max([1.0, *(cell.number for row in table.rows for cell in row[2:4])])
    style = base.layout(
        "Scaling efficiency (%) by number of devices",
        height=400,
        xaxis=_devices_axis(cell.number for cell in table.column("devices")),
        yaxis=base.axis("scaling efficiency (%)", range=[0, 108 * top]),
        shapes=[{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100, "y1": 100, "line": IDEAL}],
        showlegend=True,
    )
    return go.Figure(traces, style)


def _by_series(table: Table) -> dict[str, list[Sequence[Cell]]]:
    """The rows of each series by number of devices."""
    return {name: sorted(rows, key=lambda row: row[1].number) for name, rows in table.by("series").items()}


def _devices_axis(counts: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis of numbers of devices, with ticks at the numbers that were asked for."""
    known = sorted({float(count) for count in counts}, reverse=True)
    ticks = sorted(known[:: math.ceil(len(known) / base.MOST_TICKS)])
    return base.log_axis("devices", known, tickvals=ticks, ticktext=[base.short(tick) for tick in ticks])


def _direct_labels(ends: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Names at the lines where they have room, else a legend.

    `ends` are the first and last point of each falling line on logarithmic axes. A name stands above the
    first point, or below the last one where the first place is taken.
    """
    spots = [(math.log10(x), math.log10(y)) for own in ends.values() for x, y in own]
    wide, high = (max(axis) - min(axis) or 1.0 for axis in zip(*spots, strict=True))
    taken: list[tuple[float, float]] = []
    labels: list[dict[str, Any]] = []
    for index, (name, own) in enumerate(ends.items()):
        for (x, y), above in zip(own, (True, False), strict=True):
            left = math.log10(x) / wide - (0.0 if above else WIDTH)
            top = math.log10(y) / high + (APART if above else 0.0)
            if all(abs(left - a) > WIDTH or abs(top - b) > APART for a, b in taken):
                taken.append((left, top))
                # A colour would not suit both themes, so a mark in the line's colour stands before the name.
                colour = base.series_style(index)["color"]
                labels.append(
                    {
                        "x": math.log10(x),
                        "y": math.log10(y),
                        "text": f'<span style="color:{colour}">\u25cf</span> {base.in_lines(name)}',
                        "showarrow": False,
                        "align": "left",
                        "xanchor": "left" if above else "right",
                        "yanchor": "bottom" if above else "top",
                        "xshift": 6 if above else -8,
                        "yshift": 2 if above else -6,
                    }
                )
                break
    if len(labels) < len(ends) or len(ends) > LABELLED:
        return {"showlegend": True}
    return {"showlegend": False, "annotations": labels}


# A quantity over two swept fields, as coloured cells.

_MAX_WRITTEN_CELLS = 150
_LOG_SPAN = 30.0
"""How many times the least value the largest has to be for a logarithmic scale of colours."""


def heat_map(table: Table, title: str, x_name: str) -> go.Figure:
    """The cells of a table, named by its first column and its headings; a cell without a value stays empty.

    Colours are cividis, which reads alike with every colour vision. Small maps write the figure in each cell.
    """
    unit = table.columns[1].unit or text.NUMBER
    y_name = table.columns[0].name
    cells = [
        [cell.number / unit.scale if cell.value is not None else None for cell in row[1:]]
        for row in table.rows
    ]
    known = [value for row in cells for value in row if value is not None]
    logarithmic = bool(known) and min(known) > 0 and max(known) / min(known) > _LOG_SPAN
    bar: dict[str, Any] = {"thickness": 12, "outlinewidth": 0, "xpad": 4}
    if logarithmic:
        first = math.log10(min(known))
        last = math.log10(max(known))
        places = [first + (last - first) * i / 4 for i in range(5)]
        bar |= {"tickvals": places, "ticktext": [text.number(10**place, 2) for place in places]}
    trace = go.Heatmap(
        x=[base.esc(column.name) for column in table.columns[1:]],
        y=[base.esc(row[0].value) for row in table.rows],
        z=[
            [
                None if value is None else base.rounded(math.log10(value) if logarithmic else value)
                for value in row
            ]
            for row in cells
        ],
        text=[["" if value is None else text.number(value) for value in row] for row in cells],
        texttemplate="%{text}" if len(known) <= _MAX_WRITTEN_CELLS else None,
        hovertemplate=f"{base.esc(x_name)} %{{x}}<br>{base.esc(y_name)} %{{y}}<br>"
        f"{base.esc(title)}: <b>%{{text}}</b><extra></extra>",
        hoverongaps=False,
        colorscale="Cividis",
        xgap=1,
        ygap=1,
        colorbar=bar,
    )
    style = base.layout(
        base.esc(title),
        height=max(300, 150 + 30 * len(table.rows)),
        xaxis=base.axis(base.esc(x_name), type="category", showgrid=False),
        yaxis=base.axis(base.esc(y_name), type="category", showgrid=False),
    )
    return go.Figure([trace], style)


# Errors of predictions of published runs, family by family.


def runs_table(cases: Iterable[Mapping[str, Any]]) -> Table:
    """Every predicted run, the worst first; its error has the errors that its 90 % band allows as a band."""
    known = [case for case in cases if case["predicted_s"] is not None]
    known.sort(key=lambda case: (-abs(math.log1p(max(case["error"], -0.999999))), case["id"]))
    columns = {
        "case": None,
        "family": None,
        "evidence": None,
        "measured": text.TIME,
        "predicted": text.TIME,
        "error": text.CHANGE,
        "allowed": text.CHANGE,
    }
    rows = []
    for case in known:
        low, high = case.get("band_s") or (None, None)
        band = (case["predicted_s"] / high - 1.0, case["predicted_s"] / low - 1.0) if low and high else None
        names = ("id", "family", "evidence", "measured_s", "predicted_s", "error")
        rows.append((*(case[name] for name in names), Cell(case["error"], band)))
    return Table.of(columns, rows, "Worst first.")


def residuals(table: Table) -> go.Figure:
    """The signed error of every run, a row for each family, the closest family first; a bar at its median.

    A pale bar spans the errors that the family's 90 % bands allow, at the median of its runs. A run outside
    its own band has a diamond; runs that are not scored (evidence C) have open marks.
    """
    families = table.by("family")
    ranked = sorted(families, key=lambda name: median(abs(row[5].number) for row in families[name]))
    heads = {name: f"{base.esc(name)} ({len(families[name])})" for name in ranked}
    runs = [row for name in ranked for row in families[name]]
    outside = [
        row[6].band is not None and not row[6].band[0] <= row[5].number <= row[6].band[1] for row in runs
    ]
    marks = go.Scatter(
        x=[round(100.0 * row[5].number, 3) for row in runs],
        y=[heads[str(row[1].value)] for row in runs],
        mode="markers",
        marker={
            "symbol": [
                ("diamond" if out else "circle") + ("-open" if row[2].value == "C" else "")
                for row, out in zip(runs, outside, strict=True)
            ],
            "color": [base.VERMILLION if out else base.BLUE for out in outside],
            "size": 9,
            "opacity": 0.8,
        },
        customdata=[
            f"<b>{base.esc(row[0].value)}</b><br>measured {text.duration(row[3].number)}, predicted "
            f"{text.duration(row[4].number)}<br>error {text.CHANGE.text(row[5].number)}"
            for row in runs
        ],
        hovertemplate="%{customdata}<extra></extra>",
        name="a run",
    )
    middles = go.Scatter(
        x=[round(100.0 * median(row[5].number for row in families[name]), 3) for name in ranked],
        y=list(heads.values()),
        mode="markers",
        marker={"symbol": "line-ns", "size": 20, "line": {"width": 3, "color": base.ORANGE}},
        hovertemplate="median %{x:+.1f} %<extra>%{y}</extra>",
        name="median of the family",
    )
    allowed = {
        heads[name]: [median(side) for side in zip(*ends, strict=True)]
        for name in ranked
        if (ends := [row[6].band for row in families[name] if row[6].band])
    }
    bands = go.Bar(
        orientation="h",
        name="errors that the 90 % bands allow",
        y=list(allowed),
        base=[round(100.0 * low, 3) for low, _ in allowed.values()],
        x=[round(100.0 * (high - low), 3) for low, high in allowed.values()],
        marker={"color": base.translucent(base.GREY, 0.32)},
        customdata=[f"{100 * low:+.1f} % to {100 * high:+.1f} %" for low, high in allowed.values()],
        hovertemplate="bands allow %{customdata}<extra>%{y}</extra>",
    )
    style = base.layout(
        "Predicted over measured, minus 1, by family (%)",
        height=150 + 30 * len(families),
        xaxis=base.axis("error of the step time (%)", zeroline=True, zerolinecolor=base.INK),
        yaxis=base.axis("", autorange="reversed"),
        barmode="overlay",
        bargap=0.45,
    )
    return go.Figure([*([bands] if allowed else []), marks, middles], style)
