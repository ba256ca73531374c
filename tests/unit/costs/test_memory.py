"""Memory in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfsim.costs.memory import (
    MemoryUse,
    StateBytes,
    logit_bytes,
    stage_parameters,
    state_bytes,
)
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
    ],
)
def test_states_a_parameter_follow_from_precision_and_optimizer(
    recipe: dict[str, str], held: tuple[int, int, int], reduced: int, updated: int
) -> None:
    """Gradients are held as they are reduced, but a narrower wire does not narrow those in fp32."""
    states = state_bytes(toys.recipe(**recipe))
    assert (states[:3], states.reduced, states.updated) == (held, reduced, updated)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(0, (2, 4, 12)), (1, (2, 4, 3)), (2, (2, 1, 3)), (3, (0.5, 1, 3))],
)
def test_each_zero_stage_shards_one_more_state(stage: int, expected: tuple[float, ...]) -> None:
    parts = StateBytes(2, 4, 12, 8, 12, 4).sharded(100.0, stage, data=4)
    assert tuple(parts.values()) == tuple(100 * part for part in expected)


# ------------------------------------------------------------------------------------- a stage
@pytest.fixture
def part() -> LayerSlice:
    return LayerSlice(toys.model(), 1024, 2)


TABLE = 51200 * 2048
POSITIONS = 1024 * 2048


@pytest.mark.parametrize(
    ("first", "last", "tables"),
    [
        (False, False, 0),
        (True, False, TABLE + POSITIONS),
        (False, True, TABLE),
        (True, True, TABLE + POSITIONS),
    ],
)
def test_the_ends_hold_the_tables(part: LayerSlice, first: bool, last: bool, tables: int) -> None:
    layers = 3 * parameters(part.model).of()
    assert stage_parameters(part, 3, first, last) == layers + tables


def test_an_untied_head_is_a_table_of_its_own() -> None:
    untied = LayerSlice(toys.model(tied_embeddings=False), 1024, 2)
    assert stage_parameters(untied, 0, first=True, last=True) == 2 * TABLE + POSITIONS


def test_tensor_ranks_share_layers_and_words() -> None:
    cut = LayerSlice(toys.model(), 1024, 2, tensor=4)
    body = parameters(cut.model).of()
    assert stage_parameters(cut, 1, first=True, last=False) == body / 4 + TABLE / 4 + POSITIONS


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


# --------------------------------------------------------------------------------------- a use
def test_a_use_adds_up_and_names_its_largest_part() -> None:
    use = MemoryUse("stage 0", {"parameters": 3.0, "activations": 5.0}, 8.0)
    assert (use.total_bytes, use.fits) == (8.0, True)
    assert not MemoryUse("stage 0", {"parameters": 8.1}, 8.0).fits
