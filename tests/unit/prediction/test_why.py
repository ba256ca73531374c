"""Why a step is slow: causes add up to it, the heaviest wait decides, streaming shows below its roof."""

from __future__ import annotations

import pytest

import perfsim as ps
from perfsim.catalog import default_catalog
from perfsim.costs.wafer import WaferCosts, roof_tokens
from perfsim.machines import build_topology, costs_for, strategy_for
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.run import Evaluation, evaluate
from perfsim.specs.hardware import WaferClusterSpec
from perfsim.specs.layout import StreamingLayout
from perfsim.specs.recipe import Job
from perfsim.work.counts import parameters

WAFERS = [
    {"model": "gpt3_20b", "system": "cs-2", "devices": 16, "strategy": "weight-streaming", "batch": batch}
    for batch in (16, 64, 512)
]
GPUS = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 8, "batch": 16}


def test_a_large_batch_is_bound_by_computing_and_a_small_one_by_what_it_waits_for() -> None:
    small, middle, large = (ps.predict(**point) for point in WAFERS)
    assert large.why.cause == "compute"
    assert small.why.cause in ("update bubble", "exposed streaming")
    assert small.why.parts_s["exposed streaming"] > 0
    assert "larger batch" in small.why.remedy
    assert isinstance(middle.run.step.costs, WaferCosts)
    roof = middle.why.streaming_roof
    assert roof is not None
    assert 0 < roof.hidden_from_tokens < roof.formula_tokens, "what a layer does besides hides weights too"
    # At 64 sequences a system almost nothing but the first weights of a step is waited for.
    run = ps.predict(model="gpt3_xl", system="cs-2", devices=1, strategy="weight-streaming", batch=64)
    parts = run.why.parts_s
    assert parts["exposed streaming"] < 0.002 * run.step_time_s
    assert parts["update bubble"] > 4 * parts["exposed streaming"]


def test_gpus_are_told_their_own_waits() -> None:
    tensor, pipeline = (
        ps.predict(**GPUS, layout=f"{layout},recompute=full").why for layout in ("tp=8,mbs=1", "pp=8,mbs=2")
    )
    assert "tensor communication" in tensor.sentence
    assert pipeline.cause == "bubble"
    assert "micro-batches" in pipeline.remedy
    assert tensor.streaming_roof is None


def ideal_system(efficiency: float = 1.0) -> WaferClusterSpec:
    """A CS-2 whose wafer has one efficiency and whose mesh moves everything at once; at 1 an upper bound."""
    changes = {
        "device.calibration.efficiency": {"r2.0": efficiency},
        "device.calibration.link_s_per_element": "0 s",
    }
    system = default_catalog().system("cs-2", **changes)
    assert isinstance(system, WaferClusterSpec)
    return system


def run_at(system: WaferClusterSpec, sequences: int, length: int) -> Evaluation:
    """GPT-3 6.7B with short sequences, so that attention is a small part, in one micro-batch."""
    catalog = default_catalog()
    recipe = catalog.override(catalog.recipe("gpt3_pretraining"), {"seq_length": length})
    job = Job(catalog.model("gpt3_6p7b"), recipe, sequences)
    topology = build_topology(system, 1)
    layout = StreamingLayout(data=1, micro_batch_size=sequences)
    plan = strategy_for("", system).plan(job, topology, layout, check_memory=False)
    return evaluate(plan, costs_for(topology, recipe))


@pytest.mark.parametrize(("efficiency", "tokens"), [(1.0, 49_867), (0.23, 11_469)])
def test_streaming_shows_in_the_simulation_where_the_formula_says(efficiency: float, tokens: int) -> None:
    """E P b / (2 B) against the simulated step: above, only the first layer's weights are waited for."""
    system = ideal_system(efficiency)
    roof = roof_tokens(efficiency * system.device.peak["bf16"], system.weight_bytes, system.io_bytes_per_s)
    assert roof == pytest.approx(tokens, abs=1)
    length = 64
    above, below = (
        Prediction.of(run_at(system, round(share * roof / length), length)) for share in (1.04, 0.96)
    )
    above_s, below_s = (shown.why.parts_s.get("exposed streaming", 0.0) for shown in (above, below))
    model = below.run.plan.job.model
    load_s = parameters(model).of() * system.weight_bytes / system.io_bytes_per_s
    assert above_s <= 1.01 * load_s
    assert below_s >= load_s + 0.03 * model.num_layers * load_s
    shown = below.why.streaming_roof
    assert shown is not None
    assert shown.formula_tokens == pytest.approx(roof, rel=0.01)
    assert shown.hidden_from_tokens == pytest.approx(roof, rel=0.03)


def test_narrow_layers_on_a_wafer_are_told_of_the_mesh() -> None:
    """The smaller the layers, the more of a step is movement and not arithmetic."""
    narrow, wide = (
        ps.predict(model=model, system="cs-2", devices=1, strategy="weight-streaming", batch=120).why.remedy
        for model in ("gpt3_xl", "gpt3_175b")
    )
    assert "layers wider than 2,048: 38 % of the step is movement" in narrow
    assert "movement" not in wide
