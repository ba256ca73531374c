"""Data parallelism: what replicas hold, reduce and gather at each ZeRO stage, in one group or several."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.engine.trace import Trace
from perfsim.specs.layout import ParallelLayout, parsed_settings
from perfsim.strategies import Plan, strategy
from perfsim.strategies.three_d.data import Held, Replicas
from perfsim.strategies.three_d.memory import stage_memory
from perfsim.strategies.three_d.prices import OverReplicas
from perfsim.strategies.three_d.space import Columns
from perfsim.testing import toys
from perfsim.work import RankGroup
from perfsim.work.counts import parameters

LAYER_PARAMETERS = 12 * 2048**2 + 13 * 2048
TABLES = (51200 + 1024) * 2048
FSDP = ParallelLayout(data=32, zero_stage=3)
LAYERS = {"attention.forward": 1.0, "mlp.forward": 1.0, "attention.backward": 2.0, "mlp.backward": 2.0}


def planned(layout: ParallelLayout, batch: int = 32, **recipe: Any) -> Plan:
    return toys.plan("3d", toys.job(batch, recipe), layout)


def run(plan: Plan, seconds: dict[str, float]) -> Trace:
    graph = plan.graph()
    return critical_path(graph, price(graph, toys.TableCosts(seconds)))


def replicas(zero_stage: int = 0, **recipe: object) -> Replicas:
    return Replicas(toys.recipe(**recipe), RankGroup(0, 2, 4), "gpu0", 1000.0, zero_stage)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        # update: gradient 4, states 12 read and written, half weights 2; unscale, norm, clip, zero: 6 x 4
        ({"precision": "bf16"}, 4 + 24 + 2 + 24),
        # pure bf16: everything in 2 bytes
        ({"reduce_precision": "bf16", "optimizer_precision": "bf16"}, 2 + 8 + 2 + 12),
        # bf16 gradients, fp32 optimizer: copied (2 + 4), used and clipped in fp32, zeroed in bf16
        ({"reduce_precision": "bf16"}, 6 + 4 + 24 + 2 + 20 + 2),
        # fp32: moments 8 read and written, weights 4
        ({"precision": "fp32"}, 4 + 16 + 4 + 24),
    ],
)
def test_an_optimizer_step_moves_states_both_ways(recipe: dict[str, object], expected: float) -> None:
    assert replicas(**recipe).optimizer_work().bytes_accessed == expected * 1000.0


def sent_between_nodes(group: Replicas, num_parameters: float, node: int) -> float:
    """Bytes that a rank of a node sends to others in a step, by rings that enter each node once."""
    works = [*group.reduce_works(Held(num_parameters)), *group.gather_works(Held(num_parameters)) * 2]
    total = 0.0
    for work in works:
        if work.group.ranks[-1] // node != work.group.start // node:
            passes = 2.0 if work.op == "all_reduce" else 1.0
            total += passes * work.comm_bytes * (work.group.size - 1) / work.group.size
    return total


@pytest.mark.parametrize("nodes", [4, 16, 128])
def test_a_group_of_a_node_sends_what_the_fsdp_paper_counts(nodes: int) -> None:
    """[2304.11277 section 3.2.2]: 2 M (W - 1) / (G W) across hosts, not 3 M (W - 1) / W; all in 16 bits."""
    node = 8
    ranks = 8 * nodes
    whole = Replicas(toys.recipe(reduce_precision="bf16"), RankGroup(0, 1, ranks), "gpu0", 1e9, 3)
    n_bytes = 2.0 * 1e9
    assert sent_between_nodes(whole, 1e9, node) == pytest.approx(3 * n_bytes * (ranks - 1) / ranks)
    hybrid = sent_between_nodes(replace(whole, shard_group=node), 1e9, node)
    # The paper rounds (W - G) / W to (W - 1) / W.
    assert hybrid == pytest.approx(2 * n_bytes * (ranks - node) / (node * ranks))


NORMS = {
    "dp=4": [],
    "tp=2,dp=2": [(0, 1, 2)],
    "dp=4,zero=1": [(0, 1, 4)],
    "dp=4,zero=3": [(0, 1, 4)],
    "dp=4,zero=3,shard_group=2": [(0, 1, 2)],
    "tp=2,cp=2,zero=2": [(0, 1, 4)],
    "pp=4": [(0, 1, 4)],
    "tp=2,pp=2,dp=2": [(0, 1, 2), (4, 1, 2), (0, 4, 2)],
    "tp=2,pp=2,zero=1,dp=2": [(0, 1, 4), (4, 1, 4), (0, 4, 2)],
    "pp=2,vpp=2,schedule=zbv": [],
}


@pytest.mark.parametrize(("text", "groups"), NORMS.items(), ids=NORMS)
def test_the_norm_is_summed_over_ranks_and_estimated(text: str, groups: list[tuple[int, int, int]]) -> None:
    """Replicas have the same ones; a schedule that checks the norm after its update waits for nothing."""
    layout = ParallelLayout(**parsed_settings(text, ParallelLayout))
    plan = planned(layout, attention="flash")
    norms = [work for work in plan.graph().works if work.name == "gradients.norm"]
    assert [work.group for work in norms if work.group] == groups
    assert {work.comm_bytes for work in norms if work.group} <= {4.0}
    costs = toys.TableCosts({"gradients.norm": 1.0})
    prices = OverReplicas(plan.job, Columns.of(plan.job, layout), plan.topology, costs).prices
    assert prices.norm[0, 0] == len({work.category for work in norms})


def test_memory_holds_a_shard_of_the_gradients_and_the_buckets_under_way() -> None:
    def parts(zero_stage: int, data: int = 8) -> dict[str, float]:
        layout = ParallelLayout(data=data, zero_stage=zero_stage)
        return dict(stage_memory(toys.job(), layout, toys.topology(8))[0].parts_bytes)

    whole = parts(1)
    shard = parts(2)
    assert shard["gradients"] == whole["gradients"] / 8
    assert shard["gradient buckets"] == pytest.approx(4 * (2 * LAYER_PARAMETERS + TABLES))
    assert shard["optimizer"] == whole["optimizer"]
    assert parts(3)["gradient buckets"] == shard["gradient buckets"]
    assert parts(3)["gathered parameters"] == pytest.approx(2 * (2 * LAYER_PARAMETERS + TABLES))
    assert not any("gradient buckets" in parts(zero_stage, data=1) for zero_stage in (2, 3))


def test_scattering_that_overlaps_hides_behind_the_backward() -> None:
    plan = planned(ParallelLayout(data=4, zero_stage=2), 16, overlap_grad_reduce=True)
    seconds = {"mlp.forward": 0.25, "mlp.backward": 1.0, "data.reduce_scatter": 0.5}
    assert run(plan, seconds).step_time_s == 4 * 8 * 1.25 + 2 * 0.5, "the last layer's and that of the tables"


def test_sums_over_groups_hide_behind_the_backward() -> None:
    """Only that of the last layer and of embedding and LM head is exposed."""
    plan = planned(replace(FSDP, data=8, shard_group=2), 8)
    assert run(plan, {"attention.backward": 4.0, "data.all_reduce": 1.0}).step_time_s == 8 * 4.0 + 2.0


@pytest.mark.parametrize("gather_s", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("layers", [1, 2, 3, 8])
def test_a_gather_of_layers_starts_when_one_of_two_before_it_is_done(layers: int, gather_s: float) -> None:
    """FSDP's `limit_all_gathers` [2304.11277]: the host issues a gather when the last but one's is freed."""
    plan = toys.plan("zero3", toys.job(4, num_layers=layers), ParallelLayout(data=4, zero_stage=3))
    trace = run(plan, dict.fromkeys(LAYERS, 1.0) | {"data.all_gather": gather_s})
    tasks = list(trace.graph.tasks())
    gathers = [task for task in tasks if task.work.name == "data.all_gather" and task.block >= 0]
    order = [*range(layers), *reversed(range(layers))]
    assert [task.block for task in gathers] == order
    done_s = {(t.work.name, t.block): trace.end_s[t.id] for t in tasks}
    freed_s = [done_s["mlp.forward", block] for block in order[:layers]]
    freed_s += [done_s["attention.backward", block] for block in order[layers:]]
    for number in range(1, len(gathers)):
        freed = freed_s[number - 2] if number >= 2 else 0.0
        on_stream = trace.end_s[gathers[number - 1].id]
        assert trace.start_s[gathers[number].id] == max(on_stream, freed), f"gather {number}"


# Fields of a layout, the recipe, what takes so many whole seconds, and how far the closed form may be off.
RACES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...], float]] = {
    f"ZeRO {zero_stage}, gathered ahead, buckets of {bucket}": (
        {"data": 2, "zero_stage": zero_stage},
        {"overlap_param_gather": True, "grad_bucket": bucket},
        ("data.all_gather",),
        1e-6,
    )
    for zero_stage, bucket in ((1, None), (1, 1e9), (2, None), (2, 1e9))
} | {
    f"ZeRO {zero_stage}, in groups": (
        {"data": 8, "zero_stage": zero_stage, "shard_group": 2},
        {},
        ("data.all_gather", "data.reduce_scatter", "data.all_reduce"),
        0.03,
    )
    for zero_stage in (1, 3)
}


@pytest.mark.parametrize("name", RACES)
@settings(max_examples=8)
@given(microbatches=st.integers(1, 3), data=st.data())
def test_the_closed_form_holds_whatever_is_slower(name: str, microbatches: int, data: st.DataObject) -> None:
    fields, recipe, raced, rel = RACES[name]
    layout = ParallelLayout(**fields)
    plan = planned(layout, layout.data * microbatches, **recipe)
    seconds = LAYERS | {work: data.draw(st.integers(0, 5), work) for work in raced}
    simulated_s = run(plan, seconds).step_time_s
    assert strategy("3d").estimate_s(plan, toys.TableCosts(seconds)) == pytest.approx(simulated_s, rel=rel)


def test_one_group_of_all_replicas_is_plain_sharding() -> None:
    grouped, plain = (planned(replace(FSDP, shard_group=size)).graph().digest() for size in (32, None))
    assert grouped == plain


def owned(size: int, optimizer: str = "adam", **runtime: Any) -> Replicas:
    recipe = toys.recipe(optimizer=optimizer)
    runtime = recipe.runtime.model_copy(update={"states": "owner_broadcast", **runtime})
    recipe = recipe.model_copy(update={"runtime": runtime})
    model = toys.model()
    count = float(parameters(model).total)
    return Replicas(recipe, RankGroup(0, 1, size), "", count, 1, model=model)


def test_muon_all_reduces_gradients_and_gathers_what_ranks_updated_at_once() -> None:
    """Megatron-Core's `dist_muon` divides whole matrices, and gathers none ahead."""
    replicas = owned(8, "muon", states="scatter_gather", overlap_param_gather=True)
    (reduced,), (gathered,) = replicas.reduce_works(replicas.held), replicas.gather_works(replicas.held)
    assert (reduced.op, gathered.op) == ("all_reduce", "all_gather")
    assert (reduced.group, gathered.comm_bytes) == (replicas.ranks, 2 * replicas.num_parameters)
    assert (replicas.gathers_ahead, replicas.updated) == (False, replicas.num_parameters / 8)


@pytest.mark.parametrize("size", [4, 4096])
def test_owners_reduce_all_gradients_and_broadcast_whole_tensors_in_turn(size: int) -> None:
    """A layer has nine tensors, three more are around the layers; a rank without a tensor sends nothing."""
    replicas = owned(size)
    whole = replicas.held
    sent = replicas.gather_works(whole)
    tensors = 9 * toys.model().num_layers + 3
    assert [work.op for work in sent] == ["broadcast"] * min(size, tensors)
    assert sum(work.comm_bytes for work in sent) == pytest.approx(2 * whole.rest)
    (reduced,) = replicas.reduce_works(whole)
    assert (reduced.op, reduced.group) == ("all_reduce", replicas.ranks)
    assert replicas.updated >= toys.model().vocab_size * toys.model().hidden_size
