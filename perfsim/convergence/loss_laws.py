"""Loss against parameters and tokens, and back: which number of tokens reaches a loss.

Losses are nats per token and belong to the corpus and tokenizer of their law; do not mix scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from perfsim.errors import InputError, PlanError

FLOP_PER_PF_DAY = 8.64e19


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
        """What a model of this size approaches with unlimited data."""
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
        """Slope d ln D / d L = -D^beta / (beta b): by what fraction the tokens move with the loss.

        At 4e11 tokens 0.01 nat is 20 % of them: compare machines at one D_min.
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


@dataclass(frozen=True, slots=True)
class KaplanOptimum:
    """Kaplan's compute-efficient run: parameters without embeddings, batch, steps and tokens."""

    params: float
    batch_tokens: float
    steps: float
    tokens: float


KAPLAN_ALPHA_STEPS, KAPLAN_ALPHA_PARAMS, KAPLAN_ALPHA_BATCH = 0.76, 0.077, 0.21


def kaplan_loss(params: float, min_steps: float) -> float:
    """L(N, S_min) = (6.5e13 / N)^0.077 + (2.1e3 / S_min)^0.76, N without embeddings, loss of WebText2.

    Kaplan et al. 2020, arXiv 2001.08361, eq. 1.6. S_min = S / (1 + B_crit / B).
    """
    _positive(params=params, min_steps=min_steps)
    return math.pow(6.5e13 / params, KAPLAN_ALPHA_PARAMS) + math.pow(2.1e3 / min_steps, KAPLAN_ALPHA_STEPS)


def kaplan_loss_of_tokens(params: float, tokens: float) -> float:
    """L(N, D) = ((8.8e13 / N)^(0.076/0.095) + 5.4e13 / D)^0.095.

    The same paper, eq. 1.5 with the constants of eqs. 1.1 and 1.2.
    """
    _positive(params=params, tokens=tokens)
    return math.pow(math.pow(8.8e13 / params, 0.076 / 0.095) + 5.4e13 / tokens, 0.095)


def kaplan_loss_of_compute(compute_flop: float) -> float:
    """L(C_min) = (3.1e8 / C_min)^0.050 with C_min in PF-days; the same paper, eq. 1.3."""
    _positive(compute_flop=compute_flop)
    return math.pow(3.1e8 * FLOP_PER_PF_DAY / compute_flop, 0.05)


def kaplan_optimum(compute_flop: float) -> KaplanOptimum:
    """The compute-efficient run of the same paper's Table 6 at C_min."""
    _positive(compute_flop=compute_flop)
    c = compute_flop / FLOP_PER_PF_DAY
    return KaplanOptimum(
        1.3e9 * math.pow(c, 0.73),
        2.0e6 * math.pow(c, 0.24),
        5.4e3 * math.pow(c, 0.03),
        2e10 * math.pow(c, 0.27),
    )


def kaplan_compute_exponent() -> float:
    """1 / (1/alpha_S + 1/alpha_B + 1/alpha_N): how the loss falls with C_min. The paper prints 0.054."""
    return 1 / (1 / KAPLAN_ALPHA_STEPS + 1 / KAPLAN_ALPHA_BATCH + 1 / KAPLAN_ALPHA_PARAMS)


def kaplan_overfitting_bound_tokens(params: float) -> float:
    """Tokens below which a model of this size overfits, 5e3 N^0.74; the same paper, section 4.2."""
    _positive(params=params)
    return 5e3 * math.pow(params, 0.74)
