"""What must hold for weight streaming on any machine, mechanism by mechanism."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.base.limits import Limits, limited
from perfsim.catalog import default_catalog
from perfsim.costs.price import price
from perfsim.costs.wafer import WaferCosts
from perfsim.engine import critical_path, simulate
from perfsim.engine.trace import Trace
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks
from perfsim.specs.layout import StreamingLayout
from perfsim.strategies import Plan, strategy
from perfsim.testing import toys
from perfsim.work import TaskGraph, Work

STREAMING = strategy("weight-streaming")
PEAK = 7.48e15
WIDE = {"num_layers": 6, "hidden_size": 4096, "num_attention_heads": 32, "ffn_hidden_size": 16384}
AT_PEAK = {"software_release": "peak"}
LAYOUT = {"recompute_layers": 1, "recompute": "full"}
SERVER = "memoryx.server"
WITH_BANDWIDTH = ("device.memory", SERVER, f"{SERVER}.dram", "swarmx", "io_link", "activation_servers")
few = settings(max_examples=25)


@dataclass(frozen=True)
class Streamed:
    """A plan and its prices."""

    plan: Plan
    costs: WaferCosts

    @cached_property
    def graph(self) -> TaskGraph:
        return self.plan.graph()

    @cached_property
    def trace(self) -> Trace:
        """The step as the engine runs it."""
        links = SharedLinks.of(self.graph, network_of(self.plan.topology))
        return simulate(self.graph, price(self.graph, self.costs), links.flows, links.capacities)

    @property
    def step_s(self) -> float:
        return self.trace.step_time_s

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Of each class of work by its name."""
        return {work.name: self.costs.duration_s(work) for work in self.graph.works}

    @property
    def works(self) -> list[Work]:
        """Of all tasks."""
        return [self.graph.works[work] for work in self.graph.work.tolist()]


def streamed(
    batch: int = 16,
    systems: int = 1,
    *,
    changes: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    layout: Mapping[str, Any] | None = None,
    **system: Any,
) -> Streamed:
    """A batch over systems that differ from the toys in `changes`."""
    spec = default_catalog().override(toys.wafer_cluster(**system), dict(changes or {}))
    fields = {"data": systems, "micro_batch_size": batch // systems, **LAYOUT, **(layout or {})}
    job = toys.job(batch, recipe_changes=recipe, **(WIDE | (model or {})))
    topology = toys.topology(systems, spec)
    plan = STREAMING.plan(job, topology, StreamingLayout(**fields), check_memory=False)
    return Streamed(plan, WaferCosts(topology, job.recipe))


def recomputing(group: int) -> dict[str, Any]:
    return {"recompute_layers": group, "recompute": "full" if group else "none"}


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


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("batch", [2, 24])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_the_closed_form_is_near_the_simulation_everywhere(machine: str, batch: int, passes: int) -> None:
    layout = {"micro_batch_size": -(-batch // passes)}
    run = streamed(batch, changes=MACHINES[machine], layout=layout, model={"num_layers": 24})
    assert STREAMING.estimate_s(run.plan, run.costs) == pytest.approx(run.step_s, rel=0.15)


@few
@given(
    layers=st.integers(1, 6),
    hidden=st.sampled_from([256, 1024, 4096]),
    passes=st.integers(1, 3),
    size=st.integers(1, 8),
    systems=st.sampled_from([1, 4, 16]),
)
def test_simpys_events_are_the_closed_form_of_products_attention_and_rows_where_nothing_is_waited_for(
    layers: int, hidden: int, passes: int, size: int, systems: int
) -> None:
    """A step is M [L (4 products + 4 attention + 4 x 9 H rows) + 3 head], from the shape alone."""
    fast = {f"{name}.bandwidth": 1e18 for name in WITH_BANDWIDTH}
    fast |= {"memoryx.server.arithmetic": 1e22, "swarmx.hop_latency": 0.0, "io_link.latency": 0.0}
    fast |= {"loss_per_doubling": 0.02}
    shape = {"num_layers": layers, "hidden_size": hidden, "ffn_hidden_size": 4 * hidden}
    batch = passes * size * systems
    run = streamed(batch, systems, changes=fast, model=shape, layout={"micro_batch_size": size})
    tokens = size * 1024
    rate = 0.233 * PEAK
    products_s = 2 * tokens * 12 * hidden**2 / rate
    attention_s = 4 * tokens * 1024 * hidden / (rate / 4)
    rows_s = 9 * hidden * 100e-9
    head_s = 2 * tokens * hidden * 51200 / rate
    alone_s = passes * (4 * layers * (products_s + attention_s + rows_s) + 3 * head_s)
    slower = 0.98 ** -math.log2(systems)
    with limited(Limits(engine="simpy")):
        trace = simulate(run.graph, price(run.graph, run.costs))
    assert trace.step_time_s == pytest.approx(slower * alone_s, rel=1e-4)
    assert critical_path(run.graph, price(run.graph, run.costs)).end_s.tobytes() == trace.end_s.tobytes()
    assert STREAMING.estimate_s(run.plan, run.costs) == pytest.approx(trace.step_time_s, rel=1e-4)
    named_s = run.graph.mean_over_steps(lambda work: run.costs.parts_s(work).get("rows of weights", 0.0))
    assert named_s == pytest.approx(passes * 4 * layers * rows_s, rel=1e-9)


def in_tiers(share: float, passes: int, **changes: Any) -> Streamed:
    """Streamed from a MemoryX whose DRAM holds a share of what training keeps there."""
    layout = {"micro_batch_size": 12 // passes}
    whole = streamed(12, layout=layout)
    needs = sum(use.total_bytes for use in whole.plan.memory if not use.on_device)
    servers = whole.plan.system.memoryx.servers
    dram = {"memoryx.server.dram.capacity": max(1.0, share * needs / servers)}
    return streamed(12, layout=layout, changes=dram | changes)


@few
@given(
    share=st.floats(0.0, 1.0),
    more=st.floats(0.01, 0.5),
    passes=st.sampled_from([1, 2, 3]),
    flash=st.sampled_from([1e8, 1e9, 1e10]),
    duplex=st.booleans(),
)
def test_dram_is_never_slower(share: float, more: float, passes: int, flash: float, duplex: bool) -> None:
    changes = {"memoryx.server.flash.bandwidth": flash, "memoryx.server.flash.duplex": duplex}
    less, enough = (in_tiers(size, passes, **changes) for size in (share, share + more))
    assert enough.trace.end_s.max() <= less.trace.end_s.max() * (1 + 1e-9)


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_model_a_tenth_above_dram_pays_a_tenth_of_what_all_in_flash_costs(passes: int) -> None:
    """Where flash is so slow that it decides the step; moments move once, sums and weights more often."""
    slow = {"memoryx.server.flash.bandwidth": 1e7}
    all_s, tenth_s, none_s = (in_tiers(share, passes, **slow).step_s for share in (0.0, 0.9, 1.0))
    assert 0.04 < (tenth_s - none_s) / (all_s - none_s) < 0.11
    assert all_s > 100 * none_s


def most_hidden_s(whole: Streamed) -> float:
    """What a step in layers may take longer than one in chunks, with prefetch and layers alike.

    In chunks a pass begins with a chunk of weights instead of a block of them, forward and backward and
    wherever blocks of another kind come next, and the last gradient follows its computation by a chunk.
    Where weights take about as long as their use, a layer shows half of its latency.
    """
    seconds = whole.seconds
    kinds = ("embedding", "layer", "head")
    loads_s = sum(seconds[f"{kind}.load"] + seconds[f"{kind}.broadcast"] for kind in kinds)
    blocks = whole.plan.job.model.num_layers + 2
    latency_s = max(seconds[f"{kind}.broadcast"] for kind in kinds) * 3 * blocks
    reduces_s = sum(seconds[f"{kind}.reduce"] for kind in kinds)
    return whole.plan.num_microbatches * (2 * loads_s + latency_s + reduces_s)


@few
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
    layout = {"micro_batch_size": -(-batch // passes), **recomputing(group)}
    options: dict[str, Any] = {"changes": {"streaming.prefetch_depth": depth}, "efficiency": efficiency}
    whole = streamed(batch, layout=layout, **options)
    cut = streamed(batch, layout=layout | {"stream_chunks": chunks}, **options)
    layers_s, pieces_s = (run.trace.end_s.max() for run in (whole, cut))
    assert pieces_s <= layers_s * (1 + 1e-9)
    if depth:  # without prefetch a layer's weights come before its computation, in chunks next to it
        assert layers_s - pieces_s <= 2 * most_hidden_s(whole)


@few
@given(batch=st.integers(1, 64), efficiency=st.floats(0.02, 0.9), factor=st.floats(1.01, 2.0))
def test_lower_efficiency_is_never_faster_than_peak(batch: int, efficiency: float, factor: float) -> None:
    better = min(1.0, efficiency * factor)
    slow, fast = (streamed(batch, efficiency=value).step_s for value in (efficiency, better))
    assert streamed(batch, recipe=AT_PEAK).step_s <= fast <= slow


def test_scaling_at_a_fixed_global_batch_degrades_from_the_threshold_on() -> None:
    times = {count: streamed(192, count).step_s for count in (1, 2, 4, 16, 64, 192)}
    efficiency = [times[1] / (count * seconds) for count, seconds in times.items()]
    assert efficiency == sorted(efficiency, reverse=True)
    assert efficiency[1] > 0.92
    assert efficiency[-1] < 0.3


@pytest.mark.parametrize("passes", [2, 3, 8])
@pytest.mark.parametrize("where", ["memoryx", "swarmx", "wafer"])
def test_accumulation_repeats_weights_and_its_place_decides_on_gradients(passes: int, where: str) -> None:
    def traffic(count: int) -> Counter[str]:
        layout = {"micro_batch_size": 24 // count}
        n_bytes: Counter[str] = Counter()
        for work in streamed(24, layout=layout, changes={"streaming.accumulate_at": where}).works:
            n_bytes[work.op] += work.comm_bytes
        return n_bytes

    whole = traffic(1)
    split = traffic(passes)
    assert split["memoryx_read"] == passes * whole["memoryx_read"]
    assert split["memoryx_update"] == whole["memoryx_update"]
    assert split["reduce"] == (passes if where == "memoryx" else 1) * whole["reduce"]
    assert split["reduce_in_tree"] == (passes - 1) * whole["reduce"] * (where == "swarmx")


@few
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
    before = streamed(batch, changes=changes).seconds
    after = streamed(batch, changes=changes, recipe={"weight_sparsity": sparsity}).seconds
    kept = 1 - sparsity
    for name in ("layer.forward", "layer.backward"):
        assert before[name] >= after[name] >= before[name] * kept * (1 - 1e-9)
    assert after["layer.load"] >= before["layer.load"] * kept * (1 - 1e-9)
    assert after["head.forward"] == before["head.forward"]
    assert after["layer.reduce"] <= before["layer.reduce"]


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_what_hampers_a_machine_never_makes_it_faster(batch: int) -> None:
    layout = {"micro_batch_size": -(-batch // 2)}
    step_s = {name: streamed(batch, changes=with_, layout=layout).step_s for name, with_ in MACHINES.items()}
    least_s = step_s["as it is"] * (1 - 1e-12)
    slow = ("by layer", "weights in flash", "state in flash", "no prefetch", "half duplex", "slow samples")
    for name in slow:
        assert step_s[name] >= least_s, name
    assert step_s["by layer, far ahead"] <= step_s["by layer"]
    faster = max(step_s["weights in flash"], step_s["all in duplex flash"])
    assert step_s["all in flash"] >= faster * (1 - 1e-12)
    for name, value in (("memoryx.server.bandwidth", 7.5e9), ("swarmx.fan_out", 2), ("memoryx.servers", 5)):
        assert streamed(batch, changes={name: value}, layout=layout).step_s >= least_s, name


def test_the_bubble_between_steps_is_gradient_update_and_weights_of_the_first_block() -> None:
    """An embedding computes next to nothing, so the first layer's gradient may still be on its way."""
    run = streamed(64)
    way = ("embedding.reduce", "embedding.update", "embedding.load", "embedding.broadcast")
    least = sum(run.seconds[name] for name in way)
    bubble = sum(run.trace.mean_boundary().values())
    assert least * (1 - 1e-6) <= bubble <= least + run.seconds["layer.reduce"] + run.seconds["layer.update"]


@pytest.mark.parametrize("group", [0, 1, 2])
def test_spilled_activations_leave_and_return_and_share_the_port(group: int) -> None:
    layout = {"spill": True, **recomputing(group)}
    slow = streamed(8, layout=layout)
    fast = streamed(8, layout=layout, changes={"activation_servers.per_system": 10})
    ops = Counter(work.op for work in slow.works)
    assert ops["spill"] == ops["fetch"] == 2 * -(-WIDE["num_layers"] // max(1, group))
    # A fast port takes more from the weights at a time, so that little is won where nothing waited.
    assert slow.step_s >= 0.99 * fast.step_s
    kept = replace(slow.plan, layout=replace(slow.plan.layout, spill=False))
    assert fast.step_s >= Streamed(kept, slow.costs).step_s * (1 - 1e-9)
    assert fast.step_s >= critical_path(fast.graph, price(fast.graph, fast.costs)).step_time_s
