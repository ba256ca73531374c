"""Context parallelism: what a rank computes, holds and exchanges, and when it is considered."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.machines import network_of
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy
from perfsim.strategies.three_d.space import LEAST_POSITIONS
from perfsim.testing import toys

FUSED = {"attention": "flash", "dropout": False}


def job_of(seq_length: int = 4096, batch: int = 8, **model: Any) -> Job:
    return toys.job(batch, {**FUSED, "seq_length": seq_length}, **model)


def planned(job: Job, context: int = 1, **layout: Any) -> Plan:
    return toys.plan("3d", job, ParallelLayout(context=context, **layout))


def context_bytes(plan: Plan) -> float:
    """Bytes that one rank sends to its context peers in a step."""
    graph = plan.graph()
    works = [graph.works[number] for number in graph.work.tolist()]
    return sum(work.comm_bytes for work in works if work.category == "context_communication")


seconds = st.integers(0, 8)


@settings(max_examples=25)
@given(st.integers(2, 6), seconds, seconds, seconds, st.sampled_from(["none", "full"]), st.integers(1, 3))
def test_the_closed_form_of_a_ring_is_exact_whatever_limits_it(
    context: int, block: int, backward: int, message: int, recompute: Any, microbatches: int
) -> None:
    whole = {"mlp.forward": 1.0, "mlp.backward": 2.0, "mlp.recompute": 1.0, "attention.qkv.forward": 1.0}
    blocks = {"forward": block, "recompute": block, "backward": backward}
    of_blocks = {f"attention.block.{name}": block_s for name, block_s in blocks.items()}
    costs = toys.TableCosts({**whole, **of_blocks, "context.send_recv": message})
    plan = planned(job_of(240 * 2, microbatches, num_layers=2), context, recompute=recompute)
    graph = plan.graph()
    simulated = critical_path(graph, price(graph, costs)).step_time_s
    assert strategy("3d").estimate_s(plan, costs) == pytest.approx(simulated)


@pytest.mark.parametrize("context", [2, 4, 8])
def test_a_rank_computes_and_sends_what_the_papers_count(context: int) -> None:
    """All ranks together do the FLOP of one; Ulysses and rings move what their papers say.

    [2309.14509 section 3.2]: queries, keys, values and output, 1 / c of s h elements on a rank.
    [2310.01889]: keys and values in c - 1 messages forward; backward again, and gradients in c messages.
    """
    for exchange, groups in (("ring", 4), ("all_to_all", 16)):
        job = job_of(batch=1, num_query_groups=groups)
        plan = planned(job, context, context_exchange=exchange)
        assert plan.graph().flop == pytest.approx(planned(job).graph().flop)
        pair = 2 * 2.0 * job.seq_length / context * job.model.head_size * groups
        hidden = 2.0 * job.seq_length * job.model.hidden_size / context
        moved = pair * (2 * (context - 1) + context) if exchange == "ring" else 2 * 4 * hidden
        assert context_bytes(plan) == job.model.num_layers * moved


def test_a_shift_crosses_the_links_between_two_nodes_once_each_way() -> None:
    plan = planned(job_of(), 16)
    network = network_of(plan.topology)
    work = next(work for work in plan.graph().works if work.op == "send_recv")
    traffic = network.load(work, np.zeros(16, dtype=np.int64))
    nics = np.isin(traffic.links, plan.topology.nics.ravel())
    assert traffic.times[nics].tolist() == [1, 1, 1, 1]
    assert network.sent_bytes(work) == work.comm_bytes


def test_a_rank_keeps_its_part_of_activations_and_states_and_buffers_for_four_pairs() -> None:
    job = job_of(num_query_groups=4)
    one, four = (planned(job, context).memory[0].parts_bytes for context in (1, 4))
    assert four["activations"] == pytest.approx(one["activations"] / 4)
    pair = 2 * 2.0 * job.seq_length / 4 * job.model.head_size * 4
    assert four["working set"] == pytest.approx(one["working set"] / 4 + 4 * pair)
    contexts, replicas = (
        planned(job, data=8 // context, context=context, zero_stage=1) for context in (4, 1)
    )
    assert contexts.memory[0].parts_bytes["optimizer"] == replicas.memory[0].parts_bytes["optimizer"]


def test_context_ranks_have_fewer_positions_where_nothing_fits_without() -> None:
    job = job_of(2 * LEAST_POSITIONS, 8, num_layers=1, num_attention_heads=2)
    chosen = strategy("3d")
    costs = toys.ToyCosts(toys.gpu_cluster())
    fits = [
        chosen.plan(job, toys.topology(8), layout, check_memory=False).peak_memory_bytes
        for layout in chosen.layouts(job, toys.topology(8))
    ]
    cluster = toys.gpu_cluster(capacity=min(fits) * 0.97)
    screening = chosen.screen(job, toys.topology(8, cluster), costs)
    assert screening.feasible
    assert all(screening.layout(index).context > 1 for index in range(screening.feasible))
