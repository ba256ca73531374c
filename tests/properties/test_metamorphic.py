"""What must hold of every valid question, whatever its numbers: parts, shares, and more of anything."""

import json
import math
import operator
from functools import reduce
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

CATALOG = Catalog([data_root()])
EXAMPLES = 12
WORSE = 1.01
"""At a fixed layout, twice of anything makes no step longer than this."""
BANDWIDTHS = ("node.nic.bandwidth", "node.scale_up.bandwidth", "device.memory.bandwidth")
MORE_GPU = (*BANDWIDTHS, "device.peak.bf16", "device.memory.capacity", "node.nics")
OF_A_SERVER = ("memoryx.server.bandwidth", "memoryx.server.dram.bandwidth", "memoryx.server.arithmetic")
MORE_WAFER = (*OF_A_SERVER, "memoryx.servers", "swarmx.bandwidth", "io_ports", "activation_servers.bandwidth")


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
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
    length = draw(st.sampled_from([512, 1024, 2048]))
    recipe = CATALOG.recipe("gpt3_pretraining").with_(name="random", seq_length=length)
    given = {"model": model, "recipe": recipe}
    if draw(st.booleans()):
        systems = draw(st.integers(1, 4))
        batch = systems * draw(st.integers(1, 64))
        return {**given, "system": "cs-2", "devices": systems, "batch": batch}
    degrees = st.tuples(*[st.sampled_from([1, 2, 4])] * 3).filter(lambda drawn: math.prod(drawn) <= 8)
    tensor, pipeline, data = draw(degrees)
    return {
        **given,
        "system": "dgx-a100-80gb",
        "devices": tensor * pipeline * data,
        "batch": 2 * pipeline * data * draw(st.integers(1, 8)),
        "layout": f"tp={tensor},pp={pipeline},dp={data},mbs={draw(st.sampled_from([1, 2]))}",
    }


def predicted(question: dict[str, Any], **changes: Any) -> Prediction | None:
    """The prediction; None where the drawn layout does not divide or does not fit."""
    try:
        return ps.predict(**{**question, **changes})
    except (LayoutError, PlanError):
        return None


@given(questions())
@settings(max_examples=EXAMPLES, deadline=None)
def test_parts_sum_to_the_step_and_shares_are_shares(question: dict[str, Any]) -> None:
    answer = predicted(question)
    if answer is None:
        return
    assert sum(answer.breakdown_s.values()) == pytest.approx(answer.step_time_s, rel=1e-6)
    assert sum(answer.why.parts_s.values()) == pytest.approx(answer.step_time_s, rel=1e-6)
    assert min(*answer.breakdown_s.values(), *answer.why.parts_s.values()) >= 0
    assert 0 < answer.mfu <= answer.hfu <= 1
    assert 0 <= answer.bubble_fraction + answer.exposed_communication_fraction <= 1
    assert min(answer.bubble_fraction, answer.exposed_communication_fraction) >= 0
    assert 0 < answer.peak_memory_bytes <= answer.memory_capacity_bytes
    lost = ("slowest of the systems", "assumed loss of many systems")
    busy = ("compute", "waits for the host", "rows of weights", "attention", "bubble", "optimizer", *lost)
    exposed_s = sum(seconds for cause, seconds in answer.why.parts_s.items() if cause not in busy)
    assert answer.exposed_communication_fraction == pytest.approx(exposed_s / answer.step_time_s, abs=1e-9)


@given(questions(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_more_is_never_worse_at_a_fixed_layout(question: dict[str, Any], data: st.DataObject) -> None:
    before = predicted(question)
    if before is None:
        return
    system = CATALOG.system(question["system"])
    path = data.draw(st.sampled_from(MORE_WAFER if question["system"] == "cs-2" else MORE_GPU))
    value = reduce(operator.getitem, path.split("."), system.model_dump())
    more = system.with_(name=system.name, **{path: 2 * value})
    after = predicted(question, layout=before.run.plan.layout, system=more)
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
        options = f"--model {model} --system {system} --devices {devices} --batch {batch}"
        answers = []
        for command, path in (
            (f"run {options} --strategy {strategy} --recipe gpt3_20b_chinchilla --json", ()),
            (f"study {study} --json --out {folder}/out", ("candidates", 0)),
            (f"sweep {sweep} --jobs 1 --json --out {folder}/out", ("points", 0)),
        ):
            result = CliRunner().invoke(main, command.split())
            assert result.exit_code == 0, result.stderr
            answers.append(reduce(operator.getitem, path, json.loads(result.stdout)))
        given = {"system": system, "devices": devices, "batch": batch, "recipe": "gpt3_20b_chinchilla"}
        python = ps.predict(model=str(model), **given)
        for answer in answers:
            assert answer["step_time_s"] == python.step_time_s
            assert answer["layout"] == dict(python.layout)
            assert answer["mfu"] == python.mfu
