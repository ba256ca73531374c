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
from perfsim.studies.decision import option_of, verb, wall_ratio
from perfsim.studies.spec import Point, StudySpec

Known = tuple[Point, Answer]
MOST_MONTHS = 12
"""Candidates whose newest parts are further apart are compared on one day as well."""


def eras_of(study: StudySpec, pair: Sequence[Known], ask: Callable[[Point], Answer]) -> Eras | None:
    """The first on the wall and its rival on equal dates; None where they are at most `MOST_MONTHS` apart.

    A study that answers at equal dates also gets every day from which one of the two has something new.
    """
    if len(pair) < 2:
        return None
    (_, first), (_, rival) = pair
    parts = [newest_part(point.question) for point, _ in pair]
    months = months_apart(*(part.date for part in parts)) if all(part.date for part in parts) else 0
    asked = _Asked(pair, ask)
    if study.as_of == EQUAL:
        return _over_dates(study.equal_day, asked)
    if study.as_of not in ("", LATEST) or months <= MOST_MONTHS:
        return None
    named = " and ".join(f"{part.name} of {part.date}" for part in parts)
    said = f"The newest parts of the two are {months} months apart ({named})"
    try:
        eras = (asked.on(study.equal_day),)
    except PerfsimError as error:
        said += f", and no day has both: {error.problems[0].message}."
        return Eras("", first.label, rival.label, said)
    take = f"{rival.machine} {verb(rival.num_devices, 'take', 'takes')} {eras[0].ratio:.2f} times as long"
    said += f": on equal dates ({eras[0].day}) {take} as {first.machine}."
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
        rows = map(self._answer, self.pair, questions)
        first, rival = (option_of(point, row) for (point, _), row in zip(self.pair, rows, strict=True))
        ratio = wall_ratio(rival, first)
        times_s = (first.typical_s, rival.typical_s)
        return Era(day, newest.name, *times_s, ratio.typical, (ratio.low, ratio.high))

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
    turned = f"; the order turns on {turn.day}, with {turn.newest}" if turn else ", so the order stays"
    sentence = (
        f"All as of {day}, the earliest date of what was measured of each. As of {late}, the newest, "
        f"{rival.machine} {verb(rival.num_devices, 'take', 'takes')} {ratios[late]:.2f} times as long as "
        f"{first.machine}{turned}."
    )
    mfu = rival.mfu * ratios[day]
    return Eras(day, first.label, rival.label, sentence, mfu, tuple(eras))
