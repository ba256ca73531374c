"""Weight streaming where it is unusual: to GPUs in place of wafers, and of layers that differ."""

from typing import Any

import pytest

import perfsim as ps
from perfsim.costs.gpu import GpuKernels
from perfsim.costs.wafer import StreamCosts
from perfsim.machines.wafer_cluster import WaferCluster
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import question_of
from perfsim.prediction.run import Evaluation
from perfsim.specs.layout import StreamingLayout
from perfsim.specs.model import LayerKind, TransformerConfig, layer_kinds
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.strategies.streaming.memory import Store
from perfsim.strategies.streaming.passes import StreamedSteps
from perfsim.testing import toys
from perfsim.work.counts import parameters


def predicted(model: str, system: str, devices: int, batch: int) -> ps.Prediction:
    return ps.predict(model=model, system=system, devices=devices, strategy="weight-streaming", batch=batch)


def test_where_weights_and_states_are_is_said_in_gigabytes_and_from_a_thousand_on_in_terabytes() -> None:
    plan = plan_of(question_of({"model": "gpt3_175b", "system": "cs-2", "devices": 1, "batch": 64}))
    said = next(note for note in plan.notes if note.startswith("MemoryX holds"))
    assert "349 GB of weights" in said
    assert "1.4 TB of moments" in said


@pytest.fixture(scope="module")
def run() -> Evaluation:
    return predicted("gpt3_6p7b", "memoryx-a100", 8, 64).run


def layer_of(run: Evaluation) -> Any:
    return StreamedSteps(run.plan).blocks()[1]


def test_kernels_cost_what_they_cost_on_any_a100_and_movement_what_the_tree_takes(run: Evaluation) -> None:
    kernels = GpuKernels(run.plan.system, run.plan.job.recipe, run.plan.topology.num_devices)
    layer = layer_of(run)
    assert run.step.costs.duration_s(layer.forward) == kernels.compute_s(layer.forward)
    load_s = run.step.costs.duration_s(layer.load)
    assert load_s == StreamCosts(run.plan.topology).duration_s(layer.load)
    assert load_s == pytest.approx(parameters(run.plan.job.model).of() * 2 / 25e9, rel=1e-6)


@pytest.mark.parametrize(("batch", "cause"), [(64, "exposed streaming"), (768, "compute")])
def test_few_tokens_wait_for_weights_by_the_roof_many_compute_as_published(batch: int, cause: str) -> None:
    """Streaming costs an A100 nothing at 12 sequences each: MFU is what it is elsewhere."""
    prediction = predicted("gpt3_20b", "memoryx-a100", 64, batch)
    assert prediction.why.cause == cause
    roof = prediction.why.streaming_roof
    assert (roof.tokens < roof.hidden_from_tokens) is (batch == 64)
    assert batch == 64 or 0.4 < prediction.run.mfu < 0.55


CATALOG = ps.Catalog()
EXPERTS: dict[str, Any] = {"num_experts": 16, "top_k": 2, "ffn_hidden_size": 4096, "first_dense_layers": 2}


@pytest.fixture(scope="module")
def mixture() -> Evaluation:
    model = toys.model(experts=EXPERTS, num_layers=6, mtp_num_layers=1)
    question = {"model": model, "recipe": "gpt3_pretraining", "system": "cs-3", "devices": 1, "batch": 64}
    return ps.predict(**question, layout="recompute_layers=2,mbs=64").run


def moved_bytes(run: Evaluation, which: str) -> float:
    """Bytes of the streams of layers in one step."""
    layers = range(len(layer_kinds(run.plan.job.model)))
    tasks = [task for task in run.graph.tasks() if task.block in layers]
    moved = sum(task.work.comm_bytes for task in tasks if task.work.name.endswith(f".{which}"))
    return moved / len(run.graph.step_ends)


def test_all_experts_of_every_layer_stream_there_and_their_gradients_back(mixture: Evaluation) -> None:
    """Groups of two layers stream once more for their recomputation; the seventh is alone in its own."""
    model = mixture.plan.job.model
    layout = mixture.plan.layout
    assert (layout.recompute_layers, mixture.plan.num_microbatches) == (2, 1)
    counts = parameters(model)
    weights = [2.0 * counts.of(kind) for kind in layer_kinds(model)]
    assert moved_bytes(mixture, "load") == pytest.approx(3 * sum(weights[:6]) + 2 * weights[6])
    assert moved_bytes(mixture, "reduce") == pytest.approx(sum(weights))


def test_the_closed_form_of_layers_of_three_kinds_meets_their_simulation(mixture: Evaluation) -> None:
    estimated = strategy("weight-streaming").estimate_s(mixture.plan, mixture.step.costs)
    assert estimated == pytest.approx(mixture.step_time_s, rel=0.05)


def test_layers_keep_what_their_kinds_keep_and_two_of_the_largest_where_all_spill() -> None:
    def kept(model: TransformerConfig, *, spill: bool = False) -> float:
        job = Job(model, toys.job().recipe, 4)
        layout = StreamingLayout(micro_batch_size=4, spill=spill)
        return Store(job, toys.wafer_cluster()).activations(layout).kept

    dense = toys.model(num_layers=6)
    mixed = toys.model(num_layers=6, experts=EXPERTS)
    whole = toys.model(num_layers=6, experts=EXPERTS | {"first_dense_layers": 0})
    assert kept(mixed) == pytest.approx(kept(dense) / 3 + 2 * kept(whole) / 3)
    assert kept(mixed, spill=True) == pytest.approx(2 / 6 * max(kept(dense), kept(whole)))


def test_the_batch_that_hides_weights_grows_by_all_over_active_weights() -> None:
    dense = CATALOG.model("llama_13b")
    experts = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": dense.ffn_hidden_size}
    sparse_model = dense.with_(experts=experts)
    system = ps.Catalog().system("cs-3", **{"device.calibration.row_s": "0 s"})
    asked = {"system": system, "devices": 1, "batch": 16}
    plain, sparse = (ps.predict(model=model, **asked).why.streaming_roof for model in (dense, sparse_model))
    counts = parameters(sparse_model)
    kind = LayerKind(experts=True)
    expected = counts.of(kind, matrices=True) / counts.of(kind, active=True, matrices=True)
    assert sparse.formula_tokens / plain.formula_tokens == pytest.approx(expected, rel=0.01)
    assert sparse.hidden_from_tokens > plain.hidden_from_tokens


def test_no_published_run_on_wafers_has_experts_and_the_band_says_so() -> None:
    job = Job(CATALOG.model("mixtral_8x7b"), CATALOG.recipe("gpt3_pretraining"), 8)
    unknowns = {known.code: known for known in WaferCluster().unknowns(CATALOG.system("cs-2"), job, 1)}
    unknown = unknowns["experts-outside"]
    assert 0.4 < unknown.log_width < 0.7
    assert "all 8 experts of a layer" in unknown.words
