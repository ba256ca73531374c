"""What a layer keeps from its forward to its backward, by recompute mode."""

from __future__ import annotations

from typing import NamedTuple

from perfsim.proof.execution.experts import BlockKept
from perfsim.proof.execution.layers import AttentionKept, MlpKept, without_core
from perfsim.proof.execution.layout import Array, Share
from perfsim.proof.execution.projections import Results, every_second
from perfsim.workload import TrainingRecipe

OPERATORS = "operators"
"""The mode of a selective recompute that keeps the results of some operators."""


class Kept(NamedTuple):
    """Activations that a layer keeps: all, all but the attention core, or only its input and some results."""

    attention: AttentionKept | None
    mlp: MlpKept | BlockKept | None
    x: Array
    results: Results | None = None
    """What products made, if a recompute keeps it."""
    context: Array | None = None
    """What the core made, if a recompute keeps it."""


def kept_by(
    mode: str, recipe: TrainingRecipe, share: Share, attention: AttentionKept, mlp: MlpKept | BlockKept
) -> Kept:
    """What a layer under a recompute mode keeps; by operator experts are kept whole."""
    results, context = dict(attention.results or {}), None
    if mode == "full":
        results.pop("projection", None)
        return Kept(None, None, attention.x, results if recipe.recompute_keeps == "qkv" else None)
    if mode == OPERATORS:
        if isinstance(mlp, MlpKept):
            results["fc1"] = mlp.u
        if recipe.attention == "flash":
            context = attention.context
        whole = mlp if isinstance(mlp, BlockKept) else None
        return Kept(None, whole, attention.x, every_second(results, share), context)
    return Kept(without_core(attention) if mode == "selective" else attention, mlp, attention.x)
