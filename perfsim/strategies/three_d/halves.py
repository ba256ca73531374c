"""The halves of a layer, attention and MLP, on one rank: each writes the same few passes.

Here are those that a rank computes in one task a pass. A half whose ranks exchange something inside it
overrides what it writes (`context.py`, `expert.py`); `layer.py` joins two halves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, NamedTuple

from perfsim import transformer
from perfsim.graph import Kind, Template, TensorClass, Work
from perfsim.transformer import Kernel, LayerSlice

COMPUTE = "compute"
"""The compute stream of a device."""
Forward = Literal["forward", "recompute"]
Backward = Literal["backward", "dgrad"]
"""A backward, or its input gradients where the schedule splits it."""
HalfPass = Literal["forward", "recompute", "backward", "dgrad", "wgrad"]
Block = Callable[[LayerSlice], tuple[Kernel, ...]]
"""The kernels of a block in one pass."""


def compute_work(
    name: str, category: str, kernels: tuple[Kernel, ...], writes: tuple[TensorClass, ...]
) -> Work:
    """A class of compute tasks on one rank."""
    return Work(name, Kind.COMP, name, category, kernels=kernels, writes=writes)


def half_work(name: str, which: HalfPass, kernels: tuple[Kernel, ...], *writes: TensorClass) -> Work:
    """Compute of a half, or of a part of it, in one pass."""
    category = which if which in ("forward", "recompute") else "backward"
    return compute_work(f"{name}.{which}", category, kernels, writes)


@lru_cache(maxsize=4096)
def attention_work(part: LayerSlice, which: HalfPass, mode: str = "none") -> Work:
    """The compute of an attention block; `mode` decides what its recompute runs again."""
    blocks: dict[HalfPass, Block] = {
        "forward": transformer.attention_forward,
        "recompute": partial(transformer.attention_recompute, recompute=mode),
        "backward": transformer.attention_backward,
        "dgrad": transformer.attention_dgrad,
        "wgrad": transformer.attention_wgrad,
    }
    writes = _written(part, which)
    if which == "dgrad":
        writes.append(TensorClass("weight_inputs", transformer.attention_weight_input_bytes(part)))
    return half_work("attention", which, blocks[which](part), *writes)


@lru_cache(maxsize=4096)
def mlp_work(part: LayerSlice, which: HalfPass, mode: str = "none") -> Work:
    """The compute of an MLP block; `mode` decides what its forward keeps and its recompute runs again."""
    blocks: dict[HalfPass, Block] = {
        "forward": transformer.mlp_forward,
        "recompute": partial(transformer.mlp_recompute, recompute=mode),
        "backward": transformer.mlp_backward,
        "dgrad": transformer.mlp_dgrad,
        "wgrad": transformer.mlp_wgrad,
    }
    kernels, writes = blocks[which](part), _written(part, which)
    if which == "forward":
        kernels += transformer.mlp_residual(part)
        writes.append(TensorClass("saved", transformer.layer_activation_bytes(part, mode)))
    elif which == "dgrad":
        writes.append(TensorClass("weight_inputs", transformer.mlp_weight_input_bytes(part)))
    return half_work("mlp", which, kernels, *writes)


def _written(part: LayerSlice, which: HalfPass) -> list[TensorClass]:
    """What every pass writes."""
    name, n_bytes = ("weight_gradient", 0.0) if which == "wgrad" else ("hidden", part.activation_bytes)
    return [TensorClass(name, n_bytes)]


class Made(NamedTuple):
    """What a pass of a half makes, as handles."""

    output: int
    """The hidden activation, or the gradient of the half's input."""
    kept: int
    """What a later pass reads: the tensor that a forward saves, or the inputs of the weight gradients."""


@dataclass(frozen=True)
class Half(ABC):
    """Attention, or what follows it, of one layer on one rank: one task a pass, unless it overrides that."""

    part: LayerSlice
    device: str
    mode: str
    """The recompute mode of the layer."""

    @property
    def compute(self) -> str:
        """The compute stream of the rank."""
        return f"{self.device}/{COMPUTE}"

    @property
    def divided(self) -> bool:
        """Whether each tensor peer computes its own positions, not a share of the sum for all of them."""
        return False

    @property
    def repeats(self) -> bool:
        """Whether the recompute mode runs it again before its backward."""
        return self.mode != "none"

    @abstractmethod
    def works(self, which: HalfPass) -> Sequence[Work]:
        """The works of a pass that run one after the other."""

    def forward(self, template: Template, which: Forward, reads: Sequence[int], block: int) -> Made:
        """Write the forward or its repetition; `block` is the number of the layer."""
        return self._task(template, self.works(which)[0], reads, block)

    def backward(
        self, template: Template, which: Backward, reads: Sequence[int], block: int, after: Sequence[int] = ()
    ) -> Made:
        """Write the backward.

        `reads` are the gradient of the half's output, what the layer's forward saved, and what was gathered
        or recomputed; `after` are tasks that must end first.
        """
        return self._task(template, self.works(which)[0], reads, block, after)

    def wgrad(self, template: Template, reads: Sequence[int], block: int, after: Sequence[int] = ()) -> int:
        """Write the weight gradients of a split backward; returns their tensor."""
        return self._task(template, self.works("wgrad")[0], reads, block, after).output

    def _task(
        self, template: Template, work: Work, reads: Sequence[int], block: int, after: Sequence[int] = ()
    ) -> Made:
        first = template.task(work, self.compute, reads, after, block=block).tensor
        return Made(first, first + len(work.writes) - 1)


@dataclass(frozen=True)
class Attention(Half):
    """Attention of a rank that has all positions of its sequences."""

    def works(self, which: HalfPass) -> Sequence[Work]:
        """The attention block, in one work."""
        return [attention_work(self.part, which, self.mode)]

    def backward(
        self, template: Template, which: Backward, reads: Sequence[int], block: int, after: Sequence[int] = ()
    ) -> Made:
        """Write the backward; what is recomputed ended before the gradient that it reads."""
        return super().backward(template, which, reads[:2], block, after)


@dataclass(frozen=True)
class Mlp(Half):
    """The MLP of a layer without experts."""

    @property
    def repeats(self) -> bool:
        """Whether the recompute mode runs some of it again."""
        return bool(transformer.mlp_recompute(self.part, self.mode))

    def works(self, which: HalfPass) -> Sequence[Work]:
        """The MLP block, in one work."""
        return [mlp_work(self.part, which, self.mode)]
