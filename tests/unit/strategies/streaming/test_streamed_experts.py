"""Models whose layers differ on wafers: what streams, what is kept, and the batch that hides it."""

from __future__ import annotations

from typing import Any

import pytest

import perfsim as ps
from perfsim.machines.wafer_cluster import WaferCluster
from perfsim.specs.layout import StreamingLayout
from perfsim.specs.model import LayerKind, TransformerConfig, layer_kinds
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.strategies.streaming.memory import Store
from perfsim.testing import toys
from perfsim.work.counts import parameters

CATALOG = ps.Catalog()
EXPERTS: dict[str, Any] = {"num_experts": 16, "top_k": 2, "ffn_hidden_size": 4096, "first_dense_layers": 2}


@pytest.fixture(scope="module")
def run() -> ps.Evaluation:
    model = toys.model(experts=EXPERTS, num_layers=6, mtp_num_layers=1)
    return ps.predict(model=model, recipe="gpt3_pretraining", system="cs-3", devices=1, batch=64).run


def moved_bytes(run: ps.Evaluation, which: str) -> float:
    """Bytes of the streams of layers in one step."""
    layers = range(len(layer_kinds(run.plan.job.model)))
    tasks = [task for task in run.graph.tasks() if task.block in layers]
    moved = sum(task.work.comm_bytes for task in tasks if task.work.name.endswith(f".{which}"))
    return moved / len(run.graph.step_ends)


def test_all_experts_of_every_layer_stream_there_and_their_gradients_back(run: ps.Evaluation) -> None:
    """Groups of two layers stream once more for their recomputation; the seventh is alone in its own."""
    model = run.plan.job.model
    layout = run.plan.layout
    assert (layout.recompute_layers, run.plan.num_microbatches) == (2, 1)
    counts = parameters(model)
    weights = [2.0 * counts.of(kind) for kind in layer_kinds(model)]
    assert moved_bytes(run, "load") == pytest.approx(3 * sum(weights[:6]) + 2 * weights[6])
    assert moved_bytes(run, "reduce") == pytest.approx(sum(weights))


def test_the_closed_form_of_layers_of_three_kinds_meets_their_simulation(run: ps.Evaluation) -> None:
    estimated = strategy("weight-streaming").estimate_s(run.plan, run.step.costs)
    assert estimated == pytest.approx(run.step_time_s, rel=0.05)


def test_layers_keep_what_their_kinds_keep() -> None:
    def kept(model: TransformerConfig) -> float:
        job = Job(model, toys.job().recipe, 4)
        return Store(job, toys.wafer_cluster()).activations(StreamingLayout(micro_batch_size=4)).kept

    dense = toys.model(num_layers=6)
    mixed = toys.model(num_layers=6, experts=EXPERTS)
    whole = toys.model(num_layers=6, experts=EXPERTS | {"first_dense_layers": 0})
    assert kept(mixed) == pytest.approx(kept(dense) / 3 + 2 * kept(whole) / 3)


def test_the_batch_that_hides_weights_grows_by_all_over_active_weights() -> None:
    dense = CATALOG.model("llama_13b")
    experts = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": dense.ffn_hidden_size}
    mixture = dense.with_(experts=experts)
    plain, sparse = (
        ps.predict(model=model, system="cs-3", devices=1, batch=16).why.streaming_roof
        for model in (dense, mixture)
    )
    counts = parameters(mixture)
    kind = LayerKind(experts=True)
    expected = counts.matrices_of(kind) / counts.matrices_of(kind, active=True)
    assert sparse.formula_tokens / plain.formula_tokens == pytest.approx(expected, rel=0.01)
    assert sparse.hidden_from_tokens > plain.hidden_from_tokens


def test_no_published_run_on_wafers_has_experts_and_the_band_says_so() -> None:
    job = Job(CATALOG.model("mixtral_8x7b"), CATALOG.recipes["gpt3_pretraining"], 8)
    (unknown,) = (
        unknown
        for unknown in WaferCluster().unknowns(CATALOG.system("cs-2"), job, 1)
        if unknown.code == "experts-outside"
    )
    assert 0.4 < unknown.log_width < 0.7
    assert "all 8 experts of a layer" in unknown.words
