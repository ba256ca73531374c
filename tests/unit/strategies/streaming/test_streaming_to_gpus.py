"""Weight streaming does not care what computes: GPUs in place of wafers, through the same strategy."""

from __future__ import annotations

import pytest

import perfsim as ps
from perfsim.catalog import default_catalog
from perfsim.costs.gpu import GpuKernels
from perfsim.costs.wafer import StreamCosts, StreamedGpuCosts
from perfsim.machines import build_topology, costs_for
from perfsim.prediction.run import Evaluation
from perfsim.specs.hardware import WaferClusterSpec
from perfsim.strategies import strategy
from perfsim.strategies.streaming.passes import StreamedSteps
from perfsim.work import Kind
from perfsim.work.counts import parameters


@pytest.fixture(scope="module")
def run() -> Evaluation:
    return ps.predict(
        model="gpt3_6p7b", system="memoryx-a100", devices=8, strategy="weight-streaming", batch=64
    ).run


def system() -> WaferClusterSpec:
    found = default_catalog().system("memoryx-a100")
    assert isinstance(found, WaferClusterSpec)
    return found


def test_kernels_cost_what_they_cost_on_any_a100_and_movement_what_the_tree_takes(run: Evaluation) -> None:
    kernels = GpuKernels(system(), run.plan.job.recipe, run.plan.topology.num_devices)
    streams = StreamCosts(run.plan.topology)
    layer = StreamedSteps(run.plan).blocks().in_order()[1]
    assert run.step.costs.duration_s(layer.forward) == kernels.compute_s(layer.forward)
    assert run.step.costs.duration_s(layer.load) == streams.duration_s(layer.load)
    per_layer = parameters(run.plan.job.model).of() * 2 / 25e9
    assert run.step.costs.duration_s(layer.load) == pytest.approx(per_layer, rel=1e-6)


def test_a_gpu_runs_what_is_no_product_as_well(run: Evaluation) -> None:
    layer = StreamedSteps(run.plan).blocks().in_order()[1]
    assert {kernel.op for kernel in layer.forward.kernels} >= {"gemm", "elementwise"}
    wafers = ps.predict(
        model="gpt3_6p7b", system="cs-2", devices=8, strategy="weight-streaming", batch=64
    ).run
    assert {kernel.op for kernel in StreamedSteps(wafers.plan).blocks().in_order()[1].forward.kernels} == {
        "gemm"
    }


def test_memory_is_the_gpus_and_holds_whole_layers_on_their_way(run: Evaluation) -> None:
    use = run.plan.memory[0]
    assert (use.place, use.capacity_bytes) == ("GPU", 80 * 2**30)
    layers_bytes = 2 * parameters(run.plan.job.model).of() * 2
    assert use.parts_bytes["stream buffers"] >= layers_bytes
    assert use.fits


def test_the_closed_form_follows_the_simulation(run: Evaluation) -> None:
    estimate_s = strategy("weight-streaming").estimate_s(run.plan, run.step.costs)
    assert estimate_s == pytest.approx(run.step_time_s, rel=0.05)


def test_few_tokens_wait_for_weights_where_the_roof_says_and_many_do_not() -> None:
    few, many = (
        ps.predict(
            model="gpt3_20b", system="memoryx-a100", devices=64, strategy="weight-streaming", batch=batch
        ).why
        for batch in (64, 768)
    )
    assert (few.cause, many.cause) == ("exposed streaming", "compute")
    for each, below in ((few, True), (many, False)):
        assert each.streaming_roof is not None
        assert (each.streaming_roof.tokens < each.streaming_roof.hidden_from_tokens) is below


def test_a_full_gpu_keeps_the_utilisation_that_it_has_elsewhere() -> None:
    """Streaming costs an A100 nothing at 12 sequences each: MFU is as in published runs."""
    run = ps.predict(
        model="gpt3_20b", system="memoryx-a100", devices=64, strategy="weight-streaming", batch=768
    ).run
    assert 0.4 < run.mfu < 0.55


def test_prices_are_chosen_by_what_computes() -> None:
    recipe = default_catalog().recipe("gpt3_pretraining")
    assert isinstance(costs_for(build_topology(system(), 8), recipe), StreamedGpuCosts)


def test_every_compute_task_is_priced(run: Evaluation) -> None:
    seconds = [run.step.costs.duration_s(work) for work in run.graph.works if work.kind is Kind.COMP]
    assert seconds
    assert all(each >= 0 for each in seconds)
