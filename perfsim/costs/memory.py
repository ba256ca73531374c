"""Memory in closed form: model states and activations, per pipeline stage.

Bytes of model states per parameter [Megatron-LM README, distributed optimizer]: with bf16, parameters 2,
fp32 gradients 4 and the optimizer 12 (fp32 copy and two moments); with fp16, parameters 2, gradients 2 and
the optimizer 16, since the fp32 main gradients are sharded with it. Pure bf16 keeps parameters, gradients and
both moments in 2 bytes each. ZeRO 1 shards the optimizer over the data-parallel ranks, ZeRO 2 also the
gradients, ZeRO 3 also the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.transformer import (
    HALF,
    LayerSlice,
    padded_vocab_size,
    parameters,
)
from perfsim.workload import TrainingRecipe

LOGIT_BYTES = 6.0
"""Bytes of a logit in half precision and its fp32 copy."""


@dataclass(frozen=True)
class MemoryUse:
    """Peak memory use of one place, by part."""

    place: str
    parts_bytes: Mapping[str, float]
    capacity_bytes: float
    on_device: bool = True
    """False for memory outside the devices, such as MemoryX."""

    @property
    def total_bytes(self) -> float:
        """Sum of all parts."""
        return sum(self.parts_bytes.values())

    @property
    def fits(self) -> bool:
        """Whether the parts fit in the capacity."""
        return self.total_bytes <= self.capacity_bytes

    @property
    def largest_part(self) -> str:
        """Name of the largest part."""
        return max(self.parts_bytes, key=lambda part: self.parts_bytes[part])


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of each model state, before sharding."""

    parameters: float
    gradients: float
    optimizer: float


def state_bytes(recipe: TrainingRecipe) -> StateBytes:
    """Bytes per parameter of the model states under a recipe's precision."""
    updated = updated_state_bytes(recipe)
    if recipe.precision in ("fp32", "tf32"):
        return StateBytes(4.0, 4.0, updated)
    if recipe.reduce_precision in ("bf16", "fp16"):
        return StateBytes(HALF, HALF, updated)
    if recipe.precision == "fp16":
        return StateBytes(HALF, HALF, updated + main_grad_bytes(recipe))
    return StateBytes(HALF, main_grad_bytes(recipe), updated)


def updated_state_bytes(recipe: TrainingRecipe) -> float:
    """Bytes per parameter of optimizer states: moments, and the fp32 copy of 16-bit weights."""
    moments = {"adam": 2, "adamw": 2, "sgd": 1}[recipe.optimizer]
    if recipe.precision in ("fp32", "tf32"):
        return 4.0 * moments
    if recipe.reduce_precision in ("bf16", "fp16"):
        return HALF * moments
    return 4.0 * (1 + moments)


def main_grad_bytes(recipe: TrainingRecipe) -> float:
    """Bytes of one accumulated gradient; gradients are reduced over replicas at this width."""
    return HALF if recipe.reduce_precision in ("bf16", "fp16") else 4.0


Numbers = float | NDArray[Any]


def sharded_state_bytes(
    num_parameters: Numbers, states: StateBytes, zero_stage: Numbers, data: Numbers
) -> dict[str, NDArray[np.float64]]:
    """Bytes of each model state on ranks; arguments are numbers or arrays that broadcast."""
    shard = [np.where(zero_stage >= stage, 1.0 / data, 1.0) for stage in (3, 2, 1)]
    return {
        name: np.multiply(num_parameters, n_bytes * share)
        for (name, n_bytes), share in zip(asdict(states).items(), shard, strict=True)
    }


def stage_parameters(part: LayerSlice, num_layers: int, first: bool, last: bool) -> float:
    """Parameters of one tensor rank of a stage: its layers, the embedding, the LM head."""
    counts = parameters(part.model)
    total = num_layers * counts.layer / part.tensor
    table = padded_vocab_size(part.model, part.tensor) * part.model.hidden_size / part.tensor
    positions = counts.embedding - part.model.vocab_size * part.model.hidden_size
    if first:
        total += table + positions
    if last and not (first and part.model.tied_embeddings):
        total += table
    return total


def logit_bytes(part: LayerSlice, positions: int) -> float:
    """Bytes of the logits of one micro-batch on one tensor rank."""
    rows = padded_vocab_size(part.model, part.tensor) / part.tensor
    return LOGIT_BYTES * part.micro_batch_size * positions * rows
