"""What an optimizer keeps and computes for each parameter, by recipe.

| optimizer | moments | source |
|---|---|---|
| adam, adamw | two, in `moment_precision` | 1412.6980 |
| adam8bit | two of 8 bits, and an fp32 scale for each block of 2,048 numbers | 2110.02861 |
| muon | one for the matrices of layers, two for all else, which Adam updates | 2502.16982 |
| sgd | one | |

Muon orthogonalises the momentum of every matrix by five Newton-Schulz iterations of three products. With a
the shorter and b the longer side of a matrix an iteration does 4 a^2 b + 2 a^3 FLOPs, which per parameter is
4 a + 2 a^2 / b: as much as the training of some thousand tokens.
"""

from __future__ import annotations

import math
from functools import lru_cache

from perfsim.transformer import Kernel, LayerSlice, gemm, parameters, weight_matrices
from perfsim.workload import PRECISION_BYTES, TrainingRecipe, TransformerConfig, layer_kinds

NEWTON_SCHULZ_ITERATIONS = 5
SCALE_BLOCK = 2048
"""Numbers of 8-bit moments with one scale in fp32."""
QUANTISED_BYTES = 1.0 + 4.0 / SCALE_BLOCK


def moment_bytes(recipe: TrainingRecipe, model: TransformerConfig | None = None) -> float:
    """Bytes of the moments of a parameter, in the mean over `model`; None: of a matrix of a layer."""
    size = PRECISION_BYTES[recipe.moment_precision or recipe.optimizer_precision]
    if recipe.optimizer == "adam8bit":
        return 2 * QUANTISED_BYTES
    if recipe.optimizer == "muon":
        return size * (2.0 - (1.0 if model is None else share_of_matrices(model)))
    return size * (1 if recipe.optimizer == "sgd" else 2)


def share_of_matrices(model: TransformerConfig) -> float:
    """Share of a model's parameters in the matrices of layers, which Muon updates."""
    counts = parameters(model)
    return counts.body_matrices / counts.total


@lru_cache(maxsize=256)
def newton_schulz_flop(model: TransformerConfig) -> float:
    """FLOPs of the orthogonalisation of a step, per parameter of the model."""
    total = 0.0
    for kind in layer_kinds(model):
        for rows, columns, count in weight_matrices(LayerSlice(model, 1, 1, kind=kind)):
            a, b = sorted((rows, columns))
            total += count * (4.0 * a * a * b + 2.0 * a**3)
    return NEWTON_SCHULZ_ITERATIONS * total / parameters(model).total


def update_products(
    recipe: TrainingRecipe, model: TransformerConfig | None, num_parameters: float
) -> tuple[Kernel, ...]:
    """The matrix products of an update of some parameters on one rank, as squares of the hidden size.

    assumed: ranks that shard the states divide whole matrices among them, so that none is gathered for it.
    """
    if recipe.optimizer != "muon" or model is None or num_parameters <= 0:
        return ()
    side, flop = model.hidden_size, newton_schulz_flop(model) * num_parameters
    return (gemm("muon", side, side, side, batch=max(1, math.ceil(flop / (2.0 * side**3)))),)
