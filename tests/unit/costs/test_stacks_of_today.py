"""Prices that a framework decides: narrow products, its attention, what it hides and where it waits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfsim.base.errors import CatalogError
from perfsim.catalog import default_catalog
from perfsim.costs.gpu import GpuCosts, GpuKernels
from perfsim.engine import Slowdown, simulate
from perfsim.network import FatTree
from perfsim.specs.calibration import FrameworkCalibration, NarrowGemmConstants
from perfsim.testing import toys
from perfsim.work import WAIT_OF_HOST, GraphBuilder, Kind, RankGroup, TensorClass, Work
from perfsim.work.kernels import Kernel, LayerSlice
from perfsim.work.layer import attention_core, cast_kernel

NARROW = NarrowGemmConstants(
    efficiency=0.9, overhead=2.0, memory_fraction=0.7, burst_fraction=0.8, cast_bytes=8.0, cast_s=5e-6
)
TABLE: dict[str, Any] = {"narrow": {"fp8": NARROW}}
STACK = FrameworkCalibration(name="stack", host_s_per_kernel=0.0, host_blocking_s_per_kernel=0.0)


def prices(
    *, device: dict[str, Any] | None = None, stack: dict[str, Any] | None = None, **recipe: Any
) -> GpuCosts:
    """The prices of an H100 with other constants."""
    system = default_catalog().system("dgx-h100")
    calibration = system.device.calibration.model_copy(update=device or {})
    system = system.model_copy(
        update={"device": system.device.model_copy(update={"calibration": calibration})}
    )
    framework = STACK.model_copy(update=stack)
    return GpuCosts(FatTree(system, 16), toys.recipe(framework=framework, **recipe))


def product(precision: str | None, m: int = 8192) -> Kernel:
    return Kernel("fc", "gemm", flop=2.0 * m * 8192 * 8192, m=m, n=8192, k=8192, precision=precision)


def test_a_narrow_product_is_faster_and_gains_less_where_it_is_small() -> None:
    costs = prices(device=TABLE, precision="fp8")
    gains = [costs.kernel_s(product(None, m)) / costs.kernel_s(product("fp8", m)) for m in (256, 8192)]
    assert 1.2 < gains[1] < 2.2  # the peak is twice as high, and more of it is sustained
    assert gains[0] < gains[1]


def test_a_precision_without_a_table_has_that_of_the_nearest() -> None:
    fp8, rows = (prices(device=TABLE, precision=name) for name in ("fp8", "fp8_rowwise"))
    assert rows.kernel_s(product("fp8_rowwise")) == fp8.kernel_s(product("fp8"))


def test_a_cast_takes_what_the_table_measured_or_the_bytes_of_both_copies() -> None:
    for precision, measured, moved in [("fp8", 8, 8 * 0.87), ("fp8", 1, 4), ("fp8_rowwise", 8, 16 * 0.87)]:
        table = NARROW.model_copy(update={"cast_bytes": measured})
        costs = prices(device={"narrow": {"fp8": table}}, precision=precision)
        more, fewer = (costs.kernel_s(cast_kernel("fc.cast", numbers, precision)) for numbers in (3e9, 2e9))
        assert more - fewer == pytest.approx(1e9 * moved / costs.memory_bytes_per_s)


def test_only_products_of_experts_with_biases_are_slower_in_one_call() -> None:
    experts = product(None, 1000)._replace(batch=4, grouped=True)
    for grouped, slower in ((True, 2.0), (False, 1.0)):
        costs = prices(stack={"grouped_rate": 0.5}, precision="bf16", grouped_products=grouped)
        plain, biased = (costs.kernel_s(experts._replace(biased=bias)) for bias in (False, True))
        assert biased == pytest.approx(slower * plain)
        single = experts._replace(batch=1)
        assert costs.kernel_s(single._replace(biased=True)) == costs.kernel_s(single)


def test_a_narrow_ceiling_bounds_narrow_products_alone() -> None:
    free, bound = (
        prices(device={**TABLE, "narrow_sustained_fraction": most}, precision="fp8") for most in (1.0, 0.3)
    )
    assert bound.kernel_s(product("fp8")) > 1.5 * free.kernel_s(product("fp8"))
    assert bound.kernel_s(product(None)) == free.kernel_s(product(None))


def test_a_device_without_a_narrow_peak_refuses_it() -> None:
    """Products of Hopper apply no scale for 32 numbers (support matrix of Transformer Engine)."""
    for precision in ("nvfp4", "mxfp8"):
        with pytest.raises(CatalogError, match=f"has no peak for {precision}"):
            prices(precision=precision)
    assert prices(precision="fp8_block") is not None


def gather(next_to: Kernel | None = None) -> Work:
    return Work(
        "tensor.all_gather",
        Kind.COMM_COLL,
        "all_gather",
        "tensor_communication",
        comm_bytes=1e8,
        group=RankGroup(0, 1, 4),
        writes=(TensorClass("hidden", 1e8),),
        next_to=next_to,
    )


@pytest.mark.parametrize("rows", [2048, 32768], ids=["the exchange is longer", "the product is longer"])
def test_an_exchange_next_to_a_product_takes_what_a_graph_of_its_chunks_takes(rows: int) -> None:
    whole = product(None, rows)
    costs = prices(stack={"exchange_slowdown": 1.5}, overlap_tensor=True, precision="bf16")
    chunk = whole._replace(m=rows // 4, flop=whole.flop / 4)
    chunk_s = costs.kernel_s(chunk)
    exchange_s = 1.5 * costs.duration_s(gather()) / 3
    assert (chunk_s < exchange_s) == (rows == 2048)

    builder = GraphBuilder()
    compute = Work("chunk", Kind.COMP, "chunk", "forward", kernels=(chunk,), writes=(TensorClass("c", 1.0),))
    done: list[int] = []
    arrived: list[int] = []
    for number in range(4):
        done = [builder.task(compute, "gpu0/compute", [*done, *arrived]).tensor]
        if number < 3:
            arrived = [builder.task(gather(), "gpu0/ring", arrived).tensor]
    graph = builder.build()
    durations = np.array([exchange_s if work.op == "all_gather" else chunk_s for work in graph.works])
    taken = np.array([costs.taken(work) for work in graph.works])
    bound = np.array([costs.bound(work) for work in graph.works])
    run = simulate(graph, durations[graph.work], slowdown=Slowdown(taken, bound))
    assert costs.duration_s(gather(whole)) == pytest.approx(
        float(run.end_s.max()) - costs.kernel_s(whole), rel=1e-6
    )


def test_the_device_waits_for_no_launch_and_no_rank_in_an_exchange_or_a_block_with_experts() -> None:
    stack = {"host_s_per_kernel": 1.0, "collective_wait_s": 3.0, "expert_pass_s": 1.0}
    costs = prices(stack=stack, overlap_tensor=True, precision="bf16")
    block = Work("experts.forward", Kind.COMP, "experts", "forward", kernels=(product(None),))
    for work in (gather(product(None)), replace(gather(), name="experts.dispatch"), block):
        assert costs.duration_s(work) < 1.0
    assert costs.duration_s(gather()) >= costs.latency_s(gather()) >= 3.0
    alone = replace(gather(), group=RankGroup(0, 1, 1))
    assert costs.duration_s(alone) == pytest.approx(1.0), "no other rank comes"


@pytest.mark.parametrize(
    ("recipe", "hides"),
    [
        ({"precision": "bf16", "overlap_tensor": True}, True),
        ({"precision": "bf16"}, False),
        ({"precision": "nvfp4", "overlap_tensor": True}, False),
    ],
)
def test_a_product_hides_an_exchange_if_told_and_never_in_nvfp4(recipe: dict[str, Any], hides: bool) -> None:
    tree = FatTree(default_catalog().system("gb200-nvl72"), 4)
    costs = GpuCosts(tree, toys.recipe(framework=STACK, **recipe))
    next_to_s = costs.duration_s(gather(product(None)))
    alone_s = costs.duration_s(gather())
    assert next_to_s < 0.9 * alone_s if hides else next_to_s == alone_s


def test_a_pass_waits_for_its_host_and_for_its_message_between_nodes() -> None:
    costs = prices(stack={"pass_s": 1e-4})
    wait = Work(WAIT_OF_HOST, Kind.COMP, "stage.hand_on", "pipeline_communication", comm_bytes=50e6)
    assert costs.duration_s(wait) == pytest.approx(1e-4 + 50e6 / 50e9)


@pytest.mark.parametrize(
    ("length", "forward_s", "backward_s"),
    [(128, 0.10e-3, 0.17e-3), (256, 0.29e-3, 0.52e-3), (512, 1.14e-3, 1.81e-3)],
)
def test_attention_in_one_block_has_published_times(length: int, forward_s: float, backward_s: float) -> None:
    """Apex FMHA on an A100, 64 sequences of 16 heads of 64 (FlashAttention, table 7)."""
    catalog = default_catalog()
    recipe = catalog.recipe("gpt3_pretraining").with_(precision="fp16")
    recipe = recipe.ran_with(framework=catalog.framework("mlperf-bert"))
    costs = GpuKernels(catalog.system("dgx-a100-40gb"), recipe)
    part = LayerSlice(catalog.model("bert_large"), length, 64, attention="flash")
    (ahead,), (back,) = attention_core(part), attention_core(part, backward=True)
    latency_s = costs.gpu.kernel_latency_s
    assert costs.kernel_s(ahead) - latency_s == pytest.approx(forward_s, rel=0.08)
    assert costs.kernel_s(back) - latency_s == pytest.approx(backward_s, rel=0.08)
