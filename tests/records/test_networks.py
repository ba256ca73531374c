"""Networks of today: what every part of every system carries, and what messages over it take."""

from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.machines import build_topology, costs_for
from perfsim.network import FatTree, Topology
from perfsim.specs.calibration import CollectiveOp
from perfsim.work import Kind, RankGroup, Work

Recorded = Callable[..., None]
CATALOG = default_catalog()
NODES = ("dgx-a100-80gb", "dgx-h100", "gb200-nvl72", "mi300x-192gb")
SYSTEMS = (*NODES, "cs-2", "cs-3-memoryx-1tb", "memoryx-a100")
SIZES = (1, 2, 12, 72, 144)
GROUPS = [RankGroup(*group) for group in ((0, 1, 2), (0, 1, 4), (1, 8, 5), (0, 1, 72), (7, 1, 12))]
BYTES = (0.0, 3e3, 7e5, 2e9)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_link_carries_what_it_did(system: str, recorded: Recorded) -> None:
    said: dict[str, Any] = {}
    for devices in SIZES:
        try:
            topology = build_topology(CATALOG.system(system), devices)
        except InputError as error:
            said[str(devices)] = str(error)
            continue
        said[str(devices)] = links_of(topology)
        if isinstance(topology, FatTree) and devices == SIZES[-1]:
            said["seconds"] = seconds_of(topology)
    recorded(f"network_{system}", said)


def links_of(topology: Topology) -> dict[str, list[float]]:
    """By kind of link: its number, ends, capacities, latencies; also vertices, bundles and names."""
    edges = topology.edges
    said: dict[str, list[float]] = {
        kind: [
            len(links),
            *(float(column[links].sum()) for column in (edges.source, edges.target, edges.duplex)),
        ]
        + [float(column[links] @ (1 + links)) for column in (edges.bytes_per_s, edges.seconds)]
        for kind in edges.kinds
        for links in [edges.of_kind(kind)]
    }
    said["vertices"] = [*map(float, Counter(kind for _, kind in topology.vertices).values())]
    letters = [sum(map(ord, name)) for name, _ in topology.vertices]
    said["names"] = [float(sum(at * value for at, value in enumerate(letters, 1)))]
    said["bundles"] = [float(np.sum(links)) + waits for links, waits in topology.bundles()]
    said["capacities"] = [float(topology.capacities.sum()), float(topology.counted.sum())]
    return said


def seconds_of(topology: FatTree) -> dict[str, list[float]]:
    """What each operation takes over groups, by bytes; and a message between two ranks."""
    costs = costs_for(topology, CATALOG.recipe("llm_2024"))
    said: dict[str, list[float]] = {}
    for op in get_args(CollectiveOp):
        kind = Kind.COMM_SEND if op == "send_recv" else Kind.COMM_COLL
        for group in GROUPS[:3] if op == "send_recv" else GROUPS:
            group = group._replace(size=2) if op == "send_recv" else group
            works = [Work(op, kind, op, "data_communication", comm_bytes=size, group=group) for size in BYTES]
            said[f"{op} {group}"] = [*costs.durations_s(works).tolist(), *map(costs.latency_s, works)]
            said[f"{op} {group}"] += [share for work in works[2:] for share in costs.taken(work)]
    return said
