"""A quantity over two swept fields, as coloured cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from perfsim.report import text
from perfsim.report.figures import base
from perfsim.report.table import Table

_MAX_WRITTEN_CELLS = 150
_LOG_SPAN = 30.0


def heat_map(
    x: Sequence[object],
    y: Sequence[object],
    z: Sequence[Sequence[float | None]],
    *,
    x_name: str,
    y_name: str,
    z_name: str,
    unit: str,
) -> go.Figure:
    """Cells `z[row of y][column of x]`; None or NaN (no plan fits) stays empty.

    Colours are cividis, which reads alike with every colour vision, on a logarithmic scale where
    the values span more than a factor of thirty. Small maps write the figure in each cell.
    """
    cells = [[_finite(value) for value in row] for row in z]
    flat = [value for row in cells for value in row if value is not None]
    logarithmic = bool(flat) and min(flat) > 0 and max(flat) / min(flat) > _LOG_SPAN
    trace = go.Heatmap(
        x=[base.esc(value) for value in x],
        y=[base.esc(value) for value in y],
        z=[[_colour(value, logarithmic) for value in row] for row in cells],
        text=[["" if value is None else text.number(value) for value in row] for row in cells],
        texttemplate="%{text}" if len(flat) <= _MAX_WRITTEN_CELLS else None,
        hovertemplate=f"{base.esc(x_name)} %{{x}}<br>{base.esc(y_name)} %{{y}}<br>"
        f"<b>%{{text}} {base.esc(unit)}</b><extra></extra>",
        hoverongaps=False,
        colorscale="Cividis",
        xgap=1,
        ygap=1,
        colorbar=_colour_bar(flat, logarithmic),
    )
    style = base.layout(
        f"{base.esc(z_name)} ({base.esc(unit)})",
        height=max(300, 150 + 30 * len(y)),
        xaxis=base.axis(base.esc(x_name), type="category", showgrid=False),
        yaxis=base.axis(base.esc(y_name), type="category", showgrid=False),
    )
    return base.figure([trace], style)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _colour(value: float | None, logarithmic: bool) -> float | None:
    if value is None:
        return None
    return float(f"{math.log10(value) if logarithmic else value:.6g}")


def _colour_bar(flat: Sequence[float], logarithmic: bool) -> dict[str, object]:
    bar: dict[str, object] = {"thickness": 12, "outlinewidth": 0, "xpad": 4}
    if logarithmic:
        first, last = math.log10(min(flat)), math.log10(max(flat))
        places = [first + (last - first) * i / 4 for i in range(5)]
        bar |= {"tickvals": places, "ticktext": [text.number(10**place, 2) for place in places]}
    return bar


def heat_map_table(
    x: Sequence[object], y: Sequence[object], z: Sequence[Sequence[float | None]], *, x_name: str, y_name: str
) -> Table:
    """The cells as numbers; an empty cell has no feasible plan."""
    rows = []
    for name, row in zip(y, z, strict=True):
        cells = [_finite(value) for value in row]
        rows.append([str(name), *(text.NONE if value is None else text.number(value) for value in cells)])
    columns = [f"{y_name} \\ {x_name}", *(str(value) for value in x)]
    return Table(columns, rows, "Rows and columns as in the figure.", frozenset(range(1, len(columns))))
