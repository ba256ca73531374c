"""The optimizer's bytes and the reductions of a data-parallel group."""

from __future__ import annotations

import pytest

from perfsim.strategies.three_d.data import Replicas
from perfsim.testing import toys
from perfsim.work import RankGroup


def replicas(zero_stage: int = 0, **recipe: object) -> Replicas:
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
def test_an_optimizer_step_moves_states_both_ways(recipe: dict[str, object], expected: float) -> None:
    work = replicas(**recipe).optimizer_work()
    assert work.bytes_accessed == expected * 1000.0


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(("reduced", "n_bytes"), [(None, 4), ("fp32", 4), ("bf16", 2), ("fp16", 2)])
def test_gradients_travel_in_their_own_precision(precision: str, reduced: str | None, n_bytes: int) -> None:
    group = replicas(precision=precision, reduce_precision=reduced)
    assert group.reduce_work(10.0).comm_bytes == 10 * n_bytes


@pytest.mark.parametrize(("precision", "n_bytes"), [("bf16", 2), ("fp8", 2), ("fp32", 4), ("tf32", 4)])
def test_parameters_are_gathered_in_the_precision_of_the_kernels(precision: str, n_bytes: int) -> None:
    group = replicas(1, precision=precision)
    assert group.gather_work(1000.0).comm_bytes == n_bytes * 1000.0
    assert group.optimizer_work().writes[0].n_bytes == n_bytes * 1000.0 / 4
