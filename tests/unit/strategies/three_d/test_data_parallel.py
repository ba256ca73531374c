"""The optimizer's bytes and the reductions of a data-parallel group."""

from __future__ import annotations

import math
from types import ModuleType

import pytest

from perfsim.strategies.three_d.data import Replicas, optimizer_bytes
from perfsim.work import RankGroup


def replicas(toys: ModuleType, zero_stage: int = 0, **recipe: object) -> Replicas:
    return Replicas(toys.recipe(**recipe), RankGroup(0, 2, 4), "gpu0", 1000.0, zero_stage)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        # update: gradient 4, states 12 read and written, half weights 2; unscale, norm, clip, zero: 6 x 4
        ({"precision": "bf16"}, 4 + 24 + 2 + 24),
        # pure bf16: everything in 2 bytes
        ({"reduce_precision": "bf16", "optimizer_precision": "bf16"}, 2 + 8 + 2 + 12),
        # bf16 gradients, fp32 optimizer: copied (2 + 4), used and clipped in fp32, zeroed in bf16
        ({"reduce_precision": "bf16"}, 6 + 4 + 24 + 2 + 20 + 2),
        # fp32: moments 8 read and written, weights 4
        ({"precision": "fp32"}, 4 + 16 + 4 + 24),
    ],
)
def test_an_optimizer_step_moves_states_both_ways(
    toys: ModuleType, recipe: dict[str, object], expected: float
) -> None:
    assert optimizer_bytes(toys.recipe(**recipe)) == expected


def fused_launches(layers: int) -> int:
    """Kernels of apex's optimizer step for so many layers (csrc/multi_tensor_apply.cuh).

    One launch takes 110 tensors of one list, 64 pairs or 36 sets of four. A launch that is full of chunks
    before it is full of tensors is not counted: it runs far longer than the host needs for the next one.
    """
    tensors = 12 * layers + 4  # 4 weights, 4 biases, 2 norms of 2 vectors; both tables and the final norm
    unscale = clip = copy = math.ceil(tensors / 64)
    norm = math.ceil(tensors / 110) + 1
    update = math.ceil(tensors / 36)
    zero = 1
    return unscale + norm + clip + update + copy + zero


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_an_optimizer_step_launches_the_fused_kernels_of_8_to_32_layers(
    toys: ModuleType, zero_stage: int
) -> None:
    (kernel,) = replicas(toys, zero_stage).optimizer_work().kernels
    assert (fused_launches(8), fused_launches(32)) == (12, 38)
    assert 12 <= kernel.launches <= 38


def test_sgd_moves_less_than_adam(toys: ModuleType) -> None:
    assert optimizer_bytes(toys.recipe(optimizer="sgd")) < optimizer_bytes(toys.recipe())


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(("reduced", "n_bytes"), [(None, 4), ("fp32", 4), ("bf16", 2), ("fp16", 2)])
def test_gradients_travel_in_their_own_precision(
    toys: ModuleType, precision: str, reduced: str | None, n_bytes: int
) -> None:
    group = replicas(toys, precision=precision, reduce_precision=reduced)
    assert group.reduce_work(10.0).comm_bytes == 10 * n_bytes


@pytest.mark.parametrize(("zero_stage", "op"), [(0, "all_reduce"), (1, "reduce_scatter")])
def test_sharding_scatters_instead_of_reducing_to_all(toys: ModuleType, zero_stage: int, op: str) -> None:
    work = replicas(toys, zero_stage).reduce_work(10.0)
    assert (work.op, work.group) == (op, RankGroup(0, 2, 4))


@pytest.mark.parametrize(("precision", "n_bytes"), [("bf16", 2), ("fp8", 2), ("fp32", 4), ("tf32", 4)])
def test_parameters_are_gathered_in_the_precision_of_the_kernels(
    toys: ModuleType, precision: str, n_bytes: int
) -> None:
    group = replicas(toys, 1, precision=precision)
    assert group.gather_work(1000.0).comm_bytes == n_bytes * 1000.0
    assert group.optimizer_work().writes[0].n_bytes == n_bytes * 1000.0 / 4


def test_a_shard_updates_its_share(toys: ModuleType) -> None:
    whole, shard = (replicas(toys, stage).optimizer_work().bytes_accessed for stage in (0, 1))
    assert whole == 4 * shard
