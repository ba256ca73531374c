"""Memory in closed form."""

from __future__ import annotations

from types import ModuleType

import pytest

from perfsim.costs.memory import (
    MemoryUse,
    StateBytes,
    logit_bytes,
    stage_parameters,
    state_bytes,
)
from perfsim.work.counts import parameters
from perfsim.work.kernels import LayerSlice


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({"precision": "bf16"}, (2, 4, 12)),
        ({"precision": "fp16"}, (2, 4, 12)),
        ({"precision": "fp16", "reduce_precision": "fp16"}, (2, 2, 16)),
        ({"precision": "fp8"}, (2, 4, 12)),
        ({"precision": "fp32"}, (4, 4, 8)),
        ({"precision": "tf32"}, (4, 4, 8)),
        ({"precision": "fp32", "reduce_precision": "bf16"}, (4, 4, 8)),
        ({"precision": "bf16", "reduce_precision": "bf16"}, (2, 2, 16)),
        (
            {"precision": "bf16", "reduce_precision": "bf16", "optimizer_precision": "bf16"},
            (2, 2, 4),
        ),
        ({"precision": "bf16", "optimizer": "sgd"}, (2, 4, 8)),
    ],
    ids=[
        "bf16",
        "fp16",
        "fp16 gradients",
        "fp8",
        "fp32",
        "tf32",
        "bf16 on the wire only",
        "bf16 gradients",
        "pure bf16",
        "sgd",
    ],
)
def test_states_a_parameter_follow_from_precision_and_optimizer(
    toys: ModuleType, recipe: dict[str, str], expected: tuple[float, float, float]
) -> None:
    assert state_bytes(toys.recipe(**recipe))[:3] == expected


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
@pytest.mark.parametrize(("reduced", "expected"), [(None, 4.0), ("fp32", 4.0), ("bf16", 2.0), ("fp16", 2.0)])
def test_gradients_are_held_as_they_are_reduced(
    toys: ModuleType, precision: str, reduced: str | None, expected: float
) -> None:
    recipe = toys.recipe(precision=precision, reduce_precision=reduced)
    assert state_bytes(recipe).reduced == state_bytes(recipe).gradients == expected


def test_a_narrower_wire_does_not_narrow_fp32_gradients(toys: ModuleType) -> None:
    recipe = toys.recipe(precision="fp32", reduce_precision="bf16")
    assert (state_bytes(recipe).reduced, state_bytes(recipe).gradients) == (2.0, 4.0)


def test_the_precision_of_the_wire_leaves_the_optimizers_states(toys: ModuleType) -> None:
    wire = {"reduce_precision": "bf16"}
    pure = {"optimizer_precision": "bf16"}
    assert state_bytes(toys.recipe(**wire)).updated == state_bytes(toys.recipe()).updated == 12.0
    assert state_bytes(toys.recipe(**wire, **pure)).updated == 4.0


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(0, (2, 4, 12)), (1, (2, 4, 3)), (2, (2, 1, 3)), (3, (0.5, 1, 3))],
)
def test_each_zero_stage_shards_one_more_state(stage: int, expected: tuple[float, ...]) -> None:
    parts = StateBytes(2, 4, 12, 8, 12, 4).sharded(100.0, stage, data=4)
    assert tuple(parts.values()) == tuple(100 * each for each in expected)


# ------------------------------------------------------------------------------------- a stage
@pytest.fixture
def part(toys: ModuleType) -> LayerSlice:
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


def test_an_untied_head_is_a_table_of_its_own(toys: ModuleType) -> None:
    untied = LayerSlice(toys.model(tied_embeddings=False), 1024, 2)
    assert stage_parameters(untied, 0, first=True, last=True) == 2 * TABLE + POSITIONS


def test_tensor_ranks_share_layers_and_words(toys: ModuleType) -> None:
    cut = LayerSlice(toys.model(), 1024, 2, tensor=4)
    body = parameters(cut.model).of()
    assert stage_parameters(cut, 1, first=True, last=False) == body / 4 + TABLE / 4 + POSITIONS


def test_logits_are_held_in_half_precision_and_in_fp32(part: LayerSlice) -> None:
    """Only those of the positions that reach the head."""
    assert logit_bytes(part, 1024) == 6 * 2 * 1024 * 51200
    assert logit_bytes(part, 16) == 6 * 2 * 16 * 51200


# --------------------------------------------------------------------------------------- a use
def test_a_use_adds_up_and_names_its_largest_part() -> None:
    use = MemoryUse("stage 0", {"parameters": 3.0, "activations": 5.0}, 8.0)
    assert (use.total_bytes, use.fits) == (8.0, True)
    assert not MemoryUse("stage 0", {"parameters": 8.1}, 8.0).fits


def test_a_fused_cross_entropy_keeps_no_fp32_copy_of_the_logits(toys: ModuleType) -> None:
    fused = (
        logit_bytes(LayerSlice(toys.model(), 1024, 2, element_bytes=size, fused_cross_entropy=True), 1024)
        for size in (2.0, 4.0)
    )
    assert list(fused) == [2 * 2 * 1024 * 51200, 4 * 2 * 1024 * 51200]


def test_logits_in_fp32_need_no_copy(toys: ModuleType) -> None:
    half, full = (
        logit_bytes(LayerSlice(toys.model(), 1024, 2, element_bytes=size), 1024) for size in (2.0, 4.0)
    )
    assert (half, full) == (6 * 2 * 1024 * 51200, 4 * 2 * 1024 * 51200)
