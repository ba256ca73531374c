"""How many devices of two machines finish on the same day: a curve with its 90 % band."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.sweeps.scaling import Match


def equal_time(forward: Sequence[Match], backward: Sequence[Match]) -> go.Figure:
    """Devices of the first machine over those of the other, from the counts of both.

    `forward` matches the other machine's counts by the first, `backward` the first's by the other. The band
    is vertical for the former and horizontal for the latter.
    """
    first, rival = forward[0].series.devices_noun, backward[0].series.devices_noun
    up, across = _inside(forward), _inside(backward)
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
    rival, equal = match.rival, match.equal
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
