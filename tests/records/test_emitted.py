"""What is written for other tools: plans of many kinds, and traces of a step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfsim as ps
from perfsim.base.errors import InputError
from perfsim.engine.trace import Trace
from perfsim.interop import WRITTEN, emit
from perfsim.interop.chakra import ExecutionTrace
from perfsim.interop.tool import Chosen
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import question_of

Recorded = Callable[..., None]
USUAL = {"system": "dgx-h100", "devices": 64, "batch": 192, "runs_on": "any", "runtime.attention": "flash"}


def emitted(tool: str, plan: Chosen) -> list[str]:
    """The lines of a plan, or why the tool cannot run it."""
    try:
        return emit(tool, plan).split("\n")
    except InputError as error:
        return [f"refused: {problem}" for problem in error.problems]


def test_plans_are_written_as_they_were(inputs: dict[str, Any], recorded: Recorded) -> None:
    asked = [("gpt3_20b", layout) for layout in inputs["dense plans"]] + inputs["other plans"]
    texts: dict[str, dict[str, list[str]]] = {tool: {} for tool in WRITTEN}
    for model, layout, *changes in asked:
        given = USUAL | {"model": model, "layout": layout} | dict(*changes)
        if given["system"] == "cs-2":
            del given["runtime.attention"]
        question = question_of(given)
        plan = plan_of(replace(question, must_fit=False))
        for tool, said in texts.items():
            said[" ".join(map(str, (model, layout, *changes)))] = emitted(tool, plan)
    for tool, said in texts.items():
        recorded(f"emitted_{tool}", said)


@pytest.mark.parametrize("name", ["gpus", "wafers"])
def test_traces_are_as_before(name: str, inputs: dict[str, Any], recorded: Recorded, tmp_path: Path) -> None:
    """Every event of Perfetto's file and every node of Chakra's, with times of no model."""
    step = ps.predict(model="gpt3_xl", **inputs["steps"][name], **{"model.num_layers": 2}).trace
    graph = step.run.graph
    tasks = np.arange(len(graph))
    step = replace(step, run=Trace(graph, tasks / 3e3, (tasks + 1 + tasks % 3) / 3e3))
    events = step.save(tmp_path / "step.json").read_text("utf-8").split("\n")
    for path in ExecutionTrace.write(step.run, tmp_path / "step.et"):
        trace = ExecutionTrace.read(path)
        events += [f"{path.name} stands for {trace.attributes['ranks']}", *map(str, trace.nodes)]
        events.append(str(trace.summary()))
    recorded(f"trace_{name}", events)
