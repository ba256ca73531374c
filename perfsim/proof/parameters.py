"""The part of each tensor of a model that one rank holds.

The parameters of a block (embedding, one layer, its routed experts, LM head) are one flat vector of named
parts, as in distributed optimizers; a ZeRO shard is an equal part of each of its named tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from perfsim.base.arrays import Floats
from perfsim.specs.model import TransformerConfig, layer_kinds
from perfsim.work import EMBEDDING, HEAD
from perfsim.work.tensors import AXES, EXPERTS, Divider, is_whole, tensors_of

Weights = dict[str, Floats]
WORDS = {EMBEDDING: "words", HEAD: "head_words"}
"""The table of words in both blocks that have one."""

_ADDED_ONCE = ("projection_bias", "fc2_bias", "shared_fc2_bias", "positions")
"""Whole on every tensor peer, which all have their whole gradient; only the first adds them."""


class Place(NamedTuple):
    """One of `of` ranks that divide something."""

    of: int = 1
    number: int = 0


ALONE = Place()


@dataclass(frozen=True)
class Share:
    """The share of a model, for sequences of `seq_length`, that one rank holds."""

    model: TransformerConfig
    seq_length: int
    tensor: Place = ALONE
    some_positions: tuple[int, ...] | None = None
    """The positions of a sequence that it computes; None: all."""
    expert: Place = ALONE
    """Among ranks with different experts."""
    expert_tensor: Place = ALONE
    """Among ranks that share every expert."""
    whole_layers: bool = False
    """Whether routed experts are in the block of their layer, as where layers stream."""
    window: int | None = None
    """Positions that a position attends to, in a layer with a window; None: all."""

    def of_layer(self, layer: int) -> Share:
        """The share with the attention window of a block, if that is a layer with one."""
        return self._windowed[layer] if layer >= 0 else self

    @cached_property
    def _windowed(self) -> list[Share]:
        inside = replace(self, window=self.model.sliding_window)
        return [self if kind.window is None else inside for kind in layer_kinds(self.model)]

    def divider(self, axis: str) -> Place:
        """The place of the rank among those that divide an axis; the only one if nobody does."""
        divided = AXES[axis].divided
        return ALONE if divided is None else getattr(self, divided)

    def length(self, axis: str) -> int:
        """Entries of an axis that it holds; where they do not divide evenly, every rank pads to the same."""
        return -(-AXES[axis].length(self.model) // self.divider(axis).of)

    @property
    def own_experts(self) -> range:
        count = self.length("e")
        return range(self.expert.number * count, (self.expert.number + 1) * count)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        return tuple(range(self.seq_length)) if self.some_positions is None else self.some_positions

    @cached_property
    def heads(self) -> int:
        return self.model.num_attention_heads // self.tensor.of

    @cached_property
    def groups(self) -> int:
        return self.model.query_groups // self.tensor.of

    @cached_property
    def rows(self) -> int:
        """Rows of the vocabulary, padded so that every peer has the same number."""
        return self.length("v")

    @property
    def first_row(self) -> int:
        return self.tensor.number * self.rows

    @property
    def real_rows(self) -> int:
        """Rows of the vocabulary of this peer that do not pad it."""
        return max(0, min(self.rows, self.model.vocab_size - self.first_row))

    @property
    def leads(self) -> bool:
        """Whether it adds the terms that must enter a sum over the peers only once."""
        return self.tensor.number == 0

    @cached_property
    def layouts(self) -> Mapping[int, _BlockLayout]:
        """Where the parameters of each block are in its flat vector; equal layers share one layout."""
        kinds = layer_kinds(self.model)
        key_of = {
            block: kinds[block] if 0 <= block < EXPERTS else min(block, EXPERTS)
            for block in blocks(self.model)
        }
        made = {key: _BlockLayout(self, block) for block, key in key_of.items()}
        return {block: made[key] for block, key in key_of.items()}

    def axes(self, block: int) -> dict[str, str]:
        """The tensors of a block with their axes; of a layer with its experts if they are in its block."""
        if not 0 <= block < EXPERTS:
            return tensors_of(self.model, min(block, EXPERTS))
        kind = layer_kinds(self.model)[block]
        together = tensors_of(self.model, EXPERTS) if self.whole_layers and kind.experts else {}
        return tensors_of(self.model, kind) | together

    def flat(self, whole: Mapping[int, Weights], block: int) -> Floats:
        """The rank's part of each tensor of a block, as a flat vector; what does not divide is padded."""
        axes = self.axes(block)
        experts = whole.get(EXPERTS + block, {}) if self.whole_layers and block >= 0 else {}
        parts = whole[block] | experts
        return self.layouts[block].flat((name, self._cut(value, axes[name])) for name, value in parts.items())

    def _cut(self, value: Floats, axes: str) -> Floats:
        for number, axis in enumerate(axes):
            place, length = self.divider(axis), self.length(axis)
            if place.of == 1:
                continue
            if missing := length * place.of - value.shape[number]:
                value = np.pad(value, [(0, missing if other == number else 0) for other in range(len(axes))])
            value = np.split(value, place.of, axis=number)[place.number]
        return value

    def counts(self, name: str, axes: str) -> bool:
        """Whether this rank counts a tensor in the norm of all gradients.

        Every parameter counts once, as in Megatron-LM (`param_is_not_shared`,
        `param_is_not_tensor_parallel_duplicate`): of ranks that hold the same the first counts it, and the
        embedding counts words that it shares with the LM head.
        """
        if name == WORDS[HEAD] and self.model.tied_embeddings:
            return False
        holders: tuple[Divider, ...] = ("expert_tensor",) if name.startswith("expert_") else ("tensor",)
        divided = {AXES[axis].divided for axis in axes}
        return all(other in divided or getattr(self, other).number == 0 for other in holders)


class _BlockLayout:
    """The named parts of one block in its flat vector."""

    def __init__(self, share: Share, block: int) -> None:
        self.share = share
        axes = self.axes = share.axes(block)
        self.shapes = {name: tuple(map(share.length, of)) for name, of in axes.items()}
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        ends = np.cumsum([0, *self.sizes.values()]).tolist()
        self.parts = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(self.shapes)}
        self.size = int(ends[-1])
        self.summed = [
            name
            for name, of in axes.items()
            if is_whole(of) and not (name.startswith("expert_") or name in _ADDED_ONCE)
        ]
        """Tensors that every peer holds whole; the sum of what peers make is their gradient."""

    @cached_property
    def counted(self) -> Floats:
        """1 for the entries that this rank counts in the norm of all gradients, 0 for the others."""
        counts = ((name, self.share.counts(name, axes)) for name, axes in self.axes.items())
        return self.flat((name, np.full(self.shapes[name], counted)) for name, counted in counts)

    def views(self, flat: Floats) -> Weights:
        """The named parts of a flat vector."""
        return {name: flat[part].reshape(self.shapes[name]) for name, part in self.parts.items()}

    def flat(self, parts: Iterable[tuple[str, Floats]]) -> Floats:
        """The flat vector of named parts, summed by name."""
        result = np.zeros(self.size)
        for name, value in parts:
            result[self.parts[name]] += value.ravel()
        return result

    def gradient(self, gradients: Iterable[tuple[str, Callable[[], Floats]]]) -> Floats:
        """The flat vector of gradients, computed now; gradients of other blocks' weights are left out."""
        return self.flat((name, gradient()) for name, gradient in gradients if name in self.parts)

    def shard(self, flat: Floats, place: Place) -> Floats:
        """One of equal parts of each named tensor, padded with zeros."""
        padded = []
        for name, part in self.parts.items():
            padded.append(np.zeros((place.of, -(-self.sizes[name] // place.of))))
            padded[-1].ravel()[: self.sizes[name]] = flat[part]
        return np.concatenate([parts[place.number] for parts in padded])

    def whole(self, shards: Sequence[Floats]) -> Floats:
        rows = np.stack(shards)
        parts = {name: rows[:, self.part_of_shard(name, len(shards))] for name in self.sizes}
        return np.concatenate([parts[name].ravel()[:size] for name, size in self.sizes.items()])

    def part_of_shard(self, name: str, shards: int) -> slice:
        lengths = [-(-size // shards) for size in self.sizes.values()]
        number = list(self.sizes).index(name)
        return slice(sum(lengths[:number]), sum(lengths[: number + 1]))


def blocks(model: TransformerConfig) -> list[int]:
    """All blocks of a model in the order of the forward."""
    kinds = layer_kinds(model)
    experts = [EXPERTS + layer for layer, kind in enumerate(kinds) if kind.experts]
    return [EMBEDDING, *range(len(kinds)), *experts, HEAD]
