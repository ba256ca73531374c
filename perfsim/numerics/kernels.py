"""The three GEMMs of a linear layer, and how a split of the first one splits the other two.

A layer y = x w with x of (m, k) and w of (k, n) costs 2 m n k FLOPs forward, and as many again for
each gradient: dx = dy wT and dw = xT dy.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Pass = Literal["forward", "dgrad", "wgrad"]
Partition = Literal["none", "column", "row", "sequence", "streamed"]
"""How one GEMM y = x w is shared out.

none: whole. column: w by columns, results side by side. row: w by rows and x by columns, partial
sums added, which is the all-reduce. sequence: x by rows, results one above the other. streamed:
one row of w at a time arrives and is multiplied by its column of x into y, as a wafer does.
"""


class GemmShape(NamedTuple):
    """y (m, n) = x (m, k) w (k, n)."""

    m: int
    n: int
    k: int

    @property
    def flop(self) -> float:
        return 2.0 * self.m * self.n * self.k


def layer_gemms(forward: GemmShape) -> dict[Pass, GemmShape]:
    """Shapes of the forward GEMM, of the gradient of its input and of the gradient of its weight."""
    m, n, k = forward
    return {"forward": forward, "dgrad": GemmShape(m, k, n), "wgrad": GemmShape(k, n, m)}


_BACKWARD: dict[Partition, tuple[Partition, Partition]] = {
    "none": ("none", "none"),
    "column": ("row", "column"),
    "row": ("column", "sequence"),
    "sequence": ("sequence", "row"),
    "streamed": ("streamed", "none"),
}


def partition_of(forward: Partition, which: Pass) -> Partition:
    """How a GEMM of a layer is split when its forward GEMM is split as `forward`.

    Columns of w are what dgrad sums over, so a column split of the forward GEMM is a row split of
    dgrad; rows of x (the batch) are what wgrad sums over. The weight gradient of a streamed layer is
    formed whole where the activations are.
    """
    if which == "forward":
        return forward
    dgrad, wgrad = _BACKWARD[forward]
    return dgrad if which == "dgrad" else wgrad
