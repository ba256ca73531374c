"""Small systems, models and prices for tests, independent of the catalogue."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfsim.base.errors import GraphError
from perfsim.base.units import GIB
from perfsim.costs.gpu import HOST_OPERATIONS, HostCosts
from perfsim.costs.price import Costs
from perfsim.machines import build_topology
from perfsim.network import FatTree, Topology
from perfsim.prediction.question import Question
from perfsim.specs import hardware
from perfsim.specs.calibration import WaferCalibration
from perfsim.specs.layout import Layout
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import RUNTIME_FIELDS, Job, Recipe
from perfsim.specs.runtime import Runtime
from perfsim.strategies import Plan, Strategy, strategy
from perfsim.work import GraphBuilder, Kind, RankGroup, TaskGraph, TensorClass, Work


def _link(bytes_per_s: float, latency_s: float) -> hardware.LinkSpec:
    """A link without a calibration."""
    return hardware.LinkSpec(name="link", bandwidth=bytes_per_s, latency=latency_s)


def host(*, link_bytes_per_s: float = 30e9, capacity: float = 1e12, drives: float = 0.0) -> hardware.HostSpec:
    """The host of eight GPUs, with drives of so many bytes if there are any."""
    nvme = hardware.TierSpec(capacity=drives, bandwidth=40e9) if drives else None
    memory = hardware.TierSpec(capacity=capacity, bandwidth=400e9)
    return hardware.HostSpec(
        devices=8, link=link_bytes_per_s, memory=memory, nvme=nvme, optimizer_fraction=0.5
    )


def gpu_cluster(
    *,
    capacity: float = 80 * GIB,
    gpus: int = 8,
    nics: int = 8,
    nic_bytes_per_s: float = 25e9,
    host: hardware.HostSpec | None = None,
) -> hardware.GpuClusterSpec:
    """Nodes like a DGX A100 without any calibration."""
    return hardware.GpuClusterSpec(
        name="toy-gpus",
        kind="gpu-cluster",
        device=hardware.DeviceSpec(
            name="toy-gpu",
            kind="gpu",
            peak={"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12},
            memory=hardware.MemorySpec(capacity=capacity, bandwidth=2e12, reserved=2 * GIB),
            compute_units=108,
        ),
        node=hardware.NodeSpec(
            devices=gpus, scale_up=_link(300e9, 1e-6), nics=nics, nic=_link(nic_bytes_per_s, 2e-6), host=host
        ),
        fabric=hardware.FatTreeSpec(nodes_per_leaf=20, switch_latency=1e-7),
    )


def wafer_calibration(efficiency: float = 0.233, row_s: float = 100e-9, **changes: Any) -> WaferCalibration:
    """A wafer twice as fast under r2.0 as under r1.7, and slower in attention than in other products."""
    constants = WaferCalibration(
        name="toy-wafer",
        product_efficiency=efficiency,
        attention_efficiency=efficiency / 4,
        row_s=row_s,
        growth_per_release=math.log(2.0) / 3,
        measured_releases=("r1.7", "r2.0"),
    )
    return constants.with_(**changes)


def wafer_cluster(
    *,
    capacity: float = 40e9,
    efficiency: float = 0.233,
    row_s: float = 100e-9,
    stream_bytes_per_s: float = 150e9,
    weight_bytes: float = 2.0,
    update_bytes_per_s: float = 1e12,
) -> hardware.WaferClusterSpec:
    """Systems like a CS-2 under a tree of fan-out 4."""
    return hardware.WaferClusterSpec(
        name="toy-wafers",
        kind="wafer-cluster",
        device=hardware.DeviceSpec(
            name="toy-wafer",
            kind="wafer",
            peak={"bf16": 7.48e15, "fp16": 7.48e15},
            memory=hardware.MemorySpec(capacity=capacity, bandwidth=2e16, reserved=6e9),
            compute_units=850_000,
            calibration=wafer_calibration(efficiency, row_s),
        ),
        io_ports=12,
        io_link=_link(stream_bytes_per_s / 12, 1e-6),
        # Ten weight servers together stream and update at these rates.
        memoryx=hardware.MemoryXSpec(
            servers=10,
            server=hardware.WeightServerSpec(
                bandwidth=stream_bytes_per_s / 10,
                dram=hardware.TierSpec(capacity=1e12, bandwidth=update_bytes_per_s / 10),
                flash=hardware.FlashSpec(capacity=1e14, bandwidth=stream_bytes_per_s / 10),
                arithmetic=1e12,
            ),
            placement="sharded",
            weights_in="auto",
            optimizer_state_in="auto",
        ),
        swarmx=hardware.SwarmXSpec(fan_out=4, bandwidth=stream_bytes_per_s, hop_latency=1e-5, chunk=2**18),
        activation_servers=hardware.ActivationServersSpec(
            per_system=1, bandwidth=stream_bytes_per_s / 10, capacity=1e12, bytes_per_token=12.0, prefetch=1
        ),
        streaming=hardware.StreamingSpec(
            prefetch_depth=1,
            weights_held="chunk",
            accumulate_at="memoryx",
            staged_layers=2,
            sparse_index_overhead=0.5,
            sparse_harvest=0.9,
        ),
        max_systems=192,
        software_release="r2.0",
        weight_bytes=weight_bytes,
        gradient_bytes=weight_bytes,
    )


def model(**changes: Any) -> TransformerConfig:
    """A GPT of 0.4 billion parameters."""
    fields: dict[str, Any] = {
        "name": "toy",
        "num_layers": 8,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "ffn_hidden_size": 8192,
        "vocab_size": 51200,
        "max_position_embeddings": 1024,
    }
    return TransformerConfig(**(fields | changes))


def recipe(**changes: Any) -> Recipe:
    """bf16 with Adam on sequences of 1,024 tokens; settings of the runtime are taken as well."""
    settings = {name: changes.pop(name) for name in RUNTIME_FIELDS if name in changes}
    return Recipe(**({"name": "toy", "seq_length": 1024, "runtime": Runtime(**settings)} | changes))


def job(batch: int = 32, recipe_changes: Mapping[str, Any] | None = None, **model_changes: Any) -> Job:
    """The toy model trained with the toy recipe, each with optional changes."""
    return Job(model(**model_changes), recipe(**(recipe_changes or {})), batch)


def published_run(**changes: Any) -> dict[str, Any]:
    """A row of a case file: a small model on one GPU; `changes` are fields, and values in its sections."""
    row: dict[str, Any] = {
        "id": "a",
        "family": "toys",
        "evidence": "A",
        "system": {"device": "a100-sxm4-80gb", "num_devices": 1},
        "model": {"num_layers": 4, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 16}
        | {"vocab_size": 50257, "seq_length": 512},
        "strategy": "3d",
        "parallel": {},
        "training": {"global_batch_size": 64},
        "measured": {"step_time_s": 1.0},
    }
    for name, value in changes.items():
        row[name] = {**row[name], **value} if isinstance(row.get(name), dict) else value
    return row


SMALLEST = {
    "num_layers": 2,
    "hidden_size": 512,
    "ffn_hidden_size": 2048,
    "num_attention_heads": 8,
    "vocab_size": 1024,
    "seq_length": 256,
}
"""The model of a published run that answers fastest."""


System = hardware.GpuClusterSpec | hardware.WaferClusterSpec


def topology(devices: int, system: System | None = None) -> Topology:
    """A topology of a system, by default of toy GPUs."""
    return build_topology(system or gpu_cluster(), devices)


def plan(name: str, asked: Job, layout: Layout, system: System | None = None) -> Plan:
    """A plan of a layout on as many devices as it needs, without a memory check."""
    return strategy(name).plan(asked, topology(layout.num_devices, system), layout, check_memory=False)


def question(
    chosen: str | Strategy[Any, Any], asked: Job, on: Topology, prices: Costs | None = None
) -> Question:
    """The question of planning a job with a strategy on a topology, at these prices."""
    return Question(
        model=asked.model,
        recipe=asked.recipe,
        system=on.system,
        devices=on.num_devices,
        strategy=chosen,
        batch=asked.global_batch_size,
        rank="fastest",
        prices=prices,
    )


@dataclass
class ToyCosts(Costs):
    """Prices without a calibration: a fixed FLOP rate, memory and links at their datasheet rates."""

    system: hardware.GpuClusterSpec
    flop_per_s: float = 150e12
    launch_s: float = 5e-6
    devices: int = 8
    """Of the job, which share a host."""

    def duration_s(self, work: Work) -> float:
        if work.kind.is_communication:
            if work.group is None:
                raise GraphError(f"{work.name} is communication without a group")
            nodes = {rank // self.system.node.devices for rank in work.group.ranks}
            link = self.system.node.scale_up if len(nodes) == 1 else self.system.node.nic
            factor = 2.0 if work.op == "all_reduce" else 1.0
            return 1e-5 + factor * work.comm_bytes / link.bandwidth
        if work.op in HOST_OPERATIONS:
            return HostCosts(FatTree(self.system, self.devices)).duration_s(work)
        seconds = 0.0
        for kernel in work.kernels:
            moving_s = kernel.bytes_accessed / self.system.device.memory.bandwidth
            seconds += self.launch_s + max(kernel.flop / self.flop_per_s, moving_s)
        return seconds


@dataclass
class TableCosts(Costs):
    """Seconds by name of the work; other work takes no time."""

    seconds: Mapping[str, float]

    def duration_s(self, work: Work) -> float:
        return self.seconds.get(work.name, 0.0)


def compute(name: str, category: str = "forward", writes: int = 1) -> Work:
    """A class of compute work that writes `writes` tensors."""
    tensors = tuple(TensorClass(f"t{number}", 0.0) for number in range(writes))
    return Work(name, Kind.COMP, name, category, writes=tensors)


def transfer(name: str, ranks: RankGroup, category: str = "pipeline_communication", **changes: Any) -> Work:
    """A class of communication among ranks."""
    fields: dict[str, Any] = {"op": "send_recv", "comm_bytes": 1e6, "writes": (TensorClass("t", 1e6),)}
    return Work(name, Kind.COMM_SEND, category=category, group=ranks, **(fields | changes))


def collective(name: str, ranks: RankGroup) -> Work:
    """A class of all-reduces over a group."""
    return replace(transfer(name, ranks, "data_communication", op="all_reduce"), kind=Kind.COMM_COLL)


def at_once(*works: tuple[Work, str]) -> TaskGraph:
    """Tasks that are all ready at once, each on the stream beside it."""
    builder = GraphBuilder()
    for work, stream in works:
        builder.task(work, stream)
    return builder.build()
