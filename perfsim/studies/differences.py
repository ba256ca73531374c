"""What differs between two studies, and how much each changed input moves the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ValidationError

from perfsim.base.errors import InputError, LimitError, PerfsimError
from perfsim.base.sizes import MOST_DEVICES, MOST_SEQUENCES
from perfsim.base.units import number
from perfsim.engine.limits import present_limits
from perfsim.studies.answers import CandidateResult
from perfsim.studies.runner import run_study
from perfsim.studies.spec import StudySpec

LEFT_OUT = frozenset(
    {"name", "title", "question", "description", "sources", "assumed", "sampling", "resilience"}
)
"""Fields that move no time."""
MOST_CHANGES = 24
_MOST_S = 1e18
Path = tuple[str | int, ...]


class AnsweredRow(BaseModel):
    """A candidate in the document of a study's answer, as far as it is read back."""

    label: str = ""
    strategy: str = ""
    system: str = ""
    num_devices: Annotated[int, *number(0, MOST_DEVICES)] = 0
    time_to_accuracy_s: Annotated[float, *number(0.0, _MOST_S)] | None = None
    global_batch_size: Annotated[int, *number(1, MOST_SEQUENCES)] | None = None
    layout: dict[str, Any] = {}


class AnsweredInput(BaseModel):
    """An assumption in the document of a study's answer."""

    topic: str
    name: str
    value: object


class AnswerDocument(BaseModel):
    """The document of a study's answer (`summary.json`), as far as it is read back."""

    study: str
    title: str | None = None
    candidates: list[AnsweredRow]
    assumptions: list[AnsweredInput]

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
    new = second.model_dump()
    changed = list(_changed(old, new, ()))
    if len(changed) > MOST_CHANGES:
        listed = ", ".join(_words(path) for path, _, _ in changed[:5])
        raise InputError(
            f"{len(changed)} inputs differ ({listed}, ...); at most {MOST_CHANGES} are tried one at a time"
        )
    before = _slots(first)
    after = _slots(second)
    paired = _pairs(before, after)
    changes: list[Change] = []
    for path, was, becomes in changed:
        present_limits().in_time(lambda: f"{len(changes)} of {len(changed)} changes tried")
        changes.append(_alone(old, path, was, becomes, before, [place for place, _ in paired]))
    moved = tuple(
        _moved(was, becomes, [change.ratios[row] for change in changes])
        for row, (was, becomes) in enumerate(_answered(before, after, paired))
    )
    missing = _missing(first.name, before) + _missing(second.name, after)
    return Difference(first.name, second.name, tuple(changes), moved, missing)


@dataclass(frozen=True, slots=True)
class _Slot:
    """One candidate of a study at one number of devices, with its answer if there is one."""

    label: str
    result: CandidateResult | None


def _slots(spec: StudySpec) -> list[_Slot]:
    """Every candidate of a study in its order, with or without an answer."""
    run = run_study(spec)
    answered = list(zip(run.answered, run.result.candidates, strict=True))
    slots = []
    for candidate in spec.candidates:
        for devices in candidate.devices:
            own = next(
                (
                    pair
                    for pair in answered
                    if pair[0].candidate == candidate and pair[0].question.devices == devices
                ),
                None,
            )
            if own is not None:
                answered.remove(own)
            slots.append(_Slot(candidate.label(devices), None if own is None else own[1]))
    return slots


def _pairs(before: Sequence[_Slot], after: Sequence[_Slot]) -> list[tuple[int, int]]:
    """Places of the candidates of two studies that belong together: those of one label, else of one place."""
    pairs: dict[int, int] = {}
    free = list(range(len(after)))
    for by_label in (True, False):
        for place, slot in enumerate(before):
            if place in pairs:
                continue
            alike = (
                other for other in free if (slot.label == after[other].label if by_label else place == other)
            )
            if (match := next(alike, None)) is not None:
                pairs[place] = match
                free.remove(match)
    both = [(place, other) for place, other in pairs.items() if before[place].result and after[other].result]
    return sorted(both)


def _answered(
    before: Sequence[_Slot], after: Sequence[_Slot], pairs: Sequence[tuple[int, int]]
) -> Iterator[tuple[CandidateResult, CandidateResult]]:
    for place, other in pairs:
        old = before[place].result
        new = after[other].result
        if old is not None and new is not None:
            yield old, new


def _missing(study: str, slots: Sequence[_Slot]) -> tuple[str, ...]:
    return tuple(f"{slot.label}: no answer in {study}" for slot in slots if slot.result is None)


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
        if path and _base(old) != _base(new):
            yield path, old, new
            return
        for key in dict.fromkeys([*old, *new]):
            if key not in LEFT_OUT:
                yield from _changed(old.get(key), new.get(key), (*path, key))
    elif _is_list(old) and _is_list(new) and len(old) == len(new):
        for place, (was, becomes) in enumerate(zip(old, new, strict=True)):
            yield from _changed(was, becomes, (*path, place))
    elif old != new:
        yield path, old, new


def _base(description: Mapping[str, Any]) -> str:
    """The name of a description without the mark of a changed one."""
    return str(description.get("name")).partition(" (changed)")[0].partition(" with ")[0]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _alone(
    data: Mapping[str, Any],
    path: Path,
    was: Any,
    becomes: Any,
    before: Sequence[_Slot],
    places: Sequence[int],
) -> Change:
    """The first study with one input of the second; ratios of the candidates at `places`."""
    ratios: dict[int, float | None] = {}
    reason = ""
    changed = _put(data, path, becomes)
    first = 0
    last = len(before)
    if path[0] == "candidates" and len(path) > 1:  # no other candidate moves
        place = int(path[1])
        counts = [len(own["devices"]) for own in data["candidates"]]
        first = sum(counts[:place])
        last = sum(counts[: place + 1])
        changed = {**changed, "candidates": [changed["candidates"][place]]}
        ratios = {other: 1.0 for other in range(len(before)) if not first <= other < last}
    try:
        after = _slots(StudySpec.model_validate(changed))
        if len(after) == last - first:
            for other, (old, new) in enumerate(zip(before[first:last], after, strict=True), start=first):
                ratios[other] = _ratio(old.result, new.result)
        else:
            reason = "it changes the number of candidates"
    except LimitError:
        raise
    except (PerfsimError, ValidationError) as error:
        reason = error.problems[0].message if isinstance(error, PerfsimError) else "it makes no study alone"
    shown = tuple(None if reason else ratios.get(place) for place in places)
    return Change(_words(path), _text(was), _text(becomes), shown, reason)


def _ratio(old: CandidateResult | None, new: CandidateResult | None) -> float | None:
    if old is None or new is None:
        return None
    return new.time_to_accuracy_s / old.time_to_accuracy_s


def _put(data: Any, path: Path, value: Any) -> Any:
    """A copy with the value at a path replaced."""
    if not path:
        return value
    key, *rest = path
    if isinstance(data, Mapping):
        return {**data, key: _put(data.get(key), tuple(rest), value)}
    return [_put(item, tuple(rest), value) if place == key else item for place, item in enumerate(data)]


def _moved(old: CandidateResult, new: CandidateResult, alone: Sequence[float | None]) -> Moved:
    known = [value for value in alone if value is not None]
    ratio = new.time_to_accuracy_s / old.time_to_accuracy_s
    remainder = ratio / math.prod(known) if len(known) == len(alone) else None
    return Moved(old.label, new.label, old.time_to_accuracy_s, new.time_to_accuracy_s, remainder)


def _words(path: Path) -> str:
    return ".".join(str(part) for part in path).replace("candidates.", "candidate ")


def _text(value: Any) -> str:
    """A value in a few characters; a description by its name."""
    if isinstance(value, Mapping) and "name" in value:
        return str(value["name"])
    words = f"{value:.6g}" if isinstance(value, float) else str(value)
    return words if len(words) <= 60 else f"{words[:57]}..."
