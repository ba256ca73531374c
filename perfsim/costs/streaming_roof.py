"""The roofline of weight streaming: the tokens from which compute hides the streaming of weights.

A weight crosses the link in b / B seconds and is used once per token, in 2 / (e P) seconds. Streaming is
hidden where T tokens take longer than the weight:

    T >= e P b / (2 B)        e efficiency, P peak FLOP/s, b bytes a weight, B bytes/s of the link

Sparsity cancels, except for the index of each weight, which is part of b. At 7.48 PFLOP/s, 2 bytes and
150 GB/s these are 49,867 tokens; a Model Zoo configuration of GPT-3 13B (release 1.7.1) asks for more than 24
sequences of 2,048 tokens, 49,152.
"""

from __future__ import annotations

from dataclasses import dataclass

HIDES = {"link": "a layer's weights", "flash": "what flash moves", "update": "the updates"}
"""What the compute of tokens hides, by lane."""


@dataclass(frozen=True, slots=True)
class StreamingRoof:
    """The tokens of a micro-batch on one system, compared with those that hide streaming."""

    tokens: float
    """Tokens of a micro-batch on a system."""
    hidden_from_tokens: float
    """With fewer tokens, a layer's weights arrive after the previous layer is done (weight stall)."""
    formula_tokens: float
    """e P b / (2 B): the same without attention and movement over the mesh."""
    lane: str = "link"
    """The lane that needs most tokens to be hidden: link, flash or update."""


def roof_tokens(flop_per_s: float, weight_bytes: float, link_bytes_per_s: float) -> float:
    """The tokens T of the formula above; `flop_per_s` is e P."""
    return flop_per_s * weight_bytes / (2.0 * link_bytes_per_s)


def hidden_from_tokens(tokens: float, use_s: float, fixed_s: float, load_s: float) -> float:
    """The tokens that hide streaming, with attention and movement over the mesh.

    A layer uses its weights for `use_s` on `tokens` tokens, which is linear in tokens and `fixed_s` for none;
    its weights take `load_s` to arrive. 0 where the fixed time alone hides them.
    """
    return max(0.0, load_s - fixed_s) / ((use_s - fixed_s) / tokens)
