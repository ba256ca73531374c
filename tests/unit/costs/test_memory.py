"""Memory in closed form, and what optimizers keep and compute."""

from dataclasses import replace

import pytest

from perfsim.costs.memory import MemoryUse, logit_bytes, orthogonalisation_flop, state_bytes, update_products
from perfsim.testing import toys
from perfsim.work.counts import parameters
from perfsim.work.kernels import LayerSlice


@pytest.mark.parametrize(
    ("recipe", "held", "reduced", "updated"),
    [
        ({"precision": "bf16"}, (2, 4, 12), 4, 12),
        ({"precision": "fp16"}, (2, 4, 12), 4, 12),
        ({"precision": "fp16", "reduce_precision": "fp16"}, (2, 2, 16), 2, 12),
        ({"precision": "fp8"}, (2, 4, 12), 4, 12),
        ({"precision": "fp8", "reduce_precision": "fp32"}, (2, 4, 12), 4, 12),
        ({"precision": "fp8", "reduce_precision": "bf16"}, (2, 2, 16), 2, 12),
        ({"precision": "fp32"}, (4, 4, 8), 4, 8),
        ({"precision": "tf32"}, (4, 4, 8), 4, 8),
        ({"precision": "fp32", "reduce_precision": "bf16"}, (4, 4, 8), 2, 8),
        ({"precision": "bf16", "reduce_precision": "bf16"}, (2, 2, 16), 2, 12),
        ({"reduce_precision": "bf16", "optimizer_precision": "bf16"}, (2, 2, 4), 2, 4),
        ({"precision": "bf16", "optimizer": "sgd"}, (2, 4, 8), 4, 8),
        ({"precision": "bf16", "moment_precision": "bf16"}, (2, 4, 8), 4, 8),
        ({"optimizer": "adam8bit"}, (2, 4, 6 + 8 / 2048), 4, 6 + 8 / 2048),
        ({"optimizer": "muon"}, (2, 4, 8), 4, 8),
    ],
)
def test_states_a_parameter_follow_from_precision_and_optimizer(
    recipe: dict[str, str], held: tuple[float, float, float], reduced: float, updated: float
) -> None:
    """Gradients are held as they are reduced, but a narrower wire does not narrow those in fp32.

    Megatron-LM, docs/source/api-guide/dist_optimizer.md, lists the same for its precisions.
    """
    states = state_bytes(toys.recipe(**recipe))
    assert (states[:3], states.reduced, states.updated) == (held, reduced, updated)


@pytest.mark.parametrize(
    ("stage", "expected"), [(0, (2, 4, 12)), (1, (2, 4, 3)), (2, (2, 1, 3)), (3, (0.5, 1, 3))]
)
def test_each_zero_stage_shards_one_more_state(stage: int, expected: tuple[float, ...]) -> None:
    parts = state_bytes(toys.recipe()).sharded(100.0, stage, data=4)
    assert tuple(parts.values()) == tuple(100 * part for part in expected)


@pytest.fixture
def part() -> LayerSlice:
    return LayerSlice(toys.model(), 1024, 2)


@pytest.mark.parametrize(
    ("element_bytes", "fused", "held"), [(2.0, False, 6), (2.0, True, 2), (4.0, False, 4), (4.0, True, 4)]
)
def test_logits_are_held_in_half_precision_and_in_fp32_unless_they_are_fused_or_in_fp32(
    part: LayerSlice, element_bytes: float, fused: bool, held: int
) -> None:
    """Only those of the positions that reach the head."""
    changed = replace(part, element_bytes=element_bytes, fused_cross_entropy=fused)
    for positions in (16, 1024):
        assert logit_bytes(changed, positions) == held * 2 * positions * 51200


def test_a_use_adds_up_and_names_its_largest_part() -> None:
    use = MemoryUse("stage 0", {"parameters": 3.0, "activations": 5.0}, 8.0)
    assert (use.total_bytes, use.fits) == (8.0, True)
    assert not MemoryUse("stage 0", {"parameters": 8.1}, 8.0).fits


H = 2048
F = 8192
LAYERS = 8


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
