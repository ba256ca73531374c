"""Memory in closed form: model states and activations, per pipeline stage.

Model states a parameter [Megatron-LM README, distributed optimizer]: with bf16, parameters 2, fp32
gradients 4 and the optimizer 12 (fp32 copy and two moments); with fp16, parameters 2, gradients 2 and
the optimizer 16, since the fp32 main gradients are sharded with it. Pure bf16 keeps every one of the
four at 2 bytes. ZeRO 1 shards the optimizer over the data-parallel ranks, ZeRO 2 the gradients as
well, ZeRO 3 the parameters too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfsim.transformer import (
    HALF,
    LayerSlice,
    attention_weight_input_bytes,
    head_weight_input_bytes,
    layer_activation_bytes,
    mlp_weight_input_bytes,
    padded_vocab_size,
    parameters,
)
from perfsim.workload import ParallelLayout, TrainingRecipe

LOGIT_BYTES = 6.0
"""A logit in half precision and its copy in fp32."""


@dataclass(frozen=True)
class MemoryUse:
    """What one place holds at its peak."""

    place: str
    parts_bytes: Mapping[str, float]
    capacity_bytes: float
    on_device: bool = True
    """False for a store beside the devices, such as MemoryX."""

    @property
    def total_bytes(self) -> float:
        return sum(self.parts_bytes.values())

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes

    @property
    def largest_part(self) -> str:
        return max(self.parts_bytes, key=lambda part: self.parts_bytes[part])


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes a parameter of each model state, before sharding."""

    parameters: float
    gradients: float
    optimizer: float


def state_bytes(recipe: TrainingRecipe) -> StateBytes:
    """Model states a parameter under a recipe's precision."""
    updated = updated_state_bytes(recipe)
    if recipe.precision in ("fp32", "tf32"):
        return StateBytes(4.0, 4.0, updated)
    if recipe.reduce_precision in ("bf16", "fp16"):
        return StateBytes(HALF, HALF, updated)
    if recipe.precision == "fp16":
        return StateBytes(HALF, HALF, updated + main_grad_bytes(recipe))
    return StateBytes(HALF, main_grad_bytes(recipe), updated)


def updated_state_bytes(recipe: TrainingRecipe) -> float:
    """Bytes a parameter that the optimizer reads and writes: moments, and the fp32 copy of 16-bit weights."""
    moments = {"adam": 2, "adamw": 2, "sgd": 1}[recipe.optimizer]
    if recipe.precision in ("fp32", "tf32"):
        return 4.0 * moments
    if recipe.reduce_precision in ("bf16", "fp16"):
        return HALF * moments
    return 4.0 * (1 + moments)


def main_grad_bytes(recipe: TrainingRecipe) -> float:
    """Bytes of one accumulated gradient, which is also what is reduced among replicas."""
    return HALF if recipe.reduce_precision in ("bf16", "fp16") else 4.0


def sharded_state_bytes(
    num_parameters: float, states: StateBytes, zero_stage: int, data: int
) -> dict[str, float]:
    """Bytes of each model state on one rank."""
    shard = [1.0 / data if zero_stage >= stage else 1.0 for stage in (3, 2, 1)]
    return {
        "parameters": num_parameters * states.parameters * shard[0],
        "gradients": num_parameters * states.gradients * shard[1],
        "optimizer": num_parameters * states.optimizer * shard[2],
    }


def stage_parameters(part: LayerSlice, num_layers: int, first: bool, last: bool) -> float:
    """Parameters of one tensor rank of a stage: its layers, the embedding, the head."""
    counts = parameters(part.model)
    total = num_layers * counts.layer / part.tensor
    table = padded_vocab_size(part.model, part.tensor) * part.model.hidden_size / part.tensor
    positions = counts.embedding - part.model.vocab_size * part.model.hidden_size
    if first:
        total += table + positions
    if last and not (first and part.model.tied_embeddings):
        total += table
    return total


def stage_activation_bytes(part: LayerSlice, layout: ParallelLayout, layers: float) -> float:
    """Activations that one micro-batch leaves on a stage of `layers` layers."""
    return layers * layer_activation_bytes(part, layout.recompute)


def stage_weight_input_bytes(
    part: LayerSlice, layers: float, positions: int, first: bool, last: bool
) -> float:
    """What one micro-batch's weight gradients still need of a stage once its backward is over.

    Inputs and output gradients of all linear layers and norms, whatever the recompute mode; with the
    head the gradient of the logits, with the embedding that of its output.
    """
    total = layers * (attention_weight_input_bytes(part) + mlp_weight_input_bytes(part))
    if first:
        total += part.activation_bytes
    if last:
        total += head_weight_input_bytes(part, positions)
    return total


def stage_working_bytes(part: LayerSlice, layout: ParallelLayout, positions: int, last: bool) -> float:
    """What one pass needs for itself: a layer made again, and the logits on the last stage."""
    working = 0.0
    if layout.recompute != "none":
        working = layer_activation_bytes(part, "none") - layer_activation_bytes(part, layout.recompute)
    logits = 0.0
    if last:
        rows = padded_vocab_size(part.model, part.tensor) / part.tensor
        logits = LOGIT_BYTES * part.micro_batch_size * positions * rows
    return max(working, logits)
