"""Prices of computation on a wafer-scale cluster."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfsim.base.errors import CatalogError
from perfsim.costs.wafer import WaferCosts, growth_per_release, nearest_release
from perfsim.specs.calibration import WaferCalibration
from perfsim.testing import toys
from perfsim.work import Kind, Work
from perfsim.work.kernels import Kernel, elementwise, gemm


def costs(systems: int = 1, **changes: object) -> WaferCosts:
    return WaferCosts(toys.topology(systems, toys.wafer_cluster(**changes)), toys.recipe())


def compute(op: str) -> Work:
    return Work(op, Kind.COMP, op, "forward", kernels=(gemm("g", 1000, 1000, 1000),))


@pytest.mark.parametrize("op", ["layer.forward", "layer.backward", "layer.recompute", "head.forward"])
def test_compute_is_flop_over_efficiency_and_movement_over_the_mesh(op: str) -> None:
    flop_s = 2e9 / (0.233 * 7.48e15)
    moved = 2 * 1000 * 1000 / 850_000**0.5
    assert costs().duration_s(compute(op)) == pytest.approx(flop_s + moved * 1.176e-9)
    assert costs(link_s_per_element=0.0).duration_s(compute(op)) == pytest.approx(flop_s)


def test_the_embedding_has_work_of_its_own() -> None:
    lookup = Work("embedding.forward", Kind.COMP, "embedding.forward", "forward", (elementwise("e", 4e12),))
    assert costs().duration_s(lookup) == pytest.approx(4e12 / 2e16)


def test_the_recipes_release_wins_over_the_systems() -> None:
    topology = toys.topology(1, toys.wafer_cluster())
    default, older = (
        WaferCosts(topology, toys.recipe(software_release=release)) for release in (None, "r1.7")
    )
    assert (default.release, older.release) == ("r2.0", "r1.7")
    assert default.flop_per_s == 2 * older.flop_per_s


@pytest.mark.parametrize(
    ("wanted", "used"),
    [
        ("r1.7", "r1.7"),
        ("r1.4", "r1.7"),
        ("r1.9", "r1.8"),
        ("r2.1", "r2.0"),
        ("R2.0.3", "r2.0"),
        ("r10.0", "r2.0"),
    ],
)
def test_an_unmeasured_release_uses_the_nearest_earlier_one(wanted: str, used: str) -> None:
    efficiency = {"r2.0": 0.2, "r1.7": 0.1, "r1.8": 0.15}
    calibration = WaferCalibration(name="w", efficiency=efficiency, link_s_per_element=0.0)
    assert nearest_release(wanted, calibration) == used


def test_efficiency_grows_by_the_same_factor_each_release_as_far_as_it_was_measured() -> None:
    """From r1.8 over r1.9 to r2.0, which follow one another."""
    measured = {"r1.8": 0.1, "r1.9": 0.3, "r2.0": 0.4}
    several = WaferCalibration(name="w", efficiency=measured, link_s_per_element=0.0)
    assert growth_per_release(several) == pytest.approx(math.log(2.0))
    alone = WaferCalibration(name="w", efficiency={"r2.0": 0.4}, link_s_per_element=0.0)
    assert growth_per_release(alone) == 0.0


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"software_release": "newest"}, r"'newest' is not of the form r2\.0"),
        ({"precision": "fp32"}, "toy-wafer has no peak for fp32; it has bf16, fp16"),
    ],
)
def test_a_release_that_is_no_number_and_a_precision_that_the_wafer_does_not_have_are_refused(
    recipe: dict[str, str], message: str
) -> None:
    with pytest.raises((ValidationError, CatalogError), match=message):
        WaferCosts(toys.topology(1, toys.wafer_cluster()), toys.recipe(**recipe))


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
