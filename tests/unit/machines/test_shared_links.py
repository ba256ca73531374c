"""Which links communications load and share, and what sharing costs."""

from dataclasses import replace

import numpy as np
import pytest

import perfsim as ps
from perfsim.catalog import default_catalog
from perfsim.engine import simulate
from perfsim.machines import build_topology, network_of
from perfsim.machines.machine import Traffic
from perfsim.machines.placement import SharedLinks
from perfsim.network import FatTree, Group, Topology
from perfsim.network.collectives import CollectiveModel
from perfsim.specs.hardware import FatTreeSpec
from perfsim.testing import toys
from perfsim.testing.toys import at_once
from perfsim.work import GraphBuilder, Kind, RankGroup, TaskGraph, Work

SECONDS = 4.0
LONG = 1e12


ALONE = np.zeros(1, dtype=np.int64)
TREE = toys.topology(32)


def send(name: str, source: int, target: int, n_bytes: float = 1e6) -> Work:
    return toys.transfer(name, RankGroup(source, target - source, 2), comm_bytes=n_bytes)


def reduce(ranks: RankGroup, n_bytes: float = 1e6) -> Work:
    return replace(toys.collective("gradients", ranks), comm_bytes=n_bytes)


def run(graph: TaskGraph, topology: Topology = TREE, peers: list[int] | None = None) -> list[float]:
    """Ends of a graph, which stands for peers of these classes if there are any."""
    classes = None if peers is None else np.array(peers)
    links = SharedLinks.of(graph, network_of(topology), peers=classes)
    return simulate(graph, np.full(len(graph), SECONDS), links.flows, links.capacities).end_s.tolist()


def traffic(work: Work) -> Traffic:
    return network_of(TREE).load(work, ALONE)


def kinds(crossed: Traffic, tree: FatTree = TREE) -> dict[str, list[int]]:
    """How often each link of a kind is crossed."""
    by_kind: dict[str, list[int]] = {}
    for link, times in zip(crossed.links.tolist(), crossed.times.tolist(), strict=True):
        by_kind.setdefault(tree.edges.kinds[tree.edges.kind[link]], []).append(times)
    return by_kind


def test_a_reduction_and_a_send_inside_a_node_share_the_ports_of_their_ranks() -> None:
    ring = (reduce(RankGroup(0, 1, 4), LONG), "gpu0/nccl-tensor")
    both = run(at_once(ring, (send("s", 3, 4, LONG), "gpu3/send")))
    assert both == pytest.approx([2 * SECONDS, 2 * SECONDS], rel=1e-3), "the port out of GPU 3"
    assert run(at_once(ring, (send("s", 4, 5, LONG), "gpu4/send"))) == [SECONDS, SECONDS]


def test_inside_a_node_every_rank_sends_and_receives_once_at_the_bus_rate() -> None:
    n_bytes = 1e8
    crossed = traffic(reduce(RankGroup(0, 2, 4), n_bytes))
    assert kinds(crossed) == {"scale_up": [1] * 8}
    assert set(crossed.links.tolist()) == set(TREE.ports[[0, 2, 4, 6]].ravel().tolist())
    seconds = CollectiveModel.of_tree(TREE).seconds("all_reduce", np.array(n_bytes), Group.inside_node(4))
    assert crossed.bytes_per_s == pytest.approx(2 * 3 / 4 * n_bytes / float(seconds.bytes_s))


def test_rings_across_nodes_pass_the_ports_of_all_ranks_but_their_own() -> None:
    """Four ranks on each of two nodes: four rings; each port carries the other three in and out."""
    crossed = traffic(reduce(RankGroup(4, 1, 8), LONG))
    assert kinds(crossed) == {"scale_up": [3] * 16, "host": [1] * 16, "nic": [1] * 16}
    assert kinds(traffic(reduce(RankGroup(0, 8, 4), LONG))) == {"host": [1] * 8, "nic": [1] * 8}


def test_tasks_of_one_stream_never_overlap_so_they_do_not_contend() -> None:
    builder = GraphBuilder()
    for name in ("a", "b"):
        builder.task(send(name, 0, 8), "gpu0/send-next")
    assert SharedLinks.of(builder.build(), network_of(TREE)).flows == {}


def test_two_gpus_that_share_a_nic_are_priced_at_half_of_it_and_slow_each_other_no_further() -> None:
    shared = toys.topology(16, toys.gpu_cluster(nics=4))
    two = [(send("a", 0, 8), "gpu0/send"), (send("b", 1, 9), "gpu1/send")]
    assert run(at_once(*two), shared) == [SECONDS, SECONDS]
    three = [*two, (send("c", 1, 9), "gpu1/other")]
    assert run(at_once(*three), shared) == [1.5 * SECONDS] * 3, "three halves of one NIC"


@pytest.mark.parametrize("group", [RankGroup(0, 8, 4), RankGroup(0, 8, 2)], ids=["four", "a pair"])
def test_a_collective_loads_both_directions_of_its_nic_and_a_send_only_one(group: RankGroup) -> None:
    ring = reduce(group)
    for source, target in ((0, 8), (group.ranks[-1], 0)):
        both = at_once((ring, "gpu0/nccl"), (send("s", source, target), f"gpu{source}/send"))
        assert max(run(both)) == 2 * SECONDS


@pytest.mark.parametrize("rank", [0, 5, 15])
def test_a_collective_of_whole_nodes_uses_the_nics_of_all_its_ranks(rank: int) -> None:
    """Eight rings, one through each NIC: that is the bus bandwidth by which it is priced."""
    ring = reduce(RankGroup(0, 1, 16))
    out = at_once((ring, "gpu0/nccl"), (send("s", rank, 16 + rank % 8), "gpu/send"))
    into = at_once((ring, "gpu0/nccl"), (send("s", 16 + rank % 8, rank), "gpu/send"))
    assert run(out) == run(into) == [2 * SECONDS, 2 * SECONDS]


@pytest.mark.parametrize("group", [RankGroup(4, 4, 5), RankGroup(0, 3, 10), RankGroup(2, 1, 30)])
def test_rings_of_an_uneven_group_share_no_nic_and_load_those_of_all_ranks_alike(group: RankGroup) -> None:
    """A price for the NICs of the emptiest node is not lengthened by more rings than that."""
    assert run(at_once((reduce(group), "gpu0/nccl-data"))) == [SECONDS]
    whole = network_of(TREE).traffic(reduce(group), ALONE)
    assert whole.times[~np.isin(whole.links, TREE.ports)].tolist() == [1] * (2 * group.size)


def oversubscribed(nodes: int, nodes_per_leaf: int, oversubscription: float) -> Topology:
    fabric = FatTreeSpec(
        nodes_per_leaf=nodes_per_leaf, oversubscription=oversubscription, switch_latency=1e-7
    )
    return toys.topology(8 * nodes, toys.gpu_cluster().model_copy(update={"fabric": fabric}))


@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 4.0])
def test_sends_of_all_replicas_share_the_uplinks_of_their_leaf(oversubscription: float) -> None:
    """Two stages of 32 ranks, a leaf each: 32 sends at once on 32 / oversubscription uplinks."""
    topology = oversubscribed(nodes=8, nodes_per_leaf=4, oversubscription=oversubscription)
    alone = at_once((send("next", 0, 32), "gpu0/send-next"))
    assert run(alone, topology, [0] * 32) == [SECONDS * oversubscription]
    assert run(alone, topology) == [SECONDS], "a graph that writes one of them sees one of them"


def test_a_reduction_and_a_send_meet_on_uplinks_though_their_nics_differ() -> None:
    """Leaves of one node, 4 uplinks each. Stage 0 is nodes 0 and 1, stage 1 nodes 2 and 3.

    A send of 16 peers puts 8 messages on the 4 uplinks of each of leaves 0 and 1: half speed. The
    ring of stage 0 puts 8 on the same. Alone each takes 2 x 4 s; together 16 messages share 4: 16 s.
    """
    topology = oversubscribed(nodes=4, nodes_per_leaf=1, oversubscription=2.0)
    next_stage = (send("next", 0, 16), "gpu0/send-next")
    ring = (reduce(RankGroup(0, 8, 2)), "gpu0/nccl-data")
    assert run(at_once(next_stage), topology, [0] * 16) == [2 * SECONDS]
    assert run(at_once(ring), topology, [0] * 16) == [2 * SECONDS]
    assert run(at_once(next_stage, ring), topology, [0] * 16) == [4 * SECONDS] * 2


def test_classes_of_peers_together_load_what_all_peers_load() -> None:
    topology = oversubscribed(nodes=8, nodes_per_leaf=4, oversubscription=4.0)
    parted = at_once((send("next", 0, 32), "gpu0/send-next"), (send("other", 5, 37), "gpu5/send-next"))
    assert run(parted, topology, [int(peer == 5) for peer in range(32)]) == [4 * SECONDS] * 2
    # 64 ranks in 8 rings over 8 nodes on 2 leaves: 8 messages on 32 / 16 = 2 uplinks a leaf.
    topology = oversubscribed(nodes=8, nodes_per_leaf=4, oversubscription=16.0)
    ring = at_once((reduce(RankGroup(0, 8, 8)), "gpu0/nccl-data"))
    assert run(ring, topology, [0] * 64) == [4 * SECONDS]


@pytest.mark.parametrize(
    ("ends", "longer"),
    [([(0, 8), (1, 9)], 2), ([(0, 8), (2, 10), (3, 11)], 3), ([(0, 8)], 1), ([(0, 8), (9, 17)], 1)],
)
def test_messages_share_the_only_nic_that_is_not_dead(ends: list[tuple[int, int]], longer: int) -> None:
    """Each asks for one NIC. Of the eight only nic1 lives, so GPU 0 goes through GPU 1: half speed for both.

    GPU 0 alone has it to itself, and so has each of two nodes its own. Detours have more hops.
    """
    dead = TREE.degraded({f"node0/nic{nic}-leaf0": 0.0 for nic in (0, 2, 3, 4, 5, 6, 7)})
    sends = [(send(f"m{source}", source, target), f"gpu{source}/send") for source, target in ends]
    assert run(at_once(*sends), dead) == pytest.approx([longer * SECONDS] * len(ends), rel=1e-6)


def test_a_slow_link_slows_what_crosses_it_even_where_ports_are_left_out() -> None:
    """A quarter of a port, and half of what joins a GPU and its NIC."""
    port = TREE.degraded({"node0/gpu3-node0/nvswitch": 0.25})
    host = TREE.degraded({"node0/gpu3-node0/nic3": 0.5})
    for slow, work, longer in (
        (port, reduce(RankGroup(0, 1, 8), LONG), 4),
        (port, reduce(RankGroup(8, 1, 8), LONG), 1),
        (port, reduce(RankGroup(0, 8, 4), LONG), 1),
        (host, send("s", 3, 11, LONG), 2),
        (host, send("s", 3, 4, LONG), 1),
    ):
        exact = 1e-3 if longer == 4 else 0.0
        assert run(at_once((work, "gpu/stream")), slow) == pytest.approx([longer * SECONDS], rel=exact)


def test_a_dead_port_sends_traffic_of_its_node_over_nics() -> None:
    """NVLink has 300 GB/s, a NIC 25."""
    dead = TREE.degraded({"node0/gpu3-node0/nvswitch": 0.0})
    crossed = network_of(dead).traffic(send("s", 3, 4, LONG), ALONE)
    assert kinds(crossed, dead) == {"nic": [1, 1]}
    taken = run(at_once((send("s", 3, 4, LONG), "gpu3/send")), dead)
    assert taken == pytest.approx([12 * SECONDS], rel=1e-3)


def test_a_calibrated_protocol_is_no_faster_than_its_link() -> None:
    tree = build_topology(default_catalog().system("dgx-a100-80gb"), 8)
    half = tree.with_capacities(dict.fromkeys(tree.edges.of_kind("scale_up").tolist(), 150e9))
    (short, long), (slow_short, slow_long) = (
        CollectiveModel.of_tree(on).seconds("all_gather", np.array([1e3, 1e9]), Group.inside_node(8)).total_s
        for on in (tree, half)
    )
    assert slow_short == short, "start-up takes what it takes"
    assert slow_long - long == pytest.approx(7 / 8 * 1e9 * (1 / 150e9 - 1 / 300e9), rel=0.01)


def test_weights_down_and_gradients_up_share_links_that_are_not_duplex() -> None:
    """One slow port slows the broadcast to all."""
    system = toys.wafer_cluster()
    half = system.model_copy(update={"swarmx": system.swarmx.model_copy(update={"duplex": False})})
    load = Work("load", Kind.MEM_LOAD, "memoryx_read", "weight_stream", comm_bytes=1e6)
    up = Work("up", Kind.COMM_COLL, "reduce", "gradient_stream", comm_bytes=1e6, group=RankGroup(0, 1, 16))
    both = at_once((load, "memoryx/out"), (up, "swarmx/up"))
    topology = toys.topology(16, system)
    assert run(both, topology) == [SECONDS, SECONDS]
    assert run(both, toys.topology(16, half)) == [2 * SECONDS, 2 * SECONDS]
    alone = at_once((load, "memoryx/out"))
    slow = topology.degraded({"swarmx/1/1-cs5": 0.25})
    assert len(SharedLinks.of(alone, network_of(slow)).capacities) == 1
    assert run(alone, slow) == [4 * SECONDS]


def test_unfolded_wafers_spill_as_one_folded_wafer_does() -> None:
    question = {"model": "gpt3_20b", "system": "cs-2", "devices": 4, "batch": 256}
    folded = ps.predict(**question)
    assert folded.layout["spill"]
    unfolded = ps.predict(**question, perturb="straggler=1.0001@0")
    assert unfolded.step_time_s == pytest.approx(folded.step_time_s, rel=1e-3)
