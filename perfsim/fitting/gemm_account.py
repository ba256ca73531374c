"""Standard errors of the constants of `perfsim.costs.gemm` from a table of GEMM times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfsim.calibration import MOST_STANDARD_ERROR, GemmConstants
from perfsim.costs.gemm import GemmModel
from perfsim.fitting.fit_tables import rounded
from perfsim.fitting.standard_errors import Account, Loss, account, cluster_of, log_jacobian, profile

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


def gemm_account(
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
