"""Published laws for a *good* batch. They are starting points for a search, not critical batches."""

from __future__ import annotations

import math

from perfsim.errors import InputError


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be positive and finite, got {value:g}")
    return value


def deepseek_tokens(compute_flop: float) -> float:
    """B_opt = 0.2920 C^0.3271 tokens, C without embeddings. DeepSeek LLM, arXiv 2401.02954, eq. 1."""
    return 0.2920 * math.pow(_positive("compute_flop", compute_flop), 0.3271)


def minicpm_tokens(loss: float) -> float:
    """B_opt = 1.21e9 / L^6.24 tokens, L on the scale of C4. MiniCPM, arXiv 2404.06395, section 3.2."""
    return 1.21e9 / math.pow(_positive("loss", loss), 6.24)
