"""What must hold of every valid question, whatever its numbers: parts, shares, and more of anything."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import perfsim as ps
from perfsim.base.errors import LayoutError, PlanError
from perfsim.catalog import Catalog, data_root
from perfsim.cli import main
from perfsim.prediction.prediction import Prediction
from perfsim.specs.hardware import SystemSpec

CATALOG = Catalog([data_root()])
EXAMPLES = 12
WORSE = 1.01
"""At a fixed layout, twice of anything makes no step longer than this."""
MORE_GPU = (
    "node.nic.bandwidth",
    "node.scale_up.bandwidth",
    "device.memory.bandwidth",
    "device.peak.bf16",
    "device.memory.capacity",
    "node.nics",
)
MORE_WAFER = (
    "memoryx.server.bandwidth",
    "memoryx.server.dram.bandwidth",
    "memoryx.server.arithmetic",
    "memoryx.servers",
    "swarmx.bandwidth",
    "io_ports",
    "activation_servers.bandwidth",
)


@st.composite
def questions(draw: st.DrawFn) -> dict[str, object]:
    """A question that is small, and most likely answerable, on GPUs or wafers."""
    heads = draw(st.sampled_from([8, 16, 32]))
    width = heads * draw(st.sampled_from([64, 128]))
    model = CATALOG.model("gpt3_xl").with_(
        name="random",
        num_layers=draw(st.sampled_from([4, 6, 8, 12, 24])),
        hidden_size=width,
        num_attention_heads=heads,
        ffn_hidden_size=4 * width,
        vocab_size=draw(st.integers(1_000, 60_000)),
    )
    recipe = CATALOG.recipe("gpt3_pretraining").with_(
        name="random", seq_length=draw(st.sampled_from([512, 1024, 2048]))
    )
    if draw(st.booleans()):
        systems = draw(st.integers(1, 4))
        batch = systems * draw(st.integers(1, 64))
        return {"model": model, "recipe": recipe, "system": "cs-2", "devices": systems, "batch": batch}
    tensor, pipeline, data = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    layout = f"tp={tensor},pp={pipeline},dp={data},mbs={draw(st.sampled_from([1, 2]))}"
    devices = tensor * pipeline * data
    if devices > 8:
        devices = 8
        layout = f"tp={tensor},pp=1,dp={8 // tensor},mbs=1"
    return {
        "model": model,
        "recipe": recipe,
        "system": "dgx-a100-80gb",
        "devices": devices,
        "batch": 2 * pipeline * data * draw(st.integers(1, 8)),
        "layout": layout,
    }


def predicted(question: dict[str, object], system: SystemSpec | None = None) -> Prediction | None:
    """The prediction; None where the drawn layout does not divide or does not fit."""
    try:
        return ps.predict(**{**question, **({} if system is None else {"system": system})})  # type: ignore[arg-type]
    except (LayoutError, PlanError):
        return None


@given(questions())
@settings(max_examples=EXAMPLES, deadline=None)
def test_parts_sum_to_the_step_and_shares_are_shares(question: dict[str, object]) -> None:
    answer = predicted(question)
    if answer is None:
        return
    assert sum(answer.breakdown_s.values()) == pytest.approx(answer.step_time_s, rel=1e-6)
    assert sum(answer.why.parts_s.values()) == pytest.approx(answer.step_time_s, rel=1e-6)
    assert 0 < answer.mfu <= answer.hfu <= 1
    assert 0 <= answer.bubble_fraction <= 1
    assert 0 <= answer.exposed_communication_fraction <= 1
    assert 0 < answer.peak_memory_bytes <= answer.memory_capacity_bytes
    assert min(answer.breakdown_s.values()) >= 0


@given(questions(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_more_of_anything_is_never_worse_at_a_fixed_layout(
    question: dict[str, object], data: st.DataObject
) -> None:
    before = predicted(question)
    if before is None:
        return
    system = CATALOG.system(str(question["system"]))
    path = data.draw(st.sampled_from(MORE_WAFER if question["system"] == "cs-2" else MORE_GPU))
    value = system
    for part in path.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    layout = {"layout": before.run.plan.layout}
    after = predicted({**question, **layout}, system.with_(name=system.name, **{path: 2 * value}))  # type: ignore[operator]
    assert after is not None
    assert after.step_time_s <= before.step_time_s * WORSE, path


QUESTION = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 12),
        "vocabulary": st.integers(1_000, 60_000),
        "batch": st.integers(1, 8).map(lambda number: 8 * number),
        "machine": st.sampled_from([("3d", "dgx-a100-80gb", 8), ("weight-streaming", "cs-2", 2)]),
    }
)


@given(QUESTION)
@settings(max_examples=2, deadline=None)
def test_run_study_sweep_and_python_give_the_same_digits(drawn: dict[str, Any]) -> None:
    strategy, system, devices = drawn["machine"]
    batch = drawn["batch"]
    with TemporaryDirectory() as folder:
        model, study, sweep = (Path(folder) / f"{name}.yaml" for name in ("model", "study", "sweep"))
        model.write_text(
            f"extends: gpt3_xl\nname: drawn\nnum_layers: {drawn['layers']}\n"
            f"vocab_size: {drawn['vocabulary']}\n"
        )
        study.write_text(
            "name: s\ntitle: t\nquestion: q\nmodel: model.yaml\nrecipe: gpt3_20b_chinchilla\n"
            f"candidates: [{{strategy: {strategy}, system: {system}, devices: [{devices}]}}]\n"
            f"batch_sizes: [{batch}]\nsampling: {{tasks: 0}}\n"
        )
        sweep.write_text("name: w\ntitle: t\nstudy: study.yaml\n")
        asked = ("--model", str(model), "--system", system, "--devices", str(devices), "--batch", str(batch))
        common = ("--json", "--out", f"{folder}/out")
        answers = [
            printed("run", *asked, "--strategy", strategy, "--recipe", "gpt3_20b_chinchilla", "--json"),
            printed("study", str(study), *common)["candidates"][0],
            printed("sweep", str(sweep), "--jobs", "1", *common)["points"][0],
        ]
        python = ps.predict(
            model=str(model), system=system, devices=devices, batch=batch, recipe="gpt3_20b_chinchilla"
        )
        for answer in answers:
            assert answer["step_time_s"] == python.step_time_s
            assert answer["layout"] == dict(python.layout)
            assert answer["mfu"] == python.mfu


def printed(*command: str) -> dict[str, Any]:
    """The document that a verb prints."""
    result = CliRunner().invoke(main, list(command))
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document
