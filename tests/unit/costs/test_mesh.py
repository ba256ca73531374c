"""Products on a mesh: arithmetic, and what passes the links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.costs.wafer import WaferCosts
from perfsim.testing import toys
from perfsim.work import Kind, Work
from perfsim.work.kernels import Kernel, elementwise, gemm

SIDE = 100
RATE = 1e15
LINK = 1e-9
SRAM = 2e16


MESH = WaferCosts(toys.topology(1, toys.wafer_cluster()), toys.recipe())
MESH.flop_per_s = RATE
MESH.link_s_per_element = LINK
MESH.cores = SIDE**2
MESH.sram_bytes_per_s = SRAM

sizes = st.integers(1, 10_000)


def run(*kernels: Kernel) -> Work:
    return Work("layer.forward", Kind.COMP, "mlp", "forward", kernels)


@given(sizes, sizes, sizes, st.integers(1, 64))
def test_a_product_takes_its_arithmetic_and_one_passage_of_two_operands_over_the_links(
    m: int, n: int, k: int, batch: int
) -> None:
    """A batch of b divides the mesh in squares that work side by side: each has 1/b of cores and rate."""
    passage_s = (m * n + k * n) / (SIDE / batch**0.5) * LINK
    arithmetic_s = 2.0 * m * n * k / (RATE / batch)
    assert MESH.kernel_s(gemm("g", m, n, k, batch=batch)) == pytest.approx(arithmetic_s + passage_s)


def test_what_is_no_product_passes_sram_once() -> None:
    assert MESH.kernel_s(elementwise("softmax", 4e12)) == 4e12 / SRAM


def test_a_streamed_product_is_a_straight_line_in_tokens_that_starts_with_its_weights_passage() -> None:
    none, some, many = (gemm("fc1", tokens, 4096, 1024, partition="streamed") for tokens in (0, 500, 1000))
    fixed_s = MESH.fixed_s(run(some))
    assert MESH.kernel_s(none) == pytest.approx(fixed_s)
    assert MESH.kernel_s(many) - fixed_s == pytest.approx(2 * (MESH.kernel_s(some) - fixed_s))
    assert MESH.fixed_s(run(gemm("scores", 500, 500, 64, batch=8))) == 0.0


def test_gradients_of_weights_leave_over_the_mesh_as_the_weights_came() -> None:
    forward = gemm("fc1", 500, 4096, 1024, partition="streamed")
    gradient = forward.weight_gradients(2.0, bias=False)[0]
    assert MESH.fixed_s(run(gradient)) == MESH.fixed_s(run(forward))
