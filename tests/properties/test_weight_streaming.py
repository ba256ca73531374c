"""What must hold for weight streaming on any machine: mechanism by mechanism, and the roof in tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.catalog import default_catalog
from perfsim.costs.price import price
from perfsim.costs.wafer import WaferCosts, roof_tokens
from perfsim.engine import critical_path, simulate
from perfsim.engine.trace import Trace
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks
from perfsim.specs.layout import StreamingLayout
from perfsim.strategies import Plan, strategy
from perfsim.testing import toys

STREAMING = strategy("weight-streaming")
PEAK = 7.48e15
LINK = 150e9
WEIGHT_BYTES = 2.0
WIDE = {"num_layers": 6, "hidden_size": 4096, "num_attention_heads": 32, "ffn_hidden_size": 16384}
LAYOUT = {"recompute_layers": 1, "recompute": "full"}
lenient = settings(deadline=None, max_examples=25)


def planned(
    batch: int = 16,
    systems: int = 1,
    *,
    changes: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    layout: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] = WIDE,
    **system: Any,
) -> tuple[Plan, WaferCosts]:
    """A plan of a batch over systems that differ from the toys in `changes`, and its prices."""
    spec = default_catalog().override(toys.wafer_cluster(**system), dict(changes or {}))
    fields = {"data": systems, "micro_batch_size": batch // systems, **LAYOUT, **(layout or {})}
    job = toys.job(batch, recipe_changes=recipe, **model)
    topology = toys.topology(systems, spec)
    plan = STREAMING.plan(job, topology, StreamingLayout(**fields), check_memory=False)
    return plan, WaferCosts(topology, job.recipe)


def run(plan: Plan, costs: WaferCosts) -> Trace:
    """The step as the engine runs it."""
    graph = toys.graph_of(plan)
    links = SharedLinks.of(graph, network_of(plan.topology))
    return simulate(graph, price(graph, costs), links.flows, links.capacities)


def step_s(*args: Any, **kwargs: Any) -> float:
    return run(*planned(*args, **kwargs)).step_time_s


def seconds_of(costs: WaferCosts, plan: Plan) -> dict[str, float]:
    """Seconds of each class of work by its name."""
    return {work.name: costs.duration_s(work) for work in toys.graph_of(plan).works}


IN_FLASH = {"memoryx.weights_in": "flash", "memoryx.optimizer_state_in": "flash"}
MACHINES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "by layer": {"memoryx.placement": "by_layer"},
    "by layer, far ahead": {"memoryx.placement": "by_layer", "streaming.prefetch_depth": 6},
    "weights in flash": {"memoryx.weights_in": "flash"},
    "state in flash": {"memoryx.optimizer_state_in": "flash"},
    "all in flash": IN_FLASH,
    "all in duplex flash": IN_FLASH | {"memoryx.server.flash.duplex": True},
    "no prefetch": {"streaming.prefetch_depth": 0},
    "half duplex": {"swarmx.duplex": False},
    "summed in the tree": {"streaming.accumulate_at": "swarmx"},
    "summed on the wafer": {"streaming.accumulate_at": "wafer"},
    "slow samples": {"activation_servers.bandwidth": 3e5},
}


# ------------------------------------------------------------------------------ the two engines
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("batch", [2, 24])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_the_closed_form_is_near_the_simulation_on_every_machine(
    machine: str, batch: int, passes: int
) -> None:
    layout = {"micro_batch_size": -(-batch // passes)}
    plan, costs = planned(batch, changes=MACHINES[machine], layout=layout, model=WIDE | {"num_layers": 24})
    estimate = STREAMING.estimate_s(plan, costs)
    assert estimate == pytest.approx(run(plan, costs).step_time_s, rel=0.15)


# --------------------------------------------------------------------------------------- detail
def most_hidden_s(plan: Plan, costs: WaferCosts) -> float:
    """What a step in layers may take longer than one in chunks, with prefetch and layers alike.

    In chunks a pass begins with a chunk of weights instead of a block of them, forward and backward and
    wherever blocks of another kind come next, and the last gradient follows its computation by a chunk.
    Where weights take about as long as their use, a layer shows half of its latency.
    """
    seconds = seconds_of(costs, plan)
    blocks = plan.job.model.num_layers + 2
    kinds = ("embedding", "layer", "head")
    loads_s = sum(seconds[f"{kind}.load"] + seconds[f"{kind}.broadcast"] for kind in kinds)
    latency_s = max(seconds[f"{kind}.broadcast"] for kind in kinds) * 3 * blocks
    reduces_s = sum(seconds[f"{kind}.reduce"] for kind in kinds)
    return plan.num_microbatches * (2 * loads_s + latency_s + reduces_s)


@lenient
@given(
    batch=st.integers(1, 64),
    passes=st.integers(1, 3),
    chunks=st.integers(2, 24),
    depth=st.integers(0, 3),
    group=st.sampled_from([0, 1, 2]),
    efficiency=st.floats(0.05, 1.0),
)
def test_chunks_only_gain_and_gain_no_more_than_what_they_hide(
    batch: int, passes: int, chunks: int, depth: int, group: int, efficiency: float
) -> None:
    layout = {
        "micro_batch_size": -(-batch // passes),
        "recompute_layers": group,
        "recompute": "full" if group else "none",
    }
    options: dict[str, Any] = {"changes": {"streaming.prefetch_depth": depth}, "efficiency": efficiency}
    whole, costs = planned(batch, layout=layout, **options)
    cut, _ = planned(batch, layout=layout | {"stream_chunks": chunks}, **options)
    layers, pieces = (run(plan, costs).end_s.max() for plan in (whole, cut))
    assert pieces <= layers * (1 + 1e-9)
    if depth:  # without prefetch a layer's weights come before its computation, in chunks beside it
        assert layers - pieces <= 2 * most_hidden_s(whole, costs)


def test_one_chunk_is_the_layer_level() -> None:
    once, again = (planned(layout=layout)[0] for layout in ({}, {"stream_chunks": 1}))
    assert toys.graph_of(once).digest() == toys.graph_of(again).digest()


# ------------------------------------------------------------------------------ the roof in tokens
def forward_pace_s(tokens: int) -> tuple[float, float]:
    """Seconds from one layer's forward to the next in the simulated step, and of its computation alone.

    Short sequences make attention nothing beside the matrices; at peak there is no overhead.
    """
    model = WIDE | {"num_layers": 12}
    recipe = {"software_release": "peak", "seq_length": 8}
    plan, costs = planned(tokens // 8, recipe=recipe, model=model)
    trace = run(plan, costs)
    graph = trace.graph
    names = np.array([work.name for work in graph.works])[graph.work]
    forwards = np.flatnonzero(names == "layer.forward")[:12]
    starts = trace.start_s[forwards]
    each_s = float((trace.end_s - trace.start_s)[forwards[0]])
    return float(starts[-1] - starts[4]) / 7, each_s


def test_the_simulated_threshold_is_that_of_the_formula() -> None:
    """T = e P b / (2 B): 49,867 tokens at peak with 2 bytes and 150 GB/s."""
    formula = roof_tokens(PEAK, WEIGHT_BYTES, LINK)
    assert formula == pytest.approx(49_867, rel=1e-4)
    low = 8
    high = 8 * 2**14
    while high - low > 64:
        tokens = (low + high) // 16 * 8
        pace_s, each_s = forward_pace_s(tokens)
        low, high = (low, tokens) if pace_s <= each_s * (1 + 1e-6) else (tokens, high)
    assert high == pytest.approx(formula, rel=0.005)


def test_weight_bytes_and_links_matter_only_below_the_threshold() -> None:
    tokens = roof_tokens(PEAK, 4.0, LINK)
    above, below = (round(factor * tokens / 1024) for factor in (2.5, 0.1))
    assert above * 1024 == pytest.approx(248_000, rel=0.01)

    def ratio(batch: int, **changed: Any) -> float:
        peak = {"recipe": {"software_release": "peak"}, "update_bytes_per_s": 1e15}
        base = {**peak, "model": WIDE | {"num_layers": 24}, "weight_bytes": 2.0}
        return step_s(batch, **(base | changed)) / step_s(batch, **base)

    assert ratio(above, weight_bytes=4.0) < 1.03
    assert ratio(above, stream_bytes_per_s=2 * LINK) > 0.98
    assert ratio(below, weight_bytes=4.0) > 1.8
    assert ratio(below, stream_bytes_per_s=2 * LINK) < 0.6


@lenient
@given(batch=st.integers(1, 64), efficiency=st.floats(0.02, 0.9), factor=st.floats(1.01, 2.0))
def test_a_lower_efficiency_is_never_faster_and_peak_is_below_all(
    batch: int, efficiency: float, factor: float
) -> None:
    better = min(1.0, efficiency * factor)
    slow, fast = (step_s(batch, efficiency=value) for value in (efficiency, better))
    assert fast <= slow
    assert step_s(batch, recipe={"software_release": "peak"}) <= fast


# ---------------------------------------------------------------------------------------- scaling
@pytest.mark.parametrize("systems", [1, 2, 4, 16])
def test_scaling_at_a_fixed_batch_a_system_loses_less_than_5_percent_up_to_192(systems: int) -> None:
    alone, most = (step_s(64 * count, count) for count in (1, 192))
    assert alone <= step_s(64 * systems, systems) <= most < 1.05 * alone


def test_scaling_at_a_fixed_global_batch_degrades_from_the_threshold_on() -> None:
    times = {count: step_s(192, count) for count in (1, 2, 4, 16, 64, 192)}
    efficiency = [times[1] / (count * seconds) for count, seconds in times.items()]
    assert efficiency == sorted(efficiency, reverse=True)
    assert efficiency[1] > 0.95
    assert efficiency[-1] < 0.3


@pytest.mark.parametrize("passes", [2, 3, 8])
@pytest.mark.parametrize("where", ["memoryx", "swarmx", "wafer"])
def test_accumulation_repeats_the_weights_and_where_it_is_done_decides_on_gradients(
    passes: int, where: str
) -> None:
    def traffic(count: int) -> dict[str, float]:
        layout = {"micro_batch_size": 24 // count}
        plan, _ = planned(24, layout=layout, changes={"streaming.accumulate_at": where})
        graph = toys.graph_of(plan)
        n_bytes = dict.fromkeys(("memoryx_read", "reduce", "reduce_in_tree", "memoryx_update"), 0.0)
        for work in graph.work.tolist():
            if graph.works[work].op in n_bytes:
                n_bytes[graph.works[work].op] += graph.works[work].comm_bytes
        return n_bytes

    whole = traffic(1)
    split = traffic(passes)
    assert split["memoryx_read"] == passes * whole["memoryx_read"]
    assert split["memoryx_update"] == whole["memoryx_update"]
    into_memoryx = passes if where == "memoryx" else 1
    assert split["reduce"] == into_memoryx * whole["reduce"]
    assert split["reduce_in_tree"] == (passes - 1) * whole["reduce"] * (where == "swarmx")


def test_the_last_micro_batch_is_computed_at_its_own_size() -> None:
    def flop(batch: int, micro: int) -> float:
        plan, _ = planned(batch, layout={"micro_batch_size": micro})
        graph = toys.graph_of(plan)
        computing = [graph.works[work] for work in graph.work.tolist() if graph.works[work].kind == 0]
        return sum(work.flop for work in computing) / len(graph.step_ends)

    assert flop(65, 22) == pytest.approx(flop(65, 65), rel=1e-12)
    assert step_s(65, layout={"micro_batch_size": 22}) < step_s(66, layout={"micro_batch_size": 22})


# --------------------------------------------------------------------------------------- sparsity
@lenient
@given(
    sparsity=st.floats(0.01, 0.99),
    harvest=st.floats(0.0, 1.0),
    overhead=st.floats(0.0, 2.0),
    batch=st.integers(1, 64),
)
def test_sparsity_never_beats_one_over_what_is_kept(
    sparsity: float, harvest: float, overhead: float, batch: int
) -> None:
    changes = {"streaming.sparse_harvest": harvest, "streaming.sparse_index_overhead": overhead}
    sparse_recipe = {"weight_sparsity": sparsity}
    dense, dense_costs = planned(batch, changes=changes)
    sparse, sparse_costs = planned(batch, changes=changes, recipe=sparse_recipe)
    before = seconds_of(dense_costs, dense)
    after = seconds_of(sparse_costs, sparse)
    kept = 1 - sparsity
    for name in ("layer.forward", "layer.backward"):
        assert before[name] >= after[name] >= before[name] * kept * (1 - 1e-9)
    assert after["layer.load"] >= before["layer.load"] * kept * (1 - 1e-9)
    assert after["head.forward"] == before["head.forward"]
    assert after["layer.reduce"] <= before["layer.reduce"]


def test_sparsity_divides_matrices_and_their_weights_alike_but_for_the_index() -> None:
    changes = {"streaming.sparse_harvest": 1.0, "streaming.sparse_index_overhead": 0.0}
    recipe = {"software_release": "peak", "seq_length": 8}
    ratio = []
    forward_s = []
    for sparsity in (0.0, 0.75):
        plan, costs = planned(2**12, changes=changes, recipe=recipe | {"weight_sparsity": sparsity})
        seconds = seconds_of(costs, plan)
        forward_s.append(seconds["layer.forward"])
        ratio.append(seconds["layer.load"] / forward_s[-1])
    assert ratio[1] == pytest.approx(ratio[0], rel=0.01)
    assert 3.9 < forward_s[0] / forward_s[1] <= 4.0


# -------------------------------------------------------------------------------------- mechanisms
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_what_hampers_a_machine_never_makes_it_faster(batch: int) -> None:
    def with_(changes: Mapping[str, Any]) -> float:
        return step_s(batch, changes=changes, layout={"micro_batch_size": -(-batch // 2)})

    base = with_({})
    slow = ("by layer", "weights in flash", "state in flash", "no prefetch", "half duplex", "slow samples")
    for name in slow:
        assert with_(MACHINES[name]) >= base * (1 - 1e-12), name
    assert with_(MACHINES["by layer, far ahead"]) <= with_(MACHINES["by layer"])
    assert with_(MACHINES["all in flash"]) >= with_(MACHINES["weights in flash"]) * (1 - 1e-12)
    assert with_(MACHINES["all in flash"]) >= with_(MACHINES["all in duplex flash"]) * (1 - 1e-12)
    for name, value in (("memoryx.server.bandwidth", 7.5e9), ("swarmx.fan_out", 2), ("memoryx.servers", 5)):
        assert with_({name: value}) >= base * (1 - 1e-12), name


def test_half_duplex_shares_the_link_in_full() -> None:
    """Backward takes the sum of both directions where neither hides behind compute."""
    layers = 24
    bare: dict[str, Any] = {"recipe": {"software_release": "peak"}, "update_bytes_per_s": 1e15}
    bare |= {"model": WIDE | {"num_layers": layers}}
    both, turns = (step_s(1, changes=changes, **bare) for changes in ({}, MACHINES["half duplex"]))
    plan, costs = planned(1, **bare)
    assert turns - both == pytest.approx(layers * seconds_of(costs, plan)["layer.reduce"], rel=0.1)


def test_samples_that_come_too_slowly_show_as_input() -> None:
    split = {"micro_batch_size": 4}
    quick, slow = (
        run(*planned(changes={"activation_servers.bandwidth": rate}, layout=split)).mean_breakdown()
        for rate in (1.25e10, 1e5)
    )
    assert quick["input"] < 1e-3
    assert slow["input"] > 0.5 * sum(slow.values())
    assert sum(slow.values()) == pytest.approx(16 * 1024 * 12 / 1e5, rel=0.02)


def test_the_bubble_between_steps_is_gradient_update_and_weights_of_the_first_block() -> None:
    """An embedding computes next to nothing, so the first layer's gradient may still be on its way."""
    plan, costs = planned(64)
    seconds = seconds_of(costs, plan)
    way = ("embedding.reduce", "embedding.update", "embedding.load", "embedding.broadcast")
    least = sum(seconds[name] for name in way)
    bubble = sum(run(plan, costs).mean_boundary().values())
    assert least * (1 - 1e-6) <= bubble <= least + seconds["layer.reduce"] + seconds["layer.update"]


@pytest.mark.parametrize("group", [0, 1, 2])
def test_spilled_activations_leave_and_return_and_share_the_port(group: int) -> None:
    layout = {"spill": True, "recompute_layers": group, "recompute": "full" if group else "none"}
    plan, costs = planned(8, layout=layout)
    graph = toys.graph_of(plan)
    ops = [graph.works[work].op for work in graph.work.tolist()]
    units = -(-WIDE["num_layers"] // max(1, group))
    assert ops.count("spill") == ops.count("fetch") == 2 * units
    kept = replace(plan, layout=replace(plan.layout, spill=False))
    resident = run(kept, costs).step_time_s
    fast = {"activation_servers.per_system": 10}
    slow_port, fast_port = (
        run(*planned(8, layout=layout, changes=changes)).step_time_s for changes in ({}, fast)
    )
    # A fast port takes more from the weights at a time, so that little is won where nothing waited.
    assert slow_port >= 0.99 * fast_port
    assert fast_port >= resident * (1 - 1e-9)
    wide, wide_costs = planned(8, layout=layout, changes=fast)
    durations = price(toys.graph_of(wide), wide_costs)
    uncontended = critical_path(toys.graph_of(wide), durations).step_time_s
    assert fast_port >= uncontended
