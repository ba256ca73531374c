"""Weight streaming does not care what computes: GPUs in place of wafers, through the same strategy."""

from __future__ import annotations

from typing import Any

import pytest

import perfsim as ps
from perfsim.costs.gpu import GpuKernels
from perfsim.costs.wafer import StreamCosts
from perfsim.prediction.run import Evaluation
from perfsim.strategies import strategy
from perfsim.strategies.streaming.passes import StreamedSteps
from perfsim.work.counts import parameters


def predicted(model: str, system: str, devices: int, batch: int) -> ps.Prediction:
    return ps.predict(model=model, system=system, devices=devices, strategy="weight-streaming", batch=batch)


@pytest.fixture(scope="module")
def run() -> Evaluation:
    return predicted("gpt3_6p7b", "memoryx-a100", 8, 64).run


def layer_of(run: Evaluation) -> Any:
    return StreamedSteps(run.plan).blocks().in_order()[1]


def test_kernels_cost_what_they_cost_on_any_a100_and_movement_what_the_tree_takes(run: Evaluation) -> None:
    kernels = GpuKernels(run.plan.system, run.plan.job.recipe, run.plan.topology.num_devices)
    layer = layer_of(run)
    assert run.step.costs.duration_s(layer.forward) == kernels.compute_s(layer.forward)
    load_s = run.step.costs.duration_s(layer.load)
    assert load_s == StreamCosts(run.plan.topology).duration_s(layer.load)
    assert load_s == pytest.approx(parameters(run.plan.job.model).of() * 2 / 25e9, rel=1e-6)


def test_a_gpu_runs_what_is_no_product_as_well(run: Evaluation) -> None:
    on_gpus, on_wafers = (
        {kernel.op for kernel in layer_of(ran).forward.kernels}
        for ran in (run, predicted("gpt3_6p7b", "cs-2", 8, 64).run)
    )
    assert on_gpus >= {"gemm", "elementwise"}
    assert on_wafers == {"gemm"}


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
    prediction = predicted("gpt3_20b", "memoryx-a100", 64, batch)
    assert prediction.why.cause == cause
    roof = prediction.why.streaming_roof
    assert (roof.tokens < roof.hidden_from_tokens) is (batch == 64)
    assert batch == 64 or 0.4 < prediction.run.mfu < 0.55
