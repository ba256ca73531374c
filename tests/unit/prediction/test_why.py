"""Why a step is slow: causes add up to it, the heaviest wait decides, streaming shows below its roof."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.catalog import default_catalog
from perfsim.costs.wafer import roof_tokens
from perfsim.prediction.planner import plan_of
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.question import question_of
from perfsim.prediction.run import Evaluation, evaluate
from perfsim.specs.hardware import WaferClusterSpec
from perfsim.work.counts import parameters

STREAMED = {"model": "gpt3_20b", "system": "cs-2", "devices": 16, "strategy": "weight-streaming"}
WAFERS = [STREAMED | {"batch": batch} for batch in (16, 64, 512)]
GPUS = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 8, "batch": 16}


def test_a_large_batch_is_bound_by_computing_and_a_small_one_by_the_rows_of_its_weights() -> None:
    small, middle, large = (ps.predict(**point) for point in WAFERS)
    assert large.why.cause == "compute"
    assert small.why.cause == "rows of weights"
    assert small.why.parts_s["rows of weights"] == pytest.approx(large.why.parts_s["rows of weights"])
    assert "larger micro-batch" in small.why.remedy
    assert 0 < middle.why.parts_s["attention"] < middle.why.parts_s["compute"]
    assert sum(middle.why.parts_s.values()) == pytest.approx(middle.step_time_s)
    # At 64 sequences a system almost nothing but the first weights of a step is waited for.
    run = ps.predict(model="gpt3_xl", system="cs-2", devices=1, strategy="weight-streaming", batch=64)
    parts = run.why.parts_s
    assert parts["exposed streaming"] < 0.002 * run.step_time_s
    assert parts["update bubble"] > 4 * parts["exposed streaming"]


def test_where_rows_take_longer_than_the_wait_their_remedy_is_told_too_and_helps_more() -> None:
    asked = {"model": "kimi_k2", "system": "cs-3", "devices": 64, "batch": 4096, "recipe.seq_length": 4096}
    step, tiled, faster = (
        ps.predict(**asked, **more)
        for more in (
            {},
            {"system.streaming.attention_tiles": 4},
            {"system.memoryx.server.flash.bandwidth": "25 GB/s"},
        )
    )
    assert step.why.cause == "flash"
    assert re.search(r"flash twice as fast .*; .*attention in tiles .*rows of weights", step.why.remedy)
    assert tiled.step_time_s < 0.5 * step.step_time_s < 0.8 * faster.step_time_s


def test_gpus_are_told_their_own_waits() -> None:
    layouts = ("tp=8,mbs=1", "pp=8,mbs=2")
    tensor, pipeline = (ps.predict(**GPUS, layout=f"{layout},recompute=full").why for layout in layouts)
    assert "tensor communication" in tensor.sentence
    assert pipeline.cause == "bubble"
    assert "more micro-batches than 8 for 8 stages" in pipeline.remedy
    assert tensor.streaming_roof is None
    asked = {"model": "llama31_8b", "system": "dgx-h100", "devices": 4, "batch": 64}
    layouts = "pp=4,recompute=full", "pp=4,recompute=full,layers_per_stage=8-9-9-6"
    even, fewer = (ps.predict(**asked, layout=layout) for layout in layouts)
    assert even.why.remedy.startswith("fewer layers next to the LM head")
    assert fewer.step_time_s < 0.93 * even.step_time_s


def test_what_stays_inside_a_node_is_not_told_of_the_network_between_nodes() -> None:
    asked = {"model": "qwen3_30b_a3b", "system": "dgx-h100", "devices": 16, "model.num_layers": 4}
    layouts = (f"dp=16,ep={experts},zero=1,mbs=4" for experts in (8, 16))
    inside, outside = (ps.predict(**asked, batch=64, layout=layout) for layout in layouts)
    assert inside.why.cause == outside.why.cause == "exposed expert communication"
    assert inside.why.remedy.endswith("or faster links inside the node")
    assert not any("fabric" in caveat.text for caveat in inside.caveats)
    assert "one inside a node" in outside.why.remedy


def test_what_the_host_does_not_launch_in_time_is_told_and_a_cuda_graph_saves_it() -> None:
    asked = {"model": "llama32_1b", "system": "b200-sxm-180gb", "devices": 8, "batch": 8}
    asked |= {"layout": "tp=8,mbs=1"}
    launched = ps.predict(**asked)
    replayed = ps.predict(**asked, **{"runtime.cuda_graph": True})
    parts = launched.why.parts_s
    assert launched.why.cause == "waits for the host"
    assert "runtime.cuda_graph" in launched.why.remedy
    assert sum(parts.values()) == pytest.approx(launched.step_time_s)
    assert parts["compute"] == pytest.approx(replayed.why.parts_s["compute"], rel=1e-3)
    assert "waits for the host" not in replayed.why.parts_s
    assert parts["waits for the host"] <= launched.step_time_s - replayed.step_time_s


def test_links_do_not_answer_for_collectives_that_the_host_launches_late() -> None:
    """As many launches of small messages on links that are a hundred times as fast."""
    asked = {"model": "cerebras_gpt_590m", "system": "dgx-h100", "devices": 8, "batch": 16}
    asked |= {"layout": "tp=2,dp=4,mbs=1", "runtime": "megatron_core"}
    slow = ps.predict(**asked).why.parts_s
    fast = ps.predict(**asked, **{"system.node.scale_up.bandwidth": "45000 GB/s"}).why.parts_s
    replayed = ps.predict(**asked, **{"runtime.cuda_graph": True}).why.parts_s
    waits = "exposed tensor communication"
    assert slow[waits] == pytest.approx(replayed[waits], rel=0.02)
    assert fast[waits] < 0.9 * slow[waits]
    assert slow["waits for the host"] > 2 * slow["compute"]
    assert {type(seconds) for seconds in slow.values()} == {float}


def ideal_system(efficiency: float = 1.0) -> WaferClusterSpec:
    """A CS-2 whose wafer has one efficiency and whose rows take no time; at 1 an upper bound."""
    changes = {
        "device.calibration.product_efficiency": efficiency,
        "device.calibration.attention_efficiency": efficiency,
        "device.calibration.row_s": "0 s",
    }
    return default_catalog().system("cs-2", **changes)


def run_at(system: WaferClusterSpec, sequences: int, length: int) -> Evaluation:
    """GPT-3 6.7B with short sequences, so that attention is a small part, in one micro-batch."""
    asked = {"model": "gpt3_6p7b", "system": system, "devices": 1, "batch": sequences}
    more = {"recipe": "gpt3_pretraining", "recipe.seq_length": length, "layout": f"mbs={sequences}"}
    question = replace(question_of(asked | more), must_fit=False)
    return evaluate(plan_of(question), question.costs)


@pytest.mark.parametrize(("efficiency", "tokens"), [(1.0, 49_867), (0.23, 11_469)])
def test_streaming_shows_in_the_simulation_where_the_formula_says(efficiency: float, tokens: int) -> None:
    """E P b / (2 B) against the simulated step: above, hardly more than the first weights is waited for."""
    system = ideal_system(efficiency)
    roof = roof_tokens(efficiency * system.device.peak["bf16"], system.weight_bytes, system.io_bytes_per_s)
    assert roof == pytest.approx(tokens, abs=1)
    length = 64
    sizes = [round(share * roof / length) for share in (1.04, 1.005, 0.995, 0.96)]
    *others, below = (Prediction.of(run_at(system, size, length)) for size in sizes)
    waits_s = [shown.why.parts_s["exposed streaming"] for shown in (*others, below)]
    model = below.run.plan.job.model
    load_s = parameters(model).of() * system.weight_bytes / system.io_bytes_per_s
    assert waits_s[0] <= 1.01 * load_s
    assert waits_s[1] < 1.03 * load_s < 1.1 * load_s < waits_s[2], "a hundredth around the roof"
    assert waits_s[3] >= load_s + 0.03 * model.num_layers * load_s
    shown = below.why.streaming_roof
    assert shown.formula_tokens == pytest.approx(roof, rel=0.01)
    assert shown.hidden_from_tokens == pytest.approx(roof, rel=0.03)


def test_small_layers_on_a_wafer_are_told_of_the_rows_of_their_weights() -> None:
    small, large = (
        ps.predict(model=model, system="cs-2", devices=1, batch=batch).why.remedy
        for model, batch in (("cerebras_gpt_111m", 16), ("gpt3_13b", 85))
    )
    assert "layers wider than 768" in small
    assert re.search(r"\d+ % of the step goes to rows of weights", small)
    assert large == "more systems, each with the same batch"
    whole = ps.predict(model="gpt3_xl", system="cs-2", devices=192, batch=192).why.remedy
    assert whole.startswith("a cluster of more than 192 systems, or layers wider")


def test_breakdown_and_trace_name_what_a_layer_does_on_a_wafer_as_why_does(tmp_path: Path) -> None:
    run = ps.predict(**WAFERS[0])
    named = ("rows of weights", "attention", "assumed loss of many systems")
    for part in named:
        assert run.breakdown_s[part] == run.why.parts_s[part] > 0
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
    computed = sum(run.breakdown_s[which] for which in ("forward", "recompute", "backward"))
    assert computed == pytest.approx(run.why.parts_s["compute"])
    told = json.loads(run.trace.save(tmp_path / "step.json").read_text())["traceEvents"]
    layers = [event for event in told if event["name"] == "layer.forward" and event["ph"] == "X"]
    for event in layers:
        inside_us = event["args"]["of_which_us"]
        assert {*inside_us} == {*named}
        # 9 H rows of 44 layers in each of four products; a forward has one.
        share = inside_us["rows of weights"] / (1e6 * run.why.parts_s["rows of weights"])
        assert share == pytest.approx(1 / (4 * 44), rel=1e-3)
        assert sum(inside_us.values()) < event["dur"]
    assert not any("of_which_us" in e.get("args", {}) for e in told if e["name"].endswith(".load"))
    assert "attention" not in ps.predict(**GPUS, layout="tp=8,mbs=1,recompute=full").breakdown_s


LOSSES = ("slowest of the systems", "assumed loss of many systems")


def on_wafers(devices: int, **changes: float) -> ps.Prediction:
    """A step of 48 sequences a system; losses of many systems are those of `changes`."""
    given = {f"system.{name}": value for name, value in changes.items()}
    return ps.predict(model="gpt3_6p7b", system="cs-2", devices=devices, batch=48 * devices, **given)


def test_causes_of_the_loss_of_many_systems_are_apart_and_add_up_to_it() -> None:
    """The slowest of 16 normal times is 1.77 deviations late; a loss a doubling comes on top of it."""
    alone, together = on_wafers(16, loss_per_doubling=0.0), on_wafers(16, speed_spread=0.02)
    slower_s, lost_s = (together.why.parts_s[cause] for cause in LOSSES)
    computing_s = sum(alone.why.parts_s[part] for part in ("compute", "rows of weights", "attention"))
    assert slower_s == pytest.approx(0.02 * 1.766 * computing_s, rel=0.02)
    assert lost_s == pytest.approx((0.983**-4 - 1) * (computing_s + slower_s), rel=1e-6)
    for part in ("compute", "rows of weights", "attention"):
        assert together.why.parts_s[part] == pytest.approx(alone.why.parts_s[part], rel=1e-6)
    assert sum(together.why.parts_s.values()) == pytest.approx(together.step_time_s)


@pytest.mark.parametrize("devices", [1, 16])
def test_each_cause_can_be_switched_off_and_one_system_waits_for_nobody(devices: int) -> None:
    none = on_wafers(devices, loss_per_doubling=0.0)
    assert not {*LOSSES} & {*none.why.parts_s}
    by_default = on_wafers(devices)
    assert {*LOSSES} & {*by_default.why.parts_s} == ({LOSSES[1]} if devices > 1 else set())


def test_the_fan_out_decides_on_the_levels() -> None:
    """Under a fan-out of 2 the way to 16 systems has four levels, not two; each adds a hop and a chunk."""
    four, two = on_wafers(16), on_wafers(16, **{"swarmx.fan_out": 2})
    hops_s = 2 * (10e-6 + 2**18 / 150e9)
    assert 0 < two.step_time_s - four.step_time_s < 40 * hops_s
