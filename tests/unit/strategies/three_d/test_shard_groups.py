"""States sharded in several groups of replicas: what each group moves and holds, and how fast that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.base.errors import LayoutError
from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import Plan, strategy
from perfsim.strategies.three_d.data import Held, Replicas
from perfsim.testing import toys
from perfsim.work import RankGroup

FSDP = ParallelLayout(data=32, zero_stage=3)


def planned(layout: ParallelLayout, batch: int = 32, **recipe: Any) -> Plan:
    topology = toys.topology(layout.num_devices, toys.gpu_cluster(gpus=8, nics=8))
    plan: Plan = strategy("3d").plan(toys.job(batch, recipe), topology, layout, check_memory=False)
    return plan


def sent_between_nodes(group: Replicas, num_parameters: float, node: int) -> float:
    """Bytes that a rank of a node sends to others in a step, by rings that enter each node once."""
    works = [*group.reduce_works(Held(num_parameters)), *[group.gather_work(num_parameters)] * 2]
    total = 0.0
    for work in works:
        assert work.group is not None
        if work.group.ranks[-1] // node == work.group.start // node:
            continue
        passes = 2.0 if work.op == "all_reduce" else 1.0
        total += passes * work.comm_bytes * (work.group.size - 1) / work.group.size
    return total


@pytest.mark.parametrize("nodes", [4, 16, 128])
def test_a_group_of_a_node_sends_what_the_fsdp_paper_counts(nodes: int) -> None:
    """[2304.11277 section 3.2.2]: 2 M (W - 1) / (G W) across hosts, not 3 M (W - 1) / W; all in 16 bits."""
    node = 8
    ranks = 8 * nodes
    parameters = 1e9
    recipe = toys.recipe(reduce_precision="bf16")
    replicas = Replicas(recipe, RankGroup(0, 1, ranks), "gpu0", 1e9, 3)
    groups = replace(replicas, shard_group=node)
    n_bytes = 2.0 * parameters
    full = sent_between_nodes(replicas, parameters, node)
    assert full == pytest.approx(3 * n_bytes * (ranks - 1) / ranks)
    hybrid = sent_between_nodes(groups, parameters, node)
    # The paper rounds (W - G) / W to (W - 1) / W.
    assert hybrid == pytest.approx(2 * n_bytes * (ranks - node) / (node * ranks))
    assert hybrid == pytest.approx(2 * n_bytes * (ranks - 1) / (node * ranks), rel=node / ranks)


def test_one_group_of_all_replicas_is_plain_sharding() -> None:
    layouts = (replace(FSDP, shard_group=size) for size in (32, None))
    grouped, plain = (toys.graph_of(planned(layout)).digest() for layout in layouts)
    assert grouped == plain


def test_a_rank_holds_the_shard_of_its_group() -> None:
    hybrid, whole = (planned(replace(FSDP, shard_group=size)).memory[0].parts_bytes for size in (8, None))
    for name in ("parameters", "gradients", "optimizer"):
        assert hybrid[name] == pytest.approx(4 * whole[name])
    assert hybrid["gathered parameters"] == whole["gathered parameters"]


@settings(max_examples=20)
@given(
    zero_stage=st.sampled_from([1, 3]),
    gather=st.integers(0, 3),
    scatter=st.integers(0, 3),
    across=st.integers(0, 3),
    microbatches=st.integers(1, 3),
)
def test_the_closed_form_is_close_whatever_limits_it(
    zero_stage: int, gather: int, scatter: int, across: int, microbatches: int
) -> None:
    seconds = {
        "attention.forward": 2.0,
        "mlp.forward": 2.0,
        "attention.backward": 4.0,
        "mlp.backward": 4.0,
        "data.all_gather": gather,
        "data.reduce_scatter": scatter,
        "data.all_reduce": across,
    }
    layout = replace(FSDP, data=8, zero_stage=zero_stage, shard_group=2)
    plan = planned(layout, 8 * microbatches)
    costs = toys.TableCosts(seconds)
    graph = toys.graph_of(plan)
    simulated = critical_path(graph, price(graph, costs)).step_time_s
    assert strategy("3d").estimate_s(plan, costs) == pytest.approx(simulated, rel=0.03)


def test_sums_over_groups_hide_behind_the_backward() -> None:
    """Only that of the last layer and of embedding and LM head is exposed."""
    seconds = {"attention.backward": 4.0, "data.all_reduce": 1.0}
    plan = planned(replace(FSDP, data=8, shard_group=2), 8)
    graph = toys.graph_of(plan)
    assert critical_path(graph, price(graph, toys.TableCosts(seconds))).step_time_s == 8 * 4.0 + 2.0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"shard_group": 5}, "shard_group 5 must divide the 32 ranks"),
        ({"shard_group": 1}, "in groups of 2 or more; nearest: 2"),
        ({"shard_group": 8, "zero_stage": 0}, "zero_stage is 0"),
    ],
)
def test_groups_that_do_not_divide_the_replicas_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(LayoutError, match=problem):
        planned(replace(FSDP, **changes))


def test_the_planner_tries_groups_of_a_node_where_there_are_several_nodes() -> None:
    for devices, groups in ((8, {None}), (16, {None, 8, 4, 2})):
        listed = strategy("zero3").layouts(toys.job(devices), toys.topology(devices))
        assert {layout.shard_group for layout in listed} == groups  # type: ignore[attr-defined]
