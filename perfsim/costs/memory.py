"""Memory in closed form: model states and activations, per pipeline stage.

Bytes of model states per parameter [Megatron-LM, distributed optimizer], before sharding over d replicas:

| parameters | gradients | bytes | with ZeRO 1 |
|---|---|---|---|
| 16 bits | fp32 | 2 + 4 + 12 | 6 + 12 / d |
| 16 bits | 16 bits | 2 + 2 + 16 | 4 + 16 / d |
| fp32 | fp32 | 4 + 4 + 8 | 8 + 8 / d |

The optimizer has two moments in fp32, and an fp32 copy of parameters and gradients that are held in 16 bits.
Pure bf16 keeps parameters, gradients and both moments in 2 bytes each (2 + 2 + 4). ZeRO 1 shards the
optimizer over the data-parallel ranks, ZeRO 2 also the gradients, ZeRO 3 also the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfsim.costs.optimizer import moment_bytes
from perfsim.transformer import (
    FULL,
    LayerSlice,
    padded_vocab_size,
    parameters,
)
from perfsim.workload import PRECISION_BYTES, TrainingRecipe, TransformerConfig


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


def state_bytes(recipe: TrainingRecipe, model: TransformerConfig | None = None) -> StateBytes:
    """Bytes per parameter of the model states under a recipe's precisions; `model` as in `moment_bytes`."""
    gradients, states = main_grad_bytes(recipe), PRECISION_BYTES[recipe.optimizer_precision]
    copied = states if gradients < states else 0.0
    return StateBytes(recipe.element_bytes, gradients, updated_state_bytes(recipe, model) + copied)


def updated_state_bytes(recipe: TrainingRecipe, model: TransformerConfig | None = None) -> float:
    """Bytes per parameter that the optimizer updates: moments, and the copy of narrower weights."""
    states = PRECISION_BYTES[recipe.optimizer_precision]
    return moment_bytes(recipe, model) + (states if recipe.element_bytes < states else 0.0)


def main_grad_bytes(recipe: TrainingRecipe) -> float:
    """Bytes of one accumulated gradient: as it is reduced, but no narrower than an element."""
    return max(recipe.element_bytes, reduced_grad_bytes(recipe))


def reduced_grad_bytes(recipe: TrainingRecipe) -> float:
    """Bytes of one gradient on the wire between replicas.

    Megatron-LM accumulates and reduces gradients in one buffer: in fp32, or with `--grad-reduce-in-bf16` (or
    fp16 without `--accumulate-allreduce-grads-in-fp32`) in 16 bits.
    """
    return PRECISION_BYTES[recipe.reduce_precision or "fp32"]


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
    total = num_layers * _share_of_layer(part)
    table = padded_vocab_size(part.model, part.tensor) * part.model.hidden_size / part.tensor
    positions = counts.embedding - part.model.vocab_size * part.model.hidden_size
    if first:
        total += table + positions
    if last and not (first and part.model.tied_embeddings):
        total += table
    return total


def routed_parameters(part: LayerSlice) -> float:
    """Parameters of the experts of a layer on one of the ranks that share them."""
    return parameters(part.model).routed_of(part.kind) / (part.expert * part.expert_split)


def _share_of_layer(part: LayerSlice) -> float:
    """Parameters of a layer on one rank; experts are divided over the ranks that share them."""
    counts = parameters(part.model)
    rest = counts.of(part.kind) - counts.routed_of(part.kind)
    return rest / part.tensor + routed_parameters(part)


def logit_bytes(part: LayerSlice, positions: int) -> float:
    """Bytes of the logits of one micro-batch on one tensor rank: in fp32, and as the 16-bit original.

    A fused cross-entropy keeps the original only, and puts its gradient in its place.
    """
    rows = padded_vocab_size(part.model, part.tensor) / part.tensor
    original = part.element_bytes if part.element_bytes < FULL else 0.0
    copied = 0.0 if part.fused_cross_entropy and original else FULL
    return (copied + original) * part.micro_batch_size * positions * rows
