"""The compute of one layer on one rank, as classes of work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from perfsim import transformer
from perfsim.graph import Kind, TensorClass, Work
from perfsim.transformer import Kernel, LayerSlice

COMPUTE = "compute"
"""The compute stream of a device."""


@dataclass(frozen=True)
class LayerWorks:
    """Compute of one layer, attention and MLP, for one micro-batch on one rank."""

    attention_forward: Work
    mlp_forward: Work
    attention_recompute: Work | None
    mlp_recompute: Work | None
    mlp_backward: Work
    attention_backward: Work


def compute_work(
    name: str, category: str, kernels: tuple[Kernel, ...], writes: tuple[TensorClass, ...]
) -> Work:
    """A class of compute tasks on one rank."""
    return Work(name, Kind.COMP, name, category, kernels=kernels, writes=writes)


@lru_cache(maxsize=512)
def layer_works(part: LayerSlice, recompute: str) -> LayerWorks:
    """The compute of one layer under a recompute mode.

    full: attention and MLP run forward again before their backward; selective: only the attention core, or as
    the framework says (`transformer/recompute.py`).
    """
    hidden = TensorClass("hidden", part.activation_bytes)
    saved = TensorClass("saved", transformer.layer_activation_bytes(part, recompute))
    attention = transformer.attention_forward(part)
    mlp = (*transformer.mlp_forward(part), *transformer.mlp_residual(part))
    recomputed = transformer.attention_recompute(part, recompute)
    recomputed_mlp = transformer.mlp_recompute(part, recompute)
    return LayerWorks(
        attention_forward=compute_work("attention.forward", "forward", attention, (hidden,)),
        mlp_forward=compute_work("mlp.forward", "forward", mlp, (hidden, saved)),
        attention_recompute=compute_work("attention.recompute", "recompute", recomputed, (hidden,))
        if recomputed
        else None,
        mlp_recompute=compute_work("mlp.recompute", "recompute", recomputed_mlp, (hidden,))
        if recomputed_mlp
        else None,
        mlp_backward=compute_work("mlp.backward", "backward", transformer.mlp_backward(part), (hidden,)),
        attention_backward=compute_work(
            "attention.backward", "backward", transformer.attention_backward(part), (hidden,)
        ),
    )


@dataclass(frozen=True)
class SplitWorks:
    """The backward of one layer where weight gradients are a separate pass."""

    mlp_dgrad: Work
    attention_dgrad: Work
    mlp_wgrad: Work
    attention_wgrad: Work


@lru_cache(maxsize=512)
def split_works(part: LayerSlice) -> SplitWorks:
    """Input gradients, which also write the inputs of weight gradients, and weight gradients."""
    hidden, done = TensorClass("hidden", part.activation_bytes), TensorClass("weight_gradient", 0.0)
    mlp = TensorClass("weight_inputs", transformer.mlp_weight_input_bytes(part))
    attention = TensorClass("weight_inputs", transformer.attention_weight_input_bytes(part))
    return SplitWorks(
        mlp_dgrad=compute_work("mlp.dgrad", "backward", transformer.mlp_dgrad(part), (hidden, mlp)),
        attention_dgrad=compute_work(
            "attention.dgrad", "backward", transformer.attention_dgrad(part), (hidden, attention)
        ),
        mlp_wgrad=compute_work("mlp.wgrad", "backward", transformer.mlp_wgrad(part), (done,)),
        attention_wgrad=compute_work(
            "attention.wgrad", "backward", transformer.attention_wgrad(part), (done,)
        ),
    )
