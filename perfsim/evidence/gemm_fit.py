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

from perfsim.base.errors import InputError
from perfsim.costs.gemm import GemmModel
from perfsim.costs.gpu import narrow_constants
from perfsim.evidence.step_fit import Account, Loss, account, cluster_of, log_jacobian, profile
from perfsim.evidence.tables import need_more_than, read_table, rounded, scipy_optimize
from perfsim.specs.calibration import (
    MOST_STANDARD_ERROR,
    FitRecord,
    GemmConstants,
    GpuCalibration,
    NarrowGemmConstants,
    TileConstants,
)
from perfsim.specs.hardware import DeviceSpec
from perfsim.specs.precisions import PRECISIONS, Precision

# Standard errors of the constants of `perfsim.costs.gemm` from a table of GEMM times.

Array = NDArray[np.float64]

_OF_TILE = ("efficiency", "choice_efficiency", "overhead_k")
_FIXED = {
    "split_k": "numbers of slices that the fit offers the library; not fitted",
    "k_step": "depth of a step along k in CUTLASS's tiles for 16-bit operands; not fitted",
}
_LOOSE = "not determined by the table: a third more or less adds less loss than one standard error of it"
METHOD = (
    "errors by the sandwich, shapes of one weight matrix taken together, constants that the table does not "
    "determine held; of choice_ constants, which decide an argmin, the least step of 1, 2, 3, 5, 8, 12, 20 "
    "and 33 % after which the loss has grown by over one standard error, others held"
)


def _gemm_account(
    model: GemmModel, shapes: tuple[Array, Array, Array], time_s: Array, weight: Array, floor: float
) -> Account:
    """Standard errors of a model's constants at shapes (m, n, k) that took `time_s`.

    The loss is that of the fit: weight times sqrt(log error^2 + floor^2). Derivatives keep each shape's tile
    and split, which jump with the constants.
    """
    geometry = model.geometry(*shapes, np.ones(time_s.shape))
    values = _values(model.constants)
    plain = [name for name in values if "choice" not in name]
    chosen = model.choice(geometry)
    cluster = cluster_of(shapes[1], shapes[2])

    def predict(logs: Array) -> Array:
        changed = _with(model, dict(zip(plain, np.exp(logs).tolist(), strict=True)))
        return np.asarray(np.log(changed.price(geometry, chosen=chosen)))

    logs = np.log([values[name] for name in plain])
    error = predict(logs) - np.log(time_s)
    smooth = np.sqrt(error**2 + floor**2)
    loss = Loss(weight * error / smooth, weight * floor**2 / smooth**3, cluster)
    estimates = account(plain, log_jacobian(predict, logs), loss)

    def losses(name: str, step: float) -> Array:
        changed = _with(model, {name: values[name] * float(np.exp(step))})
        return np.asarray(weight * np.hypot(np.log(changed.price(geometry) / time_s), floor))

    widths = {
        name: profile(lambda step, name=name: losses(name, step), cluster)  # type: ignore[misc]
        for name in values
        if name not in plain
    }
    return _joined(estimates, widths, values)


def _joined(estimates: Account, widths: dict[str, float], values: dict[str, float]) -> Account:
    """Both kinds of estimates in the order of the calibration file."""
    narrow = {name: rounded(width, 2) for name, width in widths.items() if width < MOST_STANDARD_ERROR}
    errors = estimates.errors | narrow
    assumed = estimates.assumed | {name: _LOOSE for name in widths if name not in narrow}
    return Account(
        {name: errors[name] for name in values if name in errors},
        {name: assumed[name] for name in values if name in assumed} | _FIXED,
    )


def _values(constants: GemmConstants) -> dict[str, float]:
    """Every fitted constant by its name in a calibration file."""
    values = {
        f"tiles.{tile.label}.{name}": float(getattr(tile, name))
        for tile in constants.tiles
        for name in _OF_TILE
    }
    shared = [name for name in GemmConstants.model_fields if name not in ("tiles", *_FIXED)]
    return values | {name: float(getattr(constants, name)) for name in shared}


def _with(model: GemmModel, changes: dict[str, float]) -> GemmModel:
    """The model with constants changed by name; without validation, so a step may cross a bound."""
    tiles = tuple(
        tile.model_copy(update=_of_tile(changes, f"tiles.{tile.label}.")) for tile in model.constants.tiles
    )
    shared = {name: value for name, value in changes.items() if "." not in name}
    return replace(model, constants=model.constants.model_copy(update={"tiles": tiles, **shared}))


def _of_tile(changes: dict[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in changes.items() if name.startswith(prefix)}


# Fits the tile-and-wave model of `perfsim.costs.gemm` to measured GEMM times.

_SHAPES = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64), (128, 32), (64, 32), (32, 32))
"""Thread-block tiles of cuBLAS and CUTLASS for 16-bit operands."""
_EFFICIENCY = (0.965, 0.9, 0.8, 0.72, 0.56, 0.52, 0.37, 0.3)
_CHOICE = (1.3, 0.92, 0.88, 0.7, 0.58, 0.5, 0.4, 0.3)
_OVERHEAD_K = 140.0
_SPLIT_K = (1, 2, 3, 4, 6, 8, 12, 16)
_K_STEP = 32
_GLOBALS: dict[str, tuple[float, float, float]] = {
    "split_traffic": (0.6, 0.05, 5.0),
    "choice_split_traffic": (0.8, 0.05, 5.0),
    "split_latency_s": (2.2e-6, 2e-7, 2e-5),
    "launch_s": (3e-6, 5e-7, 1e-5),
    "memory_fraction": (0.77, 0.3, 1.0),
    "overlap_sharpness": (3.4, 1.0, 20.0),
    "burst_fraction": (0.83, 0.5, 1.0),
    "burst_s": (1e-3, 1e-5, 1e-2),
    "power_sharpness": (11.0, 1.0, 40.0),
}
"""Start, lowest and highest value."""
_FIT_ROWS = 4000
"""Enough rows for some thirty constants; more only cost time."""
_REFINE_ROWS = 10_000
_GEMM_FIT_EVALUATIONS = 6000
_ERROR_FLOOR = 0.02
"""Log errors below this count the same: repeats of one measurement differ by as much."""
_GEMM_FIT_SMALL_WEIGHT = 0.15
"""Weight of a shape too small for training, relative to one of training size."""
_PRIOR = 1e-3
"""Pull towards the start, so that a constant that no row determines stays plausible."""


@dataclass(frozen=True)
class GemmTable:
    """Measured times of C[m, n] = A[m, k] B[k, n], one array per column."""

    m: Array
    n: Array
    k: Array
    time_s: Array

    @classmethod
    def read(cls, path: Path) -> GemmTable:
        """A CSV file with columns m, n, k, time_us; raises InputError with file and line."""
        rows = read_table(path, ("m", "n", "k", "time_us"))
        columns = [np.array([float(row[name]) for row in rows]) for name in ("m", "n", "k", "time_us")]
        return cls(columns[0], columns[1], columns[2], columns[3] * 1e-6)

    def rows(self, index: NDArray[np.intp]) -> GemmTable:
        """The rows with these indices."""
        return GemmTable(self.m[index], self.n[index], self.k[index], self.time_s[index])

    @property
    def is_training_size(self) -> NDArray[np.bool_]:
        """Shapes that occur in training: many rows, wide matrices."""
        return (self.m >= 256) & (self.n >= 512) & (self.k >= 512)

    @property
    def weight(self) -> Array:
        """Weight of each row in a fit."""
        return np.where(self.is_training_size, 1.0, _GEMM_FIT_SMALL_WEIGHT)


def fit_gemm(
    table_path: Path, device: DeviceSpec, *, source: str = "", evaluations: int = _GEMM_FIT_EVALUATIONS
) -> tuple[GemmConstants, FitRecord, Account]:
    """Constants of the device's GEMM library, fitted to half of the table and judged on the rest.

    Minimises the robust log error from two starts: a library that overrates its large tiles, and one that
    ranks tiles correctly. The record's residuals are those of the rows left out, training sizes only; then
    the constants are refined with all rows, to which their standard errors apply.
    Raises InputError for a bad table or without SciPy.
    """
    table = GemmTable.read(table_path)
    scipy_optimize()
    # Only one half is fitted, so that half must have more rows than there are constants.
    shapes = np.unique(np.stack([table.m, table.n, table.k]), axis=1).shape[1]
    need_more_than(2 * len(_start_and_bounds(_CHOICE)[0]) + 1, shapes, table_path, "GEMM shapes")
    order = np.random.default_rng(0).permutation(table.time_s.size)  # a table may be sorted
    fit_rows = min(-(-order.size // 2), _FIT_ROWS)
    half = table.rows(order[:fit_rows])
    rest = table.rows(order[fit_rows:])
    results = [_minimise(half, device, choice, evaluations) for choice in (_CHOICE, _EFFICIENCY)]
    best, _ = min(results, key=lambda result: result[1])
    errors = absolute_errors(_constants(best), device, rest)
    judged = errors[rest.is_training_size] if rest.is_training_size.any() else errors
    record = FitRecord(
        command=f"perfsim calibrate gemm {table_path.name} --device {device.name}",
        table=source or table_path.name,
        points=table.time_s.size,
        median_ape=rounded(float(np.median(judged)), 3),
        p90_ape=rounded(float(np.quantile(judged, 0.9)), 3),
        note=(
            f"residuals of a fit to {fit_rows} rows, over the {judged.size} other rows with m >= 256 and "
            f"n, k >= 512; over all {errors.size} others {np.median(errors):.1%} median, "
            f"{np.quantile(errors, 0.9):.1%} p90; then refined with all rows"
        ),
    )
    constants = _refined(best, table.rows(order[:_REFINE_ROWS]), device, evaluations)
    return constants, *_with_errors(record, constants, device, table)


def _with_errors(
    record: FitRecord, constants: GemmConstants, device: DeviceSpec, table: GemmTable
) -> tuple[FitRecord, Account]:
    """The record of a fit with the standard errors of its constants, and the account of all of them."""
    sample = table.rows(np.random.default_rng(0).permutation(table.time_s.size)[:_REFINE_ROWS])
    shapes = (sample.m, sample.n, sample.k)
    model = _gemm_fit_model(constants, device)
    estimates = _gemm_account(model, shapes, sample.time_s, sample.weight, _ERROR_FLOOR)
    note = f"{record.note.removesuffix(f'; {METHOD}')}; {METHOD}"
    record = record.model_copy(update={"standard_errors": estimates.errors, "note": note})
    return record, estimates.with_prefix("gemm")


def absolute_errors(constants: GemmConstants, device: DeviceSpec, table: GemmTable) -> Array:
    """|predicted / measured - 1| of every row."""
    return np.abs(_gemm_fit_model(constants, device).time_s(table.m, table.n, table.k) / table.time_s - 1)


def _gemm_fit_model(constants: GemmConstants, device: DeviceSpec) -> GemmModel:
    peaks = [device.peak[name] for name in ("bf16", "fp16") if name in device.peak]
    if not peaks:
        raise InputError(f"device {device.name} has no 16-bit peak to relate GEMM times to")
    return GemmModel(constants, peaks[0], device.memory.bandwidth, device.compute_units)


def _minimise(
    table: GemmTable, device: DeviceSpec, choice: tuple[float, ...], evaluations: int
) -> tuple[Array, float]:
    """The logarithms of the best constants from one start, and their loss."""
    start, low, high = (np.log(values) for values in _start_and_bounds(choice))
    loss = _loss(table, device, start)
    result = scipy_optimize().minimize(
        loss,
        start,
        method="Powell",
        bounds=list(zip(low, high, strict=True)),
        options={"maxfev": evaluations // 2, "xtol": 1e-2, "ftol": 1e-5},
    )
    return _polished(loss, np.clip(result.x, low, high), low, high, evaluations // 2)


def _refined(best: Array, table: GemmTable, device: DeviceSpec, evaluations: int) -> GemmConstants:
    """Constants near `best`, refined with more rows."""
    start, low, high = (np.log(values) for values in _start_and_bounds(_CHOICE))
    refined, _ = _polished(_loss(table, device, start), best, low, high, evaluations // 2)
    return _constants(refined)


def _polished(
    loss: Callable[[Array], float], best: Array, low: Array, high: Array, evaluations: int
) -> tuple[Array, float]:
    """Random steps along one axis at a time, longer where they help.

    The chosen tiles jump with the constants, so the loss has steps that stop line searches.
    """
    generator = np.random.default_rng(0)
    lowest = loss(best)
    length = np.full(best.size, 0.2)
    for axis in np.tile(np.arange(best.size), evaluations // (2 * best.size)):
        step = length[axis] * generator.standard_normal()
        improved = False
        for shift in (step, -step):
            trial = best.copy()
            trial[axis] = np.clip(trial[axis] + shift, low[axis], high[axis])
            value = loss(trial)
            if value < lowest:
                best = trial
                lowest = value
                improved = True
                break
        length[axis] = min(1.0, 1.4 * length[axis]) if improved else max(0.005, 0.85 * length[axis])
    return best, lowest


def _loss(table: GemmTable, device: DeviceSpec, start: Array) -> Callable[[Array], float]:
    """Weighted mean of a smoothed |log error|, plus the weak prior at the start."""
    # Tiles and waves do not depend on the fitted constants.
    batch = np.ones(table.m.shape)
    geometry = _gemm_fit_model(_constants(start), device).geometry(table.m, table.n, table.k, batch)
    weight = table.weight / table.weight.sum()

    def loss(logs: Array) -> float:
        predicted = _gemm_fit_model(_constants(logs), device).price(geometry)
        error = np.sqrt(np.log(predicted / table.time_s) ** 2 + _ERROR_FLOOR**2)
        return float(weight @ error + _PRIOR * np.mean((logs - start) ** 2))

    return loss


def _start_and_bounds(choice: tuple[float, ...]) -> tuple[list[float], list[float], list[float]]:
    """Start, lowest and highest value of every constant, in the order of `_constants`."""
    triples = []
    for efficiency, choice_efficiency in zip(_EFFICIENCY, choice, strict=True):
        triples += [(efficiency, 0.05, 1.0), (choice_efficiency, 0.02, 3.0), (_OVERHEAD_K, 5.0, 1500.0)]
    triples += _GLOBALS.values()
    start, low, high = zip(*triples, strict=True)
    return list(start), list(low), list(high)


def _constants(logs: Array) -> GemmConstants:
    """The constants of a vector of logarithms."""
    values = [rounded(value) for value in np.exp(logs)]
    per_tile = 3 * len(_SHAPES)
    tiles = tuple(
        TileConstants(
            shape=shape,
            efficiency=min(1.0, values[3 * index]),
            choice_efficiency=values[3 * index + 1],
            overhead_k=values[3 * index + 2],
        )
        for index, shape in enumerate(_SHAPES)
    )
    shared = dict(zip(_GLOBALS, values[per_tile:], strict=True))
    shared = {name: min(max(value, _GLOBALS[name][1]), _GLOBALS[name][2]) for name, value in shared.items()}
    return GemmConstants(tiles=tiles, split_k=_SPLIT_K, k_step=_K_STEP, **shared)


SIXTEEN = "bf16"
_ROWS = 2500
"""Enough for six factors."""
_EVALUATIONS = 700
"""Log errors below this count the same: repeats of one measurement differ by as much."""
_LARGE = 1024
"""Least side of a product of training size; others have the weight `_SMALL_WEIGHT`."""
_SMALL_WEIGHT = 0.2
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
        if name not in PRECISIONS:
            raise InputError(f"{path.name}: precision {name!r} is none of {', '.join(PRECISIONS)}")
        own = [row for row in rows if row["precision"] == name]
        m, n, k, time_us = (np.array([float(row[key]) for row in own]) for key in ("m", "n", "k", "time_us"))
        tables[name] = GemmTable(m, n, k, time_us * 1e-6)
    return tables


def _sample(table: GemmTable) -> GemmTable:
    return table.rows(np.random.default_rng(0).permutation(table.time_s.size)[:_ROWS])


def _model(device: DeviceSpec, gemm: GemmConstants, precision: Precision) -> GemmModel:
    return GemmModel(gemm, device.peak_flop_per_s(precision), device.memory.bandwidth, device.compute_units)


def _sixteen(table: GemmTable, device: DeviceSpec, gemm: GemmConstants) -> _Problem:
    sample = _sample(table)
    start = _START["bf16"]
    model = _model(device, gemm, "bf16")
    geometry = model.geometry(sample.m, sample.n, sample.k, np.ones(sample.m.shape))

    def seconds(logs: Array) -> Array:
        values = dict(zip(start, np.exp(logs).tolist(), strict=True))
        return replace(model, constants=_scaled(gemm, values)).price(geometry)

    return _Problem(tuple(start), np.log(list(start.values())), sample, seconds)


def _narrow(table: GemmTable, device: DeviceSpec, gemm: GemmConstants, precision: Precision) -> _Problem:
    sample = _sample(table)
    start = _START["narrow"]
    model = replace(
        _model(device, gemm, precision),
        element_bytes=PRECISIONS[precision].bytes,
        result_bytes=PRECISIONS["bf16"].bytes,
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
    weight = problem.weight
    start = problem.start

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
