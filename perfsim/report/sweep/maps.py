"""Heat maps of a sweep: time to the target over devices and one more field, one map for each machine."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.report import text
from perfsim.report.figures.heat_map import heat_map, heat_map_table
from perfsim.report.sections import Section, slugify
from perfsim.sweeps.maps import TimeMap

MAX_MAPS = 8
MAX_SIDE = 60
"""Rows and columns of a map."""
LEAD = (
    "Shows what a choice costs: where a row or a column hardly changes, the choice may follow other needs. "
    "An empty cell has no feasible plan."
)
SAMPLED = f" Of longer axes {MAX_SIDE} places are drawn, evenly spread."


def map_sections(maps: Sequence[TimeMap]) -> list[Section]:
    """A section for each map, as many as a page has room for."""
    return [_section(time_map) for time_map in maps[:MAX_MAPS]]


def _section(time_map: TimeMap) -> Section:
    name = _name(time_map)
    unit, scale = text.time_unit(time_map.times_s.values())
    cells = {place: time_s / scale for place, time_s in time_map.times_s.items()}
    counts, rows = text.thinned(time_map.counts, MAX_SIDE), text.thinned(time_map.rows, MAX_SIDE)
    z = [[cells.get((row, count)) for count in counts] for row in rows]
    labels = [text.integer(count) for count in counts]
    sampled = len(counts) < len(time_map.counts) or len(rows) < len(time_map.rows)
    y_name = _axis_name(time_map)
    axes = {"x_name": "devices", "y_name": y_name}
    heading = f"Devices and {y_name.partition(',')[0]}" + (f": {name}" if name else "")
    return Section(
        heading,
        LEAD + (SAMPLED if sampled else ""),
        figure=heat_map(labels, rows, z, z_name="Time to the target", unit=unit, **axes),
        table=heat_map_table(labels, rows, z, **axes),
        alt=_alt(name or "all machines", y_name, unit, cells),
        slug=f"map-{slugify(name)}" if name else "map",
    )


def _name(time_map: TimeMap) -> str:
    """The machine and the settings that the map keeps fixed; empty for the map of all machines."""
    fixed = [f"{text.human(path.rpartition('.')[2])} {value}" for path, value in time_map.fixed]
    return ", ".join(filter(None, [time_map.machine, *fixed]))


def _axis_name(time_map: TimeMap) -> str:
    if time_map.path is None:
        return "machine"
    return "batch, sequences" if time_map.of_batch else text.human(time_map.path.rpartition(".")[2])


def _alt(name: str, y_name: str, unit: str, cells: dict[tuple[str, int], float]) -> str:
    if not cells:
        return f"{name}: no cell has a feasible plan"
    (row, count), least = min(cells.items(), key=lambda item: item[1])
    return f"{name}: the least is {text.number(least)} {unit}, with {count:,} devices and {y_name} {row}"
