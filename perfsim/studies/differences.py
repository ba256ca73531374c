"""What differs between two studies, and how much each changed input moves the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, FiniteFloat, PositiveFloat, ValidationError

from perfsim.engine.limits import present_limits
from perfsim.errors import InputError, LimitError, PerfsimError
from perfsim.studies.result import StudyResult
from perfsim.studies.runner import run_study
from perfsim.studies.spec import StudySpec

LEFT_OUT = frozenset(
    {"name", "title", "question", "description", "sources", "assumed", "sampling", "resilience"}
)
"""Fields that move no time."""
MOST_CHANGES = 24
Path = tuple[str | int, ...]


class AnsweredRow(BaseModel):
    """A candidate in the document of a study's answer, as far as it is read back."""

    label: str = ""
    strategy: str = ""
    system: str = ""
    num_devices: int = 0
    time_to_accuracy_s: Annotated[PositiveFloat, FiniteFloat] | None = None


class AnsweredInput(BaseModel):
    """An assumption in the document of a study's answer."""

    topic: str
    name: str
    value: str | float | bool | None


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
    """A candidate in both studies, by its place."""

    before: str
    after: str
    time_before_s: float
    time_after_s: float
    remainder: float | None
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


def compare_studies(first: StudySpec, second: StudySpec) -> Difference:
    """Answer both, and the first with each changed input alone.

    Raises InputError for more than `MOST_CHANGES` changed inputs, and what answering raises.
    """
    old, new = first.model_dump(), second.model_dump()
    changed = list(_changed(old, new, ()))
    if len(changed) > MOST_CHANGES:
        listed = ", ".join(_words(path) for path, _, _ in changed[:5])
        raise InputError(
            f"{len(changed)} inputs differ ({listed}, ...); at most {MOST_CHANGES} are tried one at a time"
        )
    before, after = run_study(first).result, run_study(second).result
    changes: list[Change] = []
    for path, was, becomes in changed:
        present_limits().in_time(lambda: f"{len(changes)} of {len(changed)} changes tried")
        changes.append(_alone(old, path, was, becomes, before))
    return Difference(first.name, second.name, tuple(changes), _moved(before, after, changes))


def compare_answers(first: AnswerDocument, second: AnswerDocument) -> Difference:
    """Two documents of answers: times of the candidates of one label, and the inputs that differ.

    Nothing is answered again, so no input has an effect of its own. Raises InputError for a candidate without
    a label or a time.
    """
    old, new = first.inputs, second.inputs
    changes = tuple(
        Change(path, old.get(path, "none"), new.get(path, "none"), ())
        for path in dict.fromkeys([*old, *new])
        if old.get(path) != new.get(path)
    )
    before, after = first.times_s, second.times_s
    moved = tuple(Moved(own, own, before[own], after[own], None) for own in before if own in after)
    return Difference(first.study, second.study, changes, moved)


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


def _alone(data: Mapping[str, Any], path: Path, was: Any, becomes: Any, before: StudyResult) -> Change:
    """The first study with one input of the second."""
    ratios: tuple[float | None, ...] = (None,) * len(before.candidates)
    reason = ""
    changed = _put(data, path, becomes)
    first, last = 0, len(before.candidates)
    if path[0] == "candidates" and len(path) > 1 and not before.infeasible:  # no other candidate moves
        place = int(path[1])
        counts = [len(own["devices"]) for own in data["candidates"]]
        first, last = sum(counts[:place]), sum(counts[: place + 1])
        changed = {**changed, "candidates": [changed["candidates"][place]]}
    try:
        times = [
            own.time_to_accuracy_s for own in run_study(StudySpec.model_validate(changed)).result.candidates
        ]
        moved = before.candidates[first:last]
        if len(times) == len(moved):
            pairs = zip(times, moved, strict=True)
            alone = tuple(time_s / own.time_to_accuracy_s for time_s, own in pairs)
            ratios = (*(1.0,) * first, *alone, *(1.0,) * (len(before.candidates) - last))
        else:
            reason = "it changes the number of candidates"
    except LimitError:
        raise
    except (PerfsimError, ValidationError) as error:
        reason = error.problems[0].message if isinstance(error, PerfsimError) else "it makes no study alone"
    return Change(_words(path), _text(was), _text(becomes), ratios, reason)


def _put(data: Any, path: Path, value: Any) -> Any:
    """A copy with the value at a path replaced."""
    if not path:
        return value
    key, *rest = path
    if isinstance(data, Mapping):
        return {**data, key: _put(data.get(key), tuple(rest), value)}
    return [_put(item, tuple(rest), value) if place == key else item for place, item in enumerate(data)]


def _moved(before: StudyResult, after: StudyResult, changes: Sequence[Change]) -> tuple[Moved, ...]:
    rows = []
    for place, (old, new) in enumerate(zip(before.candidates, after.candidates, strict=False)):
        alone = [change.ratios[place] for change in changes]
        ratio = new.time_to_accuracy_s / old.time_to_accuracy_s
        known = [value for value in alone if value is not None]
        remainder = ratio / math.prod(known) if len(known) == len(alone) else None
        rows.append(Moved(old.label, new.label, old.time_to_accuracy_s, new.time_to_accuracy_s, remainder))
    return tuple(rows)


def _words(path: Path) -> str:
    return ".".join(str(part) for part in path).replace("candidates.", "candidate ")


def _text(value: Any) -> str:
    """A value in a few characters; a description by its name."""
    if isinstance(value, Mapping) and "name" in value:
        return str(value["name"])
    words = f"{value:.6g}" if isinstance(value, float) else str(value)
    return words if len(words) <= 60 else f"{words[:57]}..."
