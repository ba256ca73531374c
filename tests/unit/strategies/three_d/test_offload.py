"""Offload of optimizer and parameters to the host: refusals, memory, time and its limits."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfsim as ps
from perfsim.base.errors import LayoutError, MemoryCapacityError
from perfsim.base.sizes import MEMORY_LIMIT
from perfsim.costs.price import price
from perfsim.engine import simulate
from perfsim.engine.trace import Trace
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks
from perfsim.prediction.planner import best_estimate
from perfsim.specs.hardware import GpuClusterSpec
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.strategies.three_d import offload
from perfsim.testing import toys
from perfsim.work import EMBEDDING, HEAD
from perfsim.work.counts import parameters

CPU = ParallelLayout(offload_optimizer="cpu")
INFINITY = ParallelLayout(zero_stage=3, offload_optimizer="cpu", offload_param="cpu")
ACTIVATIONS = ParallelLayout(offload_activations="cpu")


def system(**changes: Any) -> GpuClusterSpec:
    return toys.gpu_cluster(host=toys.host(**changes))


def run(job: Job, layout: ParallelLayout, on: GpuClusterSpec) -> tuple[Trace, float]:
    """The simulated step, with shared links, and its closed form."""
    plan = toys.plan("3d", job, layout, on)
    costs = toys.ToyCosts(on, devices=layout.num_devices)
    graph = plan.graph()
    links = SharedLinks.of(graph, network_of(plan.topology))
    trace = simulate(graph, price(graph, costs), links.flows, links.capacities)
    return trace, strategy("3d").estimate_s(plan, costs)


@pytest.mark.parametrize(
    ("layout", "on", "message"),
    [
        (CPU, toys.gpu_cluster(), r"offload_optimizer: toy-gpus has no `node.host`"),
        (replace(CPU, offload_optimizer="nvme"), system(), r"toy-gpus has no `node.host.nvme`"),
        (replace(INFINITY, zero_stage=1), system(), "parameters that ZeRO 3 gathers"),
        (replace(ACTIVATIONS, pipeline=2), system(), "pipeline must be 1, not 2"),
    ],
)
def test_an_impossible_offload_is_refused(layout: ParallelLayout, on: GpuClusterSpec, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        toys.plan("3d", toys.job(), layout, on)


@given(
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["cpu", "nvme"]),
    st.sampled_from(["none", "cpu", "nvme"]),
)
def test_states_are_on_the_device_or_off_it(zero_stage: int, data: int, optimizer: Any, param: Any) -> None:
    without = ParallelLayout(data=data, zero_stage=zero_stage)
    layout = replace(without, offload_optimizer=optimizer, offload_param=param if zero_stage == 3 else "none")
    job = toys.job(data)
    on = system(drives=1e13)
    before = toys.plan("3d", job, without, on).memory[0].parts_bytes
    device, *others = toys.plan("3d", job, layout, on).memory
    for state in ("parameters", "gradients", "optimizer"):
        moved = sum(use.parts_bytes.get(state, 0.0) for use in others) / data
        assert moved + device.parts_bytes[state] == pytest.approx(before[state])
        assert moved == 0.0 or device.parts_bytes[state] == 0.0
    assert device.parts_bytes["optimizer"] == 0.0
    assert not any(use.on_device for use in others)


@pytest.mark.parametrize("layout", [CPU, replace(CPU, pipeline=4), replace(CPU, data=4, zero_stage=1)])
def test_where_copies_meet_no_others_the_closed_form_is_the_simulated_step(layout: ParallelLayout) -> None:
    """A rank's copies of gradients, updates and copies of parameters are a flow shop of equal pieces."""
    on = system(link_bytes_per_s=10e9)
    trace, estimate = run(toys.job(8 * layout.data), layout, on)
    assert estimate == pytest.approx(trace.step_time_s, rel=0.02)


def test_a_step_bound_by_the_link_takes_the_bytes_of_its_copies() -> None:
    """Every micro-batch: parameters twice, gradients once, next to each other; at the end the update."""
    rate = 1e8
    microbatches = 4
    job = toys.job(microbatches)
    on = system(link_bytes_per_s=rate)
    trace, estimate = run(job, INFINITY, on)
    states = toys.plan("3d", job, INFINITY, on).memory[1].parts_bytes
    loaded_s = states["parameters"] / rate
    stored_s = states["gradients"] / rate
    copies_s = microbatches * (loaded_s + max(loaded_s, stored_s))
    assert trace.step_time_s == pytest.approx(copies_s, rel=0.1)
    assert estimate == pytest.approx(trace.step_time_s, rel=0.1)
    assert trace.mean_breakdown()["offload"] > 0.9 * trace.step_time_s
    twice, _ = run(job, INFINITY, system(link_bytes_per_s=2 * rate))
    assert trace.step_time_s / twice.step_time_s == pytest.approx(2.0, rel=0.05)


def test_with_a_fast_host_the_step_is_that_without_offload() -> None:
    host = toys.host(link_bytes_per_s=1e15).model_copy(update={"optimizer_fraction": 1.0})
    on = toys.gpu_cluster(host=host)
    on.node.host.memory.__dict__["bandwidth"] = 1e18
    without = replace(INFINITY, offload_optimizer="none", offload_param="none")
    trace, _ = run(toys.job(8), INFINITY, on)
    usual, _ = run(toys.job(8), without, on)
    assert trace.step_time_s <= usual.step_time_s
    assert trace.step_time_s == pytest.approx(usual.step_time_s, rel=0.05)


def test_a_lone_rank_loads_every_block_forward_and_all_but_the_embedding_backward() -> None:
    graph = toys.plan("3d", toys.job(1, num_layers=2), INFINITY, system()).graph()
    blocks = [task.block for task in graph.tasks() if task.work.op == "host.load"]
    loaded = Counter(blocks)
    assert blocks[:4] == [EMBEDDING, 0, 1, HEAD]
    steps = len(graph.step_ends)
    assert loaded == {EMBEDDING: steps, HEAD: 2 * steps, 0: 2 * steps, 1: 2 * steps}


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("link_bytes_per_s", [1e8, 1e11])
def test_activations_of_two_layers_are_on_the_device_and_copies_cost_their_bytes(
    peak_live_bytes: Any, recompute: Any, link_bytes_per_s: float
) -> None:
    layout = replace(ACTIVATIONS, recompute=recompute)
    on = system(link_bytes_per_s=link_bytes_per_s)
    job = toys.job(4, num_layers=8)
    memory = toys.plan("3d", job, layout, on).memory
    trace, estimate = run(job, layout, on)
    live = peak_live_bytes(trace, {"saved"})["gpu0"]
    assert live == pytest.approx(memory[0].parts_bytes["activations"])
    assert live == pytest.approx(memory[1].parts_bytes["activations"] / 4)
    copies_s = 2 * 4 * memory[1].parts_bytes["activations"] / min(link_bytes_per_s, 400e9)
    usual, _ = run(job, replace(layout, offload_activations="none"), on)
    assert max(copies_s, usual.step_time_s) <= trace.step_time_s <= 1.1 * (copies_s + usual.step_time_s)
    assert estimate == pytest.approx(trace.step_time_s, rel=0.1)


def best(job: Job, on: GpuClusterSpec) -> ParallelLayout:
    question = toys.question("3d", job, toys.topology(1, on), toys.ToyCosts(on, devices=1))
    return best_estimate(question)[1].layout


def test_the_planner_offloads_only_where_nothing_fits_without() -> None:
    """A model of 20 bytes a parameter on a device with three quarters of that."""
    job = toys.job(8)
    states = 20 * parameters(job.model).total
    for capacity, offloads in ((3 * states, False), (0.75 * states, True)):
        on = toys.gpu_cluster(capacity=capacity, host=toys.host())
        assert bool(best(job, on).offloads) == offloads


def test_the_planner_offloads_where_no_other_layout_leaves_memory_for_fragmentation() -> None:
    asked = {"model": "llama31_8b", "system": "dgx-h100", "devices": 2, "batch": 64}
    planned = ps.predict(**asked, rank="fastest")
    given = ps.predict(**asked, layout="dp=2,zero=1,offload_optimizer=cpu")
    assert planned.run.plan.layout.offloads
    assert planned.run.plan.memory_share <= MEMORY_LIMIT
    assert planned.step_time_s <= given.step_time_s


def test_an_offloaded_layout_that_does_not_fit_is_advised_more_offload() -> None:
    small = toys.gpu_cluster(capacity=4 * toys.GIB, host=toys.host())
    with pytest.raises(MemoryCapacityError) as caught:
        strategy("3d").plan(toys.job(8), toys.topology(1, small), replace(CPU, recompute="full"))
    assert re.search(r"try (zero_stage 0 → \d|offload_\w+ \w+ → \w+)", str(caught.value))
    assert "tensor" not in str(caught.value)


def test_offload_is_not_compute_and_its_remedies_do_not_ask_for_what_is_there() -> None:
    layout = "zero=3,offload_optimizer=cpu,offload_param=cpu,recompute=full"
    answer = ps.predict(model="gpt3_xl", system="h100-sxm5-80gb", devices=1, batch=8, layout=layout)
    parts = answer.why.parts_s
    seconds = answer.breakdown_s
    assert parts["exposed offload"] == seconds["offload"] > 0.0
    computed_s = sum(seconds[name] for name in ("forward", "backward", "recompute"))
    assert parts["compute"] == pytest.approx(computed_s)
    assert seconds["data_communication"] < 0.02 * answer.step_time_s, "one rank launches and sends nothing"
    assert answer.why.cause in ("optimizer", "exposed offload")
    assert "ZeRO 1" not in answer.why.remedy


@pytest.mark.parametrize("schedule", ["1f1b", "zb2p"])
def test_a_rank_without_a_block_updates_nothing_on_its_host(schedule: str) -> None:
    layout = replace(CPU, pipeline=3, layers_per_stage=(4, 0, 4), schedule=schedule)
    trace, estimate = run(toys.job(8, num_layers=8), layout, system())
    updates = Counter(task.stream for task in trace.graph.tasks() if task.work.op == "host.update")
    each = 5 * len(trace.graph.step_ends)
    assert updates == {"gpu0/cpu": each, "gpu2/cpu": each}
    assert estimate == pytest.approx(trace.step_time_s, rel=0.2)


@pytest.mark.parametrize(
    "layout",
    [
        replace(CPU, zero_stage=2),
        replace(CPU, zero_stage=2, data=2),
        replace(INFINITY, data=2),
        replace(ACTIVATIONS, tensor=2),
        replace(ACTIVATIONS, virtual_pipeline=2, schedule="v-half"),
    ],
)
def test_many_micro_batches_repeat_few(layout: ParallelLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = toys.plan("3d", toys.job(200), layout, system())
    steps: list[int] = []
    rewrite = offload._rewritten
    monkeypatch.setattr(
        offload, "_rewritten", lambda few, graph: steps.append(few.num_microbatches) or rewrite(few, graph)
    )
    graph = plan.graph()
    assert max(steps) < plan.num_microbatches / 4
    assert graph.digest() == rewrite(plan, offload._resident(plan)).digest()
