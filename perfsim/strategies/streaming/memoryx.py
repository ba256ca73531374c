"""What MemoryX holds and moves for each parameter, in DRAM or flash.

MemoryX keeps each parameter in the format that it streams, and the state of the optimizer: the fp32
master copy, moments, and the fp32 sum of gradients. Adam reads 12 B of state and the gradient and writes
the state back: 28 B and about 15 FLOP per parameter and step. Zeros of sparse weights are neither stored nor
updated.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfsim.costs.memory import MemoryUse
from perfsim.costs.optimizer import moment_bytes, newton_schulz_flop
from perfsim.hardware import WaferClusterSpec
from perfsim.transformer import Kernel, parameters
from perfsim.workload import Job

MASTER_BYTES = 4.0
GRADIENT_SUM_BYTES = 4.0
UPDATE_FLOP = {"adam": 15.0, "adamw": 17.0, "adam8bit": 23.0, "muon": 15.0, "sgd": 2.0}
"""Multiplications, additions, roots and divisions in the update formula of one parameter.

assumed: scaling, rounding and looking up an 8-bit moment take two each way; Muon's momentum and step take no
more than Adam's, beside its matrix products.
"""


def kept_parameters(job: Job, num_parameters: float, matrices: float = 0.0) -> float:
    """Nonzero parameters of a block, of which the `matrices` of a layer can be sparse."""
    return num_parameters - job.recipe.weight_sparsity * matrices


def streamed_bytes(job: Job, system: WaferClusterSpec, num_parameters: float, matrices: float = 0.0) -> float:
    """Bytes of a block on the wire: its nonzero weights, with an index for each weight of sparse matrices."""
    kept = kept_parameters(job, num_parameters, matrices)
    sparsity = job.recipe.weight_sparsity
    indexed = (1.0 - sparsity) * matrices if sparsity else 0.0
    return (kept + system.streaming.sparse_index_overhead * indexed) * system.weight_bytes


def kept_moments(job: Job) -> float:
    """Bytes of the moments of a parameter; none of SGD, which has no momentum here."""
    return 0.0 if job.recipe.optimizer == "sgd" else moment_bytes(job.recipe, job.model)


def update_kernel(job: Job, num_parameters: float) -> Kernel:
    """The optimizer on some parameters: state read and written, gradient read."""
    optimizer, state_bytes = job.recipe.optimizer, MASTER_BYTES + kept_moments(job)
    flop = UPDATE_FLOP[optimizer] + (newton_schulz_flop(job.model) if optimizer == "muon" else 0.0)
    return Kernel(
        name=optimizer,
        op="elementwise",
        flop=flop * num_parameters,
        bytes_accessed=(2.0 * state_bytes + GRADIENT_SUM_BYTES) * num_parameters,
    )


class Store:
    """Where MemoryX keeps a job: in DRAM while there is room, unless the system says where."""

    def __init__(self, job: Job, system: WaferClusterSpec) -> None:
        self.memoryx = system.memoryx
        counts = parameters(job.model)
        count, matrices = float(counts.total), float(counts.body_matrices)
        sparse = job.recipe.weight_sparsity * matrices
        self.kept = count - sparse
        overhead = system.streaming.sparse_index_overhead if sparse else 0.0
        indexed = matrices - sparse
        self.moment_bytes = kept_moments(job)
        self.weights = {"streamed weights": (self.kept + overhead * indexed) * system.weight_bytes}
        self.state = {
            "parameters": MASTER_BYTES * self.kept,
            "gradients": GRADIENT_SUM_BYTES * self.kept,
            "optimizer": self.moment_bytes * self.kept,
        }
        free = self.memoryx.dram_bytes
        self.weights_in_flash = self._in_flash(self.memoryx.weights_in, self.weights, free)
        free -= 0.0 if self.weights_in_flash else sum(self.weights.values())
        self.state_in_flash = self._in_flash(self.memoryx.optimizer_state_in, self.state, free)

    @property
    def state_bytes(self) -> float:
        """Bytes per parameter that are read before its update and written after it."""
        return MASTER_BYTES + self.moment_bytes

    def _in_flash(self, wanted: str, parts: dict[str, float], free: float) -> bool:
        if wanted != "auto":
            return wanted == "flash"
        return sum(parts.values()) > free and self.memoryx.flash_bytes > 0

    def uses(self) -> Iterator[MemoryUse]:
        """Memory use of DRAM, and of flash if it is used."""
        dram = (self.weights if not self.weights_in_flash else {}) | (
            self.state if not self.state_in_flash else {}
        )
        flash = (self.weights if self.weights_in_flash else {}) | (self.state if self.state_in_flash else {})
        yield MemoryUse("MemoryX DRAM", dram, self.memoryx.dram_bytes, on_device=False)
        if flash:
            yield MemoryUse("MemoryX flash", flash, self.memoryx.flash_bytes, on_device=False)

    @property
    def note(self) -> str:
        """What MemoryX holds, in words."""
        where = {False: "DRAM", True: "flash"}
        weights, state = (_size_text(sum(parts.values())) for parts in (self.weights, self.state))
        return (
            f"MemoryX holds {weights} of weights in {where[self.weights_in_flash]} and "
            f"{state} of optimizer state in {where[self.state_in_flash]}"
        )


def _size_text(n_bytes: float) -> str:
    return f"{n_bytes / 1e12:.3g} TB" if n_bytes >= 1e12 else f"{n_bytes / 1e9:.3g} GB"
