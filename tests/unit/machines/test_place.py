"""Which ranks a graph is written out for: on a network, and where one of them is slow."""

from perfsim.machines.placement import place
from perfsim.network import Topology
from perfsim.specs.hardware import FatTreeSpec
from perfsim.specs.layout import ParallelLayout
from perfsim.testing import toys
from perfsim.work import TaskGraph


def question(nodes_per_leaf: int, oversubscription: float) -> tuple[TaskGraph, Topology]:
    """Two stages of 32 ranks on 8 nodes; reductions and sends overlap."""
    fabric = FatTreeSpec(
        nodes_per_leaf=nodes_per_leaf, oversubscription=oversubscription, switch_latency=1e-7
    )
    system = toys.gpu_cluster().model_copy(update={"fabric": fabric})
    job = toys.job(16, {"overlap_grad_reduce": True}, num_layers=4)
    plan = toys.plan("3d", job, ParallelLayout(tensor=8, pipeline=2, data=4), system)
    return plan.graph(), toys.topology(64, system)


def test_on_a_whole_non_blocking_fabric_a_graph_stays_folded() -> None:
    graph, topology = question(nodes_per_leaf=2, oversubscription=1.0)
    placed = place(graph, topology)
    assert placed.graph is graph
    assert set(placed.rank.tolist()) == {0, 32}


def test_peers_under_unlike_leaves_are_written_apart_where_uplinks_are_thin() -> None:
    graph, topology = question(nodes_per_leaf=3, oversubscription=4.0)
    written = place(graph, topology).graph
    streams = zip(written.streams, written.stands_for, strict=True)
    ranks = [count for name, count in streams if name.endswith("/compute")]
    assert len(ranks) > 2
    assert sum(ranks) == topology.num_devices


def test_a_node_with_a_sick_nic_is_written_out_and_the_others_are_not() -> None:
    """So is a rank with a mark."""
    graph, topology = question(nodes_per_leaf=20, oversubscription=1.0)
    placed = place(graph, topology.degraded({"node1/nic3-leaf0": 0.5}))
    written = {name for name in placed.graph.streams if name.endswith("/compute")}
    assert {f"gpu{rank}/compute" for rank in range(8, 16)} <= written
    assert len(written) < 64
    assert 5 in place(graph, topology, marks={5: "slow"}).rank.tolist()
