"""Heat maps of a sweep: time to the target over devices and one more field, one map for each machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfsim.report import text
from perfsim.report.figures.heat_map import heat_map, heat_map_table
from perfsim.report.sections import Section, slugify
from perfsim.sweep.axes import BATCH_PATHS
from perfsim.sweep.runner import PointResult, SweepResult
from perfsim.sweep.scaling import shown, time_of

MAX_MAPS = 8
LEAD = (
    "Helps to see what a choice costs: a row or column whose figures hardly differ may be chosen for other "
    "reasons. An empty cell has no feasible plan."
)


def heat_maps(result: SweepResult) -> list[Section]:
    """One map for each machine (and each value of what is on no axis), or one of all machines.

    Across stand the devices. Down stands the batch where the grid varies it, else the first field that
    it varies, else the machines.
    """
    groups = _groups(result.points)
    maps = [_section(name, points, path) for name, (path, points) in groups.items()]
    if all(path is None for path, _ in groups.values()):
        maps = [_section("", list(result.points), None)]
    drawn = [section for section in maps if section is not None]
    return drawn[:MAX_MAPS]


def _groups(points: Sequence[PointResult]) -> dict[str, tuple[str | None, list[PointResult]]]:
    """Points by machine and by every setting but the one that goes down; with the path of that one."""
    machines: dict[str, list[PointResult]] = {}
    for each in points:
        candidate = each.point.candidate
        machines.setdefault(f"{candidate.system.name}, {candidate.strategy}", []).append(each)
    groups: dict[str, tuple[str | None, list[PointResult]]] = {}
    for machine, own in machines.items():
        path = _vertical(own)
        for each in own:
            rest = [
                f"{text.human(name.rpartition('.')[2])} {shown(value)}"
                for name, value in each.point.settings.items()
                if name != path
            ]
            groups.setdefault(", ".join([machine, *rest]), (path, []))[1].append(each)
    return groups


def _vertical(points: Sequence[PointResult]) -> str | None:
    """The field with several values that goes down."""
    paths = dict.fromkeys(path for each in points for path in each.point.settings)
    varied = [path for path in paths if len({shown(each.point.settings.get(path)) for each in points}) > 1]
    return next((path for path in (*BATCH_PATHS, *varied) if path in varied), None)


def _section(name: str, points: Sequence[PointResult], path: str | None) -> Section | None:
    """A map of these points; None where it would have a single row and column."""
    x = sorted({each.point.num_devices for each in points})
    down = {_row(each, path): None for each in points}
    y = list(down)
    if len(x) * len(y) == 1:
        return None
    unit, scale = text.time_unit(time_of(each).time_s for each in points if each.feasible)
    cells: dict[tuple[str, int], float] = {
        (_row(each, path), each.point.num_devices): time_of(each).time_s / scale
        for each in points
        if each.feasible
    }
    z = [[cells.get((row, column)) for column in x] for row in y]
    labels = [text.integer(count) for count in x]
    y_name = _axis_name(path)
    what = {"x_name": "devices", "y_name": y_name}
    figure = heat_map(labels, y, z, z_name="Time to the target", unit=unit, **what)
    heading = f"Devices and {y_name.partition(',')[0]}" + (f": {name}" if name else "")
    return Section(
        heading,
        LEAD,
        figure=figure,
        table=heat_map_table(labels, y, z, **what),
        alt=_alt(name or "all machines", y_name, unit, cells),
        slug=f"map-{slugify(name)}" if name else "map",
    )


def _axis_name(path: str | None) -> str:
    if path is None:
        return "machine"
    return "batch, sequences" if path in BATCH_PATHS else text.human(path.rpartition(".")[2])


def _row(each: PointResult, path: str | None) -> str:
    if path is None:
        return each.point.candidate.system.name
    value: Any = each.point.settings.get(path)
    return shown(value)


def _alt(name: str, y_name: str, unit: str, cells: dict[tuple[str, int], float]) -> str:
    if not cells:
        return f"{name}: no cell has a feasible plan"
    (row, column), least = min(cells.items(), key=lambda item: item[1])
    return f"{name}: the least is {text.number(least)} {unit}, with {column:,} devices and {y_name} {row}"
