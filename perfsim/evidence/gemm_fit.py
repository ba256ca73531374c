"""Fits the tile-and-wave model of `perfsim.costs.gemm` to measured times of matrix products.

A plain table gives a device all constants of its library. A table with a column `precision` gives a few
factors on the tiles of another calibration: products in bf16 have factors on efficiency and overhead, and a
launch, a memory fraction and a ceiling of their own. Narrow products have factors on the device's own bf16
tiles; their rows have a cast:

    seconds = product(factors) + cast_s + cast_bytes m k / bandwidth
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.arrays import Floats
from perfsim.base.errors import InputError
from perfsim.costs.gemm import GemmModel, Geometry, narrow_constants
from perfsim.evidence.fitting import Account, SoftL1, need_more_than, need_unit, read_table, rounded, scipy
from perfsim.machines.machine import is_borrowed
from perfsim.specs.calibration import (
    Calibration,
    FitRecord,
    GemmConstants,
    GpuCalibration,
    NarrowGemmConstants,
)
from perfsim.specs.hardware import DeviceSpec
from perfsim.specs.precisions import PRECISIONS, Precision

_SHAPES = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64), (128, 32), (64, 32), (32, 32))
"""Thread-block tiles of cuBLAS and CUTLASS for 16-bit operands."""
_EFFICIENCY = (0.965, 0.9, 0.8, 0.72, 0.56, 0.52, 0.37, 0.3)
_CHOICE = (1.3, 0.92, 0.88, 0.7, 0.58, 0.5, 0.4, 0.3)
_OF_TILE = {"efficiency": (0.05, 1.0), "choice_efficiency": (0.02, 3.0), "overhead_k": (5.0, 1500.0)}
"""Lowest and highest value of each fitted constant of a tile."""
_OF_ALL = {
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
"""Start, lowest and highest value of each other fitted constant."""
_START = GemmConstants.model_validate(
    {
        "tiles": [
            {"shape": shape, "efficiency": efficiency, "choice_efficiency": choice, "overhead_k": 140.0}
            for shape, efficiency, choice in zip(_SHAPES, _EFFICIENCY, _CHOICE, strict=True)
        ],
        "split_k": (1, 2, 3, 4, 6, 8, 12, 16),
        "k_step": 32,
        **{name: start for name, (start, _, _) in _OF_ALL.items()},
    }
)
_FIXED = {
    "split_k": "numbers of slices that the fit offers the library; not fitted",
    "k_step": "depth of a step along k in CUTLASS's tiles for 16-bit operands; not fitted",
}
_LOOSE = "not determined by the table: a third more or less adds less loss than one standard error of it"
_METHOD = (
    "errors by the sandwich, shapes of one weight matrix taken together, constants that the table does not "
    "determine held; of choice_ constants, which decide an argmin, the least step of 1, 2, 3, 5, 8, 12, 20 "
    "and 33 % after which the loss has grown by over one standard error, others held"
)
_FIT_ROWS = 4000
"""Enough rows for some thirty constants; more only cost time."""
_REFINE_ROWS = 10_000
_FIT_EVALUATIONS = 6000
_ERROR_FLOOR = 0.02
"""Log errors below this count the same: repeats of one measurement differ by as much."""
_SIXTEEN_BITS: tuple[Precision, ...] = ("bf16", "fp16")
_WIDTHS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.33)
"""Log steps that are tried of a constant without derivatives, up to the largest standard error."""
_PRIOR = 1e-3
"""Pull towards the start, so that a constant that no row determines stays plausible."""

_COLUMNS = ("m", "n", "k", "time_us")


class _Products(NamedTuple):
    """Measured times of C[m, n] = A[m, k] B[k, n], one array per column."""

    m: Floats
    n: Floats
    k: Floats
    time_s: Floats

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], path: Path, device: DeviceSpec) -> _Products:
        """The rows of a file of measurements at random, always the same, since a table may be sorted."""
        m, n, k, time_us = (np.array([float(row[key]) for row in rows]) for key in _COLUMNS)
        rate = (2e6 * m * n * k / time_us).max() / max(device.peak.values())
        need_unit(rate, path, "product", f"peak of {device.name}")
        order = np.random.default_rng(0).permutation(m.size)
        return cls(m[order], n[order], k[order], time_us[order] * 1e-6)

    def part(self, first: int, end: int | None = None) -> _Products:
        return _Products(*(column[first:end] for column in self))

    def geometry(self, model: GemmModel) -> Geometry:
        """Tiles and waves, which do not depend on fitted constants."""
        return model.geometry(self.m, self.n, self.k, np.ones(self.m.shape))

    @property
    def is_training_size(self) -> NDArray[np.bool_]:
        """Shapes that occur in training: many rows, wide matrices."""
        return (self.m >= 256) & (self.n >= 512) & (self.k >= 512)

    @property
    def weight(self) -> Floats:
        """Weight of each product in a fit of all constants."""
        return np.where(self.is_training_size, 1.0, 0.15)


def _robust_loss(
    log_errors: Callable[[Floats], Floats], weight: Floats, start: Floats
) -> Callable[[Floats], float]:
    """Weighted mean of a smoothed |log error|, plus the weak prior at the start."""

    def loss(logs: Floats) -> float:
        error = np.sqrt(log_errors(logs) ** 2 + _ERROR_FLOOR**2)
        return float(weight @ error + _PRIOR * np.mean((logs - start) ** 2))

    return loss


def gpu_calibration(
    table: Path,
    device: DeviceSpec,
    like: Calibration | None = None,
    *,
    source: str = "",
    evaluations: int = _FIT_EVALUATIONS,
) -> GpuCalibration:
    """The device's calibration with products fitted to a table; other constants are kept.

    `like` is the calibration whose tiles are scaled; the table then has a column `precision`. Without it a
    library is fitted. Raises InputError for a bad table, another kind of device, or without SciPy.
    """
    if device.kind != "gpu":
        raise InputError(
            f"{device.name} is a {device.kind}; GEMM tables are of GPUs (wafers: calibrate wafer)"
        )
    if isinstance(like, GpuCalibration):
        return _with_factors(table, device, like, source)
    if like is not None:
        raise InputError(f"{like.name} is no calibration of a GPU")
    constants, record, assumed = _fit_library(table, device, source, evaluations)
    present = device.calibration
    if not isinstance(present, GpuCalibration):
        raise InputError(f"{device.name} has no calibration of a GPU, whose other constants are kept")
    present = _own(device, present)
    kept = {name: reason for name, reason in present.assumed.items() if not name.startswith("gemm.")}
    fits = {**present.fit, "gemm": record}
    return present.model_copy(update={"gemm": constants, "fit": fits, "assumed": kept | assumed})


def _model(gemm: GemmConstants, device: DeviceSpec, precision: Precision) -> GemmModel:
    return GemmModel(gemm, device.peak_flop_per_s(precision), device.memory.bandwidth, device.compute_units)


def _own(device: DeviceSpec, present: GpuCalibration) -> GpuCalibration:
    """What a device has, before products of its own: undated, with the published runs of its chip."""
    words = f"Kernels on {device.name}: matrix products measured, the rest as in {present.name}"
    inherited = device.constants in (present.name, present.chip) and "calibration" not in device.assumed
    chip = (present.chip or present.name) if inherited else ""
    assumed = {name: reason for name, reason in present.assumed.items() if name != "date"}
    return present.model_copy(update={"description": words, "date": None, "chip": chip, "assumed": assumed})


# All constants of a library.


def _fit_library(
    path: Path, device: DeviceSpec, source: str, evaluations: int
) -> tuple[GemmConstants, FitRecord, dict[str, str]]:
    """Constants of the device's GEMM library, their record, and why others have the values that they have."""
    table = _Products.of(read_table(path, _COLUMNS), path, device)
    precision = next((name for name in _SIXTEEN_BITS if name in device.peak), None)
    if precision is None:
        raise InputError(f"device {device.name} has no 16-bit peak to relate GEMM times to")
    model = _model(_START, device, precision)
    values = _values(_START)
    start = np.log(list(values.values()))
    bounds = _OF_TILE | {name: (low, high) for name, (_, low, high) in _OF_ALL.items()}
    low, high = np.log([bounds[name.rpartition(".")[2]] for name in values]).T
    # One half is fitted, and must have more rows than there are constants; the record has the residuals of
    # the rest, training sizes only. Then all rows refine the constants; standard errors are of these.
    shapes = np.unique(np.stack([table.m, table.n, table.k]), axis=1).shape[1]
    need_more_than(2 * len(values) + 1, shapes, path, "GEMM shapes")
    fit_rows = min(-(-table.m.size // 2), _FIT_ROWS)
    half = table.part(0, fit_rows)
    rest = table.part(fit_rows)
    most = table.part(0, _REFINE_ROWS)

    def loss_on(rows: _Products, first: Floats) -> Callable[[Floats], float]:
        geometry = rows.geometry(model)

        def log_errors(logs: Floats) -> Floats:
            seconds = replace(model, constants=_constants(logs)).price(geometry)
            return np.asarray(np.log(seconds / rows.time_s))

        return _robust_loss(log_errors, rows.weight / rows.weight.sum(), first)

    # The first start is a library that overrates its large tiles, the second knows how fast its tiles are.
    ranked = {f"tiles.{tile.label}.choice_efficiency": tile.efficiency for tile in _START.tiles}
    results = []
    for first in (start, np.log(list((values | ranked).values()))):
        loss = loss_on(half, first)
        options = {"maxfev": evaluations // 2, "xtol": 1e-2, "ftol": 1e-5}
        ends = list(zip(low, high, strict=True))
        result = scipy("optimize").minimize(loss, first, method="Powell", bounds=ends, options=options)
        results.append(_polished(loss, np.clip(result.x, low, high), low, high, evaluations // 2))
    best, _ = min(results, key=lambda result: result[1])
    predicted_s = replace(model, constants=_constants(best)).time_s(rest.m, rest.n, rest.k)
    errors = np.abs(predicted_s / rest.time_s - 1)
    judged = errors[rest.is_training_size] if rest.is_training_size.any() else errors
    constants = _constants(_polished(loss_on(most, start), best, low, high, evaluations // 2)[0])
    estimates = _estimates(replace(model, constants=constants), most)
    record = FitRecord(
        command=f"perfsim calibrate gemm {path.name} --device {device.name}",
        table=source or path.name,
        points=table.time_s.size,
        median_ape=rounded(float(np.median(judged)), 3),
        p90_ape=rounded(float(np.quantile(judged, 0.9)), 3),
        standard_errors=estimates.errors,
        note=(
            f"residuals of a fit to {fit_rows} rows, over the {judged.size} other rows with m >= 256 and "
            f"n, k >= 512; over all {errors.size} others {np.median(errors):.1%} median, "
            f"{np.quantile(errors, 0.9):.1%} p90; then refined with all rows; {_METHOD}"
        ),
    )
    return constants, record, {f"gemm.{name}": reason for name, reason in estimates.assumed.items()}


def _polished(
    loss: Callable[[Floats], float], best: Floats, low: Floats, high: Floats, evaluations: int
) -> tuple[Floats, float]:
    """Random steps along one axis at a time, longer where they help."""
    # The chosen tiles jump with the constants, so the loss has steps that stop line searches.
    generator = np.random.default_rng(0)
    lowest = loss(best)
    length = np.full(best.size, 0.2)
    for axis in np.tile(np.arange(best.size), evaluations // (2 * best.size)):
        step = length[axis] * generator.standard_normal()
        for shift in (step, -step):
            trial = best.copy()
            trial[axis] = np.clip(trial[axis] + shift, low[axis], high[axis])
            value = loss(trial)
            if value < lowest:
                best = trial
                lowest = value
                length[axis] = min(1.0, 1.4 * length[axis])
                break
        else:
            length[axis] = max(0.005, 0.85 * length[axis])
    return best, lowest


def _values(constants: GemmConstants) -> dict[str, float]:
    """Every fitted constant by its name in a calibration file."""
    of_tiles = {f"tiles.{tile.label}.{name}": tile for tile in constants.tiles for name in _OF_TILE}
    owners = of_tiles | dict.fromkeys(_OF_ALL, constants)
    return {path: float(getattr(owner, path.rpartition(".")[2])) for path, owner in owners.items()}


def _with(constants: GemmConstants, changes: dict[str, float]) -> GemmConstants:
    """The constants changed by name; without validation, so a step may cross a bound."""
    tiles = []
    for tile in constants.tiles:
        paths = {name: f"tiles.{tile.label}.{name}" for name in _OF_TILE}
        own = {name: changes[path] for name, path in paths.items() if path in changes}
        tiles.append(tile.model_copy(update=own))
    shared = {name: value for name, value in changes.items() if "." not in name}
    return constants.model_copy(update={"tiles": tuple(tiles), **shared})


def _constants(logs: Floats) -> GemmConstants:
    return _with(_START, dict(zip(_values(_START), map(rounded, np.exp(logs)), strict=True)))


def _estimates(model: GemmModel, table: _Products) -> Account:
    """Standard errors of a model's constants at the rows of a table, in the order of the calibration file."""
    constants = model.constants
    geometry = table.geometry(model)
    values = _values(constants)
    plain = [name for name in values if "choice" not in name]
    chosen = model.choice(geometry)
    cluster = SoftL1.clusters(table.n, table.k)

    def predict(logs: Floats) -> Floats:
        changed = _with(constants, dict(zip(plain, np.exp(logs).tolist(), strict=True)))
        return np.asarray(np.log(replace(model, constants=changed).price(geometry, chosen=chosen)))

    # The fit's: weight times sqrt(log error^2 + floor^2). Derivatives keep each shape's tile and split, which
    # jump with the constants.
    def losses(changed: GemmConstants) -> Floats:
        seconds = replace(model, constants=changed).price(geometry)
        return np.asarray(table.weight * np.hypot(np.log(seconds / table.time_s), _ERROR_FLOOR))

    best = losses(constants)

    def has_grown(name: str, step: float) -> bool:
        """Whether a step of a constant raises the loss by more than a standard error of that growth."""
        changed = _with(constants, {name: values[name] * float(np.exp(step))})
        growth = np.bincount(cluster, losses(changed) - best)
        return bool(growth.sum() > np.sqrt((growth**2).sum()) > 0)

    logs = np.log([values[name] for name in plain])
    error = predict(logs) - np.log(table.time_s)
    loss = SoftL1(error, table.weight, (error / _ERROR_FLOOR) ** 2, cluster)
    known = loss.account(plain, SoftL1.jacobian(predict, logs))
    # The wider of both directions counts, inf beyond a third.
    widths = {
        name: max(next((by for by in _WIDTHS if has_grown(name, sign * by)), math.inf) for sign in (1, -1))
        for name in values
        if name not in plain
    }
    errors = known.errors | {name: width for name, width in widths.items() if width < math.inf}
    assumed = known.assumed | dict.fromkeys(widths, _LOOSE)
    return Account(
        {name: errors[name] for name in values if name in errors},
        {name: assumed[name] for name in values if name not in errors} | _FIXED,
    )


# A few factors on the tiles of another calibration.

_SIXTEEN = _SIXTEEN_BITS[0]
_ROWS = 2500
"""Enough for six factors."""
_LARGE = 1024
"""Least side of a product of training size; others have the weight `_SMALL_WEIGHT`."""
_SMALL_WEIGHT = 0.2
_STEP = 0.02
_START_OF_FRACTIONS = {"memory_fraction": 0.83, "burst_fraction": 0.75}
"""Factors of at most 1."""
_START_OF_SIXTEEN = {"efficiency": 1.0, "overhead_k": 1.0, **_START_OF_FRACTIONS, "launch_s": 2.5e-6}
_START_OF_NARROW = {
    "efficiency": 1.0,
    "overhead": 1.0,
    **_START_OF_FRACTIONS,
    "cast_bytes": 4.0,
    "cast_s": 6e-6,
}


def _with_factors(path: Path, device: DeviceSpec, base: GpuCalibration, source: str) -> GpuCalibration:
    """`base` with products fitted as factors on its tiles; the device's own base keeps 16-bit ones."""
    rows = read_table(path, _COLUMNS, ("precision",))
    names = list(dict.fromkeys(row["precision"] for row in rows))
    if unknown := [name for name in names if name not in PRECISIONS]:
        raise InputError(f"{path.name}: precision {unknown[0]!r} is none of {', '.join(PRECISIONS)}")
    made = partial(_Products.of, path=path, device=device)
    tables = {name: made([row for row in rows if row["precision"] == name]) for name in names}
    known = device.calibration
    mine = known if isinstance(known, GpuCalibration) and not is_borrowed(device) else None
    present = _own(device, mine or base)
    command = f"perfsim calibrate gemm {path.name} --device {device.name} --like {base.name}"
    record = partial(FitRecord, command=command, table=source or path.name)
    fits: dict[str, FitRecord] = {}
    assumed = {name: reason for name, reason in present.assumed.items() if not name.startswith("narrow")}
    gemm = base.gemm
    if _SIXTEEN in tables and (mine is None or mine.name != base.name):
        seconds = partial(_seconds, gemm, device, _SIXTEEN)
        values, fits["gemm"] = _factors(tables[_SIXTEEN], _START_OF_SIXTEEN, seconds, path, record)
        gemm = _scaled(gemm, values)
        errors = fits["gemm"].standard_errors
        assumed = {name: why for name, why in assumed.items() if not name.startswith("gemm.")} | {
            f"gemm.{name}": f"as in {base.name}, whose tiles the table's own factors scale"
            for name in (*_values(gemm), *_FIXED)
            if name.rpartition(".")[2] not in errors
        }
    narrow = {}
    for precision, table in tables.items():
        if precision != _SIXTEEN and device.computes(precision):
            seconds = partial(_seconds, gemm, device, precision)
            values, fits[f"narrow.{precision}"] = _factors(table, _START_OF_NARROW, seconds, path, record)
            narrow[precision] = NarrowGemmConstants(**values)
    if not fits:
        raise InputError(f"{base.name} has {device.name}'s own {_SIXTEEN}", "fit it anew without --like")
    fits = {**present.fit, **fits} if mine else fits
    return present.model_copy(update={"gemm": gemm, "narrow": narrow, "fit": fits, "assumed": assumed})


def _scaled(gemm: GemmConstants, factors: Mapping[str, float]) -> GemmConstants:
    """A library with the tiles of another one, scaled; with a launch of its own as a file has it, rounded."""
    of_tiles = {name.removesuffix("_k"): value for name, value in factors.items()}
    scaled = narrow_constants(gemm, NarrowGemmConstants.model_construct(None, **of_tiles))
    if "launch_s" not in factors:
        return scaled
    values = _values(scaled) | {"launch_s": factors["launch_s"]}
    return _with(scaled, {name: rounded(value) for name, value in values.items()})


def _seconds(
    gemm: GemmConstants,
    device: DeviceSpec,
    precision: Precision,
    factors: Mapping[str, float],
    rows: _Products,
) -> Floats:
    """Times of products by factors on those of a library in 16 bits, with the cast of narrow ones."""
    scaled = _model(_scaled(gemm, factors), device, precision)
    wide = PRECISIONS[_SIXTEEN].bytes
    model = replace(scaled, element_bytes=PRECISIONS[precision].bytes, result_bytes=wide)
    cast_bytes = factors.get("cast_bytes", 0.0) * rows.m * rows.k
    cast_s = factors.get("cast_s", 0.0) + cast_bytes / device.memory.bandwidth
    return np.asarray(model.price(rows.geometry(model)) + cast_s)


def _factors(
    table: _Products,
    start: Mapping[str, float],
    seconds: Callable[[Mapping[str, float], _Products], Floats],
    path: Path,
    record: Callable[..., FitRecord],
) -> tuple[dict[str, float], FitRecord]:
    """The factors with the least robust error on some rows, and the record of their fit."""
    table = table.part(0, _ROWS)
    need_more_than(len(start), table.m.size, path, "GEMM shapes")
    sides = np.minimum(np.minimum(table.m, table.n), table.k)
    weight = np.where(sides >= _LARGE, 1.0, _SMALL_WEIGHT)
    weight = weight / weight.sum()
    first = np.log(list(start.values()))

    def factors(logs: Floats) -> dict[str, float]:
        values = zip(start, np.exp(logs).tolist(), strict=True)
        return {name: min(1.0, value) if name in _START_OF_FRACTIONS else value for name, value in values}

    def errors(logs: Floats) -> Floats:
        return np.asarray(np.log(seconds(factors(logs), table) / table.time_s))

    corners = np.vstack([first, first + 0.2 * np.eye(first.size)])
    options = {"xatol": 1e-3, "fatol": 1e-5, "initial_simplex": corners}
    loss = _robust_loss(errors, weight, first)
    best = scipy("optimize").minimize(loss, first, method="Nelder-Mead", options=options).x
    apes = np.abs(np.expm1(errors(best)))[weight == weight.max()]
    at_best = SoftL1(errors(best), weight / weight.mean(), np.zeros(weight.size), np.arange(weight.size))
    standard_errors = at_best.errors(SoftL1.jacobian(errors, best, _STEP), few=False)
    return {name: rounded(value) for name, value in factors(best).items()}, record(
        points=table.m.size,
        median_ape=rounded(float(np.median(apes)), 3),
        p90_ape=rounded(float(np.quantile(apes, 0.9)), 3),
        standard_errors=dict(zip(start, (rounded(error, 2) for error in standard_errors), strict=True)),
        note=f"residuals over products with all sides of {_LARGE:,} or more",
    )
