"""The kernels of a step on the roofline of their device: FLOP/s reached over FLOPs per byte of memory.

Seconds are those of the cost model on an idle device, without the host: what limits a kernel is its own
shape, not what runs beside it. Formula: a device reaches at most min(peak, intensity x memory bandwidth)
[Williams, Waterman, Patterson 2009, Communications of the ACM 52(4)].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfsim.prediction.evaluation import Evaluation
from perfsim.specs.hardware import Precision
from perfsim.specs.recipe import PRECISION_BYTES
from perfsim.work import Work
from perfsim.work.graph import computes
from perfsim.work.kernels import Kernel

PRODUCT = "matrix product"
ATTENTION = "attention"
ELEMENTWISE = "element-wise"
UPDATE = "update"
PARTS = (
    ("expert_", "experts"),
    ("router", "router"),
    ("fc", "MLP"),
    ("lm_head", "LM head"),
    ("scores", "scores and context"),
    ("context", "scores and context"),
)
"""What a matrix product belongs to, by the beginning of its name; all others are projections."""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Like kernels of one device in one step, forward and backward together."""

    name: str
    """The operation."""
    kind: str
    """matrix product, attention, element-wise or update."""
    precision: Precision | None
    """That of the operands; None for kernels that are no products."""
    flop: float
    """0 for kernels that are counted by their bytes only."""
    n_bytes: float
    """Bytes moved in the device's memory."""
    time_s: float
    """Time of a step that it takes."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """What limits a device, and what its kernels reach."""

    memory_bytes_per_s: float
    """Bandwidth of the device's memory."""
    peaks_flop_per_s: Mapping[str, float]
    """Datasheet peaks of the precisions that are used."""
    kernels: tuple[KernelUse, ...]
    """The longest first."""


def roofline(evaluation: Evaluation) -> Roofline | None:
    """The kernels of a step, the mean over computing devices; None where kernels have no prices."""
    graph = evaluation.trace.graph
    costs = evaluation.costs
    ranks = np.array(graph.stands_for) * np.array([computes(name) for name in graph.streams])
    runs = np.bincount(graph.work, ranks[graph.stream], minlength=len(graph.works))
    per_device = runs / (ranks.sum() * len(graph.step_ends))
    wide = _wide(evaluation.plan.job.recipe.precision)
    sums: dict[tuple[str, str, Precision | None], list[float]] = {}
    for work, times in zip(graph.works, per_device.tolist(), strict=True):
        for kernel in work.kernels if times else ():
            seconds = costs.kernel_s(kernel)
            if seconds is None:
                return None
            total = sums.setdefault(_use(work, kernel, wide), [0.0, 0.0, 0.0])
            for place, value in enumerate((kernel.flop, kernel.bytes_accessed, seconds)):
                total[place] += times * work.share * value
    device = evaluation.plan.system.device
    used = dict.fromkeys(precision for _, _, precision in sums if precision)
    kernels = [KernelUse(*names, *total) for names, total in sums.items() if total[1] and total[2]]
    return Roofline(
        device.memory.bandwidth,
        {name: device.peak_flop_per_s(name) for name in used},
        tuple(sorted(kernels, key=lambda own: -own.time_s)),
    )


def _wide(precision: Precision) -> Precision:
    """The precision of products that are not narrow."""
    return "bf16" if PRECISION_BYTES[precision] < PRECISION_BYTES["bf16"] else precision


def _use(work: Work, kernel: Kernel, wide: Precision) -> tuple[str, str, Precision | None]:
    """Name, kind and precision under which a kernel counts."""
    if work.category in {"optimizer", "update"}:
        return UPDATE, UPDATE, wide if kernel.op == "gemm" else None
    if kernel.op == "elementwise":
        return ELEMENTWISE, ELEMENTWISE, None
    precision = kernel.precision or wide
    if kernel.op == "attention":
        return "fused attention", ATTENTION, precision
    part = next((part for start, part in PARTS if kernel.name.startswith(start)), "projections")
    return part, PRODUCT, precision
