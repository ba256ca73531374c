"""Expert parallelism: which ranks hold and exchange what, what moves, and how long that takes."""

import math
from dataclasses import replace
from statistics import NormalDist, fmean
from typing import Any

import pytest

from perfsim.catalog import default_catalog
from perfsim.costs.price import price
from perfsim.engine import critical_path
from perfsim.machines import machine_of
from perfsim.network import FatTree
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.model import layer_kinds
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, schedules, strategy
from perfsim.strategies.three_d.layers import expert_load
from perfsim.testing import toys
from perfsim.work import RankGroup, TaskGraph
from perfsim.work.counts import parameters

EXPERTS = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 512}
FUSED = {"attention": "flash", "dropout": False, "routing": "balanced"}
ON_EIGHT = ParallelLayout(data=8, expert=8)
IN_TWO = ParallelLayout(pipeline=2, data=4, expert=4, virtual_pipeline=2)
JOINED = (
    replace(ON_EIGHT, schedule="combined-1f1b"),
    replace(IN_TWO, schedule="combined-interleaved"),
    replace(IN_TWO, schedule="dualpipev"),
)


def job_of(batch: int = 8, recipe: dict[str, Any] | None = None, **experts: Any) -> Job:
    return toys.job(batch, FUSED | (recipe or {}), experts=EXPERTS | experts)


def planned(job: Job, layout: ParallelLayout) -> Plan:
    return toys.plan("3d", job, layout)


def moved(graph: TaskGraph, name: str) -> float:
    """Bytes of one kind of communication of the first rank in a step."""
    works = [graph.works[number] for number in graph.work.tolist()]
    return sum(work.comm_bytes for work in works if work.name == name)


def groups(graph: TaskGraph, name: str) -> set[RankGroup | None]:
    return {work.group for work in graph.works if work.name == name}


@pytest.mark.parametrize(
    ("dispatcher", "top_k", "times"),
    [
        ("all_to_all", 2, 2),
        ("all_to_all", 4, 4),
        ("deepep", 4, 4),
        ("all_gather", 2, 8),
        ("all_gather", 4, 8),
    ],
)
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_tokens_go_there_and_back_both_ways(dispatcher: str, top_k: int, times: int, spread: float) -> None:
    """A token goes to its k experts, or to all 8 ranks; of drawn routing the fullest rank counts."""
    recipe = {"dispatcher": dispatcher, "routing": "drawn", "routing_spread": spread}
    job = job_of(recipe=recipe, top_k=top_k)
    graph = planned(job, ON_EIGHT).graph()
    tokens = job.seq_length * job.model.hidden_size * 2.0  # one sequence a rank, in 16 bits
    each_way = 2 * job.model.num_layers * times * tokens * expert_load(job, 8)
    assert moved(graph, "experts.dispatch") == moved(graph, "experts.combine") == pytest.approx(each_way)


def test_experts_stand_on_neighbours_and_their_copies_in_steps_of_both_degrees() -> None:
    layout = ParallelLayout(tensor=2, sequence_parallel=True, data=8, expert=4, expert_tensor=2)
    graph = planned(job_of(16), layout).graph()
    assert groups(graph, "experts.dispatch") == {RankGroup(0, 2, 4)}
    assert groups(graph, "experts.all_gather") == {RankGroup(0, 1, 2)}
    assert {RankGroup(0, 8, 2), RankGroup(0, 2, 8)} == groups(graph, "data.all_reduce")


def test_memory_of_experts_falls_with_their_degree_and_zero_shards_it_over_copies() -> None:
    job = job_of(16)

    def held(**layout: Any) -> dict[str, float]:
        plan = planned(job, ParallelLayout(data=16, **layout))
        return dict(plan.memory[0].parts_bytes)

    counts = parameters(job.model)
    layers = job.model.num_layers
    routed = counts.routed_of(layer_kinds(job.model)[0]) * layers
    whole = held(expert=1)
    divided = held(expert=8)
    assert whole["parameters"] - divided["parameters"] == pytest.approx(2.0 * routed * 7 / 8)
    sharded = held(expert=8, zero_stage=1)
    saved = divided["optimizer"] - sharded["optimizer"]
    rest = counts.total - routed
    assert saved == pytest.approx(12.0 * (rest * 15 / 16 + routed / 8 / 2), rel=1e-3)
    copied, alone = (held(expert=8, expert_tensor=shared, zero_stage=3) for shared in (1, 2))
    gathered = copied["gathered parameters"] - alone["gathered parameters"]
    assert gathered == pytest.approx(2 * 2.0 * routed / layers / 8), "without a copy nothing is gathered"


def on_h100(job: Job, layout: ParallelLayout, *, graph: bool = True) -> Plan:
    """The plan on H100s with the constants of Megatron-Core, in a CUDA graph or without."""
    catalog = default_catalog()
    framework = catalog.framework("megatron-core-te").model_copy(update={"cuda_graph": graph})
    recipe = job.recipe.ran_with(framework=framework)
    topology = FatTree(catalog.system("dgx-h100"), layout.num_devices)
    return strategy("3d").plan(replace(job, recipe=recipe), topology, layout, check_memory=False)


def both_s(plan: Plan) -> tuple[float, float]:
    """The closed form, and the simulated step."""
    graph = plan.graph()
    costs = machine_of(plan.system).costs(plan.topology, plan.job.recipe)
    simulated_s = critical_path(graph, price(graph, costs)).step_time_s
    return strategy("3d").estimate_s(plan, costs), simulated_s


@pytest.mark.parametrize(
    "layout",
    [
        ON_EIGHT,
        ParallelLayout(data=16, expert=2, zero_stage=1),
        ParallelLayout(tensor=2, sequence_parallel=True, data=4, expert=8),
        ParallelLayout(tensor=2, sequence_parallel=True, data=4, expert=4, expert_tensor=2, recompute="full"),
        ParallelLayout(pipeline=2, data=4, expert=4, micro_batch_size=1),
        ParallelLayout(pipeline=2, data=4, expert=4, schedule="zb1p"),
        *JOINED,
    ],
)
@pytest.mark.parametrize("graph", [False, True])
def test_the_closed_form_is_close_to_the_simulation(layout: ParallelLayout, graph: bool) -> None:
    estimated_s, simulated_s = both_s(on_h100(job_of(32), layout, graph=graph))
    assert estimated_s == pytest.approx(simulated_s, rel=0.1)


@pytest.mark.parametrize("joined", JOINED)
def test_joined_passes_hide_rows_behind_compute_but_none_behind_itself(joined: ParallelLayout) -> None:
    apart = next(name for name, other in schedules.JOINED.items() if other == joined.schedule)
    plans = [on_h100(job_of(96), layout) for layout in (joined, replace(joined, schedule=apart))]
    joined_s, apart_s = (both_s(plan)[1] for plan in plans)
    graph = plans[0].graph()
    seconds = price(graph, machine_of(plans[0].system).costs(plans[0].topology, plans[0].job.recipe))
    steps = len(graph.step_ends)
    streams = enumerate(graph.streams)
    busy_s = {stream: seconds[graph.stream == number].sum() / steps for number, stream in streams}
    travels_s = busy_s["gpu0/nccl-experts"]
    assert max(travels_s, busy_s["gpu0/compute"]) <= joined_s < apart_s
    assert apart_s - joined_s >= 0.7 * min(travels_s, busy_s["gpu0/compute"])


@pytest.mark.parametrize("spread", [0.03, 0.3])
def test_the_load_is_that_of_the_fullest_rank_over_the_mean(spread: float) -> None:
    """Of two experts whose logarithms are d apart, the fuller has 1 + tanh(|d| / 2) times the mean."""
    recipe = {"routing": "drawn", "routing_spread": spread}
    apart = NormalDist(sigma=spread * math.sqrt(2))
    more = [math.tanh(abs(apart.inv_cdf((number + 0.5) / 1000)) / 2) for number in range(1000)]
    load = expert_load(job_of(recipe=recipe, num_experts=2, top_k=1), 2)
    assert load - 1.0 == pytest.approx(fmean(more), rel=0.1)


def test_the_load_grows_with_the_ranks_unless_balance_is_forced_or_a_capacity_limits_it() -> None:
    drawn = {"routing": "drawn", "routing_spread": 0.1}
    loads = [expert_load(job_of(recipe=drawn), ranks) for ranks in (1, 2, 8)]
    assert loads[0] == 1.0 < loads[1] < loads[2] < 1.4
    assert expert_load(job_of(recipe=drawn | {"expert_capacity": 1.0}), 8) == 1.0
    assert expert_load(job_of(), 8) == 1.0
