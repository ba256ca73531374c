"""Forward error bounds of a computed matrix product.

For every order of summation |y - x w| <= gamma_k |x| |w| with gamma_n = n u / (1 - n u): N. J. Higham,
Accuracy and Stability of Numerical Algorithms, 2nd edition (2002), lemma 3.1 and section 3.5.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

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

AXES: dict[GemmPass, tuple[str, str, str]] = {
    "forward": ("mk", "kn", "mn"),
    "dgrad": ("mn", "kn", "mk"),
    "wgrad": ("mk", "mn", "kn"),
}
"""Axes of the two operands, as they are stored, and of the result: x w, dy wT, xT dy."""
SPLIT: dict[Partition, str] = {"column": "n", "row": "k", "sequence": "m", "heads": "b", "streamed": "k"}
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
    result = AXES[which][2]
    if SPLIT[layer] == result[0]:
        return "sequence"
    return "column" if SPLIT[layer] == result[1] else "row"


Matrix = NDArray[np.floating[Any]]


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
