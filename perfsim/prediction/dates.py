"""What of a machine existed on a day: its devices and links, and the newest runtime or software release.

A machine is as new as the newest of its parts: its devices, its links, and what runs its steps. Constants
that measurements determine are no parts: they say how a part behaves, whenever it was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfsim.base.dates import LATEST, existed, months_apart
from perfsim.base.errors import CatalogError, InputError
from perfsim.catalog import default_catalog
from perfsim.machines import machine_of
from perfsim.machines.machine import Part
from perfsim.prediction.bands import Reached
from perfsim.prediction.caveats import Caveat
from perfsim.specs.runtime import Runtime

if TYPE_CHECKING:
    from perfsim.prediction.question import Question
    from perfsim.specs.hardware import SystemSpec


FAR = 12
"""Months after the newest date of a machine from which on a day is warned of."""


def runtime_on(question: Question) -> Runtime:
    """What runs a question on its day: the newest of its machine's runtimes or releases that existed."""
    # A runtime that the question names stays. `latest` takes the newest that was measured on this kind of
    # device, else the newest; a part that did not exist is refused with the nearest that did.
    if question.as_of == LATEST:
        return _measured_ones(question)[-1]
    for part in question.machine.parts(question.system):
        if not (part.date and existed(part.date, question.as_of)):
            raise _absent(question.as_of, part, _nearest(question.system, question.as_of))
    dated = [(question.machine.software(question.system, runtime), runtime) for runtime in choices(question)]
    living = [runtime for part, runtime in dated if part.date and existed(part.date, question.as_of)]
    if not living:
        raise _absent(question.as_of, dated[0][0], "ask for a later day, or omit as_of")
    return living[-1]


def choices(question: Question) -> Sequence[Runtime]:
    """The runtimes or releases that may run a question, the oldest first; alone the one that it names."""
    given = question.named_runtime
    if question.runtime is not None and question.machine.has_host(question.system):
        return [given]
    return question.machine.generations(question.system, given)


def measured_days(question: Question) -> tuple[str, str]:
    """Since when the oldest and the newest measured choice exist; InputError for a part without a date."""
    machine = question.machine
    parts = list(machine.parts(question.system))
    software = [machine.software(question.system, runtime) for runtime in _measured_ones(question)]
    if unknown := next((part for part in (*parts, *software) if not part.date), None):
        raise _absent("equal", unknown, "")
    days = sorted(max(part.date, *(other.date for other in parts)) for part in software)
    return days[0], days[-1]


def _measured_ones(question: Question) -> Sequence[Runtime]:
    """The choices that a published run has, or all of them where none does."""
    known = choices(question)
    return [runtime for runtime in known if _measured(question, runtime)] or known


def _measured(question: Question, runtime: Runtime) -> bool:
    """Whether a published run has this runtime or release on a device with the same constants."""
    system = question.system
    recipe = question.recipe.model_copy(update={"runtime": runtime})
    releases = question.machine.releases(system, recipe)
    if releases is not None:
        return releases[0] == releases[1]
    framework = "" if runtime.framework is None else runtime.framework.name
    return (system.kind, system.device.constants, framework) in Reached.combinations()


def _absent(day: str, part: Part, help_text: str) -> InputError:
    words = f"as_of {day}: {part.name} did not exist, it is of {part.date}"
    if not part.date:
        words = f"as_of {day}: {part.name} has no date, so nobody knows whether it existed"
        help_text = "write `date: 2023-06` with its source in the description"
    return InputError(words, help_text)


def _nearest(system: SystemSpec, day: str) -> str:
    """The newest system of the same kind whose parts all existed, in words."""
    best = ("", "")
    catalog = default_catalog()
    for name in catalog.names("system"):
        try:
            other = catalog.system(name)
            dates = [part.date for part in machine_of(other).parts(other)]
        except CatalogError:  # an unreadable file is no suggestion
            continue
        if other.kind == system.kind and all(date and existed(date, day) for date in dates):
            best = max(best, (max(dates), name))
    if not best[1]:
        return f"no {system.kind} of the catalogue existed"
    return f"the newest {system.kind} that did is {best[1]}, of {best[0]}"


def newest_part(question: Question) -> Part:
    """The newest part of a question's machine; one without a date counts as newest, since nobody knows."""
    parts = _parts(question)
    return next((part for part in parts if not part.date), max(parts, key=lambda part: part.date))


def _parts(question: Question) -> list[Part]:
    """The parts of a question's machine, what runs its steps last."""
    system = question.system
    return [*question.machine.parts(system), question.machine.software(system, question.ran_by)]


def date_caveats(question: Question) -> list[Caveat]:
    """What was chosen for the day of a question, and which dates are from memory; empty without a day."""
    if not question.as_of:
        return []
    *parts, software = _parts(question)
    words = f"as of {question.as_of}: {software.name} of {software.date or 'no known date'}"
    if (newest := newest_part(question)) != software:
        words += f"; its newest part is {newest.name} of {newest.date or 'no known date'}"
    if recalled := [part.name for part in (*parts, software) if part.recalled]:
        words += f"; dates recalled, without a source: {', '.join(recalled)}"
    framework = question.ran_by.framework
    known = max(framework.date or "" if framework else "", *(part.date for part in (*parts, software)))
    if question.as_of != LATEST and question.as_of > known and months_apart(known, question.as_of) > FAR:
        words += f"; nothing of this machine is known after {known}: the answer lacks what came since"
        return [Caveat("as-of", "warning", words)]
    return [Caveat.of("as-of", words)]
