"""How a step is written and run: folded where ranks are alike, each communication with its latency."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest

from perfsim.catalog import default_catalog
from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path
from perfsim.machines import build_topology, costs_for
from perfsim.machines.placement import place
from perfsim.network import Topology
from perfsim.network.collectives import num_steps, wire_factor
from perfsim.prediction.run import Step, evaluate
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy
from perfsim.testing.toys import at_once
from perfsim.work import Kind, RankGroup, Work, unfold


@dataclass
class CountingNodes(Costs):
    """A second for every computation; a collective or send takes longer if its group leaves a node."""

    gpus: int
    only: str
    """Category of the communication that takes any time."""

    def duration_s(self, work: Work) -> float:
        if work.kind is Kind.COMP:
            return 1.0
        if work.category != self.only or work.group is None:
            return 0.0
        nodes = {rank // self.gpus for rank in work.group.ranks}
        return 1.0 if len(nodes) == 1 else 3.0


def planned(toys: ModuleType, **layout: int) -> Plan:
    """A model whose heads three divide, on nodes of four GPUs."""
    chosen = ParallelLayout(**layout)
    heads = {"hidden_size": 768, "num_attention_heads": 12, "ffn_hidden_size": 3072, "vocab_size": 49152}
    job = toys.job(2 * chosen.data, **heads, num_layers=4, tied_embeddings=False)
    return toys.plan("3d", job, chosen, toys.gpu_cluster(gpus=4, nics=4))


def test_neighbours_in_the_node_for_some_replicas_are_across_for_others(toys: ModuleType) -> None:
    """Stages of three ranks on nodes of four: 0 to 3 stays inside, 1 to 4 and 2 to 5 do not."""
    plan = planned(toys, data=3, pipeline=4)
    run = evaluate(plan, CountingNodes(4, "pipeline_communication"))
    assert "3 kinds of ranks are simulated" in run.plan.notes[-1]
    sends = {work.group.ranks[:2] for work in run.trace.graph.works if work.kind is Kind.COMM_SEND}
    assert {(0, 3), (1, 4), (2, 5)} <= {tuple(ranks) for ranks in sends}


def test_seconds_are_means_over_ranks_not_over_what_is_written(toys: ModuleType) -> None:
    """Two of four tensor groups span nodes, half of the ranks; all ranks wait for them in the end."""
    plan = planned(toys, tensor=3, data=4)
    costs = CountingNodes(4, "tensor_communication")
    graph = plan.graph()
    partly = place(graph, plan.topology, contention=False).graph
    every = unfold(graph).graph
    few, whole = (critical_path(part, price(part, costs)) for part in (partly, every))
    assert len(partly) < len(every)
    assert few.mean_breakdown() == pytest.approx(whole.mean_breakdown(), rel=1e-12)
    assert few.step_time_s == whole.step_time_s


PORT = 300e9
LATE_S = 1e-3
A_PORT = "node0/gpu3-node0/nvswitch"


def a100(devices: int = 8, **changes: Any) -> Topology:
    return build_topology(default_catalog().system("dgx-a100-80gb", **changes), devices)


def message(toys: ModuleType, source: int, target: int, n_bytes: float) -> Work:
    return toys.transfer("send", RankGroup(source, target - source, 2), comm_bytes=n_bytes)


def reduction(toys: ModuleType, n_bytes: float) -> Work:
    return replace(toys.collective("reduce", RankGroup(0, 1, 8)), comm_bytes=n_bytes)


def step_of(topology: Topology, *works: tuple[Work, str], healthy: Topology) -> Step:
    """The works at once on a network, at the prices of a healthy one."""
    costs = costs_for(healthy, default_catalog().recipe("gpt3_pretraining"))
    return Step(place(at_once(*works), topology), costs)


@pytest.mark.parametrize("n_bytes", [1e5, 1e7, 1e9])
def test_messages_on_one_nic_wait_for_each_latency_and_all_bytes(toys: ModuleType, n_bytes: float) -> None:
    """Eight GPUs share one NIC that is rated for all of them; it carries the messages of one."""
    healthy = a100(16, **{"node.nics": 1})
    nic = dict.fromkeys(healthy.edges.of_kind("nic").tolist(), healthy.edges.rated["nic"] / 8)
    works = [(message(toys, rank, 8 + rank, n_bytes), f"gpu{rank}/send") for rank in (0, 1)]
    topologies = (healthy, healthy.with_capacities(nic, rate=False))
    usual, thin = (step_of(topology, *works, healthy=healthy) for topology in topologies)
    alone_s = usual.costs.duration_s(works[0][0])
    latency_s = usual.costs.latency_s(works[0][0])
    assert 0.0 < latency_s < alone_s
    assert usual.run().end_s.tolist() == [alone_s, alone_s], "the NIC has room for both"
    assert thin.run().end_s == pytest.approx([latency_s + 2 * (alone_s - latency_s)] * 2, rel=1e-9)


@pytest.mark.parametrize("n_bytes", [1e4, 1e6, 1e9])
def test_a_degraded_port_limits_the_bytes_that_cross_it(toys: ModuleType, n_bytes: float) -> None:
    """The latency of a collective stays; its bytes pass the port at what is left of it."""
    healthy = a100()
    work = reduction(toys, n_bytes)
    slow = step_of(healthy.degraded({A_PORT: 0.1}), (work, "gpu0/nccl"), healthy=healthy)
    latency_s = slow.costs.latency_s(work)
    bytes_s = wire_factor("all_reduce", 8) * n_bytes / (0.1 * PORT)
    alone_s = slow.costs.duration_s(work)
    assert 0.0 < latency_s < alone_s
    assert slow.run().step_time_s == pytest.approx(max(alone_s, latency_s + bytes_s), rel=1e-9)
    assert n_bytes < 1e6 or slow.run().step_time_s > alone_s


def test_a_late_port_delays_every_step_of_a_ring(toys: ModuleType) -> None:
    healthy = a100()
    seconds = healthy.edges.seconds.copy()
    seconds[healthy.ports[3, 0]] += LATE_S
    work = reduction(toys, 1e9)
    networks = (healthy.with_capacities({}, seconds), healthy)
    late, usual = (step_of(on, (work, "gpu0/nccl"), healthy=healthy).run().step_time_s for on in networks)
    assert late == pytest.approx(usual + num_steps("all_reduce", 8) * LATE_S, rel=1e-9)


def test_one_sick_port_of_a_tensor_group_slows_a_step_as_all_of_them(toys: ModuleType) -> None:
    healthy = a100()
    layout = ParallelLayout(tensor=8, micro_batch_size=4, sequence_parallel=True)
    model = toys.model(hidden_size=4096, num_attention_heads=32, ffn_hidden_size=16384, num_layers=2)
    job = Job(model, default_catalog().recipe("gpt3_pretraining"), 8)
    plan = strategy("3d").plan(job, healthy, layout, check_memory=False)
    costs = costs_for(healthy, job.recipe)
    ports = [f"node0/gpu{gpu}-node0/nvswitch" for gpu in range(8)]
    networks = [healthy.degraded(dict.fromkeys(sick, 0.5)) for sick in ([], [A_PORT], ports)]
    usual, one, every = (evaluate(replace(plan, topology=on), costs).step_time_s for on in networks)
    assert one == pytest.approx(every, rel=1e-9)
    assert one > 1.03 * usual


def test_a_detour_around_a_dead_port_has_the_latency_of_its_links(toys: ModuleType) -> None:
    """Over two NICs and the leaf, where each GPU has its own NIC and no host joins them."""
    healthy = a100(**{"node.nics": 8, "node.host": None})
    node = healthy.system.node
    longer_s = node.nic.latency + healthy.system.fabric.switch_latency - node.scale_up.latency
    work = message(toys, 3, 4, 1e3)
    around = step_of(healthy.degraded({A_PORT: 0.0}), (work, "gpu3/send"), healthy=healthy)
    assert longer_s > 0.0
    latency_s = around.costs.latency_s(work)
    bytes_s = max(around.costs.duration_s(work) - latency_s, 1e3 / 25e9)
    assert around.run().step_time_s == pytest.approx(latency_s + bytes_s + longer_s, rel=1e-6)
