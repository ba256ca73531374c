"""Loss from parameters and tokens, and its inverse: the tokens that reach a loss.

Losses are nats per token and belong to the corpus and tokenizer of their law; do not mix scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from perfsim.errors import InputError, PlanError


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be positive and finite, got {value:g}")


@dataclass(frozen=True, slots=True)
class Optimum:
    """The compute-optimal model and the tokens to train it on."""

    params: float
    tokens: float


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
    warning: str = ""

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

        Raises PlanError where the model is too small for the loss. Report `log_tokens_per_nat` next to it.
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

    def log_tokens_per_nat(self, tokens: float) -> float:
        """Slope d ln D / d L = -D^beta / (beta b): relative change of the tokens per nat.

        At 4e11 tokens 0.01 nat changes them by 20 %, so compare machines at the same D_min.
        """
        _positive(tokens=tokens)
        return -math.pow(tokens, self.beta) / (self.beta * self.b)

    def optimum(self, compute_flop: float) -> Optimum:
        """N = G (C/6)^(beta/(alpha+beta)), D = C / (6 N), G = (alpha a / (beta b))^(1/(alpha+beta))."""
        _positive(compute_flop=compute_flop)
        total = self.alpha + self.beta
        scale = math.pow(self.alpha * self.a / (self.beta * self.b), 1 / total)
        params = scale * math.pow(compute_flop / 6, self.beta / total)
        return Optimum(params, compute_flop / (6 * params))


BESIROGLU = ChinchillaLaw(
    "besiroglu", 1.8172, 482.01, 0.3478, 2085.43, 0.3658, "Besiroglu et al. 2024, arXiv 2404.10102"
)
HOFFMANN = ChinchillaLaw(
    "hoffmann",
    1.69,
    406.4,
    0.34,
    410.7,
    0.28,
    "Hoffmann et al. 2022, arXiv 2203.15556, as printed (rounded)",
    warning="the printed constants are rounded and give 93 tokens a parameter where the paper trained on 20",
)
LOSS_LAWS: Mapping[str, ChinchillaLaw] = {law.name: law for law in (BESIROGLU, HOFFMANN)}
DEFAULT_LOSS_LAW = BESIROGLU
