"""A layer's GEMMs computed in parts, with shards and combination of results as on the ranks.

Shards follow from the layer, not from the product: a rank that holds columns of w uses the same
columns, transposed, for the gradient of its input. Parts along an axis of the result are concatenated;
parts along an axis that the product sums over are added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.base.errors import InputError
from perfsim.numerics.kernels import AXES, SPLIT, GemmPass, Partition

Matrix = NDArray[np.floating[Any]]


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
    axis = SPLIT[cut.partition]
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
    return tuple("b" + axes if left.ndim == 3 else axes for axes in AXES[which])


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
    if cut.partition != "none" and cut.partition not in SPLIT:
        raise InputError(f"unknown partition {cut.partition!r}; known are none, {', '.join(SPLIT)}")
    max_parts = 1 if cut.partition == "none" else sizes.get(SPLIT[cut.partition], 1)
    if not 1 <= cut.parts <= max_parts:
        shape = ", ".join(f"{axis}={size}" for axis, size in sorted(sizes.items()))
        raise InputError(
            f"partition {cut.partition!r} of {shape} has 1 to {max_parts} parts, not {cut.parts}"
        )
