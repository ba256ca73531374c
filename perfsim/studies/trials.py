"""What single changes do to an answer, each answered again: tried on candidates, or of a second study."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, ValidationError

from perfsim.base.errors import InputError, PerfsimError, attempt
from perfsim.base.limits import present_limits
from perfsim.base.sizes import MOST_DEVICES, MOST_SEQUENCES
from perfsim.base.spec import PROSE
from perfsim.base.units import number
from perfsim.prediction.caveats import Caveat
from perfsim.prediction.planner import best_plan
from perfsim.prediction.question import Question
from perfsim.prediction.run import Evaluation
from perfsim.specs.layout import text_of
from perfsim.strategies import Plan
from perfsim.studies.answers import Answer, Assumption
from perfsim.studies.batches import Target
from perfsim.studies.runner import run_study
from perfsim.studies.spec import StudySpec

# Changes that might help a candidate, each tried.

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
class _Tried:
    """One change, and what it makes of the step and of the time to the target."""

    change: str
    step_time_s: float | None = None
    time_s: float | None = None
    ratio: float | None = None
    """Time to the target over that without the change."""
    layout: str = ""
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
    tried: tuple[_Tried, ...]
    caveats: tuple[Caveat, ...] = ()


def explain(spec: StudySpec, compare: Sequence[str] = ()) -> tuple[Explained, ...]:
    """Answer a study, and try every change on every candidate at its best batch. Raises as `run_study`."""
    spec = spec.compared(compare)
    target = Target.of_study(spec)
    explained = []
    for row in run_study(spec).candidates:
        asked = spec.points[row.number].question.at(row.global_batch_size)
        tried = []
        for words, change in _changes(asked, row.run.plan):
            present_limits().in_time(lambda words=words: f"changes tried up to: {words}")  # type: ignore[misc]
            answer = attempt(partial(_timed, target, change))
            if isinstance(answer, PerfsimError):
                tried.append(_Tried(words, reason=answer.problems[0].message))
                continue
            run, time_s = answer
            ratio = time_s / row.time_to_accuracy_s
            tried.append(_Tried(words, run.step_time_s, time_s, ratio, text_of(run.plan.layout)))
        tried.sort(key=lambda known: (known.ratio is None, known.ratio or 0.0))
        parts_s = dict(sorted(row.why.parts_s.items(), key=lambda part: -part[1]))
        times_s = (row.step_time_s, row.time_to_accuracy_s)
        told = (parts_s, *times_s, tuple(tried), row.caveats)
        explained.append(Explained(row.label, row.why.sentence, *told))
    return tuple(explained)


def _timed(target: Target, change: Callable[[], Question]) -> tuple[Evaluation, float]:
    """The best plan of a changed question, and its seconds to the target."""
    question = change()
    run = best_plan(question.check())
    return run, target.ramped(question, target.time_of_run(run)).time_s


def _changes(asked: Question, plan: Plan) -> Iterator[tuple[str, Callable[[], Question]]]:
    """The changes that a question has room for, each as the question that it makes."""
    batch = asked.job.global_batch_size
    yield "twice the devices", partial(replace, asked, devices=2 * asked.devices, batch=batch)
    yield "twice the batch", partial(asked.at, 2 * batch)
    if batch % 2 == 0:
        yield "half the batch", partial(asked.at, batch // 2)
    runtime = asked.job.runtime
    framework = runtime.stack
    settings: dict[str, dict[str, Any]] = {}
    if runtime.attention == "standard":
        settings["flash attention"] = {"attention": "flash"}
    if framework is not None and not framework.cuda_graph:
        settings["a CUDA graph"] = {"cuda_graph": True}
    for words, update in settings.items():
        if all(asked.machine.reads(asked.system, f"runtime.{name}") for name in update):
            yield words, partial(replace, asked, runtime=runtime.model_copy(update=update))
    peak = f"device.peak.{asked.system.device.peak_of(asked.recipe.precision)}"
    for words, path in (*PARTS, ("cores twice as fast", peak)):
        value: Any = asked.system
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        if value:
            yield words, partial(_with_system, asked, path, 2 * value)
    size = getattr(plan.layout, "micro_batch_size", 0)
    for words, micro in (("twice the micro-batch", 2 * size), ("half the micro-batch", size // 2)):
        if micro and asked.layout is None:
            layout = text_of(replace(plan.layout, micro_batch_size=micro))
            yield words, partial(replace, asked, layout=layout)


def _with_system(asked: Question, path: str, value: Any) -> Question:
    return replace(asked, system=asked.system.with_(name=asked.system.name, **{path: value}))


# What differs between two studies, and how much each changed input moves the answer.

LEFT_OUT = PROSE | {"name", "noun", "title", "question", "sampling"}
"""Fields that move no time."""
MOST_CHANGES = 24
_MOST_S = 1e18
"""Seconds that a time in the document of an answer may have at most."""
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class _Change:
    """An input that differs, and what it alone does to each candidate of the first study."""

    path: str
    before: str
    after: str
    ratios: tuple[float | None, ...] = ()
    """By candidate: time on the wall with this change alone, over the first study's; None without one."""
    reason: str = ""
    """Why it could not be tried alone."""


@dataclass(frozen=True, slots=True)
class _Moved:
    """A candidate with an answer in both studies, by its label, else by its place."""

    before: str
    after: str
    time_before_s: float
    """Of healthy steps to the target."""
    time_after_s: float
    wall_before_s: float | None = None
    """On the wall; None where a document does not tell it."""
    wall_after_s: float | None = None
    remainder: float | None = None
    """The ratio divided by the ratios of all single changes: what the changes do only together."""

    @property
    def ratio(self) -> float:
        """Time on the wall (where it is not known, of healthy steps) over that in the first study."""
        if self.wall_before_s and self.wall_after_s:
            return self.wall_after_s / self.wall_before_s
        return self.time_after_s / self.time_before_s


@dataclass(frozen=True, slots=True)
class Difference:
    """Two studies side by side."""

    first: str
    second: str
    changes: tuple[_Change, ...]
    candidates: tuple[_Moved, ...]
    missing: tuple[str, ...] = ()
    """Candidates without an answer in one of the two."""


def compare_studies(first: StudySpec, second: StudySpec) -> Difference:
    """Answer both, and the first with each changed input alone; InputError for more than `MOST_CHANGES`."""
    old = first.model_dump()
    changed = list(_changed(old, second.model_dump(), ()))
    if len(changed) > MOST_CHANGES:
        listed = ", ".join(_words(path) for path, _, _ in changed[:5])
        raise InputError(
            f"{len(changed)} inputs differ ({listed}, ...); at most {MOST_CHANGES} are tried one at a time"
        )
    before = _slots(first)
    after = _slots(second)
    pairs = _pairs(before, after)
    changes: list[_Change] = []
    for path, was, becomes in changed:
        present_limits().in_time(lambda: f"{len(changes)} of {len(changed)} changes tried")
        moves = _ratios(old, path, becomes, before)
        ratios = tuple(None if isinstance(moves, str) else moves[index] for index, _, _ in pairs)
        reason = moves if isinstance(moves, str) else ""
        changes.append(_Change(_words(path), _text(was), _text(becomes), ratios, reason))
    moved = []
    for row, (_, one, other) in enumerate(pairs):
        known = [change.ratios[row] for change in changes]
        times_s = (one.time_to_accuracy_s, other.time_to_accuracy_s, one.wall_s, other.wall_s)
        own = _Moved(one.label, other.label, *times_s)
        if None not in known:
            own = replace(own, remainder=own.ratio / math.prod(ratio or 0.0 for ratio in known))
        moved.append(own)
    missing = [f"{label}: no answer in {first.name}" for label, row in before if row is None]
    missing += [f"{label}: no answer in {second.name}" for label, row in after if row is None]
    return Difference(first.name, second.name, tuple(changes), tuple(moved), tuple(missing))


_Slot = tuple[str, Answer | None]
"""The label of a candidate at one number of devices, and its answer if there is one."""


def _slots(spec: StudySpec) -> list[_Slot]:
    """Every candidate of a study in its order, with or without an answer."""
    rows = {row.number: row for row in run_study(spec).candidates}
    return [(point.label, rows.get(number)) for number, point in enumerate(spec.points)]


def _pairs(before: Sequence[_Slot], after: Sequence[_Slot]) -> list[tuple[int, Answer, Answer]]:
    """Pairs of candidates to compare, with the index of the first: same label, otherwise same position."""
    pairs: dict[int, int] = {}
    for by_label in (True, False):
        for index, (label, _) in enumerate(before):
            free = (other for other in range(len(after)) if other not in pairs.values())
            alike = (other for other in free if (label == after[other][0] if by_label else index == other))
            if index not in pairs and (match := next(alike, None)) is not None:
                pairs[index] = match
    both = ((index, before[index][1], after[other][1]) for index, other in sorted(pairs.items()))
    return [(index, one, other) for index, one, other in both if one is not None and other is not None]


def _changed(old: Any, new: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """The innermost values that differ; a description of another name is one value."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        # The name of a description, without the mark of a changed one.
        names = [str(own.get("name")).partition(" (changed)")[0].partition(" with ")[0] for own in (old, new)]
        if path and names[0] != names[1]:
            yield path, old, new
            return
        for key in dict.fromkeys([*old, *new]):
            if key not in LEFT_OUT:
                yield from _changed(old.get(key), new.get(key), (*path, key))
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        for number, (was, becomes) in enumerate(zip(old, new, strict=True)):
            yield from _changed(was, becomes, (*path, number))
    elif old != new:
        yield path, old, new


def _ratios(
    data: Mapping[str, Any], path: Path, becomes: Any, before: Sequence[_Slot]
) -> list[float | None] | str:
    """By candidate, its time with one input of the second study over that without; or why there is none."""
    changed = _put(data, path, becomes)
    moved = range(len(before))
    if path[0] == "candidates" and len(path) > 1:  # no other candidate moves
        number = int(path[1])
        counts = [len(candidate["devices"]) for candidate in data["candidates"]]
        moved = moved[sum(counts[:number]) : sum(counts[: number + 1])]
        changed = {**changed, "candidates": [changed["candidates"][number]]}
    try:
        after = attempt(lambda: _slots(StudySpec.model_validate(changed)))
    except ValidationError:
        return "it makes no study alone"
    if isinstance(after, PerfsimError):
        return after.problems[0].message
    if len(after) != len(moved):
        return "it changes the number of candidates"
    ratios: list[float | None] = [1.0] * len(before)
    for number, (_, new) in zip(moved, after, strict=True):
        old = before[number][1]
        ratios[number] = new.wall_s / old.wall_s if old and new else None
    return ratios


def _put(data: Any, path: Path, value: Any) -> Any:
    """A copy with the value at a path replaced."""
    if not path:
        return value
    key, *rest = path
    if isinstance(data, Mapping):
        return {**data, key: _put(data.get(key), tuple(rest), value)}
    return [_put(item, tuple(rest), value) if number == key else item for number, item in enumerate(data)]


def _words(path: Path) -> str:
    return ".".join(str(part) for part in path).replace("candidates.", "candidate ")


def _text(value: Any) -> str:
    """A value in a few characters; a description by its name."""
    if isinstance(value, Mapping) and "name" in value:
        return str(value["name"])
    if isinstance(value, Mapping):
        value = ", ".join(f"{key} {_text(part)}" for key, part in value.items() if part is not None)
    words = f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)
    return words if len(words) <= 60 else f"{words[:57]}..."


# Two answers as their documents, of which nothing is answered again.


class _AnsweredRow(BaseModel):
    """A candidate in the document of a study's answer, as far as it is read back."""

    label: str = ""
    strategy: str = ""
    system: str = ""
    num_devices: Annotated[int, *number(0, MOST_DEVICES)] = 0
    time_to_accuracy_s: Annotated[float, *number(0.0, _MOST_S)] | None = None
    wall_s: Annotated[float, *number(0.0, _MOST_S)] | None = None
    global_batch_size: Annotated[int, *number(1, MOST_SEQUENCES)] | None = None
    layout: dict[str, Any] = {}


class AnswerDocument(BaseModel):
    """The document of a study's answer (`summary.json`), as far as it is read back."""

    study: str
    title: str | None = None
    candidates: list[_AnsweredRow]
    assumptions: list[Assumption]


def compare_answers(first: AnswerDocument, second: AnswerDocument) -> Difference:
    """Two documents of answers: times by label, and what differs, without the effect of each alone."""
    old, new = (
        {f"{given.topic}: {given.name}": given.value for given in answer.assumptions}
        for answer in (first, second)
    )
    before, after = ({row.label: row for row in answer.candidates} for answer in (first, second))
    for row in first.candidates:
        other = after.get(row.label, row)
        settings = {**row.layout, **other.layout}
        names = [name for name in settings if row.layout.get(name) != other.layout.get(name)]
        for inputs, side in ((old, row), (new, other)):
            inputs[f"{row.label}: batch"] = _text(side.global_batch_size)
            inputs[f"{row.label}: layout"] = ", ".join(f"{name} {side.layout.get(name)}" for name in names)
    differing = (path for path in dict.fromkeys([*old, *new]) if old.get(path) != new.get(path))
    changes = tuple(_Change(path, old.get(path, "none"), new.get(path, "none")) for path in differing)
    moved = []
    for label in (label for label in before if label in after):
        pair = before[label], after[label]
        healthy_s = (row.time_to_accuracy_s or 0.0 for row in pair)
        moved.append(_Moved(label, label, *healthy_s, *(row.wall_s for row in pair)))
    missing = [f"{label}: no answer in {second.study}" for label in before if label not in after]
    missing += [f"{label}: no answer in {first.study}" for label in after if label not in before]
    return Difference(first.study, second.study, changes, tuple(moved), tuple(missing))
