"""Context parallelism: what a rank computes, holds and exchanges, and when it is considered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.base.errors import LayoutError
from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.machines import network_of
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy
from perfsim.strategies.three_d.space import LEAST_POSITIONS, LONG_SEQUENCE
from perfsim.testing import toys
from perfsim.work import TaskGraph

FUSED = {"attention": "flash", "dropout": False}
LAYERS = {"mlp.forward": 1.0, "mlp.backward": 2.0}


def job_of(seq_length: int = 4096, batch: int = 8, **model: Any) -> Job:
    job: Job = toys.job(batch, {**FUSED, "seq_length": seq_length}, **model)
    return job


def planned(job: Job, layout: ParallelLayout, nodes_of: int = 8) -> Plan:
    topology = toys.topology(layout.num_devices, toys.gpu_cluster(gpus=nodes_of, nics=nodes_of))
    plan: Plan = strategy("3d").plan(job, topology, layout, check_memory=False)
    return plan


def context_bytes(graph: TaskGraph) -> float:
    """Bytes that one rank sends to its context peers in a step."""
    works = [graph.works[number] for number in graph.work.tolist()]
    return sum(work.comm_bytes for work in works if work.category == "context_communication")


# ------------------------------------------------------------------------------------------ time
@settings(max_examples=25)
@given(
    context=st.integers(2, 6),
    block=st.integers(0, 8),
    backward=st.integers(0, 8),
    message=st.integers(0, 8),
    recompute=st.sampled_from(["none", "full"]),
    microbatches=st.integers(1, 3),
)
def test_the_closed_form_of_a_ring_is_exact_whatever_limits_it(
    context: int, block: int, backward: int, message: int, recompute: Any, microbatches: int
) -> None:
    costs = toys.TableCosts(
        {
            **LAYERS,
            "mlp.recompute": 1.0,
            "attention.qkv.forward": 1.0,
            "attention.block.forward": block,
            "attention.block.recompute": block,
            "attention.block.backward": backward,
            "context.send_recv": message,
        }
    )
    job = job_of(240 * 2, microbatches, num_layers=2)
    plan = planned(job, ParallelLayout(context=context, recompute=recompute))
    graph = toys.graph_of(plan)
    simulated = critical_path(graph, price(graph, costs)).step_time_s
    assert strategy("3d").estimate_s(plan, costs) == pytest.approx(simulated)


# ------------------------------------------------------------------------------ work and messages
@pytest.mark.parametrize("exchange", ["ring", "all_to_all"])
def test_all_ranks_together_do_the_flop_of_one(exchange: Any) -> None:
    job = job_of()
    alone = toys.graph_of(planned(job, ParallelLayout())).flop
    for context in (2, 4, 8):
        layout = ParallelLayout(context=context, context_exchange=exchange)
        assert toys.graph_of(planned(job, layout)).flop == pytest.approx(alone)


def test_an_all_to_all_moves_four_hidden_tensors_a_pass_as_ulysses_counts() -> None:
    """[2309.14509 section 3.2]: queries, keys, values and output, 1 / c of s h elements on a rank."""
    job = job_of(batch=1)
    for context in (2, 4, 8):
        layout = ParallelLayout(context=context, context_exchange="all_to_all")
        hidden = 2.0 * job.seq_length * job.model.hidden_size / context
        sent = context_bytes(toys.graph_of(planned(job, layout)))
        assert sent == job.model.num_layers * 2 * 4 * hidden


def test_a_ring_moves_keys_and_values_of_the_others_and_back_their_gradients_too() -> None:
    """[2310.01889]: c - 1 messages forward; backward again, and gradients in c messages."""
    job = job_of(batch=1, num_query_groups=4)
    for context in (2, 4, 8):
        pair = 2 * 2.0 * job.seq_length / context * job.model.head_size * 4
        sent = context_bytes(toys.graph_of(planned(job, ParallelLayout(context=context))))
        assert sent == job.model.num_layers * pair * (2 * (context - 1) + context)


def test_a_shift_crosses_the_links_between_two_nodes_once_each_way() -> None:
    plan = planned(job_of(), ParallelLayout(context=16))
    network = network_of(plan.topology)
    work = next(work for work in toys.graph_of(plan).works if work.op == "send_recv")
    traffic = network.load(work, np.zeros(16, dtype=np.int64))
    assert traffic is not None
    nics = np.isin(traffic.links, plan.topology.nics.ravel())  # type: ignore[attr-defined]
    assert traffic.times[nics].tolist() == [1, 1, 1, 1]
    assert network.sent_bytes(work) == work.comm_bytes


# ----------------------------------------------------------------------------------------- memory
def test_a_rank_keeps_its_part_of_the_activations_and_buffers_for_four_pairs() -> None:
    job = job_of(num_query_groups=4)
    one, four = (planned(job, ParallelLayout(context=context)).memory[0].parts_bytes for context in (1, 4))
    assert four["activations"] == pytest.approx(one["activations"] / 4)
    pair = 2 * 2.0 * job.seq_length / 4 * job.model.head_size * 4
    assert four["working set"] == pytest.approx(one["working set"] / 4 + 4 * pair)


def test_states_are_sharded_over_context_ranks_too() -> None:
    shared, replicated = (
        planned(job_of(), replace(ParallelLayout(zero_stage=1), **degrees)).memory[0].parts_bytes
        for degrees in ({"context": 4, "data": 2}, {"data": 8})
    )
    assert shared["optimizer"] == replicated["optimizer"]


# ------------------------------------------------------------------------------------------ rules
@pytest.mark.parametrize(
    ("layout", "changes", "problem"),
    [
        ({"context": 3}, {}, "seq_length 4096 is not a multiple of 6"),
        ({"context": 4}, {"attention": "standard"}, "needs fused attention"),
        ({"context": 4, "recompute": "selective"}, {}, "take recompute none or full"),
        ({"context": 4}, {"lm_head_positions": 8}, "lm_head_positions leaves some out"),
        (
            {"context": 8, "context_exchange": "all_to_all", "tensor": 4},
            {},
            "num_attention_heads 16 is not a multiple of tensor 4 × context 8",
        ),
    ],
)
def test_what_context_ranks_cannot_share_is_refused(
    layout: dict[str, Any], changes: dict[str, Any], problem: str
) -> None:
    job = toys.job(8, {**FUSED, "seq_length": 4096, **changes})
    with pytest.raises(LayoutError, match=problem):
        planned(job, ParallelLayout(**layout))


# ---------------------------------------------------------------------------------------- planner
def test_context_degrees_are_tried_for_long_sequences_only() -> None:
    topology = toys.topology(8)
    chosen = strategy("3d")
    short = chosen.layouts(job_of(LONG_SEQUENCE // 2), topology)
    assert {layout.context for layout in short} == {1}  # type: ignore[attr-defined]
    job = job_of(LONG_SEQUENCE)
    degrees = {layout.context for layout in chosen.layouts(job, topology)}  # type: ignore[attr-defined]
    assert degrees == {size for size in (1, 2, 4, 8) if LONG_SEQUENCE // size >= LEAST_POSITIONS}


def test_context_degrees_are_tried_where_nothing_fits_without() -> None:
    job = job_of(LONG_SEQUENCE // 2, 8, num_layers=1, num_attention_heads=2)
    chosen = strategy("3d")
    costs = toys.ToyCosts(toys.gpu_cluster())
    fits = [
        chosen.plan(job, toys.topology(8), layout, check_memory=False).peak_memory_bytes
        for layout in chosen.layouts(job, toys.topology(8))
    ]
    cluster = toys.gpu_cluster(capacity=min(fits) * 0.97)
    screening = chosen.screen(job, toys.topology(8, cluster), costs)
    assert screening.feasible
    assert all(screening.layout(index).context > 1 for index in range(screening.feasible))  # type: ignore[attr-defined]
