"""Which communications share links, and what sharing costs."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.engine import simulate
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks
from perfsim.network import Topology
from perfsim.specs.hardware import FatTreeSpec
from perfsim.testing import toys
from perfsim.testing.toys import at_once
from perfsim.work import GraphBuilder, Kind, RankGroup, TaskGraph, Work

SECONDS = 4.0


def send(name: str, source: int, target: int) -> Work:
    return toys.transfer(name, RankGroup(source, target - source, 2))


def reduce(name: str, group: RankGroup) -> Work:
    return Work(name, Kind.COMM_COLL, "all_reduce", "data_communication", comm_bytes=1e6, group=group)


def run(graph: TaskGraph, topology: Topology) -> list[float]:
    links = SharedLinks.of(graph, network_of(topology))
    durations = np.full(len(graph), SECONDS)
    return simulate(graph, durations, links.flows, links.capacities).end_s.tolist()


@pytest.fixture
def topology() -> Topology:
    return toys.topology(32)


def test_tasks_of_one_stream_never_overlap_so_they_do_not_contend(topology: Topology) -> None:
    builder = GraphBuilder()
    for name in ("a", "b"):
        builder.task(send(name, 0, 8), "gpu0/send-next")
    assert SharedLinks.of(builder.build(), network_of(topology)).flows == {}


def test_two_gpus_that_share_a_nic_are_priced_at_half_of_it_and_slow_each_other_no_further() -> None:
    shared = toys.topology(16, toys.gpu_cluster(nics=4))
    two = [(send("a", 0, 8), "gpu0/send"), (send("b", 1, 9), "gpu1/send")]
    assert run(at_once(*two), shared) == [SECONDS, SECONDS]
    three = [*two, (send("c", 1, 9), "gpu1/other")]
    assert run(at_once(*three), shared) == [1.5 * SECONDS] * 3, "three halves of one NIC"


@pytest.mark.parametrize("group", [RankGroup(0, 8, 4), RankGroup(0, 8, 2)], ids=["four", "a pair"])
def test_a_collective_loads_both_directions_of_its_nic_and_a_send_only_one(
    topology: Topology, group: RankGroup
) -> None:
    ring = reduce("gradients", group)
    for source, target in ((0, 8), (group.ranks[-1], 0)):
        both = at_once((ring, "gpu0/nccl"), (send("s", source, target), f"gpu{source}/send"))
        assert max(run(both, topology)) == 2 * SECONDS


@pytest.mark.parametrize("rank", [0, 5, 15])
def test_a_collective_of_whole_nodes_uses_the_nics_of_all_its_ranks(topology: Topology, rank: int) -> None:
    """Eight rings, one through each NIC: that is the bus bandwidth by which it is priced."""
    ring = reduce("gradients", RankGroup(0, 1, 16))
    out = at_once((ring, "gpu0/nccl"), (send("s", rank, 16 + rank % 8), "gpu/send"))
    into = at_once((ring, "gpu0/nccl"), (send("s", 16 + rank % 8, rank), "gpu/send"))
    assert run(out, topology) == [2 * SECONDS, 2 * SECONDS]
    assert run(into, topology) == [2 * SECONDS, 2 * SECONDS]


@pytest.mark.parametrize("group", [RankGroup(4, 4, 5), RankGroup(0, 3, 10), RankGroup(2, 1, 30)])
def test_the_rings_of_an_uneven_group_share_no_nic_and_load_those_of_all_ranks_alike(
    group: RankGroup, topology: Topology
) -> None:
    """A price for the NICs of the emptiest node is not lengthened by more rings than that."""
    assert run(at_once((reduce("gradients", group), "gpu0/nccl-data")), topology) == [SECONDS]
    traffic = network_of(topology).traffic(reduce("gradients", group), np.zeros(1, dtype=int))
    assert traffic is not None
    assert traffic.times.tolist() == [1] * (2 * group.size)


# -------------------------------------------------------------------- uplinks, with all replicas
def oversubscribed(nodes: int, nodes_per_leaf: int, oversubscription: float) -> Topology:
    fabric = FatTreeSpec(
        nodes_per_leaf=nodes_per_leaf, oversubscription=oversubscription, switch_latency=1e-7
    )
    return toys.topology(8 * nodes, toys.gpu_cluster().model_copy(update={"fabric": fabric}))


def folded_run(graph: TaskGraph, topology: Topology, peers: list[int]) -> list[float]:
    """Ends of a graph that stands for peers of these classes."""
    links = SharedLinks.of(graph, network_of(topology), peers=np.array(peers))
    durations = np.full(len(graph), SECONDS)
    return simulate(graph, durations, links.flows, links.capacities).end_s.tolist()


@pytest.mark.parametrize("oversubscription", [1.0, 2.0, 4.0])
def test_sends_of_all_replicas_share_the_uplinks_of_their_leaf(oversubscription: float) -> None:
    """Two stages of 32 ranks, a leaf each: 32 sends at once on 32 / oversubscription uplinks."""
    topology = oversubscribed(nodes=8, nodes_per_leaf=4, oversubscription=oversubscription)
    alone = at_once((send("next", 0, 32), "gpu0/send-next"))
    assert folded_run(alone, topology, [0] * 32) == [SECONDS * oversubscription]
    assert run(alone, topology) == [SECONDS], "a graph that writes one of them sees one of them"


def test_a_reduction_and_a_send_meet_on_uplinks_though_their_nics_differ() -> None:
    """Leaves of one node, 4 uplinks each. Stage 0 is nodes 0 and 1, stage 1 nodes 2 and 3.

    A send of 16 peers puts 8 messages on the 4 uplinks of each of leaves 0 and 1: half speed. The
    ring of stage 0 puts 8 on the same. Alone each takes 2 x 4 s; together 16 messages share 4: 16 s.
    """
    topology = oversubscribed(nodes=4, nodes_per_leaf=1, oversubscription=2.0)
    next_stage = (send("next", 0, 16), "gpu0/send-next")
    ring = (reduce("gradients", RankGroup(0, 8, 2)), "gpu0/nccl-data")
    assert folded_run(at_once(next_stage), topology, [0] * 16) == [2 * SECONDS]
    assert folded_run(at_once(ring), topology, [0] * 16) == [2 * SECONDS]
    assert folded_run(at_once(next_stage, ring), topology, [0] * 16) == [4 * SECONDS] * 2


def test_classes_of_peers_together_load_what_all_peers_load() -> None:
    topology = oversubscribed(nodes=8, nodes_per_leaf=4, oversubscription=4.0)
    parted = at_once((send("next", 0, 32), "gpu0/send-next"), (send("other", 5, 37), "gpu5/send-next"))
    assert folded_run(parted, topology, [int(peer == 5) for peer in range(32)]) == [4 * SECONDS] * 2
    # 64 ranks in 8 rings over 8 nodes on 2 leaves: 8 messages on 32 / 16 = 2 uplinks a leaf.
    topology = oversubscribed(nodes=8, nodes_per_leaf=4, oversubscription=16.0)
    ring = at_once((reduce("gradients", RankGroup(0, 8, 8)), "gpu0/nccl-data"))
    assert folded_run(ring, topology, [0] * 64) == [4 * SECONDS]


# ------------------------------------------------------------------------- slow and dead links
@pytest.mark.parametrize(
    ("ends", "longer"),
    [
        ([(0, 8), (1, 9)], 2),
        ([(0, 8), (2, 10), (3, 11)], 3),
        ([(0, 8)], 1),
        ([(0, 8), (9, 17)], 1),
    ],
)
def test_messages_share_the_only_nic_that_dead_ones_leave_them(
    topology: Topology, ends: list[tuple[int, int]], longer: int
) -> None:
    """Each asks for one NIC. Of the eight only nic1 lives, so GPU 0 goes through GPU 1: half speed for both.

    GPU 0 alone has it to itself, and so has each of two nodes its own. Detours have more hops.
    """
    dead = topology.degraded({f"node0/nic{nic}-leaf0": 0.0 for nic in (0, 2, 3, 4, 5, 6, 7)})
    sends = [(send(f"m{source}", source, target), f"gpu{source}/send") for source, target in ends]
    assert run(at_once(*sends), dead) == pytest.approx([longer * SECONDS] * len(ends), rel=1e-6)


# ------------------------------------------------------------------------------------- wafers
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
