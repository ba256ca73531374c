"""A model grown or shrunk to a number of parameters: depth, width and heads of a real shape.

Heads keep their width, the MLP and experts their ratio to the model's width; vocabulary, key and value heads
and the number of experts stay. Width over depth follows published models.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from perfsim.base.errors import InputError
from perfsim.base.sizes import MOST_LAYERS
from perfsim.specs.model import TransformerConfig
from perfsim.work.counts import parameters

ASPECT = ((1e8, 1.3e9, 6.7e9), (77.0, 85.0, 128.0))
"""Parameters, and width over layers, linear in the log: Cerebras-GPT [2304.03208], GPT-3 [2005.14165]."""
EVEN = ((32, 8), (24, 2))
"""From the first number on, heads (first pair) and layers are multiples of the second, for degrees."""
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
        raise InputError(words, f"the nearest has {found:.3g}; begin with another model")
    return best


def _shapes(model: TransformerConfig, num_parameters: float, aspect: float) -> Iterator[TransformerConfig]:
    """At every width the depth with about as many parameters, where its aspect is like the published."""
    groups = model.num_query_groups or 1
    unit = model.head_size * groups if model.head_dim is None and model.latent_attention is None else WIDTHS
    experts = model.experts
    step = 1 if experts is None else experts.interval
    fewest = step if experts is None else experts.first_dense_layers + step
    width = layers = 0
    while layers == 0 or (layers >= fewest and width / layers <= FARTHEST * aspect):
        width += unit
        times = width / model.hidden_size
        heads = max(1, round(model.num_attention_heads * times / groups)) * groups
        if heads >= EVEN[0][0] and heads % EVEN[0][1]:
            continue
        sizes: dict[str, Any] = {"hidden_size": width, "num_attention_heads": heads}
        sizes["ffn_hidden_size"] = 64 * round(model.ffn_hidden_size * times / 64)
        if experts is not None:
            inner = ("ffn_hidden_size", "shared_ffn_hidden_size")
            widths = {name: 64 * round(getattr(experts, name) * times / 64) for name in inner}
            sizes["experts"] = experts.model_copy(update=widths)
        ends = (model.model_copy(update=sizes | {"num_layers": count}) for count in (fewest, fewest + step))
        one, two = (parameters(end).total for end in ends)
        depth = fewest + (num_parameters - one) / (two - one) * step
        even = step * (EVEN[1][1] if depth > EVEN[1][0] else 1)
        layers = max(even * round(depth / even), 1)
        if fewest <= layers <= MOST_LAYERS and aspect / FARTHEST <= width / layers <= FARTHEST * aspect:
            yield model.model_copy(update=sizes | {"num_layers": layers})
