"""Every edge of a network: its capacity moves each price and load that uses it, and nothing else.

The networks are small enough to change every edge in turn. An edge *binds* where what it still carries is
less than one communication asks for, and cannot bind where it is at least what all streams together ask for.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from numpy.typing import ArrayLike

from perfsim.base.arrays import Floats
from perfsim.base.errors import DeadlockError, InputError
from perfsim.catalog import default_catalog
from perfsim.costs.price import Costs
from perfsim.machines import build_topology, costs_for, network_of
from perfsim.machines.machine import Network
from perfsim.network import Topology
from perfsim.prediction.run import evaluate
from perfsim.specs.hardware import FatTreeSpec, SystemSpec
from perfsim.specs.layout import Layout, ParallelLayout, StreamingLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy
from perfsim.testing import toys
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
        return self.plan.graph()

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
    def demand(self) -> tuple[Floats, Floats]:
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
        demands = np.array([*of_stream.values(), np.zeros(size)])
        return demands.max(axis=0), demands.sum(axis=0)


def case_of(system: SystemSpec, layout: Layout) -> Case:
    name = "weight-streaming" if isinstance(layout, StreamingLayout) else "3d"
    recipe = default_catalog().recipe("gpt3_pretraining").model_copy(update={"seq_length": 1024})
    job = Job(toys.model(num_layers=2), recipe, layout.num_devices * layout.micro_batch_size)
    topology = build_topology(system, layout.num_devices)
    return Case(strategy(name).plan(job, topology, layout, check_memory=False))


def nodes(gpus: int, nics: int, thin: float = 1.0) -> SystemSpec:
    """Leaves of one node each."""
    fabric = FatTreeSpec(nodes_per_leaf=1, oversubscription=thin, switch_latency=1e-7)
    changes = {"node.devices": gpus, "node.nics": nics}
    return default_catalog().system("dgx-a100-80gb", **changes).model_copy(update={"fabric": fabric})


def wafers(**changes: object) -> SystemSpec:
    """Three systems under a tree of two levels."""
    few = {"memoryx.servers": 3, "memoryx.server.bandwidth": 75e9, "swarmx.fan_out": 2}
    return default_catalog().override(toys.wafer_cluster(), few | changes)


THREE_WAFERS = StreamingLayout(data=3, micro_batch_size=2)
CASES: dict[str, tuple[SystemSpec, Layout]] = {
    "tensor in nodes": (nodes(gpus=2, nics=2), ParallelLayout(tensor=2, data=2)),
    "shared NICs": (nodes(gpus=2, nics=1, thin=2.0), ParallelLayout(data=4)),
    "a pipeline": (nodes(gpus=2, nics=2), ParallelLayout(tensor=2, pipeline=2)),
    "one node": (nodes(gpus=4, nics=4), ParallelLayout(tensor=2, data=2)),
    "wafers, half duplex": (wafers(**{"swarmx.duplex": False}), THREE_WAFERS),
    "wafers with flash": (
        wafers(**{"memoryx.weights_in": "flash", "memoryx.optimizer_state_in": "flash"}),
        THREE_WAFERS,
    ),
    "wafers, a layer a server": (wafers(**{"memoryx.placement": "by_layer"}), THREE_WAFERS),
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(*CASES[request.param])


def test_a_slower_edge_makes_a_step_longer_where_it_binds_and_only_there(case: Case) -> None:
    largest, together = case.demand
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


LATE_S = 1.0


SMALL_NODES = {"node.devices": 2, "node.nics": 2, "node.server": None, "fabric.nodes_per_leaf": 1}
CATALOGUE = {
    "A100": ("dgx-a100-80gb", ParallelLayout(tensor=2, pipeline=2), SMALL_NODES),
    "A100 with offload": (
        "dgx-a100-80gb",
        ParallelLayout(tensor=2, data=2, zero_stage=1, offload_optimizer="cpu"),
        {**SMALL_NODES, "node.host.devices": 2},
    ),
    "NVL72": ("gb200-nvl72", ParallelLayout(tensor=2, data=2), SMALL_NODES),
    "CS-2": (
        "cs-2",
        THREE_WAFERS,
        {"swarmx.fan_out": 2, "memoryx.servers": 2, "memoryx.weights_in": "flash"}
        | {"activation_servers.per_system": 1},
    ),
}


def of_catalogue(name: str) -> Case:
    """A small machine of this kind, with a switch above each node."""
    system, layout, changes = CATALOGUE[name]
    return case_of(default_catalog().system(system, **changes), layout)


def later(topology: Topology, links: ArrayLike, seconds: ArrayLike) -> Topology:
    """The network with so many seconds more on some links."""
    all_s = topology.edges.seconds.copy()
    all_s[links] += seconds
    return topology.with_capacities({}, all_s)


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_edge_that_is_late_or_cut_changes_the_answer(name: str) -> None:
    case = of_catalogue(name)
    topology = case.topology
    usual = case.step_s(topology)
    largest, _ = case.demand
    crossed = 0
    for link in range(len(topology.edges)):
        alike = [link]
        if topology.edges.kinds[topology.edges.kind[link]] in ("pcie", "dram"):  # the slowest stands for all
            alike = np.flatnonzero(topology.edges.kind == topology.edges.kind[link])[link % 2 :: 2]
        used = bool(largest[topology.counted[alike]].any())
        crossed += used
        late_s = case.step_s(later(topology, [link], LATE_S))
        if not used:
            assert late_s == pytest.approx(usual, rel=1e-9), topology.ends(link)
            continue
        if topology.edges.duplex[link]:
            assert late_s > usual + LATE_S / 2, topology.ends(link)
        try:
            cut_s = case.step_s(topology.with_capacities({link: 0.0}))
        except (InputError, DeadlockError):
            continue
        assert cut_s > (1.0 + 1e-9) * usual, topology.ends(link)
    assert crossed > len(topology.edges) / 2


def test_a_thousandfold_latency_of_all_links_of_a_kind_is_priced() -> None:
    case = of_catalogue("A100")
    for kind in ("scale_up", "nic", "uplink"):
        links = case.topology.edges.of_kind(kind)
        slow = later(case.topology, links, 999 * case.topology.edges.seconds[links])
        assert slow.edges.late_s.max() == 0.0, "rated anew"
        assert case.step_s(slow) > 1.01 * case.step_s(case.topology), kind
