"""Fits the tile-and-wave model of `perfsim.costs.gemm` to measured GEMM times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import FitRecord, GemmConstants, TileConstants
from perfsim.costs.gemm import GemmModel
from perfsim.errors import InputError
from perfsim.fitting.fit_tables import need_more_than, read_table, rounded, scipy_optimize
from perfsim.fitting.gemm_account import METHOD, gemm_account
from perfsim.fitting.standard_errors import Account
from perfsim.hardware import DeviceSpec

Array = NDArray[np.float64]

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
_EVALUATIONS = 6000
_ERROR_FLOOR = 0.02
"""Log errors below this count the same: repeats of one measurement differ by as much."""
_SMALL_WEIGHT = 0.15
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
        return np.where(self.is_training_size, 1.0, _SMALL_WEIGHT)


def fit_gemm(
    table_path: Path, device: DeviceSpec, *, source: str = "", evaluations: int = _EVALUATIONS
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
    half, rest = table.rows(order[:fit_rows]), table.rows(order[fit_rows:])
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
    return constants, *with_errors(record, constants, device, table)


def with_errors(
    record: FitRecord, constants: GemmConstants, device: DeviceSpec, table: GemmTable
) -> tuple[FitRecord, Account]:
    """The record of a fit with the standard errors of its constants, and the account of all of them."""
    sample = table.rows(np.random.default_rng(0).permutation(table.time_s.size)[:_REFINE_ROWS])
    shapes = (sample.m, sample.n, sample.k)
    model = _model(constants, device)
    estimates = gemm_account(model, shapes, sample.time_s, sample.weight, _ERROR_FLOOR)
    note = f"{record.note.removesuffix(f'; {METHOD}')}; {METHOD}"
    record = record.model_copy(update={"standard_errors": estimates.errors, "note": note})
    return record, estimates.with_prefix("gemm")


def absolute_errors(constants: GemmConstants, device: DeviceSpec, table: GemmTable) -> Array:
    """|predicted / measured - 1| of every row."""
    return np.abs(_model(constants, device).time_s(table.m, table.n, table.k) / table.time_s - 1)


def _model(constants: GemmConstants, device: DeviceSpec) -> GemmModel:
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
                best, lowest, improved = trial, value, True
                break
        length[axis] = min(1.0, 1.4 * length[axis]) if improved else max(0.005, 0.85 * length[axis])
    return best, lowest


def _loss(table: GemmTable, device: DeviceSpec, start: Array) -> Callable[[Array], float]:
    """Weighted mean of a smoothed |log error|, plus the weak prior at the start."""
    # Tiles and waves do not depend on the fitted constants.
    batch = np.ones(table.m.shape)
    geometry = _model(_constants(start), device).geometry(table.m, table.n, table.k, batch)
    weight = table.weight / table.weight.sum()

    def loss(logs: Array) -> float:
        predicted = _model(_constants(logs), device).price(geometry)
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
