"""The first two candidates of a study on equal dates: who was first when, and where the order turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from perfsim.base.dates import EQUAL, LATEST, months_apart
from perfsim.base.errors import PerfsimError
from perfsim.prediction.dates import choices, measured_days, newest_part
from perfsim.prediction.question import Question
from perfsim.studies.answers import Answer, Era, Eras
from perfsim.studies.decision import first_and_rival, ratio_of, verb
from perfsim.studies.spec import Point, StudySpec

Known = tuple[Point, Answer]
MOST_MONTHS = 12
"""Candidates whose newest parts are further apart are compared on one day as well."""


def eras_of(study: StudySpec, answered: Sequence[Known], ask: Callable[[Point], Answer]) -> Eras | None:
    """The first two candidates on equal dates; None where they are no more than `MOST_MONTHS` apart.

    A study that answers at equal dates also gets every day from which one of the two has something new.
    """
    first, rival = first_and_rival([row for _, row in answered]) or (None, None)
    if first is None or rival is None:
        return None
    pair = [next(known for known in answered if known[1] is row) for row in (first, rival)]
    parts = [newest_part(point.question) for point, _ in pair]
    months = months_apart(*(part.date for part in parts)) if all(part.date for part in parts) else 0
    asked = _Asked(pair, ask)
    if study.as_of == EQUAL:
        return _over_dates(study.equal_day, asked)
    if study.as_of not in ("", LATEST) or months <= MOST_MONTHS:
        return None
    named = " and ".join(f"{part.name} of {part.date}" for part in parts)
    said = f"The newest parts of the first two are {months} months apart ({named})"
    try:
        eras = (asked.on(study.equal_day),)
    except PerfsimError as error:
        said += f", and no day has both: {error.problems[0].message}."
        return Eras("", first.label, rival.label, said)
    take = f"{rival.label} {verb(rival.num_devices, 'take', 'takes')} {eras[0].ratio:.2f} times as long"
    said += f": on equal dates ({eras[0].day}) {take} as {first.label}."
    return Eras(eras[0].day, first.label, rival.label, said, eras=eras)


@dataclass(frozen=True)
class _Asked:
    """Two candidates that are asked again on other days, at the batches of their answers."""

    pair: Sequence[Known]
    ask: Callable[[Point], Answer]
    known: dict[tuple[str, str], Answer] = field(default_factory=dict)

    def on(self, day: str) -> Era:
        """Both on a day; PerfsimError where one of them did not exist, or has no plan."""
        questions = [replace(point.question, as_of=day) for point, _ in self.pair]
        newest = max((newest_part(question) for question in questions), key=lambda part: part.date)
        first, rival = map(self._answer, self.pair, questions)
        ratio = ratio_of(rival, first)
        times_s = (first.time.time_s, rival.time.time_s)
        return Era(day, newest.name, *times_s, ratio.ratio, (ratio.low, ratio.high))

    def _answer(self, known: Known, question: Question) -> Answer:
        """A candidate's answer on the day of a question, computed once for each of its runtimes."""
        point, row = known
        runs, ran = (one.machine.software(one.system, one.ran_by).name for one in (question, point.question))
        if runs == ran:
            return row
        if (row.label, runs) not in self.known:
            changes = {"as_of": question.as_of, "batch_sizes": (row.global_batch_size,)}
            self.known[row.label, runs] = self.ask(Point(point.study.model_copy(update=changes)))
        return self.known[row.label, runs]


def _over_dates(day: str, asked: _Asked) -> Eras:
    """Every day that changed something, and the range of the ratio over both choices of one day for all."""
    questions = [point.question for point, _ in asked.pair]
    late = max(measured_days(question)[1] for question in questions)
    days = {day, late}
    for question in questions:
        runs = [question.machine.software(question.system, runtime) for runtime in choices(question)]
        days |= {part.date for part in (*question.machine.parts(question.system), *runs)}
    eras: list[Era] = []
    for date in sorted(days):
        with suppress(PerfsimError):  # one of them did not exist yet
            eras.append(asked.on(date))
    ratios = {era.day: era.ratio for era in eras}
    _, first = asked.pair[0]
    _, rival = asked.pair[1]
    turn = next((era for era in eras if era.day > day and (era.ratio < 1) is (ratios[day] >= 1)), None)
    turned = f" (the order turns on {turn.day}, with {turn.newest})" if turn else ""
    mfu = rival.mfu * ratios[day]
    sentence = (
        f"All are as of {day}, the earliest of the dates of what was measured of each. On that day "
        f"{rival.label} {verb(rival.num_devices, 'take', 'takes')} {ratios[day]:.2f} times as long as "
        f"{first.label}, as of {late} {ratios[late]:.2f} times{turned}; on equal dates it also turns where "
        f"{rival.machine} {verb(rival.num_devices, 'reach', 'reaches')} an MFU of {100 * mfu:.0f} % "
        f"({100 * rival.mfu:.0f} % here)."
    )
    return Eras(day, first.label, rival.label, sentence, mfu, tuple(eras))
