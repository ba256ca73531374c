"""Weight streaming does not care what computes: GPUs in place of wafers, through the same strategy."""

from __future__ import annotations

import pytest

import perfsim as ps
from perfsim.catalog import default_catalog
from perfsim.costs.gpu import GpuKernels
from perfsim.costs.wafer import StreamCosts
from perfsim.prediction.run import Evaluation
from perfsim.specs.hardware import WaferClusterSpec
from perfsim.strategies import strategy
from perfsim.strategies.streaming.passes import StreamedSteps
from perfsim.work.counts import parameters


@pytest.fixture(scope="module")
def run() -> Evaluation:
    return ps.predict(
        model="gpt3_6p7b", system="memoryx-a100", devices=8, strategy="weight-streaming", batch=64
    ).run


def system() -> WaferClusterSpec:
    spec = default_catalog().system("memoryx-a100")
    assert isinstance(spec, WaferClusterSpec)
    return spec


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


@pytest.mark.parametrize(("batch", "cause"), [(64, "exposed streaming"), (768, "compute")])
def test_few_tokens_wait_for_weights_where_the_roof_says_and_many_compute_as_in_published_runs(
    batch: int, cause: str
) -> None:
    """Streaming costs an A100 nothing at 12 sequences each: MFU is what it is elsewhere."""
    prediction = ps.predict(
        model="gpt3_20b", system="memoryx-a100", devices=64, strategy="weight-streaming", batch=batch
    )
    assert prediction.why.cause == cause
    roof = prediction.why.streaming_roof
    assert roof is not None
    assert (roof.tokens < roof.hidden_from_tokens) is (batch == 64)
    assert batch == 64 or 0.4 < prediction.run.mfu < 0.55
