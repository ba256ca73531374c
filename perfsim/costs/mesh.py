"""Matrix products on a square mesh of cores, and the movement over the links of the mesh.

A product of (m, k) by (k, n) keeps its left operand stationary, spread over the mesh: tokens along one axis,
features along the other. The right operand (k n elements) moves along one axis, the partial sums
(m n) along the other. With c cores, c^0.5 in a row, each link carries (k + m) n / c^0.5 elements:

    seconds = 2 m n k / (e P) + (m + k) n / c^0.5 t        e P FLOP/s reached, t seconds per element and link

This is the communication of SUMMA [van de Geijn, Watts 1997] with one stationary operand. FLOPs grow with
all three sides of a product and movement with two, so utilisation falls for smaller layers: by 1/(1 + t e P
/(2 c^0.5 k)) for many tokens. A batch of b products (attention heads) divides the mesh into b squares
with c^0.5 / b^0.5 cores in a row, which work in parallel: (m + k) n b^0.5 / c^0.5 t. Experts take the whole
mesh one after another, as their weights arrive: b (m + k) n / c^0.5 t with m rows of one expert. Their FLOPs
are those of the k experts of a token, the movement that of all, so their intensity is k / E of a dense MLP's.

Kernels that are not matrix products read and write SRAM at its full rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from perfsim.transformer import Kernel


@dataclass(frozen=True)
class MeshCosts:
    """Prices kernels on one wafer."""

    flop_per_s: float
    """FLOP/s of the arithmetic of a matrix product without movement: e P."""
    link_s_per_element: float
    cores: int
    sram_bytes_per_s: float

    def duration_s(self, kernels: Iterable[Kernel]) -> float:
        """Seconds of kernels that run one after another."""
        return sum(self.kernel_s(kernel) for kernel in kernels)

    def kernel_s(self, kernel: Kernel) -> float:
        """Seconds of one kernel."""
        if kernel.op != "gemm":
            return kernel.bytes_accessed / self.sram_bytes_per_s
        return kernel.flop / self.flop_per_s + self.movement_s(kernel)

    def movement_s(self, kernel: Kernel) -> float:
        """Seconds of a product to move its right operand and partial sums over the mesh."""
        elements = (kernel.m + kernel.k) * kernel.n
        share = kernel.batch if kernel.grouped else math.sqrt(kernel.batch)
        return elements * share / math.sqrt(self.cores) * self.link_s_per_element

    def weights_s(self, kernels: Iterable[Kernel]) -> float:
        """Seconds to move streamed weights and their gradients over the mesh, independent of tokens."""
        streamed = [kernel for kernel in kernels if kernel.partition == "streamed"]
        elements = sum(
            (kernel.m if kernel.weight_gradient else kernel.k) * kernel.n * kernel.batch
            for kernel in streamed
        )
        return elements / math.sqrt(self.cores) * self.link_s_per_element
