"""The compute of one layer on one rank, as classes of work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from perfsim import transformer
from perfsim.graph import Kind, TensorClass, Work
from perfsim.transformer import Kernel, LayerSlice

COMPUTE = "compute"
"""The compute stream of a device."""


def compute_work(
    name: str, category: str, kernels: tuple[Kernel, ...], writes: tuple[TensorClass, ...]
) -> Work:
    """A class of compute tasks on one rank."""
    return Work(name, Kind.COMP, name, category, kernels=kernels, writes=writes)


@dataclass(frozen=True)
class LayerWorks:
    """Compute of one layer, attention and MLP, for one micro-batch on one rank; written when first read.

    full: attention and MLP run forward again before their backward; selective: only the attention core, or as
    the framework says (`transformer/recompute.py`).
    """

    part: LayerSlice
    recompute: str

    @cached_property
    def attention_forward(self) -> Work:
        """The attention block forward."""
        kernels = transformer.attention_forward(self.part)
        return compute_work("attention.forward", "forward", kernels, (_hidden(self.part),))

    @cached_property
    def mlp_forward(self) -> Work:
        """The MLP block forward, which ends with what the layer saves."""
        part = self.part
        saved = TensorClass("saved", transformer.layer_activation_bytes(part, self.recompute))
        kernels = (*transformer.mlp_forward(part), *transformer.mlp_residual(part))
        return compute_work("mlp.forward", "forward", kernels, (_hidden(part), saved))

    @cached_property
    def attention_recompute(self) -> Work | None:
        """What of the attention block runs again; None: nothing."""
        kernels = transformer.attention_recompute(self.part, self.recompute)
        writes = (_hidden(self.part),)
        return compute_work("attention.recompute", "recompute", kernels, writes) if kernels else None

    @cached_property
    def mlp_recompute(self) -> Work | None:
        """What of the MLP block runs again; None: nothing."""
        kernels = transformer.mlp_recompute(self.part, self.recompute)
        return compute_work("mlp.recompute", "recompute", kernels, (_hidden(self.part),)) if kernels else None

    @cached_property
    def mlp_backward(self) -> Work:
        """The MLP block backward."""
        kernels = transformer.mlp_backward(self.part)
        return compute_work("mlp.backward", "backward", kernels, (_hidden(self.part),))

    @cached_property
    def attention_backward(self) -> Work:
        """The attention block backward."""
        kernels = transformer.attention_backward(self.part)
        return compute_work("attention.backward", "backward", kernels, (_hidden(self.part),))


layer_works = lru_cache(maxsize=1024)(LayerWorks)
"""The compute of one layer under a recompute mode, the same object for the same share."""


@dataclass(frozen=True)
class SplitWorks:
    """The backward of one layer where weight gradients are a separate pass; written when first read.

    Input gradients also write the inputs of weight gradients.
    """

    part: LayerSlice

    @cached_property
    def mlp_dgrad(self) -> Work:
        """Input gradients of the MLP block."""
        kept = TensorClass("weight_inputs", transformer.mlp_weight_input_bytes(self.part))
        writes = (_hidden(self.part), kept)
        return compute_work("mlp.dgrad", "backward", transformer.mlp_dgrad(self.part), writes)

    @cached_property
    def attention_dgrad(self) -> Work:
        """Input gradients of the attention block."""
        kept = TensorClass("weight_inputs", transformer.attention_weight_input_bytes(self.part))
        writes = (_hidden(self.part), kept)
        return compute_work("attention.dgrad", "backward", transformer.attention_dgrad(self.part), writes)

    @cached_property
    def mlp_wgrad(self) -> Work:
        """Weight gradients of the MLP block."""
        return compute_work("mlp.wgrad", "backward", transformer.mlp_wgrad(self.part), _DONE)

    @cached_property
    def attention_wgrad(self) -> Work:
        """Weight gradients of the attention block."""
        return compute_work("attention.wgrad", "backward", transformer.attention_wgrad(self.part), _DONE)


split_works = lru_cache(maxsize=1024)(SplitWorks)
"""The split backward of one layer, the same object for the same share."""

_DONE = (TensorClass("weight_gradient", 0.0),)


def _hidden(part: LayerSlice) -> TensorClass:
    """The hidden activation that every block writes."""
    return TensorClass("hidden", part.activation_bytes)
