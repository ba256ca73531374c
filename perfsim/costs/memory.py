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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfsim.specs.model import TransformerConfig, layer_kinds
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.recipe import Recipe
from perfsim.work.counts import parameters
from perfsim.work.kernels import FULL, Kernel, LayerSlice, gemm
from perfsim.work.layer import attention_products, mlp_products, padded_vocab_size


@lru_cache(maxsize=256)
def orthogonalisation_flop(recipe: Recipe, model: TransformerConfig) -> float:
    """FLOPs of the orthogonalisations of a step, per parameter of the model; 0 for most optimizers.

    With a the shorter and b the longer side of a matrix, a Newton-Schulz iteration does 4 a^2 b + 2 a^3 FLOPs
    in three products. For Muon's five this is as much as the training of some thousand tokens.
    """
    iterations = OPTIMIZERS[recipe.optimizer].orthogonalisations
    if not iterations:
        return 0.0
    total = 0.0
    for kind in layer_kinds(model):
        layer = LayerSlice(model, 1, 1, kind=kind)
        for product in (*attention_products(layer), *mlp_products(layer)):
            a, b = sorted((product.k, product.n))
            total += product.batch * (4.0 * a * a * b + 2.0 * a**3)
    return iterations * (total / parameters(model).total)


def update_products(
    recipe: Recipe, model: TransformerConfig | None, num_parameters: float
) -> tuple[Kernel, ...]:
    """The matrix products of an update of some parameters on one rank, as squares of the hidden size.

    assumed: ranks that shard the states divide whole matrices among them, so that none is gathered for it.
    """
    if model is None or num_parameters <= 0 or not OPTIMIZERS[recipe.optimizer].orthogonalisations:
        return ()
    side = model.hidden_size
    flop = orthogonalisation_flop(recipe, model) * num_parameters
    return (gemm(recipe.optimizer, side, side, side, batch=max(1, math.ceil(flop / (2.0 * side**3)))),)


@dataclass(frozen=True)
class MemoryUse:
    """Peak memory use of one place, by part."""

    place: str
    """The pipeline stage, or the wafer."""
    parts_bytes: Mapping[str, float]
    """Bytes by part: parameters, gradients, activations, ..."""
    capacity_bytes: float
    """Memory that one has."""
    on_device: bool = True
    """False for memory outside the devices, such as MemoryX."""

    @property
    def total_bytes(self) -> float:
        return sum(self.parts_bytes.values())

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes


Numbers = float | NDArray[Any]


class _StateBytes(NamedTuple):
    """Bytes per parameter of the model states, before sharding, and of what training makes of them."""

    parameters: float
    gradients: float
    """Of one accumulated gradient: as it is reduced, but no narrower than an element."""
    optimizer: float
    """All that the optimizer keeps, with a copy of narrower gradients."""
    moments: float
    """Of the moments, in the mean over the parameters of a model."""
    updated: float
    """All that the optimizer updates: moments, and the copy of narrower weights."""
    reduced: float
    """Of a gradient on the wire between replicas.

    Megatron-LM accumulates and reduces gradients in one buffer: in fp32, or with `--grad-reduce-in-bf16` (or
    fp16 without `--accumulate-allreduce-grads-in-fp32`) in 16 bits.
    """

    def sharded(
        self, num_parameters: Numbers, zero_stage: Numbers, data: Numbers
    ) -> dict[str, NDArray[np.float64]]:
        """Bytes of each model state on ranks; arguments are numbers or arrays that broadcast."""
        first_stage = {"parameters": 3, "gradients": 2, "optimizer": 1}
        return {
            name: np.multiply(num_parameters, n_bytes * np.where(zero_stage >= stage, 1.0 / data, 1.0))
            for (name, stage), n_bytes in zip(first_stage.items(), self, strict=False)
        }


@lru_cache(maxsize=256)
def state_bytes(recipe: Recipe, model: TransformerConfig | None = None) -> _StateBytes:
    """Bytes per parameter under a recipe's precisions, in the mean over `model`; None: of a matrix."""
    row = OPTIMIZERS[recipe.optimizer]
    size = row.moment_bytes
    if size is None:
        size = PRECISIONS[recipe.moment_precision or recipe.optimizer_precision].bytes
    of_matrices = 1.0 if model is None else parameters(model).body_matrices / parameters(model).total
    moments = size * (row.moments - (row.moments - row.matrix_moments) * of_matrices)
    states = PRECISIONS[recipe.optimizer_precision].bytes
    reduced = PRECISIONS[recipe.reduce_precision or "fp32"].bytes
    gradients = max(recipe.element_bytes, reduced)
    updated = moments + (states if recipe.element_bytes < states else 0.0)
    copied = states if gradients < states else 0.0
    return _StateBytes(recipe.element_bytes, gradients, updated + copied, moments, updated, reduced)


def shares_words(model: TransformerConfig) -> bool:
    """Whether both ends of a pipeline hold the embedding: tied to the LM head, or for later tokens."""
    return model.tied_embeddings or model.mtp_num_layers > 0


def stage_parameters(
    part: LayerSlice, num_layers: int, first: bool, last: bool, *, apart: bool = False
) -> float:
    """Parameters of one tensor rank of a stage: its layers, the embedding, the LM head.

    Where the LM head is `apart` from the embedding, multi-token prediction next to it has a copy of that.
    """
    counts = parameters(part.model)
    total = num_layers * (counts.on_tensor_rank(part.kind, part.tensor) + routed_parameters(part))
    table = padded_vocab_size(part.model, part.tensor) * part.model.hidden_size / part.tensor
    positions = counts.embedding - part.model.vocab_size * part.model.hidden_size
    embeds = first or (last and apart and part.model.mtp_num_layers > 0)
    if embeds:
        total += table + positions
    if last and not (embeds and part.model.tied_embeddings):
        total += table
    return total


def routed_parameters(part: LayerSlice) -> float:
    """Parameters of the experts of a layer on one of the ranks that share them."""
    return parameters(part.model).routed_of(part.kind) / (part.expert * part.expert_split)


def logit_bytes(part: LayerSlice, positions: int) -> float:
    """Bytes of the logits of one micro-batch on one tensor rank: in fp32, and as the 16-bit original."""
    rows = padded_vocab_size(part.model, part.tensor) / part.tensor
    original = part.element_bytes if part.element_bytes < FULL else 0.0
    # A fused cross-entropy keeps the original only, and puts its gradient in its place.
    copied = 0.0 if part.fused_cross_entropy and original else FULL
    return (copied + original) * part.micro_batch_size * positions * rows
