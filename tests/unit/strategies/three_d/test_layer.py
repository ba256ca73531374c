"""The passes of a layer out of any two halves: what stands between them, and what a later pass reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import pytest

from perfsim.strategies.three_d.halves import Attention, Half, HalfPass, half_work
from perfsim.strategies.three_d.tensor import Layer, TensorGroup
from perfsim.work import GraphBuilder, RankGroup, Template, TensorClass, Work
from perfsim.work.kernels import LayerSlice


@dataclass(frozen=True)
class Lookup(Half):
    """A half that no strategy has: each tensor peer looks its own positions up."""

    own: bool = True

    @property
    def divided(self) -> bool:
        return self.own

    def works(self, which: HalfPass) -> Sequence[Work]:
        return [half_work("lookup", which, (), TensorClass("hidden", self.part.activation_bytes))]


def layer(
    toys: ModuleType, mode: str = "none", own: bool = True, peers: int = 2, below: bool = False
) -> Layer:
    part = LayerSlice(toys.model(), 64, 1, tensor=peers, sequence_parallel=True, attention="flash")
    group = TensorGroup(part, RankGroup(0, 1, peers), "gpu0")
    return Layer(group, Attention(part, "gpu0", mode), Lookup(part, "gpu0", mode, own), below)


def names(template: Template) -> list[str]:
    works = template.builder.works
    return [works[number].name.removeprefix("tensor.") for number in template.work_ids]


def test_a_divided_half_stands_between_a_reduce_scatter_and_an_all_gather(toys: ModuleType) -> None:
    template = GraphBuilder().template()
    layer(toys).forward(template, template.port("hidden"))
    assert names(template) == ["attention.forward", "reduce_scatter", "lookup.forward", "all_gather"]


def test_after_a_half_of_all_positions_its_shares_are_summed(toys: ModuleType) -> None:
    template = GraphBuilder().template()
    layer(toys, own=False).forward(template, template.port("hidden"))
    summed = ["reduce_scatter", "all_gather"]
    assert names(template) == ["attention.forward", *summed, "lookup.forward", *summed]


@pytest.mark.parametrize("below", [False, True])
def test_the_gradient_of_a_layers_input_is_gathered_unless_the_layer_below_is_divided(
    toys: ModuleType, below: bool
) -> None:
    template = GraphBuilder().template()
    gradient = template.port("gradient")
    saved = template.port("saved")
    layer(toys, below=below).backward(template, "backward", gradient, saved)
    ends = ["reduce_scatter"] if below else ["reduce_scatter", "all_gather"]
    assert names(template) == ["lookup.backward", "all_gather", "attention.backward", *ends]


def test_what_is_recomputed_comes_before_the_backward_in_the_order_of_a_forward(toys: ModuleType) -> None:
    template = GraphBuilder().template()
    layer(toys, "full").backward(template, "backward", template.port("gradient"), template.port("saved"))
    again = ["attention.recompute", "reduce_scatter", "lookup.recompute", "all_gather"]
    assert names(template)[: len(again) + 1] == [*again, "lookup.backward"]


@pytest.mark.parametrize("peers", [1, 2])
def test_weight_gradients_read_sums_over_tensor_peers_if_there_are_any(toys: ModuleType, peers: int) -> None:
    template = GraphBuilder().template()
    gradient = template.port("gradient")
    saved = template.port("saved")
    below, inputs = layer(toys, peers=peers).backward(template, "dgrad", gradient, saved)
    assert inputs[2:] == ((None, None) if peers == 1 else (inputs.mlp_sum, below))
    layer(toys, peers=peers).wgrad(template, inputs)
    assert names(template)[-2:] == ["lookup.wgrad", "attention.wgrad"]
    assert template.columns.num_reads[-2:] == ([1, 2] if peers == 1 else [2, 3])
