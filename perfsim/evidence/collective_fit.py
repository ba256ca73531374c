"""Fits the protocol lines of `perfsim.network.collectives` to collectives measured inside a node."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.evidence import fitting
from perfsim.machines import machine_of
from perfsim.network.collectives import num_steps, wire_factor
from perfsim.specs.calibration import CollectiveCalibration, CollectiveOp, FitRecord, ProtocolSegment
from perfsim.specs.hardware import LinkSpec

_OPS: dict[str, CollectiveOp] = {
    **{name: name for name in get_args(CollectiveOp)},
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
_NAMES = ("latency", "short", "medium", "long")
"""Names of the lines by message size; they do not map one to one to NCCL's protocols."""
_CONSTANTS = {
    "latency_base_s": ((6e-6, 1e-5, 2.5e-5, 6e-5), 5e-7, 1e-3),
    "latency_per_step_s": ((1e-6, 1e-6, 2e-6, 4e-6), 2e-8, 5e-5),
    "bandwidth_bytes_per_s": ((0.3, 0.5, 0.8, 0.95), 0.01, 1.0),
    "local_bytes_per_s": ((0.5, 1.0, 2.0, 3.0), 0.05, 10.0),
}
"""Start of each line, least and most of each constant; of the two bandwidths over the line rate."""
_STARTS = 6
_OUTLIER = 0.05
"""Weighted log errors above this have decreasing influence (soft L1)."""
_AT_LINE_RATE = "the line rate of {link}, above which no line may go, and where the fit ended"
_AT_CEILING = "the most that the fit allows, where it ended"
_AT_FLOOR = "the least that the fit allows, where it ended"
_NEAR = 1e-3
"""Of a bound in the log: a constant that ended there."""
_DERIVED: dict[CollectiveOp, tuple[CollectiveOp, float, str]] = {
    "broadcast": ("all_gather", 1.0, "a pipelined ring: the lines of the all-gather; not measured"),
    "send_recv": ("all_to_all", 2.0, "an all-to-all of two sends half: its lines; not measured"),
}
"""By operation: the one whose lines it takes, by how much its local bandwidth is divided, and why."""
_DISAGREEMENT = 0.25
"""If two tables differ by more in an octave, only the first one counts there."""


class _Table(NamedTuple):
    """Measured times of one operation; rows of all tables, one array per column."""

    size: Floats
    n_bytes: Floats
    time_s: Floats
    table: Floats
    """Number of the file that a row is from."""

    @property
    def cells(self) -> tuple[Floats, Floats, Floats]:
        """Table, group size and octave: the rounded binary logarithm of the message size."""
        return self.table, self.size, np.asarray(np.round(np.log2(self.n_bytes)), dtype=np.float64)


def _read_tables(paths: Sequence[Path]) -> dict[CollectiveOp, _Table]:
    """Rows by operation of CSV files or outputs of nccl-tests. Raises InputError for an unknown operation."""
    rows: defaultdict[CollectiveOp, list[tuple[float, ...]]] = defaultdict(list)
    for index, path in enumerate(paths):
        for line, row in enumerate(fitting.read_collectives(path, tuple(_OPS)), 2):
            name = row["collective"]
            if name not in _OPS:
                raise fitting.refused(path, f"unknown collective {name!r}", f"one of {', '.join(_OPS)}", line)
            measured = (float(row["num_gpus"]), float(row["bytes"]), float(row["time_us"]) * 1e-6, index)
            rows[_OPS[name]].append(measured)
    return {op: _Table(*np.array(values).T) for op, values in rows.items()}


def link_calibration(tables: Sequence[Path], link: LinkSpec, *, source: str = "") -> CollectiveCalibration:
    """The link's calibration with four lines for each measured operation, and for those derived from them.

    Least squares of the log error with a soft L1 loss; every octave of every table and group size has the
    same weight. Where tables disagree, the first one counts. A send between two ranks is derived from the
    all-to-all of two, a broadcast from the all-gather, unless measured. Raises InputError for a bad table, a
    link between nodes, because tables are measured inside one, and without SciPy.
    """
    systems = map(default_catalog().system, default_catalog().names("system"))
    links = [[used.name for used in machine_of(system).links(system)] for system in systems]
    inside = sorted({name for names in links for name in names[:1]})
    if link.name not in inside and any(link.name in names for names in links):
        raise InputError(
            f"{link.name} joins nodes; tables are of collectives inside one, over {', '.join(inside)}"
        )
    present = link.calibration or CollectiveCalibration(name=link.name)
    names = " ".join(path.name for path in tables)
    segments: dict[CollectiveOp, tuple[ProtocolSegment, ...]] = {}
    records: dict[str, FitRecord] = {}
    assumed: dict[str, str] = {}
    for op, rows in _read_tables(tables).items():
        rate = (rows.n_bytes / rows.time_s).max()
        fitting.need_unit(rate / link.bandwidth, tables[0], op, f"bandwidth of {link.name}")
        kept = _agreeing_rows(rows)
        cells = np.unique(np.stack([kept.size, kept.n_bytes]), axis=1).shape[1]
        fitting.need_more_than(len(_CONSTANTS) * len(_NAMES), cells, tables[0], f"sizes of {op}")
        # Every octave of every table and group size has the total weight 1.
        cluster = fitting.SoftL1.clusters(*kept.cells)
        weight: Floats = 1.0 / np.bincount(cluster)[cluster]
        segments[op] = _fit_lines(op, kept, weight, link.bandwidth)
        errors = np.abs(_predict(_values(segments[op]), op, kept) / kept.time_s - 1)
        estimates = _lines_account(segments[op], op, kept, weight, link)
        assumed |= {f"collectives.{op}.{name}": why for name, why in estimates.assumed.items()}
        records[f"collectives.{op}"] = FitRecord(
            command=f"perfsim calibrate collective {names} --link {link.name}",
            table=source or names,
            points=errors.size,
            median_ape=fitting.rounded(fitting.weighted_quantile(errors, weight, 0.5), 3),
            p90_ape=fitting.rounded(fitting.weighted_quantile(errors, weight, 0.9), 3),
            standard_errors=estimates.errors,
            note=f"octaves weigh the same; {rows.time_s.size - errors.size} rows contradict the first table; "
            "errors by the sandwich, constants that the table does not determine held",
        )
    for op, (other, share, why) in _DERIVED.items():
        if other in segments and op not in segments:
            shares = np.array([[1.0], [1.0], [1.0], [share]])
            segments[op] = _segments(_values(segments[other]) / shares)
            assumed[f"collectives.{op}"] = why
    refitted = ("date", *(f"collectives.{op}" for op in segments))
    others = {key: why for key, why in present.assumed.items() if not key.startswith(refitted)}
    return present.model_copy(
        update={
            "collectives": {**present.collectives, **segments},
            "description": f"Collectives over {link.name} inside one node",
            "date": None,
            "measured_on_bytes_per_s": link.bandwidth,
            "sources": {
                key: source for key, source in present.sources.items() if key != "measured_on_bytes_per_s"
            },
            "fit": {**present.fit, **records},
            "assumed": others | assumed | {"measured_on_bytes_per_s": "as on the link's data sheet"},
        }
    )


def _lines_account(
    segments: Sequence[ProtocolSegment], op: CollectiveOp, rows: _Table, weight: Floats, link: LinkSpec
) -> fitting.Account:
    """Standard errors of an operation's lines at the rows that they were fitted to, an octave a cluster."""
    names = np.array([f"{segment.name}.{constant}" for constant in _CONSTANTS for segment in segments])
    logs = np.log(_values(segments)).ravel()
    _, low, high = _start_and_bounds(link.bandwidth)
    # A bandwidth at the link's line rate is a fact, no estimate.
    at_most = logs > high - _NEAR
    at_least = logs < low + _NEAR
    free = ~(at_most | at_least)

    def predict(free_logs: Floats) -> Floats:
        all_logs = logs.copy()
        all_logs[free] = free_logs
        return np.asarray(np.log(_predict(np.exp(all_logs).reshape(4, -1), op, rows)))

    error = predict(logs[free]) - np.log(rows.time_s)
    loss = fitting.SoftL1(
        error, weight, weight * error**2 / _OUTLIER**2, fitting.SoftL1.clusters(*rows.cells)
    )
    estimates = loss.account(names[free].tolist(), fitting.SoftL1.jacobian(predict, logs[free]))
    at_line_rate = _AT_LINE_RATE.format(link=link.name)
    reasons = (
        {name: at_line_rate if "bandwidth" in name else _AT_CEILING for name in names[at_most].tolist()}
        | dict.fromkeys(names[at_least].tolist(), _AT_FLOOR)
        | estimates.assumed
    )
    return fitting.Account(estimates.errors, {op: reasons[op] for op in names.tolist() if op in reasons})


def _fit_lines(
    op: CollectiveOp, rows: _Table, weight: Floats, line_rate: float
) -> tuple[ProtocolSegment, ...]:
    """The best of several starts; every line's bus bandwidth stays below the link's."""
    start, low, high = _start_and_bounds(line_rate)

    def residuals(logs: Floats) -> Floats:
        predicted = _predict(np.exp(logs).reshape(4, -1), op, rows)
        pull = 0.02 * (logs - start)  # keeps a constant that no row determines near its start
        return np.concatenate([np.sqrt(weight) * np.log(predicted / rows.time_s), pull])

    # Which line is fastest changes with the constants, so the loss has several local minima.
    jitter = np.random.default_rng(0).normal(0, 0.3, (_STARTS, start.size))
    jitter[0] = 0.0
    guesses = [np.clip(start + shift, low, high) for shift in jitter]
    results = [fitting.robust_fit(residuals, guess, _OUTLIER, bounds=(low, high)) for guess in guesses]
    best = min(results, key=lambda result: float(result.cost))
    return _segments(np.exp(best.x).reshape(4, -1))


def _start_and_bounds(line_rate: float) -> tuple[Floats, Floats, Floats]:
    """Logarithms of base, step, bandwidth and local bandwidth of the four lines, and their bounds."""
    rows = np.array([(*starts, low, high) for starts, low, high in _CONSTANTS.values()])
    rows[2:] *= line_rate
    start, low, high = np.split(np.log(rows), (4, 5), axis=1)
    return start.ravel(), np.repeat(low, 4), np.repeat(high, 4)


def _predict(values: Floats, op: CollectiveOp, rows: _Table) -> Floats:
    """Seconds by the fastest of the lines whose base, step, bandwidth and local rate are given."""
    sizes, index = np.unique(rows.size, return_inverse=True)
    steps = np.array([num_steps(op, int(size)) for size in sizes])[index]
    wire = np.array([wire_factor(op, int(size)) for size in sizes])[index]
    lines = [
        base + step * steps + rows.n_bytes * (wire / rate + 1 / local) for base, step, rate, local in values.T
    ]
    return np.asarray(np.min(lines, axis=0))


def _segments(values: Floats) -> tuple[ProtocolSegment, ...]:
    """Lines sorted by their latency."""
    order = np.argsort(values[0] + 4 * values[1])
    return tuple(
        ProtocolSegment(name=name, **dict(zip(_CONSTANTS, map(fitting.rounded, line), strict=True)))
        for name, line in zip(_NAMES, values.T[order].tolist(), strict=True)
    )


def _values(segments: Sequence[ProtocolSegment]) -> Floats:
    """One row for each of `_CONSTANTS`, one column for each line."""
    return np.array([[getattr(line, name) or np.inf for line in segments] for name in _CONSTANTS])


def _agreeing_rows(rows: _Table) -> _Table:
    """Rows of the first table, and of later ones in octaves whose medians agree with it."""
    per_byte = rows.time_s / rows.n_bytes
    keep = np.ones(rows.time_s.size, dtype=bool)
    cell = fitting.SoftL1.clusters(*rows.cells[1:])
    for table in range(1, int(rows.table.max()) + 1):
        for number in range(cell.max() + 1):
            first = (cell == number) & (rows.table < table) & keep
            later = (cell == number) & (rows.table == table)
            if first.any() and later.any():
                ratio = np.median(per_byte[later]) / np.median(per_byte[first])
                keep[later] = abs(ratio - 1) <= _DISAGREEMENT
    return _Table(*(column[keep] for column in rows))
