"""Loss from parameters and tokens, and its inverse: the tokens that reach a loss.

Losses are nats per token and belong to the corpus and tokenizer of their law; do not mix scales.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfsim.errors import InputError, PlanError


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be positive and finite, got {value:g}")


@dataclass(frozen=True, slots=True)
class ChinchillaLaw:
    """L(N, D) = irreducible + a / N^alpha + b / D^beta with C = 6 N D (Hoffmann et al., arXiv 2203.15556)."""

    name: str
    irreducible: float
    a: float
    alpha: float
    b: float
    beta: float
    source: str

    def loss(self, params: float, tokens: float) -> float:
        """Nats per token after `tokens` tokens with `params` parameters."""
        _positive(params=params, tokens=tokens)
        return self.smallest_loss(params) + self.b / math.pow(tokens, self.beta)

    def smallest_loss(self, params: float) -> float:
        """The loss that a model of this size approaches with unlimited data."""
        _positive(params=params)
        return self.irreducible + self.a / math.pow(params, self.alpha)

    def tokens_to_loss(self, loss: float, params: float) -> float:
        """D_min = (b / (L - irreducible - a / N^alpha))^(1 / beta), examples at small batch.

        Raises PlanError where the model is too small for the loss.
        """
        _positive(loss=loss)
        floor = self.smallest_loss(params)
        if loss <= floor:
            raise PlanError(
                f"a model of {params:.3g} parameters is too small for a loss of {loss:g}: with unlimited "
                f"tokens it approaches {floor:.4f} nats per token (law '{self.name}'); raise the target loss "
                "or the model size"
            )
        return math.pow(self.b / (loss - floor), 1 / self.beta)


BESIROGLU = ChinchillaLaw(
    "besiroglu", 1.8172, 482.01, 0.3478, 2085.43, 0.3658, "Besiroglu et al. 2024, arXiv 2404.10102"
)
DEFAULT_LOSS_LAW = BESIROGLU
