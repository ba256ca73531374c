"""The first two candidates of a study on equal dates: who was first when, and where the order turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from perfsim.base.dates import EQUAL, LATEST, months_apart
from perfsim.base.errors import PerfsimError
from perfsim.machines.machine import Part
from perfsim.prediction.dates import choices, measured_days, newest_part
from perfsim.prediction.question import Question
from perfsim.studies.answers import Answer, Era, Eras
from perfsim.studies.decision import first_and_rival, ratio_of, verb
from perfsim.studies.spec import Point, StudySpec

MOST_MONTHS = 12
"""Candidates whose newest parts are further apart are compared on one day as well."""


def eras_of(
    study: StudySpec, answered: Sequence[tuple[Point, Answer]], ask: Callable[[Point], Answer]
) -> Eras | None:
    """The first two candidates on equal dates; None where they are no more than `MOST_MONTHS` apart.

    A study that answers at equal dates also gets every day from which one of the two has something new.
    """
    pair = first_and_rival([row for _, row in answered])
    if pair is None or pair[1] is None:
        return None
    first, rival = (next(known for known in answered if known[1] is row) for row in pair)
    parts = [newest_part(point.question) for point, _ in (first, rival)]
    if not all(part.date for part in parts):
        return None
    months = months_apart(*(part.date for part in parts))
    asked = _Asked(first, rival, ask)
    if study.as_of == EQUAL:
        return _over_dates(study, asked)
    return _apart(study, asked, parts) if study.as_of in ("", LATEST) and months > MOST_MONTHS else None


@dataclass(frozen=True)
class _Asked:
    """Two candidates that are asked again on other days, at the batches of their answers."""

    first: tuple[Point, Answer]
    rival: tuple[Point, Answer]
    ask: Callable[[Point], Answer]
    known: dict[tuple[str, str], Answer] = field(default_factory=dict)

    def on(self, day: str) -> Era:
        """Both on a day; PerfsimError where one of them did not exist, or has no plan."""
        questions = [replace(point.question, as_of=day) for point, _ in (self.first, self.rival)]
        newest = max((newest_part(question) for question in questions), key=lambda part: part.date)
        first, rival = (
            self._answer(known, question)
            for known, question in zip((self.first, self.rival), questions, strict=True)
        )
        ratio = ratio_of(rival, first)
        times_s = (first.time.time_s, rival.time.time_s)
        return Era(day, newest.name, *times_s, ratio.ratio, (ratio.low, ratio.high))

    def _answer(self, known: tuple[Point, Answer], question: Question) -> Answer:
        """A candidate's answer on the day of a question, computed once for each of its runtimes."""
        point, row = known
        runs = question.machine.software(question.system, question.ran_by).name
        if runs == point.question.machine.software(question.system, point.question.ran_by).name:
            return row
        if (row.label, runs) not in self.known:
            changes = {"as_of": question.as_of, "batch_sizes": (row.global_batch_size,)}
            self.known[row.label, runs] = self.ask(Point(point.study.model_copy(update=changes)))
        return self.known[row.label, runs]

    @property
    def days(self) -> Sequence[str]:
        """The days from which one of the two has something new, in order."""
        questions = (point.question for point, _ in (self.first, self.rival))
        return sorted({part.date for question in questions for part in _history(question) if part.date})

    @property
    def latest(self) -> str:
        """The later of the two dates of what was measured of each."""
        return max(measured_days(point.question)[1] for point, _ in (self.first, self.rival))

    @property
    def subject(self) -> str:
        """The rival and its verb."""
        row = self.rival[1]
        return f"{row.label} {verb(row.num_devices, 'take', 'takes')}"


def _history(question: Question) -> Iterator[Part]:
    """Everything that a question's machine was made of or ran, with its date."""
    yield from question.machine.parts(question.system)
    for runtime in choices(question):
        yield question.machine.software(question.system, runtime)


def _over_dates(study: StudySpec, asked: _Asked) -> Eras:
    """Every day that changed something, and the range of the ratio over both choices of one day for all."""
    day = study.equal_day
    late = asked.latest
    eras = []
    for date in sorted({*asked.days, day, late}):
        try:
            eras.append(asked.on(date))
        except PerfsimError:  # one of them did not exist yet
            continue
    ratios = {era.day: era.ratio for era in eras if era.day in (day, late)}
    rival = asked.rival[1]
    needed = rival.mfu * ratios[day]
    first_ahead = ratios[day] >= 1
    turn = next((era for era in eras if era.day > day and (era.ratio >= 1) is not first_ahead), None)
    turned = f" (the order turns on {turn.day}, with {turn.newest})" if turn else ""
    sentence = (
        f"All are as of {day}, the earliest of the dates of what was measured of each. On that day "
        f"{asked.subject} {ratios[day]:.2f} times as long as {asked.first[1].label}, as of {late} "
        f"{ratios.get(late, ratios[day]):.2f} times{turned}; on equal dates it also turns where "
        f"{rival.machine} {verb(rival.num_devices, 'reach', 'reaches')} an MFU of {100 * needed:.0f} % "
        f"({100 * rival.mfu:.0f} % here)."
    )
    return Eras(day, asked.first[1].label, rival.label, sentence, needed, tuple(eras))


def _apart(study: StudySpec, asked: _Asked, parts: Sequence[Part]) -> Eras:
    """How far apart two candidates are, with the ratio at equal dates where one can be had."""
    said = " and ".join(f"{part.name} of {part.date}" for part in parts)
    months = months_apart(*(part.date for part in parts))
    words = f"The newest parts of the first two are {months} months apart ({said})"
    labels = (asked.first[1].label, asked.rival[1].label)
    try:
        day = study.equal_day
        era = asked.on(day)
    except PerfsimError as error:
        return Eras("", *labels, f"{words}, and no day has both: {error.problems[0].message}.")
    compared = f"{asked.subject} {era.ratio:.2f} times as long as {labels[0]}"
    return Eras(day, *labels, f"{words}: on equal dates ({day}) {compared}.", eras=(era,))
