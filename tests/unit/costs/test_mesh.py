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


def mesh(rate: float = RATE, link_s: float = LINK, side: int = SIDE) -> WaferCosts:
    """A wafer of these cores and links."""
    costs = WaferCosts(toys.topology(1, toys.wafer_cluster()), toys.recipe())
    costs.flop_per_s = rate
    costs.link_s_per_element = link_s
    costs.cores = side**2
    costs.sram_bytes_per_s = SRAM
    return costs


MESH = mesh()

sizes = st.integers(1, 10_000)


def run(*kernels: Kernel) -> Work:
    return Work("layer.forward", Kind.COMP, "mlp", "forward", kernels)


def test_a_product_takes_its_arithmetic_and_one_passage_of_two_operands_over_the_links() -> None:
    kernel = gemm("g", 3000, 50, 700)
    moved = (3000 * 50 + 700 * 50) / SIDE
    assert MESH.kernel_s(kernel) == pytest.approx(kernel.flop / RATE + moved * LINK)


def test_links_without_delay_leave_the_arithmetic() -> None:
    kernel = gemm("g", 3000, 50, 700, batch=4)
    free = mesh(link_s=0.0)
    assert free.kernel_s(kernel) == kernel.flop / RATE


def test_a_batch_divides_the_mesh_in_squares_that_work_side_by_side() -> None:
    """Each product of b has 1/b of the cores and of the rate, all at once."""
    square = mesh(rate=RATE / 16, side=SIDE // 4)
    together = gemm("scores", 512, 512, 64, batch=16)
    one = gemm("scores", 512, 512, 64)
    assert MESH.kernel_s(together) == pytest.approx(square.kernel_s(one))


@given(sizes, sizes, sizes, st.integers(1, 64))
def test_no_product_beats_its_arithmetic_and_none_is_faster_for_being_larger(
    m: int, n: int, k: int, batch: int
) -> None:
    seconds = MESH.kernel_s(gemm("g", m, n, k, batch=batch))
    assert seconds >= 2.0 * m * n * k * batch / RATE
    larger = (gemm("g", m + 1, n, k, batch), gemm("g", m, n + 1, k, batch), gemm("g", m, n, k + 1, batch))
    assert all(MESH.kernel_s(kernel) > seconds for kernel in larger)


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
