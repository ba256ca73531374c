"""Ranks are written once where that is right, and apart where their groups lie unevenly over nodes."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import pytest

from perfsim.costs.price import Costs, price
from perfsim.engine import critical_path
from perfsim.machines.placement import place
from perfsim.prediction.run import evaluate
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


def planned(toys: ModuleType, **layout: int) -> Plan:
    """A model whose heads three divide, on nodes of four GPUs."""
    chosen = ParallelLayout(**layout)
    heads = {"hidden_size": 768, "num_attention_heads": 12, "ffn_hidden_size": 3072, "vocab_size": 49152}
    job = toys.job(2 * chosen.data, **heads, num_layers=4, tied_embeddings=False)
    plan: Plan = toys.plan("3d", job, chosen, toys.gpu_cluster(gpus=4, nics=4))
    return plan


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
    graph = toys.graph_of(plan)
    partly = place(graph, plan.topology, contention=False).graph
    every = unfold(graph).graph
    few, whole = (critical_path(part, price(part, costs)) for part in (partly, every))
    assert len(partly) < len(every)
    assert few.mean_breakdown() == pytest.approx(whole.mean_breakdown(), rel=1e-12)
    assert few.step_time_s == whole.step_time_s


def test_a_layout_that_fills_nodes_evenly_is_folded_and_says_nothing(toys: ModuleType) -> None:
    plan = planned(toys, tensor=2, data=4, pipeline=2)
    run = evaluate(plan, toys.ToyCosts(plan.system))
    assert run.trace.graph is run.graph
    assert run.plan is plan
