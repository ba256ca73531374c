"""Where streamed weights take longer to arrive than to use: the roof of weight streaming, in tokens.

A weight that crosses the link in b / B seconds is used once a token, in 2 / (e P) seconds. Streaming is
hidden while T tokens take longer than the weight:

    T >= e P b / (2 B)        e efficiency, P peak FLOP/s, b bytes a weight, B bytes/s of the link

Sparsity cancels, but for the index that travels with a weight: it is part of b. 49,867 tokens at 7.48
PFLOP/s, 2 bytes and 150 GB/s; a Model Zoo configuration of GPT-3 13B (release 1.7.1) wants more than 24
sequences of 2,048 tokens, 49,152.
"""

from __future__ import annotations

from dataclasses import dataclass

HIDES = {"link": "a layer's weights", "flash": "what flash moves", "update": "the updates"}
"""What tokens hide, by the lane that moves it."""


@dataclass(frozen=True, slots=True)
class StreamingRoof:
    """How near a step is to waiting for streamed weights, in tokens of one micro-batch on one system."""

    tokens: float
    hidden_from_tokens: float
    """Fewer than this, and a layer's weights arrive later than the layer before is done with."""
    formula_tokens: float
    """e P b / (2 B): the same without attention and without movement over the mesh."""
    lane: str = "link"
    """What needs most tokens to be hidden: the link, flash or updates."""


def roof_tokens(flop_per_s: float, weight_bytes: float, link_bytes_per_s: float) -> float:
    """Tokens of one pass under which a weight's way takes longer than its use; `flop_per_s` is e P."""
    return flop_per_s * weight_bytes / (2.0 * link_bytes_per_s)


def hidden_from_tokens(tokens: float, use_s: float, fixed_s: float, load_s: float) -> float:
    """The same with all that a layer does besides: attention, movement over the mesh.

    A layer uses its weights for `use_s` on `tokens` tokens, a straight line in tokens that starts at
    `fixed_s`; they take `load_s` to arrive. 0 where the fixed time alone hides them.
    """
    return max(0.0, load_s - fixed_s) / ((use_s - fixed_s) / tokens)
