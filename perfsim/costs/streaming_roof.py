"""Where streamed weights take longer to arrive than to use: the roof of weight streaming, in tokens.

A weight that crosses the link in b / B seconds is used once a token, in 2 / (e P) seconds. Streaming is
hidden while T tokens take longer than the weight:

    T >= e P b / (2 B)        e efficiency, P peak FLOP/s, b bytes a weight, B bytes/s of the link

Sparsity cancels, but for the index that travels with a weight: it is part of b. 49,867 tokens at 7.48
PFLOP/s, 2 bytes and 150 GB/s; a Model Zoo configuration of GPT-3 13B (release 1.7.1) wants more than 24
sequences of 2,048 tokens, 49,152.
"""

from __future__ import annotations

from collections.abc import Callable

MOST_SEQUENCES = 2**20


def roof_tokens(flop_per_s: float, weight_bytes: float, link_bytes_per_s: float) -> float:
    """Tokens of one pass under which a weight's way takes longer than its use; `flop_per_s` is e P."""
    return flop_per_s * weight_bytes / (2.0 * link_bytes_per_s)


def hidden_from_sequences(use_s: Callable[[int], float], load_s: float) -> float:
    """The same with all that a layer does: sequences at once whose use of it takes as long as its way.

    `use_s` gives the seconds of a layer's forward for a number of sequences; between two whole numbers it
    is read as a straight line. 0 where no sequence is needed, infinite where none suffice.
    """
    high = 1
    while use_s(high) < load_s:
        high *= 2
        if high > MOST_SEQUENCES:
            return float("inf")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if use_s(middle) < load_s else (low, middle)
    low = max(low, 1)
    below_s, above_s = use_s(low), use_s(low + 1)
    return max(0.0, low + (load_s - below_s) / (above_s - below_s))
