"""Why a step is slow: causes add up to it, the heaviest wait decides, and remedies do what they say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

import perfsim as ps
from perfsim.catalog import default_catalog
from perfsim.costs.wafer import WaferCosts, roof_tokens
from perfsim.machines import build_topology, costs_for
from perfsim.prediction.disturbed import perturbed
from perfsim.prediction.planner import best_plan
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.run import Evaluation, evaluate
from perfsim.specs.hardware import WaferClusterSpec
from perfsim.specs.layout import Layout, StreamingLayout
from perfsim.specs.perturbations import parse_perturbations
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.testing import toys
from perfsim.work.counts import parameters

STREAMING = strategy("weight-streaming")


def cs_2(**changes: Any) -> WaferClusterSpec:
    system = default_catalog().system("cs-2", **changes)
    assert isinstance(system, WaferClusterSpec)
    return system


def streamed(
    model: str, system: WaferClusterSpec, sequences: int, layout: Layout | None = None, **recipe: Any
) -> Evaluation:
    """A step on one wafer, in the layout given or the planner's."""
    catalog = default_catalog()
    topology = build_topology(system, 1)
    chosen = catalog.override(catalog.recipe("gpt3_pretraining"), recipe)
    job = Job(catalog.model(model), chosen, sequences)
    costs = costs_for(topology, chosen)
    if layout is None:
        return best_plan(toys.question(STREAMING, job, topology, costs))
    return evaluate(STREAMING.plan(job, topology, layout, check_memory=False), costs)


def wafers(model: str = "gpt3_xl", devices: int = 1, **more: Any) -> Prediction:
    return ps.predict(model=model, system="cs-2", devices=devices, strategy="weight-streaming", **more)


def test_a_large_batch_is_bound_by_computing_and_a_small_one_by_what_it_waits_for() -> None:
    small, middle, large = (wafers("gpt3_20b", 16, batch=batch) for batch in (16, 64, 512))
    assert large.why.cause == "compute"
    assert small.why.cause in ("update bubble", "exposed streaming")
    assert small.why.parts_s["exposed streaming"] > 0
    assert "larger batch" in small.why.remedy
    assert isinstance(middle.run.step.costs, WaferCosts)
    roof = middle.why.streaming_roof
    assert roof is not None
    assert 0 < roof.hidden_from_tokens < roof.formula_tokens, "what a layer does besides hides weights too"
    # At 64 sequences a system almost nothing but the first weights of a step is waited for.
    run = wafers(batch=64)
    parts = run.why.parts_s
    assert parts["exposed streaming"] < 0.002 * run.step_time_s
    assert parts["update bubble"] > 4 * parts["exposed streaming"]


def test_gpus_are_told_their_own_waits() -> None:
    gpus = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 8, "batch": 16}
    layouts = ("tp=8,mbs=1,recompute=full", "pp=8,mbs=2,recompute=full")
    tensor, pipeline = (ps.predict(**gpus, layout=layout).why for layout in layouts)
    assert "tensor communication" in tensor.sentence
    assert pipeline.cause == "bubble"
    assert "micro-batches" in pipeline.remedy
    assert tensor.streaming_roof is None


@pytest.mark.parametrize(("efficiency", "tokens"), [(1.0, 49_867), (0.23, 11_469)])
def test_streaming_shows_in_the_simulation_where_the_formula_says(efficiency: float, tokens: int) -> None:
    """E P b / (2 B) against the simulated step: above, only the first layer's weights are waited for.

    The wafer has one efficiency, at 1 an upper bound, and a mesh that moves everything at once; sequences are
    short, so that attention is a small part.
    """
    at_once = {"device.calibration.link_s_per_element": "0 s"}
    system = cs_2(**{"device.calibration.efficiency": {"r2.0": efficiency}, **at_once})
    roof = roof_tokens(efficiency * system.device.peak["bf16"], system.weight_bytes, system.io_bytes_per_s)
    assert roof == pytest.approx(tokens, abs=1)
    above, below = (
        Prediction.of(
            streamed("gpt3_6p7b", system, n, StreamingLayout(data=1, micro_batch_size=n), seq_length=64)
        )
        for n in (round(share * roof / 64) for share in (1.04, 0.96))
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
    narrow, wide = (wafers(model, batch=120).why.remedy for model in ("gpt3_xl", "gpt3_175b"))
    assert "layers wider than 2,048: 38 % of the step is movement" in narrow
    assert "movement" not in wide


# ------------------------------------------------------- the remedy shortens the step by as much as it says
class Bound(NamedTuple):
    """A question whose step one part of the machine limits, and that part twice as fast."""

    model: str
    sequences: int
    changes: Mapping[str, Any]
    cause: str
    named: str
    faster: Mapping[str, Any]

    def run(
        self, changes: Mapping[str, Any] | None = None, sequences: int = 0, layout: Layout | None = None
    ) -> Evaluation:
        system = cs_2(**{**self.changes, **(changes or {})})
        return streamed(self.model, system, sequences or self.sequences, layout)


WAY = {"io_ports": 24, "swarmx.bandwidth": "300 GB/s", "memoryx.server.bandwidth": "25 GB/s"}
"""Twice the way between MemoryX and the wafer."""
INPUT = "activation_servers.bandwidth"
UPDATES = "memoryx.server.arithmetic"
FLASH = Bound("gpt_1t", 9, {}, "flash", "MemoryX's flash", {"memoryx.server.flash.bandwidth": "25 GB/s"})
PORTS = Bound("gpt3_20b", 4, {"io_ports": 6}, "exposed streaming", "the I/O ports", {"io_ports": 12})
OF_20B = [
    PORTS,
    PORTS._replace(changes={}, named="the I/O ports, SwarmX and MemoryX's servers", faster=WAY),
    PORTS._replace(
        changes={INPUT: "0.0001 GB/s"},
        cause="input",
        named="the activation servers",
        faster={INPUT: "0.0002 GB/s"},
    ),
    PORTS._replace(
        changes={UPDATES: "0.03 TFLOP/s"},
        cause="update bubble",
        named="the arithmetic of MemoryX's servers",
        faster={UPDATES: "0.06 TFLOP/s"},
    ),
]


@pytest.mark.parametrize("bound", [FLASH, *OF_20B], ids=lambda bound: bound.named)
def test_the_part_that_limits_is_the_cause_and_its_remedies_do_what_they_say(bound: Bound) -> None:
    """Twice as fast it saves the share that is named; more sequences make each of them cheaper.

    Above the tokens that hide streams nothing streamed decides. So many tokens of the largest model are split
    on a wafer, and every micro-batch reads its weights again.
    """
    before = bound.run()
    why = Prediction.of(before).why
    assert why.cause == bound.cause
    said = re.match(rf"{bound.named} twice as fast \((\d+) % off the step\)", why.remedy)
    assert said is not None, why.remedy
    after = bound.run(bound.faster, layout=before.plan.layout)
    saved = 100 * (1 - after.step_time_s / before.step_time_s)
    assert saved >= 1
    assert int(said[1]) == pytest.approx(saved, abs=1.0)
    sequences = re.search(r"([\d,]+) sequences per system and micro-batch instead of ([\d,]+)", why.remedy)
    assert (sequences is None) == (bound.cause == "input"), "samples grow with the batch"
    if sequences is None:
        return
    more, now = (int(number.replace(",", "")) for number in sequences.groups())
    assert more > now == before.plan.layout.micro_batch_size
    assert bound.run(sequences=more).step_time_s / more < 0.99 * before.step_time_s / now
    roof = why.streaming_roof
    assert roof is not None
    assert roof.tokens < roof.hidden_from_tokens
    if bound.model != "gpt_1t":
        enough = int(1.5 * roof.hidden_from_tokens / before.plan.job.seq_length) + 1
        assert Prediction.of(bound.run(sequences=enough)).why.cause == "compute"


def test_more_dram_is_a_remedy_for_flash_and_a_faster_way_is_none() -> None:
    before = FLASH.run()
    said = re.search(r"([\d.]+) TB more DRAM", Prediction.of(before).why.remedy)
    assert said is not None
    capacity = (float(said[1]) / 12 + 0.128) * 1e12 * 1.01
    after = FLASH.run({"memoryx.server.dram.capacity": capacity}, layout=before.plan.layout)
    assert after.step_time_s < 0.6 * before.step_time_s
    after = FLASH.run(WAY, layout=before.plan.layout)
    assert after.step_time_s == pytest.approx(before.step_time_s, rel=0.01)


def test_a_slow_wafer_changes_no_share_that_a_faster_part_saves() -> None:
    before = PORTS.run()
    after = perturbed(before, parse_perturbations("straggler=1.5@0"))
    assert after.step_time_s > 1.02 * before.step_time_s
    assert Prediction.of(after).why.remedy == Prediction.of(before).why.remedy
