"""Serial training, with which everything is compared: its gradients by differences, Adam by closed form."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfsim.proof.operations import ATTENTION, Block
from perfsim.proof.parameters import Place
from perfsim.proof.serial import BETA1, BETA2, EPSILON, LEARNING_RATE, Moments, SmallTraining, adam, gradients
from perfsim.testing import toys


def training(**changes: Any) -> SmallTraining:
    sizes = {"num_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "ffn_hidden_size": 16}
    model = toys.model(**(sizes | {"vocab_size": 11, "max_position_embeddings": 5} | changes))
    return SmallTraining(model, seq_length=5, head_positions=4, batch=3)


def test_every_gradient_is_the_difference_quotient_of_the_loss(architecture: dict[str, Any]) -> None:
    """Behind a dense layer half of the tokens are dropped."""
    drops = "first_dense_layers" in architecture.get("experts", {})
    small = replace(training(**architecture), capacity=0.5 if drops else None)
    weights = {block: {k: v.copy() for k, v in parts.items()} for block, parts in small.initial.items()}
    if small.model.tied_embeddings:
        weights[-3]["head_words"] = weights[-2]["words"]
    derived = gradients(small, weights, 0).weight_gradients
    rng = np.random.default_rng(1)
    for block, parts in weights.items():
        for name, value in parts.items():
            index = tuple(rng.integers(0, size) for size in value.shape)
            losses = []
            for shift in (1e-5, -2e-5, 1e-5):
                value[index] += shift
                losses.append(gradients(small, weights, 0).loss)
            quotient = (losses[0] - losses[1]) / 2e-5
            assert derived[block][name][index] == pytest.approx(quotient, rel=1e-5, abs=1e-8), (block, name)


def test_in_a_window_a_position_sees_itself_and_those_just_before_it() -> None:
    small = training(sliding_window=2, num_layers=1)
    share = small.share.of_layer(0)
    x = np.random.default_rng(0).standard_normal((1, 5, 8))
    changed = x.copy()
    changed[0, 2, 0] += 1.0
    runs = [Block({"hidden": values}) for values in (x, changed)]
    for run in runs:
        run.forward(ATTENTION, small.initial[0], share)
    outputs = [run.values["attended"] for run in runs]
    differs = np.abs(outputs[0] - outputs[1]).max(axis=(0, 2)) > 1e-9
    assert differs.tolist() == [False, False, True, True, False]


def test_adam_is_its_closed_form() -> None:
    weights = np.array([1.0, -2.0, 0.5])
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((4, 3))
    moments = Moments.zero(3)
    expected = weights
    for count in range(1, 5):
        weights, moments = adam(weights, drawn[count - 1], moments)
        powers = np.arange(count)[::-1, None]
        first = ((1 - BETA1) * BETA1**powers * drawn[:count]).sum(axis=0) / (1 - BETA1**count)
        second = ((1 - BETA2) * BETA2**powers * drawn[:count] ** 2).sum(axis=0) / (1 - BETA2**count)
        expected = expected - LEARNING_RATE * first / (np.sqrt(second) + EPSILON)
        assert weights == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_shards_put_together_are_what_was_cut(shards: int) -> None:
    layout = training().share.layouts[0]
    flat = np.arange(layout.size, dtype=float)
    parts = [layout.shard(flat, Place(shards, number)) for number in range(shards)]
    assert len({part.size for part in parts}) == 1
    assert (layout.whole(parts) == flat).all()
    kept = flat[layout.parts["fc1"]][: -(-128 // shards)]
    assert (parts[0][layout.part_of_shard("fc1", shards)] == kept).all()
