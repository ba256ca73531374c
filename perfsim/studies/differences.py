"""What differs between two studies, and how much each changed input moves the answer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ValidationError

from perfsim.base.errors import InputError, PerfsimError
from perfsim.base.sizes import MOST_DEVICES, MOST_SEQUENCES
from perfsim.base.units import number
from perfsim.engine.limits import present_limits
from perfsim.studies.answers import CandidateResult
from perfsim.studies.executors import attempt
from perfsim.studies.runner import run_study
from perfsim.studies.spec import StudySpec

LEFT_OUT = frozenset(
    {"name", "title", "question", "description", "sources", "assumed", "sampling", "resilience"}
)
"""Fields that move no time."""
MOST_CHANGES = 24
_MOST_S = 1e18
Path = tuple[str | int, ...]


class _AnsweredRow(BaseModel):
    """A candidate in the document of a study's answer, as far as it is read back."""

    label: str = ""
    strategy: str = ""
    system: str = ""
    num_devices: Annotated[int, *number(0, MOST_DEVICES)] = 0
    time_to_accuracy_s: Annotated[float, *number(0.0, _MOST_S)] | None = None
    global_batch_size: Annotated[int, *number(1, MOST_SEQUENCES)] | None = None
    layout: dict[str, Any] = {}


class _AnsweredInput(BaseModel):
    """An assumption in the document of a study's answer."""

    topic: str
    name: str
    value: object


class AnswerDocument(BaseModel):
    """The document of a study's answer (`summary.json`), as far as it is read back."""

    study: str
    title: str | None = None
    candidates: list[_AnsweredRow]
    assumptions: list[_AnsweredInput]

    @property
    def times_s(self) -> dict[str, float]:
        """Time to the target by the label of the candidate; InputError where one lacks either."""
        for row in self.candidates:
            if not row.label or row.time_to_accuracy_s is None:
                raise InputError(
                    f"the answer of {self.study!r} lacks a candidate's label or time_to_accuracy_s"
                )
        return {row.label: row.time_to_accuracy_s or 0.0 for row in self.candidates}

    @property
    def inputs(self) -> dict[str, str]:
        """The value of every assumption, as text."""
        return {f"{given.topic}: {given.name}": str(given.value) for given in self.assumptions}


@dataclass(frozen=True, slots=True)
class Change:
    """An input that differs, and what it alone does to each candidate of the first study."""

    path: str
    before: str
    after: str
    ratios: tuple[float | None, ...]
    """By candidate: time with this change alone over that of the first study; None without an answer."""
    reason: str = ""
    """Why it could not be tried alone."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A candidate with an answer in both studies, by its label, else by its place."""

    before: str
    after: str
    time_before_s: float
    time_after_s: float
    remainder: float | None = None
    """Ratio that is left when those of all single changes are divided out: what they do together."""

    @property
    def ratio(self) -> float:
        """Time in the second study over that in the first."""
        return self.time_after_s / self.time_before_s


@dataclass(frozen=True, slots=True)
class Difference:
    """Two studies side by side."""

    first: str
    second: str
    changes: tuple[Change, ...]
    candidates: tuple[Moved, ...]
    missing: tuple[str, ...] = ()
    """Candidates without an answer in one of the two."""


def compare_studies(first: StudySpec, second: StudySpec) -> Difference:
    """Answer both, and the first with each changed input alone.

    Raises InputError for more than `MOST_CHANGES` changed inputs, and what answering raises.
    """
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
    changes: list[Change] = []
    for path, was, becomes in changed:
        present_limits().in_time(lambda: f"{len(changes)} of {len(changed)} changes tried")
        changes.append(_alone(old, path, was, becomes, before, [number for number, _, _ in pairs]))
    moved = []
    for row, (_, one, other) in enumerate(pairs):
        alone = [change.ratios[row] for change in changes]
        known = [ratio for ratio in alone if ratio is not None]
        both = other.time_to_accuracy_s / one.time_to_accuracy_s
        remainder = both / math.prod(known) if len(known) == len(alone) else None
        times_s = (one.time_to_accuracy_s, other.time_to_accuracy_s)
        moved.append(Moved(one.label, other.label, *times_s, remainder))
    missing = [
        f"{label}: no answer in {study.name}"
        for study, slots in ((first, before), (second, after))
        for label, row in slots
        if row is None
    ]
    return Difference(first.name, second.name, tuple(changes), tuple(moved), tuple(missing))


Slot = tuple[str, CandidateResult | None]
"""The label of a candidate at one number of devices, and its answer if there is one."""


def _slots(spec: StudySpec) -> list[Slot]:
    """Every candidate of a study in its order, with or without an answer."""
    run = run_study(spec)
    answered = deque(zip(run.answered, run.result.candidates, strict=True))
    slots: list[Slot] = []
    for candidate, devices in spec.machines:
        # Answers stand in the order of the machines, without those that have none.
        found = None
        if answered and answered[0][0].candidate == candidate and answered[0][0].question.devices == devices:
            found = answered.popleft()[1]
        slots.append((candidate.label(devices), found))
    return slots


def _pairs(
    before: Sequence[Slot], after: Sequence[Slot]
) -> list[tuple[int, CandidateResult, CandidateResult]]:
    """Pairs of candidates to compare, with the index of the first: same label, otherwise same position."""
    pairs: dict[int, int] = {}
    free = list(range(len(after)))
    for by_label in (True, False):
        for index, (label, _) in enumerate(before):
            if index in pairs:
                continue
            alike = (other for other in free if (label == after[other][0] if by_label else index == other))
            if (match := next(alike, None)) is not None:
                pairs[index] = match
                free.remove(match)
    both = ((index, before[index][1], after[other][1]) for index, other in sorted(pairs.items()))
    return [(index, one, other) for index, one, other in both if one is not None and other is not None]


def compare_answers(first: AnswerDocument, second: AnswerDocument) -> Difference:
    """Two documents of answers: times of candidates of one label, and inputs, batches, layouts that differ.

    Nothing is answered again, so no input has an effect of its own. Raises InputError for a candidate without
    a label or a time.
    """
    old = first.inputs
    new = second.inputs
    changes = tuple(
        Change(path, old.get(path, "none"), new.get(path, "none"), ())
        for path in dict.fromkeys([*old, *new])
        if old.get(path) != new.get(path)
    )
    before = first.times_s
    after = second.times_s
    moved = tuple(Moved(own, own, before[own], after[own]) for own in before if own in after)
    missing = tuple(
        f"{label}: no answer in {other.study}"
        for own, known, other in ((before, after, second), (after, before, first))
        for label in own
        if label not in known
    )
    return Difference(first.study, second.study, (*changes, *_chosen(first, second)), moved, missing)


def _chosen(first: AnswerDocument, second: AnswerDocument) -> Iterator[Change]:
    """What was chosen or given for a candidate: its batch and its layout."""
    rows = {row.label: row for row in second.candidates}
    for old in first.candidates:
        new = rows.get(old.label, old)
        if old.global_batch_size != new.global_batch_size:
            batches = _text(old.global_batch_size), _text(new.global_batch_size)
            yield Change(f"{old.label}: batch", *batches, ())
        names = [
            name
            for name in dict.fromkeys([*old.layout, *new.layout])
            if old.layout.get(name) != new.layout.get(name)
        ]
        if names:
            was, becomes = (
                ", ".join(f"{name} {row.layout.get(name)}" for name in names) for row in (old, new)
            )
            yield Change(f"{old.label}: layout", was, becomes, ())


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


def _alone(
    data: Mapping[str, Any], path: Path, was: Any, becomes: Any, before: Sequence[Slot], shown: Sequence[int]
) -> Change:
    """The first study with one input of the second; ratios of the candidates that are `shown`."""
    ratios: dict[int, float | None] = {}
    changed = _put(data, path, becomes)
    first = 0
    last = len(before)
    if path[0] == "candidates" and len(path) > 1:  # no other candidate moves
        number = int(path[1])
        counts = [len(candidate["devices"]) for candidate in data["candidates"]]
        first = sum(counts[:number])
        last = sum(counts[: number + 1])
        changed = {**changed, "candidates": [changed["candidates"][number]]}
        ratios = {other: 1.0 for other in range(len(before)) if not first <= other < last}
    reason = ""
    try:
        after = attempt(lambda: _slots(StudySpec.model_validate(changed)))
    except ValidationError:
        after = PerfsimError("it makes no study alone")
    if isinstance(after, PerfsimError):
        reason = after.problems[0].message
    elif len(after) != last - first:
        reason = "it changes the number of candidates"
    else:
        for other, (_, old), (_, new) in zip(range(first, last), before[first:last], after, strict=True):
            ratios[other] = None
            if old is not None and new is not None:
                ratios[other] = new.time_to_accuracy_s / old.time_to_accuracy_s
    told = tuple(None if reason else ratios.get(number) for number in shown)
    return Change(_words(path), _text(was), _text(becomes), told, reason)


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
    words = f"{value:.6g}" if isinstance(value, float) else str(value)
    return words if len(words) <= 60 else f"{words[:57]}..."
