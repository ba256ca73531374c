"""Every edge of a network: its capacity moves each price and load that uses it, and nothing else.

The networks are small enough to change every edge in turn. An edge *binds* where what it still carries is
less than one communication asks for, and cannot bind where it is at least what all streams together ask for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType

import numpy as np
import pytest

from perfsim.base.arrays import Floats
from perfsim.catalog import default_catalog
from perfsim.costs.price import Costs
from perfsim.machines import build_topology, costs_for, network_of
from perfsim.machines.machine import Network
from perfsim.network import Topology
from perfsim.prediction.run import evaluate, graph_of
from perfsim.specs.hardware import FatTreeSpec, GpuClusterSpec, SystemSpec, WaferClusterSpec
from perfsim.specs.layout import Layout, ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.specs.streaming_layout import StreamingLayout
from perfsim.strategies import Plan, strategy
from perfsim.work import Kind, TaskGraph

LITTLE = 1e-5
"""Of an edge's capacity; less than any communication asks for."""
LESS = 0.8
MORE = 8.0


@dataclass(frozen=True)
class Case:
    """A plan on its network."""

    plan: Plan

    @cached_property
    def graph(self) -> TaskGraph:
        return graph_of(self.plan)

    @property
    def topology(self) -> Topology:
        return self.plan.topology

    @cached_property
    def network(self) -> Network:
        return network_of(self.topology)

    def costs(self, topology: Topology) -> Costs:
        return costs_for(topology, self.plan.job.recipe)

    def step_s(self, topology: Topology) -> float:
        plan = replace(self.plan, topology=topology)
        return evaluate(plan, self.costs(topology), graph=self.graph).step_time_s

    @cached_property
    def asked(self) -> tuple[Floats, Floats]:
        """Bytes/s on every link: the largest of one communication, and of all streams together."""
        size = len(self.topology.edges)
        of_stream: dict[int, Floats] = {}
        pairs = np.unique(np.stack([self.graph.stream, self.graph.work]), axis=1).T.tolist()
        for stream, number in pairs:
            work = self.graph.works[number]
            if work.kind is Kind.COMP:
                continue
            load = self.network.load(work, np.zeros(self.graph.width, dtype=np.int64))
            if load is not None:
                rates = np.zeros(size)
                rates[load.links] = load.times * load.bytes_per_s
                of_stream[stream] = np.maximum(of_stream.get(stream, np.zeros(size)), rates)
        each = np.array([*of_stream.values(), np.zeros(size)])
        return each.max(axis=0), each.sum(axis=0)


def fat_tree(toys: ModuleType, layout: ParallelLayout, *, gpus: int, nics: int, thin: float) -> Case:
    """Leaves of one node each."""
    catalog = default_catalog()
    system = catalog.system("dgx-a100-80gb")
    assert isinstance(system, GpuClusterSpec)
    node = system.node.model_copy(update={"devices": gpus, "nics": nics})
    fabric = FatTreeSpec(nodes_per_leaf=1, oversubscription=thin, switch_latency=1e-7)
    system = system.model_copy(update={"node": node, "fabric": fabric})
    return _case(toys, "3d", layout, system)


def wafers(toys: ModuleType, *, duplex: bool = True, flash: bool = False, by_layer: bool = False) -> Case:
    """Three systems under a tree of two levels."""
    system: WaferClusterSpec = toys.wafer_cluster()
    tier = {"weights_in": "flash", "optimizer_state_in": "flash"} if flash else {}
    memoryx = {"servers": 3, "placement": "by_layer" if by_layer else "sharded", **tier}
    server = system.memoryx.server.model_copy(update={"bandwidth": 75e9})
    system = system.model_copy(
        update={
            "memoryx": system.memoryx.model_copy(update=memoryx | {"server": server}),
            "swarmx": system.swarmx.model_copy(update={"fan_out": 2, "duplex": duplex}),
        }
    )
    return _case(toys, "weight-streaming", StreamingLayout(data=3, micro_batch_size=2), system)


def _case(toys: ModuleType, name: str, layout: Layout, system: SystemSpec) -> Case:
    catalog = default_catalog()
    recipe = catalog.recipe("gpt3_pretraining").model_copy(update={"seq_length": 1024})
    job = Job(toys.model(num_layers=2), recipe, layout.num_devices * layout.micro_batch_size)
    topology = build_topology(system, layout.num_devices)
    return Case(strategy(name).plan(job, topology, layout, check_memory=False))


@pytest.fixture(
    params=[
        (
            "tensor in nodes",
            fat_tree,
            (ParallelLayout(tensor=2, data=2),),
            {"gpus": 2, "nics": 2, "thin": 1.0},
        ),
        ("shared NICs", fat_tree, (ParallelLayout(data=4),), {"gpus": 2, "nics": 1, "thin": 2.0}),
        (
            "a pipeline",
            fat_tree,
            (ParallelLayout(tensor=2, pipeline=2),),
            {"gpus": 2, "nics": 2, "thin": 1.0},
        ),
        ("one node", fat_tree, (ParallelLayout(tensor=2, data=2),), {"gpus": 4, "nics": 4, "thin": 1.0}),
        ("wafers, half duplex", wafers, (), {"duplex": False}),
        ("wafers with flash", wafers, (), {"flash": True}),
        ("wafers, a layer a server", wafers, (), {"by_layer": True}),
    ],
    ids=lambda param: param[0],
)
def case(request: pytest.FixtureRequest, toys: ModuleType) -> Case:
    _, make, positional, named = request.param
    made: Case = make(toys, *positional, **named)
    return made


def test_a_slower_edge_makes_a_step_longer_where_it_binds_and_only_there(case: Case) -> None:
    largest, together = case.asked
    usual = case.step_s(case.topology)
    bound = 0
    for link in range(len(case.topology.edges)):
        for factor in (LITTLE,) if link % 3 else (LITTLE, LESS):
            capacity = factor * float(case.topology.edges.bytes_per_s[link])
            slow = case.topology.with_capacities({link: capacity}, rate=False)
            counted = int(case.topology.counted[link])
            left = slow.capacities[counted]
            edge = case.topology.ends(link)
            step_s = case.step_s(slow)
            assert left < case.topology.capacities[counted], edge
            if left < largest[counted] and factor == LITTLE:
                assert step_s > usual * 1.01, edge
                bound += 1
            elif left >= together[counted]:
                assert step_s == pytest.approx(usual, rel=1e-9), edge
            else:
                assert step_s >= usual * (1 - 1e-9), edge
    assert bound > 0


def test_a_faster_edge_among_others_of_its_kind_makes_no_step_longer(case: Case) -> None:
    usual = case.step_s(case.topology)
    for link, capacity in list(enumerate(case.topology.edges.bytes_per_s.tolist()))[::3]:
        fast = case.topology.with_capacities({link: MORE * capacity})
        assert case.step_s(fast) <= usual * (1 + 1e-9), case.topology.ends(link)


def test_a_slower_kind_of_link_raises_the_prices_of_what_loads_it_and_no_others(case: Case) -> None:
    """Not of uplinks: prices are those of an idle network, where NICs limit what a leaf sends."""
    peers = np.zeros(case.graph.width, dtype=np.int64)
    before = case.costs(case.topology)
    for kind in case.topology.edges.kinds:
        if kind in ("uplink", "host"):
            continue
        links = case.topology.edges.of_kind(kind)
        every = dict.fromkeys(links.tolist(), LITTLE * case.topology.edges.rated[kind])
        after = case.costs(case.topology.with_capacities(every))
        for work in case.graph.works:
            load = None if work.kind is Kind.COMP else case.network.load(work, peers)
            loads = load is not None and bool(np.isin(load.links, links).any())
            rise = after.duration_s(work) - before.duration_s(work)
            if loads and work.comm_bytes > 1e4:
                assert rise > 0, (kind, work.name)
            elif not loads and work.op != "broadcast":
                assert rise == 0, (kind, work.name)
