"""Modules of multi-token prediction in NumPy, float64: what they add to their layer [2412.19437 2.2].

Before the layer the hidden state and the embedding of a later token, each through a norm, are joined and
projected; behind it are a norm, the model's own LM head and the loss of the token after that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfsim.proof.execution.layout import Array, Share, Weights
from perfsim.proof.execution.projections import NormKept, norm_backward, norm_forward, outer
from perfsim.proof.execution.vocabulary import Tokens, embedding_forward

LOSS_WEIGHT = 0.3
"""Of the mean loss of all modules beside that of the model itself [2412.19437 4.2]."""


class Joined(NamedTuple):
    """The input of a module's layer, and what the backward of its projection needs."""

    x: Array
    both: Array
    hidden: NormKept
    words: NormKept


class JointInputs(NamedTuple):
    """What the gradients of a projection's weights and of embeddings are computed from."""

    both: Array
    d_joined: Array
    norms: Weights
    d_words: Array


def join(w: Weights, table: Weights, x: Array, tokens: Tokens, share: Share) -> Joined:
    """Hidden states joined with the embeddings of later tokens."""
    hidden, of_hidden = norm_forward(x, w, "mtp_hidden")
    words, of_words = norm_forward(embedding_forward(table, tokens, share), w, "mtp_words")
    both = np.concatenate([hidden, words], axis=-1)
    return Joined(both @ w["mtp_joint"], both, of_hidden, of_words)


def join_dgrad(w: Weights, kept: Joined, d_joined: Array) -> tuple[Array, JointInputs]:
    """Gradient of the hidden states, and the inputs of the other gradients."""
    d_hidden, d_words = np.split(d_joined @ w["mtp_joint"].T, 2, axis=-1)
    dx, of_hidden = norm_backward(d_hidden, w, "mtp_hidden", kept.hidden)
    d_words, of_words = norm_backward(d_words, w, "mtp_words", kept.words)
    return dx, JointInputs(kept.both, d_joined, of_hidden | of_words, d_words)


def join_wgrad(inputs: JointInputs) -> Weights:
    """Gradients of the projection and its norms."""
    return {"mtp_joint": outer(inputs.both, inputs.d_joined)} | inputs.norms


def head_of(w: Weights, head: Weights) -> Weights:
    """The model's LM head behind a module's own norm."""
    own = {
        f"norm1{name[len('mtp_norm') :]}": value for name, value in w.items() if name.startswith("mtp_norm")
    }
    return head | own


def norm_of_head(norm: Weights) -> Weights:
    """Gradients of a module's own norm from those of the norm of its LM head."""
    return {f"mtp_norm{name[len('norm1') :]}": value for name, value in norm.items()}
