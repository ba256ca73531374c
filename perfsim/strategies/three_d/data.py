"""Data parallelism: reducing gradients among replicas, and the optimizer behind it.

ZeRO 1 [1910.02054] reduce-scatters gradients, updates its shard and all-gathers parameters; without
it gradients are all-reduced and every replica updates everything. ZeRO 2 keeps only a shard of the
gradients, so each micro-batch's are reduce-scattered as they are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfsim.costs.memory import main_grad_bytes, updated_state_bytes
from perfsim.graph import Kind, RankGroup, TensorClass, Work
from perfsim.transformer import HALF, elementwise
from perfsim.workload import TrainingRecipe

DATA_STREAM = "nccl-data"
GRADIENTS_SHARDED = 2
"""The ZeRO stage that shards gradients."""
OPTIMIZER_LAUNCHES = 24
"""Fused multi-tensor kernels of an optimizer step: unscale, norm, clip, update, copy, zero."""


@dataclass(frozen=True)
class Replicas:
    """The data-parallel group of one rank, and the parameters that it holds."""

    recipe: TrainingRecipe
    ranks: RankGroup
    device: str
    num_parameters: float
    zero_stage: int

    @property
    def stream(self) -> str:
        return f"{self.device}/{DATA_STREAM}"

    @property
    def size(self) -> int:
        return self.ranks.size

    @property
    def shards_gradients(self) -> bool:
        """Whether every micro-batch's gradients are scattered (ZeRO 2)."""
        return self.zero_stage == GRADIENTS_SHARDED and self.size > 1

    @property
    def gradient_shards(self) -> int:
        """Among how many replicas the gradients are cut once they are reduced, as ZeRO 2 keeps them."""
        return self.size if self.shards_gradients else 1

    def layers_per_bucket(self, layer_parameters: float) -> int:
        """How many layers' gradients fill a bucket; 1 where the recipe has none."""
        bucket_bytes = self.recipe.grad_bucket
        if bucket_bytes is None or self.shards_gradients:
            return 1
        return max(1, math.ceil(bucket_bytes / (layer_parameters * main_grad_bytes(self.recipe))))

    def reduce_work(self, num_parameters: float) -> Work:
        """Reduction of the gradients of some parameters over the replicas."""
        op = "all_reduce" if self.zero_stage == 0 else "reduce_scatter"
        return self._collective(op, num_parameters * main_grad_bytes(self.recipe), "gradients")

    def gather_work(self, num_parameters: float) -> Work:
        """Every replica fetches the parameters that the others hold."""
        return self._collective("all_gather", num_parameters * HALF, "parameters")

    def _collective(self, op: str, n_bytes: float, what: str) -> Work:
        return Work(
            name=f"data.{op}",
            kind=Kind.COMM_COLL,
            op=op,
            category="data_communication",
            comm_bytes=n_bytes,
            group=self.ranks,
            writes=(TensorClass(what, n_bytes),),
        )

    def optimizer_work(self) -> Work:
        """Unscale, norm, clip, update and zero of the parameters this rank updates: bytes only."""
        shard = self.num_parameters / (self.size if self.zero_stage else 1)
        kernel = elementwise("optimizer", shard * optimizer_bytes(self.recipe), launches=OPTIMIZER_LAUNCHES)
        return Work(
            name="optimizer",
            kind=Kind.COMP,
            op="optimizer",
            category="optimizer",
            kernels=(kernel,),
            writes=(TensorClass("parameters", shard * HALF),),
        )


def optimizer_bytes(recipe: TrainingRecipe) -> float:
    """Bytes that an optimizer step reads and writes a parameter.

    Read gradient and states, write states and the half-precision copy; beside that the gradient is
    unscaled (read, write), its norm taken (read), clipped (read, write) and zeroed (write).
    """
    grad = main_grad_bytes(recipe)
    update = grad + 2 * updated_state_bytes(recipe) + HALF
    return update + 6 * grad
