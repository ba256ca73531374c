"""Prices on a GPU cluster, with constants that are easy to reckon with."""

from dataclasses import replace
from typing import Any

import pytest

from perfsim.base.errors import CatalogError, GraphError
from perfsim.costs.gpu import GpuCosts
from perfsim.specs import calibration
from perfsim.testing import toys
from perfsim.work import Kind, RankGroup, Work
from perfsim.work.kernels import Kernel, elementwise, gemm

HOST_S = 30e-6
KERNEL_S = 2e-6
BLOCKING_S = 10e-6


STACK = calibration.FrameworkCalibration(
    name="toy", host_s_per_kernel=HOST_S, host_blocking_s_per_kernel=BLOCKING_S, overlap_sharpness=4.0
)


def gpu_calibration(**changes: Any) -> calibration.GpuCalibration:
    tile = calibration.TileConstants(shape=(128, 128), efficiency=0.9, choice_efficiency=0.9, overhead_k=0.0)
    constants = calibration.GemmConstants(
        tiles=(tile,),
        split_k=(1,),
        k_step=32,
        split_traffic=1.0,
        choice_split_traffic=1.0,
        split_latency_s=0.0,
        launch_s=3e-6,
        memory_fraction=0.8,
        overlap_sharpness=4.0,
        burst_fraction=1.0,
        burst_s=1.0,
        power_sharpness=8.0,
    )
    fields: dict[str, Any] = {
        "name": "toy",
        "gemm": constants,
        "memory": calibration.MemoryConstants(fraction=0.8),
        "kernel_latency_s": KERNEL_S,
        "sustained_fraction": 0.8,
        "wgrad_factor": 1.25,
        "attention_fraction": 0.5,
    }
    return calibration.GpuCalibration(**(fields | changes))


def costs(
    devices: int = 16, *, constants: dict[str, Any] | None = None, cache: float = 0.0, **recipe: Any
) -> GpuCosts:
    system = toys.gpu_cluster()
    changes = {
        "memory": system.device.memory.model_copy(update={"cache": cache}),
        "calibration": gpu_calibration(**(constants or {})),
        "vector_peak": {"bf16": 39e12, "fp16": 78e12},
    }
    device = system.device.model_copy(update=changes)
    topology = toys.topology(devices, system.model_copy(update={"device": device}))
    return GpuCosts(topology, toys.recipe(**({"framework": STACK} | recipe)))


def work(*kernels: Kernel, kind: Kind = Kind.COMP, **changes: Any) -> Work:
    return Work("w", kind, changes.pop("op", "w"), "forward", kernels=kernels, **changes)


@pytest.mark.parametrize(
    ("cache", "n_bytes", "from_cache"),
    [(0.0, 800e6, 0.0), (40e6, 20e6, 10e6), (40e6, 40e6, 20e6), (40e6, 400e6, 20e6)],
    ids=["no cache", "fits with room", "just fits", "ten times the cache"],
)
def test_a_memory_bound_kernel_takes_its_launches_and_what_it_does_not_read_from_half_the_cache(
    cache: float, n_bytes: float, from_cache: float
) -> None:
    """40 MB, the L2 of an A100: half of it holds what this kernel writes, half what it reads."""
    seconds = costs(cache=cache).kernel_s(elementwise("e", 2 * n_bytes, launches=2))
    assert seconds == pytest.approx(2 * KERNEL_S + 2 * (n_bytes - from_cache) / (0.8 * 2e12))


HALF = {"attention_half_length": 1000.0}


@pytest.mark.parametrize(
    ("flop", "n_bytes", "length", "constants", "seconds"),
    [
        (312e9, 1.0, 2048, {}, 1e-3 / 0.5),
        (1.0, 1.6e9, 2048, {}, 1e-3),
        (312e9, 1.0, 2048, {"attention_instruction_fraction": 0.6}, 1e-3 / 0.5 / 0.6),
        (312e9, 1.0, 1000, HALF, 1e-3 / (0.5 * 0.5)),
        (312e9, 1.0, 3000, HALF, 1e-3 / (0.5 * 0.75)),
        (312e9, 1.0, 10**9, HALF, 1e-3 / 0.5),
    ],
    ids=["its FLOP", "its bytes", "slow instructions", "at the half length", "at three of it", "long"],
)
def test_fused_attention_takes_its_flop_or_its_bytes_and_reaches_its_rate_with_its_length(
    flop: float, n_bytes: float, length: int, constants: dict[str, float], seconds: float
) -> None:
    kernel = Kernel("a", "attention", flop=flop, bytes_accessed=n_bytes, m=length)
    assert costs(constants=constants).kernel_s(kernel) == pytest.approx(KERNEL_S + seconds, rel=1e-4)


def test_the_slowest_of_many_devices_sets_the_sustained_ceiling() -> None:
    """The largest of 16 normal values lies 1.77 standard deviations out (tables of order statistics)."""
    spread = {"sustained_spread": 0.02}
    alone, many = (costs(devices, constants=spread).gemm for devices in (1, 16))
    assert alone.sustained_fraction == 0.8
    assert many.sustained_fraction == pytest.approx(0.8 * (1 - 0.02 * 1.77), rel=1e-3)
    assert costs(16).gemm.sustained_fraction == 0.8


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_product_with_odd_rows_runs_without_matrix_cores(precision: str) -> None:
    priced = costs(precision=precision)
    peak = {"fp16": 78e12, "bf16": 39e12}[precision]
    even = gemm("scores", 2048, 2048, 104, batch=64)
    odd = gemm("scores", 2048, 2048, 108, batch=64)
    assert priced.kernel_s(odd) >= odd.flop / peak
    assert priced.kernel_s(even) < even.flop / peak


def test_a_large_gemm_stays_under_the_sustained_ceiling_and_a_weight_gradient_is_slower() -> None:
    kernel = gemm("g", 8192, 8192, 8192)
    seconds = costs().kernel_s(kernel)
    assert 0.6 < kernel.flop / (seconds * 312e12) < 0.8
    assert costs().kernel_s(kernel._replace(weight_gradient=True)) == pytest.approx(1.25 * seconds)


def test_small_kernels_take_as_long_as_their_launches_and_a_large_one_hides_its_own() -> None:
    many = work(*[elementwise(f"e{number}", 1.0) for number in range(10)])
    assert costs().duration_s(many) == pytest.approx(10 * HOST_S, rel=1e-3)
    assert sum(beside().bound(many)) < 0.01, "what the host limits is not slowed"
    large = elementwise("e", 16e9)
    assert costs().duration_s(work(large)) == pytest.approx(costs().kernel_s(large), rel=1e-3)


def test_a_host_that_waits_adds_up_instead_of_overlapping() -> None:
    kernels = [elementwise(f"e{number}", 16e6) for number in range(4)]
    free, blocking = (costs(host_blocking=flag).duration_s(work(*kernels)) for flag in (False, True))
    assert blocking >= free + 4 * BLOCKING_S


@pytest.mark.parametrize(("ranks", "n_bytes"), [(1, 1e9), (2, 8.0)])
def test_the_host_launches_a_collective_once(ranks: int, n_bytes: float) -> None:
    tiny = work(kind=Kind.COMM_COLL, op="all_reduce", comm_bytes=n_bytes, group=RankGroup(0, 1, ranks))
    assert costs().duration_s(tiny) == pytest.approx(HOST_S, rel=1e-3)
    assert costs().durations_s([tiny])[0] == pytest.approx(HOST_S, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": "all_reduce"}, "has no group"),
        ({"op": "gossip", "group": RankGroup(0, 1, 2)}, "is gossip, which no model prices"),
    ],
)
def test_communication_that_nobody_can_price_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        costs().duration_s(work(kind=Kind.COMM_COLL, **changes))


def test_a_device_without_calibration_is_refused_by_name() -> None:
    with pytest.raises(CatalogError, match="toy-gpu names no GPU calibration"):
        GpuCosts(toys.topology(8), toys.recipe(framework=STACK))


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"framework": None}, "runtime default names no framework"),
        ({"precision": "fp8"}, "toy-gpu has no peak for fp8; it has bf16, fp16, fp32"),
    ],
)
def test_a_recipe_that_the_device_cannot_run_is_refused_by_name(recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        costs(**recipe)


def beside(**recipe: Any) -> GpuCosts:
    taken = calibration.CommunicationConstants(
        units=24, units_per_nic=2, memory_passes={"all_gather": 2.0, "reduce_scatter": 3.0}
    )
    return costs(constants={"communication": taken}, **recipe)


@pytest.mark.parametrize(("op", "passes"), [("all_gather", 2.0), ("reduce_scatter", 3.0)])
def test_a_collective_takes_its_units_and_the_passes_of_what_it_sends(op: str, passes: float) -> None:
    priced = beside()
    collective = work(kind=Kind.COMM_COLL, op=op, comm_bytes=8e8, group=RankGroup(0, 1, 8))
    sent_bytes_per_s = 7e8 / priced.duration_s(collective)
    units = priced.topology.system.device.compute_units
    assert priced.taken(collective) == pytest.approx((24 / units, passes * sent_bytes_per_s / (0.8 * 2e12)))
    assert priced.bound(collective) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("op", "group", "nics"),
    [
        ("all_gather", RankGroup(0, 1, 16), 8),
        ("all_gather", RankGroup(0, 4, 4), 2),
        ("all_gather", RankGroup(0, 8, 2), 1),
        ("send_recv", RankGroup(0, 1, 2), 1),
    ],
)
def test_across_nodes_what_moves_takes_units_that_its_nics_feed(op: str, group: RankGroup, nics: int) -> None:
    priced = beside()
    kind = Kind.COMM_SEND if op == "send_recv" else Kind.COMM_COLL
    units = priced.topology.system.device.compute_units
    assert priced.topology.system.node.nics == 8
    message = work(kind=kind, op=op, comm_bytes=8e8, group=group)
    assert priced.taken(message).units == pytest.approx(2 * nics / units)


def test_compute_and_a_group_of_one_rank_take_nothing() -> None:
    priced = beside()
    alone = work(kind=Kind.COMM_COLL, op="all_gather", comm_bytes=8e8, group=RankGroup(0, 1, 1))
    assert priced.taken(work(gemm("g", 4096, 4096, 4096))) == (0.0, 0.0)
    assert priced.taken(alone) == (0.0, 0.0)
    assert costs().taken(replace(alone, group=RankGroup(0, 1, 8))) == (0.0, 0.0)
    idle_host = STACK.model_copy(update={"host_s_per_kernel": 0.0, "host_blocking_s_per_kernel": 0.0})
    empty = replace(alone, group=RankGroup(0, 1, 8), comm_bytes=0.0)
    assert beside(framework=idle_host).taken(empty) == (0.0, 0.0)


def test_units_limit_products_and_memory_limits_the_other_kernels() -> None:
    priced = beside()
    product = gemm("g", 8192, 8192, 8192)
    moving = elementwise("e", 3.2e9)
    seconds = priced.kernel_s(product) + priced.kernel_s(moving)
    bound = priced.bound(work(product, moving))
    assert bound.units == pytest.approx(priced.kernel_s(product) / seconds, rel=1e-3)
    assert bound.memory == pytest.approx((priced.kernel_s(moving) - KERNEL_S) / seconds, rel=1e-3)


def test_with_a_blocking_host_only_the_device_part_is_slowed() -> None:
    priced = beside(host_blocking=True)
    kernel = gemm("g", 4096, 4096, 4096)
    share = priced.kernel_s(kernel) / (priced.kernel_s(kernel) + HOST_S + BLOCKING_S)
    assert priced.bound(work(kernel)) == pytest.approx((share, 0.0))
