"""Batches that published scaling laws suggest for a study."""

from __future__ import annotations

from perfsim.convergence.batch_suggestions import deepseek_tokens, minicpm_tokens
from perfsim.studies.spec import StudySpec
from perfsim.transformer import parameters

MINICPM_SCALE = "C4"
"""The corpus on which MiniCPM's law measures its loss; the law holds for no other."""


def suggested_batches(spec: StudySpec, d_min_tokens: float) -> dict[str, float]:
    """The suggested global batch in tokens by law.

    DeepSeek's law needs the run's FLOPs without embeddings, 6 N D; MiniCPM's needs a target loss on C4.
    """
    counts = parameters(spec.model)
    compute_flop = 6.0 * counts.active_body_matrices * d_min_tokens
    suggested = {"DeepSeek LLM (arXiv 2401.02954)": deepseek_tokens(compute_flop)}
    loss = spec.recipe.target_loss
    if loss is not None and spec.convergence.loss_scale.casefold() == MINICPM_SCALE.casefold():
        suggested["MiniCPM (arXiv 2404.06395)"] = minicpm_tokens(loss)
    return suggested
