"""Fits the matrix products of a device, narrow ones too, by a few factors on tiles of another calibration.

A table with a column `precision` holds products of several precisions. Those in bf16 have the tiles of the
other calibration, with factors on their efficiency and overhead, and a launch, a memory fraction and a
ceiling of their own. Narrow products have factors on the device's own bf16 tiles; their rows have a cast:

    seconds = product(factors) + cast_s + cast_bytes m k / bandwidth
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import FitRecord, GemmConstants, GpuCalibration, NarrowGemmConstants
from perfsim.costs.gemm import GemmModel
from perfsim.costs.gpu import narrow_constants
from perfsim.errors import InputError
from perfsim.fitting.fit_tables import need_more_than, read_table, rounded, scipy_optimize
from perfsim.fitting.gemm_fit import GemmTable
from perfsim.hardware import DeviceSpec, Precision
from perfsim.workload import PRECISION_BYTES

Array = NDArray[np.float64]

SIXTEEN = "bf16"
_ROWS = 2500
"""Enough for six factors."""
_EVALUATIONS = 700
_ERROR_FLOOR = 0.02
"""Log errors below this count the same: repeats of one measurement differ by as much."""
_LARGE = 1024
"""Least side of a product of training size; others have the weight `_SMALL_WEIGHT`."""
_SMALL_WEIGHT = 0.2
_PRIOR = 1e-3
_STEP = 0.02
_START = {
    "bf16": {
        "efficiency": 1.0,
        "overhead": 1.0,
        "memory_fraction": 0.83,
        "burst_fraction": 0.75,
        "launch_s": 2.5e-6,
    },
    "narrow": {
        "efficiency": 1.0,
        "overhead": 1.0,
        "memory_fraction": 0.83,
        "burst_fraction": 0.75,
        "cast_bytes": 4.0,
        "cast_s": 6e-6,
    },
}


@dataclass(frozen=True)
class _Problem:
    """The rows of one precision, and the time of their products by the logs of the factors."""

    names: tuple[str, ...]
    start: Array
    table: GemmTable
    seconds: Callable[[Array], Array]

    @property
    def weight(self) -> Array:
        sides = np.minimum(np.minimum(self.table.m, self.table.n), self.table.k)
        weight = np.where(sides >= _LARGE, 1.0, _SMALL_WEIGHT)
        return np.asarray(weight / weight.sum())

    def errors(self, logs: Array) -> Array:
        return np.asarray(np.log(self.seconds(logs) / self.table.time_s))


def fit_like(
    path: Path, device: DeviceSpec, like: GpuCalibration, *, source: str = ""
) -> tuple[GemmConstants, dict[str, NarrowGemmConstants], dict[str, FitRecord]]:
    """16-bit products, narrow ones by precision, and the record of each fit; needs scipy.

    Where `like` is the device's own calibration its 16-bit products are kept. Raises InputError for a bad
    table.
    """
    tables = _tables(path)
    records: dict[str, FitRecord] = {}
    gemm = like.gemm
    command = f"perfsim calibrate gemm {path.name} --device {device.name} --like {like.name}"
    table = source or path.name
    if SIXTEEN in tables and not is_own(device, like):
        values, records["gemm"] = _fitted(_sixteen(tables[SIXTEEN], device, gemm), command, table, path)
        gemm = _scaled(gemm, values)
    narrow = {}
    for precision, rows in tables.items():
        if precision == SIXTEEN or not device.computes(precision):
            continue
        values, record = _fitted(_narrow(rows, device, gemm, precision), command, table, path)
        narrow[str(precision)] = NarrowGemmConstants(**values)
        records[f"narrow.{precision}"] = record
    return gemm, narrow, records


def is_own(device: DeviceSpec, calibration: GpuCalibration) -> bool:
    """Whether a calibration is a device's own, and not one that it borrows."""
    own = device.calibration
    return own is not None and own.name == calibration.name and "calibration" not in device.assumed


def _tables(path: Path) -> dict[Precision, GemmTable]:
    rows = read_table(path, ("m", "n", "k", "time_us"), ("precision",))
    tables: dict[Precision, GemmTable] = {}
    for name in dict.fromkeys(row["precision"] for row in rows):
        if name not in PRECISION_BYTES:
            raise InputError(f"{path.name}: precision {name!r} is none of {', '.join(PRECISION_BYTES)}")
        own = [row for row in rows if row["precision"] == name]
        m, n, k, time_us = (np.array([float(row[key]) for row in own]) for key in ("m", "n", "k", "time_us"))
        tables[name] = GemmTable(m, n, k, time_us * 1e-6)  # type: ignore[index]
    return tables


def _sample(table: GemmTable) -> GemmTable:
    return table.rows(np.random.default_rng(0).permutation(table.time_s.size)[:_ROWS])


def _model(device: DeviceSpec, gemm: GemmConstants, precision: Precision) -> GemmModel:
    return GemmModel(gemm, device.peak_flop_per_s(precision), device.memory.bandwidth, device.compute_units)


def _sixteen(table: GemmTable, device: DeviceSpec, gemm: GemmConstants) -> _Problem:
    sample, start = _sample(table), _START["bf16"]
    model = _model(device, gemm, "bf16")
    geometry = model.geometry(sample.m, sample.n, sample.k, np.ones(sample.m.shape))

    def seconds(logs: Array) -> Array:
        values = dict(zip(start, np.exp(logs).tolist(), strict=True))
        return replace(model, constants=_scaled(gemm, values)).price(geometry)

    return _Problem(tuple(start), np.log(list(start.values())), sample, seconds)


def _narrow(table: GemmTable, device: DeviceSpec, gemm: GemmConstants, precision: Precision) -> _Problem:
    sample, start = _sample(table), _START["narrow"]
    model = replace(
        _model(device, gemm, precision),
        element_bytes=PRECISION_BYTES[precision],
        result_bytes=PRECISION_BYTES["bf16"],
    )
    geometry = model.geometry(sample.m, sample.n, sample.k, np.ones(sample.m.shape))

    start_constants = NarrowGemmConstants(**start)

    def seconds(logs: Array) -> Array:
        values = {name: float(value) for name, value in zip(start, np.exp(logs), strict=True)}
        values = {
            name: min(value, 1.0) if name.endswith("fraction") else value for name, value in values.items()
        }
        constants = start_constants.model_copy(update=values)
        product = replace(model, constants=narrow_constants(gemm, constants)).price(geometry)
        cast = values["cast_s"] + values["cast_bytes"] * sample.m * sample.k / device.memory.bandwidth
        return np.asarray(product + cast)

    return _Problem(tuple(start), np.log(list(start.values())), sample, seconds)


def _scaled(gemm: GemmConstants, values: dict[str, float]) -> GemmConstants:
    """A library with the tiles of another one, scaled."""
    tiles = tuple(
        tile.model_copy(
            update={
                "efficiency": rounded(min(1.0, tile.efficiency * values["efficiency"])),
                "overhead_k": rounded(tile.overhead_k * values["overhead"]),
            }
        )
        for tile in gemm.tiles
    )
    own = {name: rounded(min(1.0, values[name])) for name in ("memory_fraction", "burst_fraction")}
    return gemm.model_copy(update={"tiles": tiles, "launch_s": rounded(values["launch_s"]), **own})


def _fitted(problem: _Problem, command: str, table: str, path: Path) -> tuple[dict[str, float], FitRecord]:
    """The factors with the least robust error, and the record of their fit."""
    need_more_than(len(problem.names), problem.table.m.size, path, "GEMM shapes")
    optimize: Any = scipy_optimize()
    weight, start = problem.weight, problem.start

    def loss(logs: Array) -> float:
        error = np.sqrt(problem.errors(logs) ** 2 + _ERROR_FLOOR**2)
        return float(weight @ error + _PRIOR * np.mean((logs - start) ** 2))

    corners = np.vstack([start, start + 0.2 * np.eye(start.size)])
    options = {"maxfev": _EVALUATIONS, "xatol": 1e-3, "fatol": 1e-5, "initial_simplex": corners}
    best = optimize.minimize(loss, start, method="Nelder-Mead", options=options).x
    apes = np.abs(np.expm1(problem.errors(best)))[weight == weight.max()]
    values = {name: rounded(float(value)) for name, value in zip(problem.names, np.exp(best), strict=True)}
    for name in ("memory_fraction", "burst_fraction"):
        values[name] = min(1.0, values[name])
    return values, FitRecord(
        command=command,
        table=table,
        points=problem.table.m.size,
        median_ape=rounded(float(np.median(apes)), 3),
        p90_ape=rounded(float(np.quantile(apes, 0.9)), 3),
        standard_errors=_standard_errors(problem, best),
        note=f"residuals over products with all sides of {_LARGE:,} or more",
    )


def _standard_errors(problem: _Problem, best: Array) -> dict[str, float]:
    """Relative standard errors by the sandwich of the weighted log errors."""
    weight = problem.weight / problem.weight.mean()
    here = problem.errors(best)
    slopes = [
        (problem.errors(best + step) - problem.errors(best - step)) / (2 * _STEP)
        for step in _STEP * np.eye(best.size)
    ]
    jacobian = np.stack(slopes, axis=1)
    inverse = np.linalg.pinv((jacobian * weight[:, None]).T @ jacobian)
    scores = jacobian * (weight * here)[:, None]
    variances = np.diag(inverse @ (scores.T @ scores) @ inverse)
    errors = np.sqrt(np.maximum(variances, 0.0)).tolist()
    paths = {"overhead": "overhead_k"} if "launch_s" in problem.names else {}
    return {
        paths.get(name, name): rounded(error, 2) for name, error in zip(problem.names, errors, strict=True)
    }
