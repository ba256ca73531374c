"""A tornado: how far each input that is not sure moves the ratio of two times, over its 90 % range."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table
from perfsim.studies.answers import BatchPoint, CandidateResult, Decision, Lever, StudyResult
from perfsim.studies.scaling import Match

# Time to the target over global batch: a small batch takes many steps, a large one wastes tokens.


def time_to_accuracy(result: StudyResult) -> go.Figure:
    """One curve with its band per candidate, the best batch starred, the critical batch as a line."""
    unit, scale = _unit(result)
    names = text.labels(result.candidates)
    traces: list[Any] = []
    for index, (name, candidate) in enumerate(zip(names, result.candidates, strict=True)):
        traces += _curve(name, candidate, index, unit, scale)
    points = [point for candidate in result.candidates for point in candidate.batch_curve]
    x_ends = _ends([point.batch_tokens for point in points], result.critical_batch_tokens, 1.4)
    y_ends = _ends([end / scale for point in points for end in point.time_to_accuracy_band_s], 0.0, 1.15)
    style = base.layout(
        f"Time to the target ({unit}) by global batch (tokens)",
        height=500,
        xaxis=base.log_axis("global batch (tokens)", x_ends, range=[math.log10(end) for end in x_ends]),
        yaxis=base.log_axis(
            f"time to the target ({unit})", y_ends, range=[math.log10(end) for end in y_ends]
        ),
        shapes=_critical_shapes(result),
        annotations=[*_critical_note(result), *_names(result, base.Canvas(x_ends, y_ends), scale)],
        showlegend=False,
    )
    return base.figure(traces, style)


def _ends(values: Sequence[float], also: float, room: float) -> tuple[float, float]:
    """The ends of a logarithmic axis over finite values, and over another one if it is positive."""
    known = [value for value in (*values, also) if value > 0 and math.isfinite(value)] or [1.0, 10.0]
    return min(known) / room, max(known) * room


def _names(result: StudyResult, canvas: base.Canvas, scale: float) -> list[dict[str, Any]]:
    """The name of each candidate at its curve, with a leader in the colour of the curve."""
    curves = {
        place: [(point.batch_tokens, point.time_to_accuracy_s / scale) for point in candidate.batch_curve]
        for place, candidate in enumerate(result.candidates)
    }
    known = {
        place: sorted(point for point in curve if math.isfinite(point[1])) for place, curve in curves.items()
    }
    taken = [canvas.around(*point, 8) for curve in known.values() for point in curve]
    asked = []
    for place, whole in enumerate(text.names(result.candidates)):
        name = "\n".join(textwrap.wrap(whole, base.LABEL_CHARS, break_on_hyphens=False))
        half = base.half_px(name)
        spots = [
            base.Spot(*point, right, up)
            for up in (22.0, -22.0, 40.0, -40.0, 60.0, -60.0, 90.0, -90.0)
            for point in known[place][::-1]
            for right in (0.0, -half, half)
        ]
        if spots:
            colour = base.series_style(place)["color"]
            asked.append((name, spots, {"arrowcolor": colour, "arrowwidth": 1.5, "standoff": 4}))
    return base.notes(canvas, asked, taken, always=True)


def _unit(result: StudyResult) -> tuple[str, float]:
    return text.time_unit(candidate.time_to_accuracy_s for candidate in result.candidates)


def _curve(name: str, candidate: CandidateResult, index: int, unit: str, scale: float) -> list[Any]:
    points = sorted(candidate.batch_curve, key=lambda point: point.batch_tokens)
    look = base.series_style(index)
    tokens = [point.batch_tokens for point in points]
    line = go.Scatter(
        x=tokens,
        y=[_round(point.time_to_accuracy_s / scale) for point in points],
        name=base.esc(name),
        legendgroup=base.esc(name),
        mode="lines+markers",
        line={"color": look["color"], "dash": look["dash"], "width": 2},
        marker={"symbol": look["symbol"], "size": 6},
        customdata=[_time_to_accuracy_hover(point, unit, scale) for point in points],
        hovertemplate="<b>%{fullData.name}</b><br>%{customdata}<extra></extra>",
    )
    return [
        *_band(points, name, look["color"], scale),
        line,
        *_star(points, candidate, name, look, unit, scale),
    ]


def _band(points: list[BatchPoint], name: str, colour: str, scale: float) -> list[Any]:
    hidden = {
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": base.esc(name),
    }
    tokens = [point.batch_tokens for point in points]
    low = [_round(point.time_to_accuracy_band_s[0] / scale) for point in points]
    high = [_round(point.time_to_accuracy_band_s[1] / scale) for point in points]
    fill = {"fill": "tonexty", "fillcolor": base.translucent(colour)}
    return [go.Scatter(x=tokens, y=low, **hidden), go.Scatter(x=tokens, y=high, **hidden, **fill)]


def _star(
    points: list[BatchPoint],
    candidate: CandidateResult,
    name: str,
    look: dict[str, Any],
    unit: str,
    scale: float,
) -> list[Any]:
    best = [point for point in points if point.global_batch_size == candidate.global_batch_size][:1]
    return [
        go.Scatter(
            x=[point.batch_tokens],
            y=[_round(point.time_to_accuracy_s / scale)],
            mode="markers",
            marker={
                "symbol": "star",
                "size": 17,
                "color": look["color"],
                "line": {"width": 1, "color": "#FFFFFF"},
            },
            legendgroup=base.esc(name),
            showlegend=False,
            customdata=[_time_to_accuracy_hover(point, unit, scale)],
            hovertemplate=f"<b>{base.esc(name)}</b>: best batch<br>%{{customdata}}<extra></extra>",
        )
        for point in best
    ]


def _time_to_accuracy_hover(point: BatchPoint, unit: str, scale: float) -> str:
    low, high = (text.number(end / scale) for end in point.time_to_accuracy_band_s)
    lines = [
        f"{text.integer(point.global_batch_size)} sequences, {text.large(point.batch_tokens)} tokens",
        f"{text.number(point.time_to_accuracy_s / scale)} {unit} (band {low}{text.NONE}{high})",
        f"{text.integer(point.steps)} steps of {text.duration(point.step_time_s)}",
        text.layout_long(point.layout),
    ]
    return "<br>".join(base.esc(line) for line in lines if line)


def _critical_shapes(result: StudyResult) -> list[dict[str, Any]]:
    if not result.critical_batch_tokens > 0:
        return []
    low, high = result.critical_batch_band_tokens
    common: dict[str, Any] = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    band = {
        "type": "rect",
        "x0": low,
        "x1": high,
        "fillcolor": "rgba(128,128,128,0.15)",
        "line": {"width": 0},
    }
    at = result.critical_batch_tokens
    line = {"type": "line", "x0": at, "x1": at, "line": {"width": 2, "dash": "dash", "color": base.GREY}}
    return [common | band, common | line]


def _critical_note(result: StudyResult) -> list[dict[str, Any]]:
    critical = result.critical_batch_tokens
    if not critical > 0:
        return []
    tokens = [point.batch_tokens for candidate in result.candidates for point in candidate.batch_curve]
    on_the_left = bool(tokens) and critical**2 < min(tokens) * max(tokens)
    return [
        {
            "x": math.log10(critical),
            "xref": "x",
            "y": 1,
            "yref": "paper",
            "yanchor": "top",
            "xanchor": "left" if on_the_left else "right",
            "showarrow": False,
            "align": "left" if on_the_left else "right",
            "text": f" critical batch <br> {text.large(critical)} ",
        }
    ]


def time_to_accuracy_table(result: StudyResult) -> Table:
    """Every point of every curve."""
    rows: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    for name, candidate in zip(text.labels(result.candidates), result.candidates, strict=True):
        for point in candidate.batch_curve:
            if point.global_batch_size == candidate.global_batch_size:
                best.add((len(rows), 5))
            rows.append([name, *_cells(point)])
    columns = ("candidate", "batch (sequences)", "batch (tokens)", "step", "steps", "time", "band", "layout")
    caption = "Time to the target at each batch; the best batch of each candidate is marked."
    return Table(columns, rows, caption, frozenset(range(1, 7)), frozenset(best))


def _cells(point: BatchPoint) -> list[str]:
    return [
        text.integer(point.global_batch_size),
        text.large(point.batch_tokens),
        text.duration(point.step_time_s),
        text.integer(point.steps),
        text.duration(point.time_to_accuracy_s),
        text.duration_band(point.time_to_accuracy_band_s),
        text.layout_long(point.layout),
    ]


def time_to_accuracy_alt(result: StudyResult) -> str:
    """Each candidate's best point in words."""
    best = "; ".join(
        f"{name}: {text.duration(candidate.time_to_accuracy_s)} at a batch of "
        f"{text.integer(candidate.global_batch_size)} sequences"
        for name, candidate in zip(text.labels(result.candidates), result.candidates, strict=True)
    )
    critical = result.critical_batch_tokens
    return (
        "Line chart of time to the target over global batch, both logarithmic. "
        f"{f'Critical batch {text.large(critical)} tokens. ' if critical > 0 else ''}{best}."
    )


def _round(value: float) -> float:
    return float(f"{value:.6g}")


# How many devices of two machines finish on the same day: a curve with its 90 % band.


def equal_time(forward: Sequence[Match], backward: Sequence[Match]) -> go.Figure:
    """Devices of the first machine over those of the other, from the counts of both.

    `forward` matches the other machine's counts by the first, `backward` the first's by the other. The band
    is vertical for the former and horizontal for the latter.
    """
    first = forward[0].series.devices_noun
    rival = backward[0].series.devices_noun
    up = _inside(forward)
    across = _inside(backward)
    points = sorted(
        [(match.rival.num_devices, match.equal.typical) for match in up]
        + [(match.equal.typical, match.rival.num_devices) for match in across]
    )
    banded = [match for match in up if None not in (match.equal.low, match.equal.high)]
    xs = [match.rival.num_devices for match in banded]
    band = go.Scatter(
        x=[*xs, *reversed(xs)],
        y=[*(match.equal.high for match in banded), *(match.equal.low for match in reversed(banded))],
        fill="toself",
        fillcolor=base.translucent(base.BLUE),
        line={"width": 0},
        mode="lines",
        name="90 % band",
        hoverinfo="skip",
    )
    line = go.Scatter(
        x=[float(x) for x, _ in points if x],
        y=[float(y) for _, y in points if y],
        mode="lines",
        line={"color": base.BLUE, "width": 2},
        name="on the same day",
        hoverinfo="skip",
    )
    style = base.layout(
        f"{base.esc(first)} and {base.esc(rival)} that finish on the same day",
        height=440,
        xaxis=base.log_axis(base.esc(rival), [float(x) for x, _ in points if x]),
        yaxis=base.log_axis(base.esc(first), [float(y) for _, y in points if y]),
    )
    marks = [
        _marks(up, base.BLUE, "circle", across=False),
        _marks(across, base.VERMILLION, "square", across=True),
    ]
    return base.figure([band, line, *marks], style)


def _inside(matches: Sequence[Match]) -> list[Match]:
    """Those whose number of devices lies between two that were tried."""
    return [match for match in matches if (match.equal.typical or 0.0) > match.series.counts[0]]


def _marks(matches: Sequence[Match], colour: str, symbol: str, *, across: bool) -> go.Scatter:
    """The matches of one direction; `across` puts their band on the horizontal axis."""
    counts = [match.rival.num_devices for match in matches]
    equal = [match.equal.typical or 0.0 for match in matches]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [_reach(match.equal.high, at) for match, at in zip(matches, equal, strict=True)],
        "arrayminus": [_reach(match.equal.low, at) for match, at in zip(matches, equal, strict=True)],
        "color": colour,
        "thickness": 1,
    }
    bars = {"error_x": error} if across else {}
    series = matches[0].series if matches else None
    return go.Scatter(
        x=equal if across else counts,
        y=counts if across else equal,
        mode="markers",
        marker={"color": colour, "symbol": symbol, "size": 8},
        name=f"counts of {base.esc(matches[0].rival.devices_noun)}" if matches else "",
        customdata=[base.esc(_hover(match)) for match in matches],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=series is not None,
        **bars,
    )


def _reach(end: float | None, middle: float) -> float:
    return 0.0 if end is None else abs(end - middle)


def _hover(match: Match) -> str:
    rival = match.rival
    equal = match.equal
    low, middle, high = (
        "?" if value is None else text.number(value) for value in (equal.low, equal.typical, equal.high)
    )
    time = text.duration(rival.target_time.time_s)
    return f"{rival.machine} ({time}): {middle} {match.series.devices_noun} ({low} to {high})"


def equal_time_alt(matches: Sequence[Match]) -> str:
    """The curve in words."""
    words = [_hover(match) for match in _inside(matches)]
    return (
        f"A curve of equal time. {'; '.join(words)}." if words else "A curve of equal time without a point."
    )


# What a shorter time takes: money or device-days over the time to the target.


@dataclass(frozen=True, slots=True)
class CostPoint:
    """A machine at one size; `time` and `cost` are already in the units of the axes."""

    series: str
    machine: str
    time: float
    cost: float
    best: bool
    """Whether no comparable point is both faster and cheaper."""


def worth_taking(points: Sequence[tuple[float, float]]) -> list[bool]:
    """For each (time, cost), whether no other is at most as slow and as dear, and better in one of both."""
    return [
        not any(time <= own[0] and cost <= own[1] and (time, cost) != own for time, cost in points)
        for own in points
    ]


def cost_curve(points: Sequence[CostPoint], *, unit: str, cost: str) -> go.Figure:
    """A line for each series, from cheap and slow to dear and fast; points not worth taking are open."""
    traces = []
    for index, name in enumerate(dict.fromkeys(point.series for point in points)):
        own = sorted((point for point in points if point.series == name), key=lambda point: point.time)
        colour = base.series_style(index)["color"]
        traces.append(
            go.Scatter(
                x=[point.time for point in own],
                y=[point.cost for point in own],
                name=base.esc(name),
                mode="lines+markers",
                line={"color": colour, "width": 1.5},
                marker={"symbol": ["circle" if point.best else "circle-open" for point in own], "size": 9},
                customdata=[base.esc(point.machine) for point in own],
                hovertemplate=f"<b>%{{customdata}}</b><br>%{{x:.4g}} {unit}, %{{y:,.4g}} {base.esc(cost)}"
                "<extra></extra>",
            )
        )
    style = base.layout(
        f"{cost[0].upper()}{cost[1:]} by time to the target",
        height=440,
        xaxis=base.log_axis(f"time to the target ({unit})", [point.time for point in points]),
        yaxis=base.log_axis(base.esc(cost), [point.cost for point in points]),
        showlegend=True,
    )
    return base.figure(traces, style)


def cost_table(points: Sequence[CostPoint], *, unit: str, cost: str) -> Table:
    """Every point, and whether it is worth taking."""
    rows = [
        [
            point.machine,
            text.number(point.time),
            text.number(point.cost),
            "yes" if point.best else "no",
        ]
        for point in points
    ]
    columns = ("machine", f"time to the target ({unit})", cost, "none is faster and cheaper")
    return Table(columns, rows, "", frozenset({1, 2}))


def cost_alt(points: Sequence[CostPoint], *, unit: str, cost: str) -> str:
    """The points worth taking, in words."""
    words = (
        f"{point.machine}: {text.number(point.time)} {unit}, {text.number(point.cost)} {cost}"
        for point in points
        if point.best
    )
    return f"Worth taking: {'; '.join(words)}."


NEAR = 0.12
"""Share of the axis within which the names of two lines would cover one another."""


def tornado(decision: Decision, *, of_money: bool = False) -> go.Figure:
    """One bar for each input, from the ratio at its low end to that at its high end; dotted, at 1."""
    ratio = decision.money_ratio if of_money else decision.ratio
    middle = ratio.typical if ratio else 1.0
    levers = list(reversed(_levers(decision, of_money=of_money)))
    labels = [base.in_lines(lever.name) for lever in levers]
    traces = [
        go.Bar(
            y=labels,
            x=[getattr(lever, end) - middle for lever in levers],
            base=middle,
            orientation="h",
            name=words,
            marker={"color": colour, "pattern": {"shape": pattern, "fillmode": "overlay"}},
            customdata=[[_number_of(getattr(lever, value), lever), getattr(lever, end)] for lever in levers],
            hovertemplate="<b>%{y}</b><br>at %{customdata[0]}: ratio %{customdata[1]:.3f}<extra></extra>",
        )
        for end, value, words, colour, pattern in (
            ("ratio_at_low", "low", "input at its low end", base.BLUE, ""),
            ("ratio_at_high", "high", "input at its high end", base.ORANGE, "/"),
        )
    ]
    ratios = [1.0, *(end for lever in levers for end in (lever.ratio_at_low, lever.ratio_at_high))]
    span = max(ratios) - min(ratios)
    style = base.layout(
        f"{_what(of_money=of_money).capitalize()} over that of the first (times)",
        height=150 + sum(base.row_px([label], 34) for label in labels),
        barmode="overlay",
        xaxis=base.axis("ratio"),
        yaxis=base.axis(""),
        shapes=[
            {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}
            for at, line in (
                (middle, {"color": base.INK, "width": 1}),
                (1.0, {"color": base.INK, "width": 1.5, "dash": "dot"}),
            )
        ],
        annotations=[
            {"x": at, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "text": words}
            for at, words in ((middle, f"{middle:.2f}"), (1.0, "order flips"))
            if at == middle or abs(at - middle) > NEAR * span
        ],
    )
    return base.figure(traces, style)


def _levers(decision: Decision, *, of_money: bool) -> tuple[Lever, ...]:
    return decision.money_levers if of_money else decision.levers


def _what(*, of_money: bool) -> str:
    return "money" if of_money else "time on the wall"


def tornado_table(decision: Decision, *, of_money: bool = False) -> Table:
    """Every input with its range, the ratio at both ends, and the value at which the order flips."""
    rows = [
        [
            lever.name,
            _number_of(lever.typical, lever),
            f"{_number_of(lever.low, lever)} to {_number_of(lever.high, lever)}",
            text.number(lever.ratio_at_low),
            text.number(lever.ratio_at_high),
            "never" if lever.flips_at is None else _number_of(lever.flips_at, lever),
        ]
        for lever in _levers(decision, of_money=of_money)
    ]
    columns = ("input", "typical", "90 % range", "ratio at low", "ratio at high", "order flips at")
    what = _what(of_money=of_money)
    caption = (
        f"Ratio: {what} of {decision.rival} over that of {decision.first}. One input is moved at a time; "
        "never: not within three standard deviations."
    )
    return Table(columns, rows, caption, frozenset(range(1, 6)))


def tornado_alt(decision: Decision, *, of_money: bool = False) -> str:
    """The inputs that matter most, in words."""
    words = [
        f"{lever.name}: {lever.ratio_at_low:.2f} to {lever.ratio_at_high:.2f}"
        for lever in _levers(decision, of_money=of_money)[:4]
    ]
    what = "money" if of_money else "times"
    return (
        f"Bars of the ratio of {what} of {decision.rival} and {decision.first} over the range of each input. "
        f"{'; '.join(words)}."
    )


def _number_of(value: float, lever: Lever) -> str:
    """A value of an input with its unit."""
    if lever.unit == "tokens":
        return f"{text.large(value)} tokens"
    if lever.unit == "s":
        return text.duration(value)
    if lever.unit == "B/s":
        return f"{text.number(value / 1e9)} GB/s"
    return " ".join(filter(None, [text.number(value), lever.unit if lever.unit != "times" else text.TIMES]))
