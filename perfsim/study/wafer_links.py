"""What moves over which links of a wafer cluster, where several things may ask for one link.

Weights go down from MemoryX to every system, gradients up; half-duplex links carry both in turn. What
spills leaves and enters by the ports of its own system. Samples are left out: a micro-batch of them is a
few megabytes beside gigabytes of weights.
"""

from __future__ import annotations

from perfsim.costs.streams import StreamCosts
from perfsim.engine.fairshare import Flow
from perfsim.errors import InputError
from perfsim.graph import TaskGraph
from perfsim.hardware import WaferClusterSpec
from perfsim.topology import Topology

DOWN = ("memoryx_read", "fetch")


def wafer_flows(graph: TaskGraph, system: WaferClusterSpec, topology: Topology) -> dict[int, Flow]:
    """Flows by work id, seen from the first system: the others see the same."""
    costs = StreamCosts(system, topology)
    rates = {
        "memoryx_read": costs.stream_bytes_per_s,
        "reduce": costs.stream_bytes_per_s,
        "reduce_part": costs.stream_bytes_per_s,
        "reduce_in_tree": costs.tree_bytes_per_s,
        "reduce_in_tree_part": costs.tree_bytes_per_s,
        "spill": costs.feed_bytes_per_s,
        "fetch": costs.feed_bytes_per_s,
    }
    return {
        number: Flow(_route(work.op, system, topology), rates[work.op])
        for number, work in enumerate(graph.works)
        if work.op in rates and work.comm_bytes
    }


def _route(op: str, system: WaferClusterSpec, topology: Topology) -> tuple[int, ...]:
    """Links from MemoryX or back; spilled activations use the ports alone, sums in SwarmX not MemoryX."""
    edges = topology.route("memoryx", 0) if op in DOWN else topology.route(0, "memoryx")
    if op in ("spill", "fetch"):
        edges = tuple(edge for edge in edges if edge.kind == "io")
    elif op.startswith("reduce_in_tree"):
        edges = tuple(edge for edge in edges if edge.kind != "memoryx")
    links = topology.link_ids(edges)
    if system.streaming.duplex:
        return links
    return tuple(link - link % 2 for link in links)  # both directions of a cable count as its first


def check_written_once(graph: TaskGraph, contended: bool) -> None:
    """Refuse several written wafers where links are contended: flows are those of the first."""
    written = sum(stream.endswith("/compute") for stream in graph.streams)
    if contended and written > 1:
        raise InputError(
            f"{written} wafers are written, but spilled activations and shared links are only "
            "arbitrated where one wafer stands for all"
        )
