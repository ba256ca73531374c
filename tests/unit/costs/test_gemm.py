"""The tile-and-wave model of a matrix product against its own limits and published measurements."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.costs.gemm import GemmModel
from perfsim.specs.calibration import GemmConstants, TileConstants

DEVICES = {"a100-sxm4": (312e12, 2039e9, 108), "h100-sxm5": (989e12, 3.35e12, 132)}
"""Peak FLOP/s, bytes/s and compute units."""

# m, n, k, then TFLOP/s on A100 and on H100 (bf16): ai-dynamo/aiconfigurator at 095f58a.
PUBLISHED = [
    (2048, 1024, 1024, 142, 503),
    (512, 4096, 4096, 190, 691),
    (1024, 4096, 4096, 168, 744),
    (2048, 4096, 4096, 224, 758),
    (4096, 4096, 4096, 267, 763),
    (8192, 768, 3072, 245, 727),
    (2048, 2560, 10240, 272, 788),
    (2048, 6144, 6144, 254, 780),
    (1024, 10240, 10240, 290, 709),
    (2048, 12288, 1536, 233, 706),
    (2048, 1536, 12288, 260, 789),
    (2048, 6144, 12288, 257, 729),
    (2048, 12288, 6144, 252, 719),
    (8192, 12288, 12288, 262, 748),
    (8192, 65536, 12288, 265, 661),
]


def model_of(name: str) -> GemmModel:
    calibration = default_catalog().load("calibration", name)
    return GemmModel(calibration.gemm, *DEVICES[name], calibration.sustained_fraction)


@pytest.fixture(scope="module")
def a100() -> GemmModel:
    return model_of("a100-sxm4")


def plain_model(units: int = 10) -> GemmModel:
    """One tile, no overhead, memory and power out of the way: times can be computed by hand."""
    constants = GemmConstants(
        tiles=(TileConstants(shape=(128, 128), efficiency=1.0, choice_efficiency=1.0, overhead_k=0.0),),
        split_k=(1,),
        k_step=32,
        split_traffic=0.0,
        choice_split_traffic=0.0,
        split_latency_s=0.0,
        launch_s=0.0,
        memory_fraction=1.0,
        overlap_sharpness=20.0,
        burst_fraction=1.0,
        burst_s=1.0,
        power_sharpness=200.0,
    )
    return GemmModel(constants, peak_flop_per_s=units * 1e12, memory_bytes_per_s=1e18, compute_units=units)


@pytest.mark.parametrize(
    ("name", "column", "median", "most"), [("a100-sxm4", 3, 0.15, 0.15), ("h100-sxm5", 4, 0.08, 0.25)]
)
def test_published_shapes_are_met_within_15_percent_on_a100_and_25_on_h100(
    name: str, column: int, median: float, most: float
) -> None:
    columns = np.array(PUBLISHED, dtype=float).T
    m, n, k = columns[:3]
    errors = np.abs(model_of(name).time_s(m, n, k) / (2 * m * n * k / (columns[column] * 1e12)) - 1)
    assert np.median(errors) < median
    assert errors.max() < most


def test_a_tile_too_many_costs_a_whole_wave_and_a_batch_counts_as_more_tiles() -> None:
    model = plain_model(units=10)
    one_tile_s = 2 * 128 * 128 * 512 / 1e12
    for full_s, over_s in (
        (model.time_s(128, 1280, 512), model.time_s(128, 1281, 512)),
        (model.time_s(128, 128, 512, 10), model.time_s(128, 128, 512, 11)),
    ):
        assert (full_s, over_s) == pytest.approx((one_tile_s, 2 * one_tile_s), rel=0.01)


def test_the_library_runs_what_it_believes_in_not_what_is_fastest() -> None:
    base = plain_model(units=10)
    large = TileConstants(shape=(256, 128), efficiency=0.9, choice_efficiency=5.0, overhead_k=0.0)
    constants = base.constants.model_copy(update={"tiles": (*base.constants.tiles, large)})
    biased = GemmModel(constants, base.peak_flop_per_s, base.memory_bytes_per_s, base.compute_units)
    assert biased.time_s(128, 1280, 512) > 1.5 * base.time_s(128, 1280, 512)


def test_a_split_product_takes_its_slices_the_traffic_of_partial_sums_and_a_latency() -> None:
    """Partial sums of 8 slices are written and read in fp32, 8 bytes a number."""
    base = plain_model(units=8)
    changes = {"split_k": (8,), "split_traffic": 2.0, "split_latency_s": 3e-6}
    split = replace(base, constants=base.constants.model_copy(update=changes), memory_bytes_per_s=1e12)
    slices_s = base.time_s(128, 128, 4096) / 8
    traffic_s = 2.0 * 8 * 8 * 128 * 128 / 1e12
    assert split.time_s(128, 128, 4096) == pytest.approx(slices_s + traffic_s + 3e-6)


@pytest.mark.parametrize("shape", [(8192, 1, 8192), (1, 8192, 8192), (8192, 8192, 1)])
def test_a_product_bound_by_memory_moves_operands_and_result_once(shape: tuple[int, int, int]) -> None:
    """In each shape another of the matrices A (m k numbers), B (k n) and C (m n) is nearly all that moves."""
    slow = replace(plain_model(), memory_bytes_per_s=1e9)
    assert slow.time_s(*shape) == pytest.approx(2 * (8192 * 8192 + 8192 + 8192) / 1e9)


def test_sustained_power_slows_large_products_and_leaves_small_ones(a100: GemmModel) -> None:
    large = (8192, 12288, 12288)
    small = (256, 512, 512)
    limited = replace(a100, sustained_fraction=0.75)
    assert limited.time_s(*large, sustained=True) > 1.05 * a100.time_s(*large)
    assert limited.time_s(*small, sustained=True) == pytest.approx(a100.time_s(*small), rel=1e-3)


def test_arrays_give_what_scalars_give_and_broadcast_in_chunks_without_a_seam(a100: GemmModel) -> None:
    seconds = a100.time_s(np.array([[256], [1000]]), np.array([512, 4096, 50257]), 1024, 2)
    assert seconds.shape == (2, 3)
    assert seconds[1, 2] == a100.time_s(1000, 50257, 1024, 2)
    many = a100.time_s(np.arange(1, 9001), 1024, 1024)
    assert [many[8999], many[4096]] == [a100.time_s(m, 1024, 1024) for m in (9000, 4097)]


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, -1, 1), (1, 1, float("nan")), (1, [5, 0], 1)])
def test_a_size_that_is_not_positive_is_refused(a100: GemmModel, sizes: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InputError, match="positive m, n, k"):
        a100.time_s(*sizes)


def test_only_a_thin_product_is_slower_where_numbers_take_4_bytes(a100: GemmModel) -> None:
    full = replace(a100, element_bytes=4.0)
    thin, thick = (full.time_s(8192, 8192, k) / a100.time_s(8192, 8192, k) for k in (1, 8192))
    assert 1.5 < thin <= 2
    assert thick == pytest.approx(1, rel=1e-3)
