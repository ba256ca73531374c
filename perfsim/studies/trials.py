"""Why a candidate takes its time, with each change that might help tried: predicted again, not estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfsim.base.errors import PerfsimError
from perfsim.engine.limits import present_limits
from perfsim.prediction.planner import best_plan
from perfsim.prediction.question import Question
from perfsim.prediction.run import Evaluation
from perfsim.specs.layout_text import text_of
from perfsim.studies.answers import CandidateResult
from perfsim.studies.batches import Target, target_of, time_of_run
from perfsim.studies.executors import attempt
from perfsim.studies.runner import Answered, StudyRun, run_study
from perfsim.studies.spec import StudySpec

PARTS = (
    ("a network between nodes twice as fast", "node.nic.bandwidth"),
    ("links inside a node twice as fast", "node.scale_up.bandwidth"),
    ("device memory twice as fast", "device.memory.bandwidth"),
    ("device memory twice as large", "device.memory.capacity"),
    ("twice the I/O ports of a system", "io_ports"),
    ("a SwarmX twice as fast", "swarmx.bandwidth"),
    ("twice the MemoryX servers", "memoryx.servers"),
    ("MemoryX with twice the arithmetic", "memoryx.server.arithmetic"),
    ("twice the activation servers", "activation_servers.per_system"),
)
"""What is doubled where a system has it: words, and its dotted path."""
NOTABLE = 0.005
"""Share of the step below which a change is said to do nothing."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One change, and what it makes of the step and of the time to the target."""

    change: str
    step_time_s: float | None
    time_s: float | None
    ratio: float | None
    """Time to the target over that without the change."""
    layout: str
    """The layout that is best with it, as `--layout` takes it."""
    reason: str = ""
    """Why it could not be tried."""


@dataclass(frozen=True, slots=True)
class Explained:
    """A candidate, the path of its step in seconds by cause, and the changes by how much they help."""

    label: str
    sentence: str
    parts_s: Mapping[str, float]
    step_time_s: float
    time_s: float
    tried: tuple[Tried, ...]


def explain(spec: StudySpec, compare: Sequence[str] = ()) -> tuple[StudyRun, tuple[Explained, ...]]:
    """Answer a study, and try every change on every candidate at its best batch.

    Raises what `run_study` raises. A change that leaves no plan has its reason.
    """
    run = run_study(spec, compare)
    target = target_of(spec)
    return run, tuple(
        _explained(candidate, answered, target)
        for candidate, answered in zip(run.result.candidates, run.answered, strict=True)
    )


def _explained(candidate: CandidateResult, answered: Answered, target: Target) -> Explained:
    asked = answered.question.at(candidate.global_batch_size)
    tried = [
        _tried(words, change, target, candidate.time_to_accuracy_s)
        for words, change in _changes(asked, answered.evaluation)
    ]
    return Explained(
        candidate.label,
        candidate.why.sentence,
        dict(sorted(candidate.why.parts_s.items(), key=lambda part: -part[1])),
        candidate.step_time_s,
        candidate.time_to_accuracy_s,
        tuple(sorted(tried, key=lambda known: (known.ratio is None, known.ratio or 0.0))),
    )


def _changes(asked: Question, evaluation: Evaluation) -> Iterator[tuple[str, Callable[[], Question]]]:
    """The changes that a question has room for, each as the question that it makes."""
    batch = asked.job.global_batch_size
    yield "twice the devices", lambda: replace(asked, devices=2 * asked.devices, batch=batch)
    yield "twice the batch", lambda: asked.at(2 * batch)
    if batch % 2 == 0:
        yield "half the batch", lambda: asked.at(batch // 2)
    runtime = asked.job.runtime
    if runtime.attention == "standard":
        flash = runtime.model_copy(update={"attention": "flash"})
        yield "flash attention", lambda: replace(asked, runtime=flash)
    for words, path in PARTS:
        value = _at(asked.system, path)
        if value:
            yield words, lambda path=path, value=value: _on(asked, {path: 2 * value})  # type: ignore[misc]
    precision = asked.recipe.precision
    peak = asked.system.device.peak.get(precision)
    if peak:
        yield "cores twice as fast", lambda: _on(asked, {f"device.peak.{precision}": 2 * peak})
    size = getattr(evaluation.plan.layout, "micro_batch_size", 0)
    for words, micro in (("twice the micro-batch", 2 * size), ("half the micro-batch", size // 2)):
        if micro and asked.layout is None:
            layout = replace(evaluation.plan.layout, micro_batch_size=micro)
            yield words, lambda layout=layout: replace(asked, layout=text_of(layout))  # type: ignore[misc]


def _at(value: Any, path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _on(asked: Question, changes: Mapping[str, Any]) -> Question:
    return replace(asked, system=asked.system.with_(name=asked.system.name, **changes))


def _tried(words: str, change: Callable[[], Question], target: Target, before_s: float) -> Tried:
    present_limits().in_time(lambda: f"changes tried up to: {words}")

    def answer() -> tuple[Evaluation, float]:
        evaluation = best_plan(change().check())
        return evaluation, time_of_run(evaluation, target).time_s

    outcome = attempt(answer)
    if isinstance(outcome, PerfsimError):
        return Tried(words, None, None, None, "", outcome.problems[0].message)
    evaluation, time_s = outcome
    layout = text_of(evaluation.plan.layout)
    return Tried(words, evaluation.step_time_s, time_s, time_s / before_s, layout)
