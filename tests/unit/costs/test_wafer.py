"""Prices on a wafer: products, attention and rows of weights, at the speed of a software release."""

import math
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfsim.base.errors import CatalogError
from perfsim.costs.wafer import WaferCosts, known_release, slowdown
from perfsim.testing import toys as described
from perfsim.work import Kind, Work
from perfsim.work.kernels import Kernel, elementwise, gemm

RATE = 0.233 * 7.48e15
ROW_S = 100e-9
MEASURED = described.wafer_calibration(growth_per_release=math.log(1.2), measured_releases=("r1.8", "r2.1"))
sizes = st.integers(1, 10_000)


def costs(toys: ModuleType, systems: int = 1, **changes: object) -> WaferCosts:
    return WaferCosts(toys.topology(systems, toys.wafer_cluster(**changes)), toys.recipe())


WAFER = costs(described)


def run(*kernels: Kernel, op: str = "layer.forward") -> Work:
    return Work(op, Kind.COMP, op, "forward", kernels)


@given(tokens=sizes, n_in=sizes, n_out=sizes)
def test_a_product_takes_its_flops_and_a_time_a_row(tokens: int, n_in: int, n_out: int) -> None:
    """The rows are the outputs of the linear layer, in each of its three products."""
    forward = gemm("fc1", tokens, n_out, n_in, partition="streamed")
    gradient, *_ = forward.weight_gradients(2.0, bias=False)
    for product in (forward, forward.input_gradient(), gradient):
        work = run(product)
        assert WAFER.fixed_s(work) == pytest.approx(n_out * ROW_S)
        assert WAFER.duration_s(work) == pytest.approx(2.0 * tokens * n_in * n_out / RATE + n_out * ROW_S)


def test_attentions_core_has_a_rate_of_its_own_and_no_rows() -> None:
    scores = run(gemm("scores", 500, 500, 64, batch=8))
    assert WAFER.duration_s(scores) == pytest.approx(4 * scores.flop / RATE)
    assert WAFER.parts_s(scores) == {"attention": WAFER.duration_s(scores)}


def test_experts_stream_the_rows_of_all_of_them() -> None:
    experts = gemm("fc1", 4, 64, 32, batch=8, partition="streamed")._replace(grouped=True)
    assert WAFER.parts_s(run(experts)) == {"rows of weights": pytest.approx(8 * 64 * ROW_S)}


def test_the_rows_of_the_head_are_not_counted() -> None:
    head = run(gemm("lm_head", 100, 5000, 64, partition="streamed"), op="head.forward")
    assert WAFER.duration_s(head) == pytest.approx(head.flop / RATE)


def test_what_is_no_product_passes_sram_once(toys: ModuleType) -> None:
    lookup = run(elementwise("e", 4e12), op="embedding.forward")
    assert costs(toys).duration_s(lookup) == pytest.approx(4e12 / 2e16)


def test_an_ideal_wafer_has_its_peak_rate_and_no_rows(toys: ModuleType) -> None:
    topology = toys.topology(1, toys.wafer_cluster())
    ideal = WaferCosts(topology, toys.recipe(software_release="peak"))
    assert (ideal.flop_per_s, ideal.attention_flop_per_s, ideal.row_s) == (7.48e15, 7.48e15, 0.0)


def test_the_recipes_release_wins_over_the_systems_and_slows_all_three_parts(toys: ModuleType) -> None:
    topology = toys.topology(1, toys.wafer_cluster())
    default, older = (
        WaferCosts(topology, toys.recipe(software_release=release)) for release in (None, "r1.7")
    )
    assert (default.release, older.release) == ("r2.0", "r1.7")
    assert default.flop_per_s == pytest.approx(2 * older.flop_per_s)
    assert default.attention_flop_per_s == pytest.approx(2 * older.attention_flop_per_s)
    assert older.row_s == pytest.approx(2 * default.row_s)


@pytest.mark.parametrize(
    ("wanted", "used", "slower"),
    [
        ("r1.7", "r1.8", 3),
        ("r1.8", "r1.8", 3),
        ("r1.9", "r1.9", 2),
        ("r2.0", "r2.0", 1),
        ("R2.0.3", "R2.0.3", 1),
        ("r2.1", "r2.1", 0),
        ("r10.0", "r2.1", 0),
        ("peak", "peak", None),
    ],
)
def test_releases_grow_evenly_and_are_not_extrapolated(wanted: str, used: str, slower: int | None) -> None:
    assert known_release(wanted, MEASURED) == used
    if slower is not None:
        assert slowdown(wanted, MEASURED) == pytest.approx(1.2**slower)


DATES = {"r1.8": "2022-05", "r1.9": "2022-08", "r2.1": "2023-05"}


@pytest.mark.parametrize(
    ("release", "dates", "slower"),
    [
        ("r1.8", DATES, 3),
        ("r1.9", DATES, 3 * 9 / 12),
        ("r2.1", DATES, 0),
        ("r1.9", {"r1.8": "2022-05", "r2.1": "2023-05"}, 2),
        ("r1.9", {"r1.8": "2022-05", "r1.9": "2022-08"}, 2),
    ],
)
def test_a_release_lies_by_its_date_or_its_order(release: str, dates: dict[str, str], slower: float) -> None:
    assert slowdown(release, MEASURED.with_(releases=dates)) == pytest.approx(1.2**slower)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"software_release": "newest"}, r"'newest' is not of the form r2\.0"),
        ({"precision": "fp32"}, "toy-wafer has no peak for fp32; it has bf16, fp16"),
    ],
)
def test_unknown_release_or_precision_is_told(toys: ModuleType, recipe: dict[str, str], message: str) -> None:
    with pytest.raises((ValidationError, CatalogError), match=message):
        WaferCosts(toys.topology(1, toys.wafer_cluster()), toys.recipe(**recipe))
