"""A tornado: how far each input that is not sure moves the ratio of two times, over its 90 % range."""

from __future__ import annotations

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table
from perfsim.studies.decided import Decision, Lever

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
            customdata=[[number_of(getattr(lever, value), lever), getattr(lever, end)] for lever in levers],
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
            number_of(lever.typical, lever),
            f"{number_of(lever.low, lever)} to {number_of(lever.high, lever)}",
            text.number(lever.ratio_at_low),
            text.number(lever.ratio_at_high),
            "never" if lever.flips_at is None else number_of(lever.flips_at, lever),
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


def number_of(value: float, lever: Lever) -> str:
    """A value of an input with its unit."""
    if lever.unit == "tokens":
        return f"{text.large(value)} tokens"
    if lever.unit == "s":
        return text.duration(value)
    if lever.unit == "B/s":
        return f"{text.number(value / 1e9)} GB/s"
    return " ".join(filter(None, [text.number(value), lever.unit if lever.unit != "times" else text.TIMES]))
