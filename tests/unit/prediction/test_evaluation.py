"""Ranks are written once where that is right, and apart where their groups lie unevenly over nodes."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest

from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path, simulate
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks, place, rank_classes
from perfsim.prediction.run import Step, evaluate
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import Plan
from perfsim.work import Kind, Work, unfold

INSIDE_S = 1.0
ACROSS_S = 3.0


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
        return INSIDE_S if len(nodes) == 1 else ACROSS_S


def planned(toys: ModuleType, nic: float = 25e9, **layout: int) -> Plan:
    """A model whose heads three divide, on nodes of four GPUs."""
    chosen = ParallelLayout(**layout)
    heads = {"hidden_size": 768, "num_attention_heads": 12, "ffn_hidden_size": 3072, "vocab_size": 49152}
    job = toys.job(2 * chosen.data, **heads, num_layers=4, tied_embeddings=False)
    plan: Plan = toys.plan("3d", job, chosen, toys.gpu_cluster(gpus=4, nics=4, nic_bytes_per_s=nic))
    return plan


def folded_s(toys: ModuleType, plan: Plan, costs: CountingNodes) -> float:
    graph = toys.graph_of(plan)
    return critical_path(graph, price(graph, costs)).step_time_s


@pytest.mark.parametrize(
    ("layout", "role", "slower", "kinds"),
    [
        ({"tensor": 3, "data": 4}, "tensor", 2 * (4 * 4 + 3), 2),
        ({"tensor": 3, "data": 2, "pipeline": 2}, "data", 1, 6),
    ],
)
def test_a_group_across_nodes_is_not_priced_as_one_inside(
    toys: ModuleType, layout: dict[str, int], role: str, slower: int, kinds: int
) -> None:
    """Ranks on nodes of four, where a stage computes and communicates by turns.

    Tensor groups 0 1 2, 3 | 4 5, 6 7 | 8, 9 10 11: the second and third reduce over NICs, 4 times a layer
    and micro-batch, and for embedding and loss. Gradients of ranks 0 and 3 of stage 0 stay in a node, 1 | 4
    do not; its backward is the last of the step, so its reduction is exposed; that of stage 1 is not.
    """
    plan = planned(toys, **layout)
    costs = CountingNodes(4, f"{role}_communication")
    placed = place(toys.graph_of(plan), plan.topology, contention=False)
    right_s = Step(placed, costs).run(contention=False).step_time_s
    assert right_s == folded_s(toys, plan, costs) + slower * (ACROSS_S - INSIDE_S)
    assert placed.note == f"groups lie unevenly over nodes or leaves: {kinds} kinds of ranks are simulated"


def test_neighbours_in_the_node_for_some_replicas_are_across_for_others(toys: ModuleType) -> None:
    """Stages of three ranks on nodes of four: 0 to 3 stays inside, 1 to 4 and 2 to 5 do not."""
    plan = planned(toys, data=3, pipeline=4)
    found = evaluate(plan, CountingNodes(4, "pipeline_communication"))
    assert "3 kinds of ranks are simulated" in found.plan.notes[-1]
    sends = {work.group.ranks[:2] for work in found.trace.graph.works if work.kind is Kind.COMM_SEND}
    assert {(0, 3), (1, 4), (2, 5)} <= {tuple(ranks) for ranks in sends}


def test_seconds_are_means_over_ranks_not_over_what_is_written(toys: ModuleType) -> None:
    """Two of four tensor groups span nodes, half of the ranks; all ranks wait for them in the end."""
    plan = planned(toys, tensor=3, data=4)
    costs = CountingNodes(4, "tensor_communication")
    graph = toys.graph_of(plan)
    partly = place(graph, plan.topology, contention=False).graph
    every = unfold(graph).graph
    few, whole = (critical_path(each, price(each, costs)) for each in (partly, every))
    assert len(partly) < len(every)
    assert few.mean_breakdown() == pytest.approx(whole.mean_breakdown(), rel=1e-12)
    assert few.step_time_s == whole.step_time_s


def test_a_layout_that_fills_nodes_evenly_is_folded_and_says_nothing(toys: ModuleType) -> None:
    plan = planned(toys, tensor=2, data=4, pipeline=2)
    found = evaluate(plan, toys.ToyCosts(plan.system))
    assert found.trace.graph is found.graph
    assert found.plan is plan


def test_where_links_are_shared_uneven_peers_are_written_for_what_they_enter(toys: ModuleType) -> None:
    plan = planned(toys, 1e8, tensor=3, data=4)
    graph = toys.graph_of(plan)
    prices = rank_classes(graph, network_of(plan.topology), shares_links=False)
    links = rank_classes(graph, network_of(plan.topology))
    assert len(set(prices.tolist())) < len(set(links.tolist())), "as dear, but not on the same NICs"
    costs = toys.ToyCosts(plan.system)
    every = unfold(graph).graph
    shared = SharedLinks.of(every, network_of(plan.topology), peers=np.arange(graph.width))
    right = simulate(every, price(every, costs), *shared).step_time_s
    assert evaluate(plan, costs).step_time_s == pytest.approx(right, rel=1e-9)
