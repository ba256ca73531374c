"""A layer's GEMMs computed in parts, with shards and combination of results as on the ranks.

Shards follow from the layer, not from the product: a rank that holds columns of w uses the same columns,
transposed, for the gradient of its input. Parts along an axis of the result are concatenated; parts along an
axis that the product sums over are added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.errors import InputError

Matrix = NDArray[np.floating[Any]]

# The three GEMMs of a linear layer, and how the layer's partition splits each of them.
#
# A layer y = x w with x of (m, k) and w of (k, n) costs 2 m n k FLOPs forward, and as many again for
# each gradient: dx = dy wT and dw = xT dy.

GemmPass = Literal["forward", "dgrad", "wgrad"]
Partition = Literal["none", "column", "row", "sequence", "heads", "streamed"]
"""How the layer y = x w is partitioned.

none: on one rank. column: w by columns, results concatenated. row: w by rows and x by columns, partial
sums added by the all-reduce. sequence: x by rows, results stacked. heads: a batch of products, one per
attention head, each on one rank. streamed: one row of w at a time arrives and is multiplied by its column
of x into y, as on a wafer.
"""

_AXES: dict[GemmPass, tuple[str, str, str]] = {
    "forward": ("mk", "kn", "mn"),
    "dgrad": ("mn", "kn", "mk"),
    "wgrad": ("mk", "mn", "kn"),
}
"""Axes of the two operands, as they are stored, and of the result: x w, dy wT, xT dy."""
_SPLIT: dict[Partition, str] = {"column": "n", "row": "k", "sequence": "m", "heads": "b", "streamed": "k"}
"""The axis that each partition cuts."""


class GemmShape(NamedTuple):
    """y (m, n) = x (m, k) w (k, n)."""

    m: int
    n: int
    k: int

    @property
    def flop(self) -> float:
        """FLOPs of one product."""
        return 2.0 * self.m * self.n * self.k


def layer_gemms(forward: GemmShape) -> dict[GemmPass, GemmShape]:
    """Shapes of the forward GEMM, of the gradient of its input and of the gradient of its weight."""
    m, n, k = forward
    return {"forward": forward, "dgrad": GemmShape(m, k, n), "wgrad": GemmShape(k, n, m)}


def layer_of(product: GemmShape, which: GemmPass) -> GemmShape:
    """Shape of the layer whose GEMM `which` has the shape `product`: the inverse of `layer_gemms`."""
    m, n, k = product
    return {"forward": product, "dgrad": GemmShape(m, k, n), "wgrad": GemmShape(k, n, m)}[which]


def partition_of(layer: Partition, which: GemmPass) -> Partition:
    """Partition of one of a layer's GEMMs, given the partition of the layer.

    dgrad sums over columns of w, so a column partition of the layer is a row partition of dgrad; wgrad
    sums over rows of x (the tokens).
    """
    if layer in ("none", "heads", "streamed"):
        return layer
    result = _AXES[which][2]
    if _SPLIT[layer] == result[0]:
        return "sequence"
    return "column" if _SPLIT[layer] == result[1] else "row"


class Cut(NamedTuple):
    """One of a layer's GEMMs, and the partition of the layer."""

    partition: Partition
    parts: int = 1
    which: GemmPass = "forward"


Execute = Callable[[Matrix, Matrix, Cut], Matrix]


def product(left: Matrix, right: Matrix, which: GemmPass) -> Matrix:
    """A layer's GEMM from its stored operands: x w, dy wT or xT dy, for each entry of a batch."""
    if which == "dgrad":
        right = np.swapaxes(right, -1, -2)
    elif which == "wgrad":
        left = np.swapaxes(left, -1, -2)
    result: Matrix = np.matmul(left, right)
    return result


def execute_partitioned(left: Matrix, right: Matrix, cut: Cut) -> Matrix:
    """`product` computed in the parts of `cut`, in the precision of `left`.

    Raises InputError for an unknown partition or more parts than there is to split.
    """
    sizes = _sizes(left, right, cut)
    check_parts(sizes, cut)
    if cut.partition == "none":
        return product(left, right, cut.which)
    if cut.partition == "streamed":
        return _STREAMED[cut.which](left, right)
    return _in_parts(left, right, cut)


def _in_parts(left: Matrix, right: Matrix, cut: Cut) -> Matrix:
    axis = _SPLIT[cut.partition]
    lefts, rights = (
        _shards(operand, axes, axis, cut.parts)
        for operand, axes in zip((left, right), _axes(left, cut.which), strict=False)
    )
    partial = [product(a, b, cut.which) for a, b in zip(lefts, rights, strict=True)]
    result = _axes(left, cut.which)[2]
    if axis in result:
        return np.concatenate(partial, axis=result.index(axis))
    total = np.zeros_like(partial[0])
    for part in partial:
        total += part
    return total


def _shards(operand: Matrix, axes: str, axis: str, parts: int) -> list[Matrix]:
    """The parts of an operand along an axis; an operand without that axis is on every rank."""
    if axis not in axes:
        return [operand] * parts
    return np.array_split(operand, parts, axis=axes.index(axis))


def _axes(left: Matrix, which: GemmPass) -> tuple[str, ...]:
    """Axes of both operands and of the result, led by the batch if there is one."""
    return tuple("b" + axes if left.ndim == 3 else axes for axes in _AXES[which])


# ------------------------------------------------------------------------------- weights row by row
def streamed_rows(w: Matrix) -> list[tuple[int, NDArray[np.intp]]]:
    """The rows of a weight that are sent, each with its nonzero columns.

    On a wafer every arriving weight triggers one AXPY; zero weights are not sent.
    """
    sent = ((i, np.flatnonzero(row)) for i, row in enumerate(w))
    return [(i, columns) for i, columns in sent if columns.size]


def _stream_forward(x: Matrix, w: Matrix) -> Matrix:
    """Add x[:, i] w[i, j] to y[:, j] for every weight that arrives, a row of them at a time."""
    y = np.zeros((x.shape[0], w.shape[1]), dtype=x.dtype)
    buffer = np.empty_like(y)
    for i, columns in streamed_rows(w):
        if columns.size == w.shape[1]:
            np.multiply(x[:, i : i + 1], w[i], out=buffer)
            y += buffer
        else:
            y[:, columns] += x[:, i : i + 1] * w[i, columns]
    return y


def _stream_dgrad(dy: Matrix, w: Matrix) -> Matrix:
    """Add dy[:, j] w[i, j] to dx[:, i]: a row of weights makes one column of the gradient."""
    dx = np.zeros((dy.shape[0], w.shape[0]), dtype=dy.dtype)
    for i, columns in streamed_rows(w):
        dx[:, i] = dy[:, columns] @ w[i, columns]
    return dx


def _stream_wgrad(x: Matrix, dy: Matrix) -> Matrix:
    """Compute the weight gradient row by row, summed over the tokens on the wafer."""
    return np.stack([x[:, i] @ dy for i in range(x.shape[1])])


_STREAMED: dict[GemmPass, Callable[[Matrix, Matrix], Matrix]] = {
    "forward": _stream_forward,
    "dgrad": _stream_dgrad,
    "wgrad": _stream_wgrad,
}


# -------------------------------------------------------------------------------------- validation
def _sizes(left: Matrix, right: Matrix, cut: Cut) -> dict[str, int]:
    """The length of every axis."""
    axes = _axes(left, cut.which)
    return dict(zip(axes[0] + axes[1], left.shape + right.shape, strict=True))


def check_parts(sizes: dict[str, int], cut: Cut) -> None:
    """Raise InputError for an unknown partition or more parts than its axis is long."""
    if cut.partition != "none" and cut.partition not in _SPLIT:
        raise InputError(f"unknown partition {cut.partition!r}; known are none, {', '.join(_SPLIT)}")
    max_parts = 1 if cut.partition == "none" else sizes.get(_SPLIT[cut.partition], 1)
    if not 1 <= cut.parts <= max_parts:
        shape = ", ".join(f"{axis}={size}" for axis, size in sorted(sizes.items()))
        raise InputError(
            f"partition {cut.partition!r} of {shape} has 1 to {max_parts} parts, not {cut.parts}"
        )


# Forward error bounds of a computed matrix product.
#
# For every order of summation |y - x w| <= gamma_k |x| |w| with gamma_n = n u / (1 - n u): N. J. Higham,
# Accuracy and Stability of Numerical Algorithms, 2nd edition (2002), lemma 3.1 and section 3.5.


def gamma(n: int, unit_roundoff: float) -> float:
    """Higham's gamma_n = n u / (1 - n u); infinite for n u >= 1, where no bound holds."""
    product = n * unit_roundoff
    return product / (1 - product) if product < 1 else float("inf")


def error_bound(k: int, dtype: np.dtype[Any]) -> float:
    """Bound on |y - x w| / (|x| |w|) if y has precision `dtype` and x w was computed in float64.

    u is half the spacing of numbers at 1. `|x| |w|` itself is computed in `dtype`, so it may be too small
    by a factor of 1 - gamma_k.
    """
    # The float64 reference has an error too.
    own = gamma(k, float(np.finfo(dtype).eps) / 2)
    return (own + gamma(k, float(np.finfo(np.float64).eps) / 2)) * (1 + own)


def relative_error(y: Matrix, reference: Matrix, size: Matrix) -> float:
    """Largest |y - reference| / size; infinite for a wrong shape or a value that is not finite."""
    if y.shape != reference.shape:
        return float("inf")
    difference = np.abs(y.astype(np.float64) - reference)
    if not np.isfinite(difference).all():
        return float("inf")
    return float(np.max(difference / np.maximum(size, np.finfo(np.float32).tiny)))
