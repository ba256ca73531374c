"""Steps of today over machines, models, layouts, recipes and perturbations: times, memory, refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import perfsim as ps
from perfsim.base.errors import PerfsimError
from perfsim.base.limits import Limits, limited
from perfsim.costs.price import Costs
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import Question, question_of
from perfsim.report.terminal import run_lines
from perfsim.specs.layout import Layout, text_of
from perfsim.strategies import strategy
from perfsim.work import TaskGraph, Work

Recorded = Callable[..., None]
ASKED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("steps.yaml").read_text("utf-8"))
SUBJECTS = ("dense", "perturbed", "modern", "experts", "machines", "offloaded", "wafers")
SPACES = ("dense", "long", "experts", "modules", "full", "sharded", "streamed", "overlapped")
TOLD = ("layout", "step_breakdown_s", "utilisation", "perturbed", "notes")
MOST_ROWS = 48
"""Layouts of a space whose estimates are written down; of all others the sums."""


@pytest.mark.parametrize("subject", SUBJECTS)
def test_steps_are_what_they_were(subject: str, recorded: Recorded) -> None:
    asked = ASKED["step questions"][subject]
    said = {}
    told = {}
    for name, changes in asked["each"].items():
        prediction = ps.predict(**asked["all"] | changes)
        told[name] = run_lines(prediction)
        document = prediction.document()
        simulated = document["simulated"] or {}
        run = prediction.run
        with limited(Limits(engine="fast")):
            fast = run.step.run()
        if run.perturbed is None:
            assert np.array_equal(fast.end_s, run.trace.end_s), "both engines give the same times"
        said[name] = {
            **{key: document[key] for key in TOLD},
            "memory": {use.place: [use.capacity_bytes, *use.parts_bytes.values()] for use in run.plan.memory},
            "step": [run.step_time_s, run.model_flop, run.hardware_flop, run.trace.hidden_share],
            "simulated": [float(value) for name, value in simulated.items() if name != "engine"],
            "estimate_s": strategy(run.plan.strategy).estimate_s(run.plan, run.step.costs),
            "priced": priced(run.graph, run.step.costs),
        }
    recorded(f"steps_{subject}", said)
    recorded(f"told_steps_{subject}", told)


def priced(graph: TaskGraph, costs: Costs) -> dict[str, list[float]]:
    """What all classes of work of one operation do and cost, with the number of their tasks."""
    tasks = np.bincount(graph.work, minlength=len(graph.works))
    rows: dict[str, list[float]] = {}
    for number, work in zip(tasks.tolist(), graph.works, strict=True):
        row = [number * value for value in (1.0, *amounts(work, costs))]
        key = f"{work.category} {work.op}"
        rows[key] = [a + b for a, b in zip(rows.get(key, [0.0] * len(row)), row, strict=True)]
    return rows


def amounts(work: Work, costs: Costs) -> tuple[float, ...]:
    """What one task does and costs."""
    kernel_s = getattr(costs, "kernel_s", lambda _: 0.0)
    kernels_s = sum(map(kernel_s, work.kernels))
    latency_s = costs.latency_s(work) if work.kind.is_communication else 0.0
    shares = (*costs.taken(work), *costs.bound(work))
    seconds = (costs.duration_s(work), latency_s, costs.fixed_s(work), kernels_s)
    written = sum(tensor.n_bytes for tensor in work.writes)
    return *seconds, work.flop, work.bytes_accessed, work.comm_bytes, written, work.launches, *shares


@pytest.mark.parametrize("name", SPACES)
def test_screened_layouts_are_what_they_were(name: str, recorded: Recorded) -> None:
    question = question_of(ASKED["spaces"][name])
    screening = question.chosen.screen(question.job, question.topology, question.costs)
    rows = np.unique(np.linspace(0, screening.feasible - 1, MOST_ROWS).astype(int))
    closer = np.zeros(len(rows)) if screening.closer is None else screening.closer(rows)
    columns = np.array([screening.estimate_s[rows], screening.memory_share[rows], closer]).T.tolist()
    texts = [text_of(screening.layout(index)) for index in range(screening.feasible)]
    said = {
        "counts": [screening.screened, screening.feasible, screening.indivisible, len(set(texts))],
        "closest": screening.closest and text_of(screening.closest),
        "kinds": 0 if screening.alike is None else len(screening.alike()[0]),
        "sums": [float(screening.estimate_s.sum()), float(screening.memory_share.sum()), hash_of(texts)],
        "layouts": {texts[row]: column for row, column in zip(rows.tolist(), columns, strict=True)},
    }
    recorded(f"screened_{name}", said)


def hash_of(texts: list[str]) -> int:
    """A number that any other list of layouts has not."""
    return sum(index * sum(map(ord, text)) for index, text in enumerate(texts, 1))


def test_layouts_are_refused_in_the_same_words(recorded: Recorded) -> None:
    said = {}
    for name, lists in ASKED["refused"].items():
        question = question_of(ASKED["spaces"][name])
        said[name] = {text: verdict(question, text) for texts in lists for text in texts}
    recorded("refused_layouts", said)


def verdict(question: Question, text: str) -> list[str]:
    """The layout as it is planned, with its memory; or why not."""
    try:
        plan = plan_of(question.at(question.batch, layout=text))
    except PerfsimError as error:
        return str(error).splitlines()
    layout: Layout = plan.layout
    return [text_of(layout), f"{plan.memory_share:.9g}"]
