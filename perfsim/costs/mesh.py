"""Matrix products on a square mesh of cores, and what moves over its links meanwhile.

A product of (m, k) by (k, n) keeps its left operand still, spread over the mesh: tokens along one axis,
features along the other. The right operand (k n elements) passes along one axis, the partial sums
(m n) along the other, so that with c cores, c^0.5 in a row, each link passes (k + m) n / c^0.5 elements:

    seconds = 2 m n k / (e P) + (m + k) n / c^0.5 t        e P FLOP/s reached, t seconds an element and link

This is the communication of SUMMA [van de Geijn, Watts 1997] with one operand at rest. FLOPs grow with all
three sides of a product and movement with two, so utilisation falls as layers shrink: by 1/(1 + t e P
/(2 c^0.5 k)) where tokens are many. A batch of b products (attention heads) divides the mesh in b squares
with c^0.5 / b^0.5 cores in a row, which work side by side: (m + k) n b^0.5 / c^0.5 t.

Kernels without a matrix shape read and write SRAM at its full rate.
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
    """Reached by the arithmetic of a matrix product, movement apart: e P."""
    link_s_per_element: float
    cores: int
    sram_bytes_per_s: float

    def duration_s(self, kernels: Iterable[Kernel]) -> float:
        """Seconds of kernels one after another."""
        return sum(self.kernel_s(kernel) for kernel in kernels)

    def kernel_s(self, kernel: Kernel) -> float:
        """Seconds of one kernel."""
        if kernel.op != "gemm":
            return kernel.bytes_accessed / self.sram_bytes_per_s
        return kernel.flop / self.flop_per_s + self.movement_s(kernel)

    def movement_s(self, kernel: Kernel) -> float:
        """Seconds in which a product's moving operand and its partial sums pass the links of the mesh."""
        elements = (kernel.m + kernel.k) * kernel.n
        return elements * math.sqrt(kernel.batch / self.cores) * self.link_s_per_element

    def weights_s(self, kernels: Iterable[Kernel]) -> float:
        """Seconds in which streamed weights and their gradients pass the links, whatever the tokens."""
        streamed = [kernel for kernel in kernels if kernel.partition == "streamed"]
        elements = sum((each.m if each.weight_gradient else each.k) * each.n for each in streamed)
        return elements / math.sqrt(self.cores) * self.link_s_per_element
