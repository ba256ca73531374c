"""A measured step that differs from the predicted one, and the inputs that would explain it."""

import json
import operator
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from click.testing import CliRunner

from perfsim.api.tools import why_measured
from perfsim.base.errors import InputError
from perfsim.cli import main
from perfsim.prediction.planner import best_plan
from perfsim.prediction.question import Question, question_of
from perfsim.prediction.why import GapExplained

LAYOUT = "tp=2,dp=8,mbs=2,zero=1"


@pytest.fixture(scope="module")
def question() -> Question:
    asked = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 16, "batch": 64}
    return question_of(asked | {"layout": LAYOUT})


def explained(question: Question, **truth: Any) -> GapExplained:
    """What would explain the step of a question that is unlike this one."""
    return GapExplained.of(question, best_plan(replace(question, **truth)).step_time_s)


def test_a_setting_that_was_not_as_described_is_found_first(question: Question) -> None:
    gap = explained(question, layout=f"{LAYOUT},recompute=full")
    assert gap.suspects[0].change == "recompute full"
    assert gap.suspects[0].explains == pytest.approx(1.0)
    assert not gap.inside
    wafers: dict[str, Any] = {"model": "gpt3_xl", "system": "cs-2", "devices": 1, "batch": 64}
    # A precision whose products run at the peak of another one.
    rowwise = wafers | {"system": "dgx-h100", "devices": 2, "recipe.precision": "fp8_rowwise"}
    for asked in (rowwise, wafers):
        changes = {suspect.change for suspect in GapExplained.of(question_of(asked), 5.0).suspects}
        assert "arithmetic of the devices" in changes
    assert not any(change.startswith("overlap") for change in changes), "what changes nothing is no suspect"


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("node.nic.bandwidth", "the network between nodes"),
        ("device.peak.bf16", "arithmetic of the devices"),
        ("device.memory.bandwidth", "device memory"),
    ],
)
def test_the_factor_on_a_rate_is_that_of_its_change(question: Question, path: str, change: str) -> None:
    value = reduce(operator.getitem, path.split("."), question.system.model_dump())
    slower = question.system.with_(name=question.system.name, **{path: 0.7 * value})
    suspects = explained(question, system=slower).suspects
    suspect = next(suspect for suspect in suspects if suspect.change == change)
    assert suspect.factor == pytest.approx(0.7, rel=0.03)
    assert suspect.explains == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("bare", ["5", "5GB", "0.5"])
def test_a_step_without_a_unit_is_taken_for_seconds_in_the_suggestion(bare: str) -> None:
    with pytest.raises(InputError, match=f"measured: .*\n.*did you mean '{bare.removesuffix('GB')} s'"):
        why_measured(bare, model="gpt3_xl", system="dgx-a100-80gb", devices=8)
    with pytest.raises(InputError, match="more than 0 s"):
        why_measured(0.0, model="gpt3_xl", system="dgx-a100-80gb", devices=8)


def test_the_verb_explains_a_measured_step_and_says_what_it_needs() -> None:
    options = "why --measured 5.4s --model gpt3_xl --system dgx-a100-80gb --devices 8 --batch 32"
    shown, written = (CliRunner().invoke(main, f"{options}{more}".split()) for more in ("", " --json"))
    assert shown.exit_code == 0, shown.output
    assert "outside the 90 % band" in shown.output
    document = json.loads(written.output)
    assert document["measured_s"] == 5.4
    assert document["inside_band"] is False
    assert document["suspects"]
    for wrong, said in (
        ("why", "name a STUDY"),
        ("why --measured 5.4s", "it needs --model, --system, --devices"),
        ("why gpt3_20b --set layout=tp=8x --compare 3d", "layout 'tp=8x'"),
    ):
        refused = CliRunner().invoke(main, wrong.split())
        assert refused.exit_code != 0
        assert said in " ".join(str(refused.output).split()) + str(refused.exception)
