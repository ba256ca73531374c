"""Calibrated collectives against measurements that others published."""

from typing import Any

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.network.collectives import CollectiveModel, wire_factor
from perfsim.network.topology import Group
from perfsim.specs.calibration import CollectiveOp
from perfsim.specs.hardware import LinkSpec, NodeSpec

KIB = 2.0**10
MIB = 2.0**20
GIB = 2.0**30
SIZES = np.array([512, 128 * KIB, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB])

# Microseconds of an all-reduce at SIZES: ai-dynamo/aiconfigurator at 095f58a, NCCL 2.27.3.
ALL_REDUCE_US = {
    ("nvlink3", 2): [10, 13, 41, 56, 128, 392, 1430],
    ("nvlink3", 4): [15, 18, 30, 69, 184, 544, 1930],
    ("nvlink3", 8): [23, 27, 39, 77, 216, 595, 2180],
    ("nvlink4", 2): [6, 8, 14, 33, 81, 253, 880],
    ("nvlink4", 4): [10, 12, 18, 41, 99, 324, 1190],
    ("nvlink4", 8): [16, 19, 25, 50, 122, 323, 1090],
}
# The same from another laboratory: VIA-Research/vTrain, trace/a100.
SECOND_LAB_US = {
    2: {16 * MIB: 132, 64 * MIB: 405, 256 * MIB: 1456, GIB: 5443},
    4: {16 * MIB: 180, 64 * MIB: 544, 256 * MIB: 1929, GIB: 7259},
    8: {16 * MIB: 232, 64 * MIB: 580, 256 * MIB: 2162, GIB: 8193},
}
# Milliseconds at 256 MiB for 2, 4 and 8 GPUs, first source.
AT_256_MIB_MS: dict[tuple[str, CollectiveOp], list[float]] = {
    ("nvlink3", "all_gather"): [0.94, 1.11, 1.22],
    ("nvlink3", "reduce_scatter"): [0.83, 1.03, 1.15],
    ("nvlink3", "all_to_all"): [0.85, 1.07, 1.20],
    ("nvlink4", "all_gather"): [0.55, 0.66, 0.73],
    ("nvlink4", "reduce_scatter"): [0.59, 0.68, 0.72],
    ("nvlink4", "all_to_all"): [0.50, 0.63, 0.76],
}
# 32 GPUs on 4 nodes, bus bandwidth in GB/s: stas00/ml-engineering, network/benchmarks.
# Left out: 94 at 16 MiB, as fast as 1 GiB and faster than 64 MiB, which no other size confirms.
FOUR_NODES = {32 * KIB: 0.92, 256 * KIB: 5.2, MIB: 17, 4 * MIB: 40, 64 * MIB: 85, GIB: 94, 16 * GIB: 92}


def link(name: str, bandwidth: float) -> LinkSpec:
    calibration = default_catalog().load("calibration", name)
    return LinkSpec(name=name, bandwidth=bandwidth, latency=1e-6, calibration=calibration)


def node(nics: int, scale_up: str = "nvlink3") -> NodeSpec:
    bandwidth = {"nvlink3": 300e9, "nvlink4": 450e9}[scale_up]
    return NodeSpec(
        devices=8, scale_up=link(scale_up, bandwidth), nics=nics, nic=link("infiniband-hdr", 25e9)
    )


def inside_s(op: CollectiveOp, n_bytes: Any, size: int, scale_up: str = "nvlink3") -> Any:
    """Seconds of a collective of some GPUs of one node."""
    return CollectiveModel.of_node(node(8, scale_up)).seconds(op, n_bytes, Group.inside_node(size)).total_s


@pytest.mark.parametrize(("name", "size"), list(ALL_REDUCE_US))
def test_all_reduce_inside_a_node_is_within_15_percent_on_a100_and_22_on_h100(name: str, size: int) -> None:
    times = inside_s("all_reduce", SIZES, size, name)
    errors = np.abs(times / (np.array(ALL_REDUCE_US[name, size]) * 1e-6) - 1)
    if (name, size) == ("nvlink3", 2):
        # 41 us at 1 MiB is more than twice the 19 us at 512 KiB: NCCL changes protocol too early.
        assert errors[2] < 0.45
        errors = np.delete(errors, 2)
    # Eight H100 reduce in the switch, which four do not: one line for both sizes stays between them.
    assert errors.max() < (0.22 if name == "nvlink4" else 0.15)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_all_reduce_agrees_with_a_second_laboratory_within_15_percent(size: int) -> None:
    for n_bytes, measured_us in SECOND_LAB_US[size].items():
        assert inside_s("all_reduce", n_bytes, size) == pytest.approx(measured_us * 1e-6, rel=0.15)


@pytest.mark.parametrize(("name", "op"), list(AT_256_MIB_MS))
def test_other_collectives_are_within_10_percent_at_256_mib(name: str, op: CollectiveOp) -> None:
    for size, measured_ms in zip((2, 4, 8), AT_256_MIB_MS[name, op], strict=True):
        assert inside_s(op, 256 * MIB, size, name) == pytest.approx(measured_ms * 1e-3, rel=0.10)


ACROSS = [
    *((Group.even(8, 4), 4, n_bytes, measured) for n_bytes, measured in FOUR_NODES.items()),
    (Group.even(8, 4), 8, 8 * GIB, 192),  # DGX A100, NVIDIA's slide s62129
    (Group.even(8, 2), 4, GIB, 86),  # NVIDIA/nccl-tests issue 175
    (Group.even(8, 3), 4, 128 * MIB, 84.8),  # NVIDIA/nccl-tests issue 119
]


@pytest.mark.parametrize(("group", "nics", "n_bytes", "measured"), ACROSS)
def test_all_reduces_across_nodes_are_within_15_percent(
    group: Group, nics: int, n_bytes: float, measured: float
) -> None:
    seconds = CollectiveModel.of_node(node(nics)).seconds("all_reduce", n_bytes, group).total_s
    bus_gb_per_s = wire_factor("all_reduce", group.size) * n_bytes / seconds / 1e9
    assert bus_gb_per_s == pytest.approx(measured, rel=0.15)


def test_a_tiny_all_reduce_of_two_nodes_is_within_25_percent() -> None:
    # NVIDIA/nccl-tests issue 150: 19 to 21 us for 8 to 64 bytes between two A100 over HDR.
    seconds = CollectiveModel.of_node(node(8)).seconds("all_reduce", 64, Group.even(1, 2)).total_s
    assert seconds == pytest.approx(20e-6, rel=0.25)
