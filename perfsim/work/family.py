"""A model grown or shrunk to a number of parameters: depth, width and heads of a real shape.

Width and depth keep the aspect of published models, width over layers: 77 at 0.1 billion parameters and 85 at
1.3 (the rows of Cerebras-GPT, [2304.03208] table 1, and of GPT-3, [2005.14165] table 2.1), 128 from 6.7 on
(GPT-3, Llama). Heads keep their width, the MLP and experts their ratio to the model's width; vocabulary, key
and value heads and the number of experts stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from perfsim.base.errors import InputError, Problem
from perfsim.base.sizes import MOST_LAYERS
from perfsim.specs.model import TransformerConfig
from perfsim.work.counts import parameters

ASPECT = ((1e8, 1.3e9, 6.7e9), (77.0, 85.0, 128.0))
"""Parameters, and width over layers; between them linear in the log."""
EVEN = ((32, 8), (24, 2))
"""From so many heads and so many layers on they are multiples of these, so that degrees divide them."""
WIDTHS = 128
"""Widths are multiples of it, where heads do not ask for another number."""
FARTHEST = 2.0
"""How far the aspect may be from the published one, as a factor."""
WEIGHT = 0.02
"""What a deviation of the aspect counts, against one of the parameters."""


@lru_cache(maxsize=256)
def scaled(model: TransformerConfig, num_parameters: float) -> TransformerConfig:
    """The shape of this family whose parameters are nearest. Raises InputError where none is within 5 %."""
    aspect = float(np.interp(math.log(num_parameters), np.log(ASPECT[0]), ASPECT[1]))

    def far(shape: TransformerConfig) -> float:
        off = abs(math.log(shape.hidden_size / shape.num_layers / aspect))
        return abs(math.log(parameters(shape).total / num_parameters)) + WEIGHT * off

    best = min(_shapes(model, num_parameters, aspect), key=far, default=model)
    found = float(parameters(best).total)
    if abs(found / num_parameters - 1) > 0.05:
        words = f"no shape like {model.name} has {num_parameters:.3g} parameters"
        raise InputError([Problem(words, help=f"the nearest has {found:.3g}; begin with another model")])
    return best


def _shapes(model: TransformerConfig, num_parameters: float, aspect: float) -> Iterator[TransformerConfig]:
    """At every width the depth with about as many parameters, where its aspect is like the published."""
    groups = model.num_query_groups or 1
    own_width = model.head_dim is None and model.latent_attention is None
    unit = model.head_size * groups if own_width else WIDTHS
    experts = model.experts
    fewest = 1 if experts is None else experts.first_dense_layers + experts.interval
    width = 0
    while True:
        width += unit
        times = width / model.hidden_size
        heads = max(1, round(model.num_attention_heads * times / groups)) * groups
        if heads >= EVEN[0][0] and heads % EVEN[0][1]:
            continue
        update: dict[str, Any] = {"hidden_size": width, "num_attention_heads": heads}
        update["ffn_hidden_size"] = _rounded(model.ffn_hidden_size * times)
        if experts is not None:
            inner = ("ffn_hidden_size", "shared_ffn_hidden_size")
            sizes = {name: _rounded(getattr(experts, name) * times) for name in inner}
            update["experts"] = experts.model_copy(update=sizes)
        step = 1 if experts is None else experts.interval
        one, two = (
            parameters(model.model_copy(update=update | {"num_layers": count})).total
            for count in (fewest, fewest + step)
        )
        depth = fewest + (num_parameters - one) / (two - one) * step
        step *= EVEN[1][1] if depth > EVEN[1][0] else 1
        layers = step * round(depth / step)
        if layers < fewest or width / layers > FARTHEST * aspect:
            return
        if layers <= MOST_LAYERS and width / layers >= aspect / FARTHEST:
            yield model.model_copy(update=update | {"num_layers": layers})


def _rounded(size: float) -> int:
    """A width of the MLP: a multiple of 64."""
    return 64 * round(size / 64)
