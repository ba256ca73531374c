"""What optimizers keep and compute, against counting by hand."""

from __future__ import annotations

from typing import Any

import pytest

from perfsim.costs.memory import orthogonalisation_flop, state_bytes, update_products
from perfsim.specs.layout import ParallelLayout
from perfsim.testing import toys
from perfsim.work.counts import parameters

H = 2048
F = 8192
LAYERS = 8


@pytest.mark.parametrize(
    ("recipe", "n_bytes"),
    [
        ({"optimizer": "adamw"}, 8.0),
        ({"optimizer": "adamw", "moment_precision": "bf16"}, 4.0),
        ({"optimizer": "adam8bit"}, 2 * (1 + 4 / 2048)),
        ({"optimizer": "muon"}, 4.0),
        ({"optimizer": "sgd"}, 4.0),
    ],
)
def test_moments_of_a_matrix_take_what_the_recipe_says(recipe: dict[str, Any], n_bytes: float) -> None:
    assert state_bytes(toys.recipe(**recipe)).moments == n_bytes


def test_moments_of_8_bits_have_no_other_precision() -> None:
    with pytest.raises(ValueError, match="adam8bit and moment_precision exclude each other"):
        toys.recipe(optimizer="adam8bit", moment_precision="bf16")


def test_muon_keeps_a_second_moment_of_what_adam_updates() -> None:
    model = toys.model()
    recipe = toys.recipe(optimizer="muon")
    counts = parameters(model)
    whole = state_bytes(recipe, model).moments * counts.total
    assert whole == pytest.approx(4.0 * (counts.body_matrices + 2 * (counts.total - counts.body_matrices)))
    assert counts.body_matrices == LAYERS * 12 * H**2


def test_newton_schulz_takes_4_a_squared_b_plus_2_a_cubed_for_every_matrix_and_iteration() -> None:
    """QKV h x 3h, projection h x h, and two of h x 4h."""
    matrices = [(H, 3 * H), (H, H), (H, F), (H, F)]
    layer = sum(4.0 * a * a * b + 2.0 * a**3 for a, b in matrices)
    model = toys.model()
    total = orthogonalisation_flop(toys.recipe(optimizer="muon"), model) * parameters(model).total
    assert total == pytest.approx(5 * LAYERS * layer)


def test_only_muon_multiplies_matrices_and_shards_share_them() -> None:
    model = toys.model()
    assert not update_products(toys.recipe(), model, 1e9)
    count = parameters(model).total
    muon = toys.recipe(optimizer="muon")
    (alone,), (shared,) = (update_products(muon, model, count / ranks) for ranks in (1, 8))
    assert alone.flop == pytest.approx(orthogonalisation_flop(muon, model) * count, rel=0.02)
    assert shared.flop / alone.flop == pytest.approx(1 / 8, rel=0.1)


def test_a_leaner_optimizer_frees_memory_and_moves_fewer_bytes() -> None:
    def plan(**recipe: Any) -> Any:
        job = toys.job(32, recipe)
        return toys.plan("data", job, ParallelLayout(data=2, micro_batch_size=1))

    held = {
        name: plan(optimizer=name).memory[0].parts_bytes["optimizer"] for name in ("adam", "adam8bit", "muon")
    }
    count = parameters(toys.model()).total
    assert held["adam"] - held["adam8bit"] == pytest.approx((8 - 2 * (1 + 4 / 2048)) * count, rel=0.02)
    assert held["adam8bit"] < held["muon"] < held["adam"]
