"""The norm of all gradients: every parameter counts once, however the model is split."""

import math
from types import ModuleType

import numpy as np
import pytest

from perfsim.proof.parameters import Place, Share, blocks
from perfsim.proof.provers import Parts
from perfsim.proof.serial import SmallTraining, clipping, train
from perfsim.specs.model import TransformerConfig
from perfsim.work.counts import parameters


def small(toys: ModuleType, tensor: int = 1, **changes: object) -> TransformerConfig:
    return Parts(tensor, tensor).model(toys.job(8, **changes).model, 2)


@pytest.mark.parametrize("peers", [1, 2, 4])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["plain", "latents", "norms of queries and keys"], indirect=True)
def test_the_peers_together_count_every_parameter_once(
    toys: ModuleType, peers: int, tied: bool, architecture: dict[str, object]
) -> None:
    model = small(toys, peers, tied_embeddings=tied, **architecture)
    length = Parts(peers, peers).sequence
    total = 0.0
    for peer in range(peers):
        layouts = Share(model, length, Place(peers, peer)).layouts
        total += sum(layouts[block].counted.sum() for block in blocks(model))
    padded = (-model.vocab_size % peers) * model.hidden_size * (1 if tied else 2)
    assert total - padded == float(parameters(model).total)


def test_gradients_within_the_limit_stay_and_others_get_its_norm() -> None:
    assert clipping(4.0, 2.1) == 1.0
    assert clipping(0.0, 1.0) == 1.0
    assert 2.0 * clipping(4.0, 0.5) == pytest.approx(0.5, rel=1e-6)
    assert clipping(4.0, math.inf) == 1.0


def test_serial_training_clips_by_the_norm_of_all_gradients(toys: ModuleType) -> None:
    model = small(toys, tied_embeddings=False)
    free = train(SmallTraining(model, 4, 4, 6, max_norm=math.inf))
    gradients = [value for parts in free[0].weight_gradients.values() for value in parts.values()]
    norm = math.sqrt(sum(float(np.sum(value**2)) for value in gradients))
    assert free[0].squared_norm == pytest.approx(norm**2)
    assert free[0].clipping == 1.0
    clipped = train(SmallTraining(model, 4, 4, 6, max_norm=norm / 2))
    assert clipped[0].clipping == pytest.approx(0.5, rel=1e-5)
    first = clipped[1].weights[0]["query"] - free[1].weights[0]["query"]
    assert np.abs(first).max() > 1e-6, "the second update depends on the first step's clipping"
