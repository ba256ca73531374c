"""Maps of time to the target over devices and one more field, one per machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfsim.sweeps.axes import BATCH_PATHS, LAYOUT
from perfsim.sweeps.points import Circumstances, PointResult, setting_text


@dataclass(frozen=True)
class TimeMap:
    """Times to the target: numbers of devices in columns, one more field in rows."""

    machine: str
    """`cs-2, weight-streaming`; empty for a map of all machines."""
    fixed: Circumstances
    """The settings that this map holds fixed."""
    path: str | None
    """The field of the rows; None if the rows are machines."""
    counts: tuple[int, ...]
    rows: tuple[str, ...]
    times_s: Mapping[tuple[str, int], float]
    """By row and number of devices; points without a feasible plan are absent."""

    @property
    def of_batch(self) -> bool:
        """Whether the rows are batches."""
        return self.path in BATCH_PATHS


def time_maps(points: Sequence[PointResult]) -> list[TimeMap]:
    """One map per machine and combination of fixed settings, or one map of all machines.

    The rows are the batch if the grid varies it, else the first field that it varies, else the machines.
    Maps of a single cell are left out.
    """
    groups: dict[tuple[str, Circumstances, str | None], list[PointResult]] = {}
    for machine, members in _by_machine(points).items():
        path = _row_path(members)
        for point in members:
            fixed = tuple(
                (name, setting_text(value)) for name, value in point.settings.items() if name != path
            )
            groups.setdefault((machine, fixed, path), []).append(point)
    if all(path is None for _, _, path in groups):
        groups = {("", (), None): list(points)}
    maps = [_map(*key, members) for key, members in groups.items()]
    return [time_map for time_map in maps if len(time_map.counts) * len(time_map.rows) > 1]


def _by_machine(points: Sequence[PointResult]) -> dict[str, list[PointResult]]:
    machines: dict[str, list[PointResult]] = {}
    for point in points:
        machines.setdefault(f"{point.system}, {point.strategy}", []).append(point)
    return machines


def _row_path(points: Sequence[PointResult]) -> str | None:
    """The field of the rows: one with several values."""
    paths = dict.fromkeys(path for point in points for path in point.settings)
    varied = [path for path in paths if len({setting_text(point.settings.get(path)) for point in points}) > 1]
    return next((path for path in (*BATCH_PATHS, *varied) if path in varied), None)


def _map(machine: str, fixed: Circumstances, path: str | None, points: Sequence[PointResult]) -> TimeMap:
    return TimeMap(
        machine,
        fixed,
        path,
        counts=tuple(sorted({point.num_devices for point in points})),
        rows=tuple(dict.fromkeys(_row(point, path) for point in points)),
        times_s={
            (_row(point, path), point.num_devices): point.target_time.time_s
            for point in points
            if point.feasible
        },
    )


def _row(point: PointResult, path: str | None) -> str:
    if path is None:
        return point.system
    return setting_text(point.settings.get(path, "chosen" if path == LAYOUT else None))
