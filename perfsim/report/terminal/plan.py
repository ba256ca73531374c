"""A shortlist on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfsim.prediction.accuracy import accuracy_of
from perfsim.prediction.caveats import rank
from perfsim.prediction.result import Caveat
from perfsim.report import text
from perfsim.report.table import Table
from perfsim.report.terminal.layout import paragraph, table_lines, terminal_width
from perfsim.strategies.screening import MEMORY
from perfsim.studies.equal_time import Matched
from perfsim.studies.experiment import Experiment
from perfsim.studies.shortlist import DIVISIBILITY, DOMINATED, MEMORY_LIMIT, Entry, Planned
from perfsim.units import DAY_S

_REASONS = {
    MEMORY: "need more memory than a device has",
    MEMORY_LIMIT: "fit, but above the memory limit",
    DOMINATED: "fit and are slower than the model's error can explain",
    DIVISIBILITY: "with degrees that do not divide model, batch or nodes",
}
"""Reasons of the search in words; others are shown by their name."""
NEAR = 1.001
"""Memory over capacity below which the nearest miss is not worth a word."""
WIDER = 1.2
"""How many times the error of the narrowest band is worth a word."""
_NUMERIC = frozenset({0, 2, 3, 4, 5})


def plan_lines(planned: Planned) -> list[str]:
    """The shortlist, what would separate it, what more memory would buy, and why the others fell."""
    width = terminal_width()
    notes = [line for note in plan_notes(planned) for line in paragraph(note, width)]
    heading, table = paragraph(plan_heading(planned), width), table_lines(plan_table(planned), width)
    trained = planned.best.prediction.training
    if trained is not None:
        heading += paragraph(f"trained by {trained.words}", width)
    return [*heading, "", *table, "", f"1 in full: --layout {planned.best.layout_text}", *notes]


def match_lines(planned: Planned, matched: Matched | None) -> list[str]:
    """How many devices of another system take equal time, and the numbers that were tried."""
    if matched is None or planned.best.time is None:
        return []
    equal = matched.equal
    low, middle, high = (_equal(value, matched) for value in (equal.low, equal.typical, equal.high))
    tried = ", ".join(
        f"{point.devices:,} take {text.duration(point.time.time_s)} with batch {point.global_batch_size:,}"
        for point in matched.points
    )
    first = f"{planned.best.prediction.label} takes {text.duration(planned.best.time.time_s)}"
    words = (
        f"{first}: as long as {middle} {matched.devices_noun} (90 %: {low} to {high}), each at its own best "
        f"batch. Tried: {tried}."
    )
    return ["", *paragraph(words, terminal_width())]


def _equal(count: float | None, matched: Matched) -> str:
    if count is None:
        return f"more than {matched.points[-1].devices:,}"
    return (
        f"at most {matched.points[0].devices:,}" if count <= matched.points[0].devices else text.number(count)
    )


def plan_heading(planned: Planned) -> str:
    """What was asked, and how many layouts there are."""
    best, search = planned.best.prediction, planned.search
    return (
        f"{best.model} on {best.label}: batch "
        f"{text.integer(best.global_batch_size)} sequences; {text.integer(search.screened)} layouts in "
        f"{text.duration(search.screening_s)}, {text.integer(search.feasible)} fit, "
        f"{text.integer(planned.within)} within the model's error of the fastest"
    )


def plan_table(planned: Planned) -> Table:
    """The shortlist, the settings of each layout that differ from the first."""
    days = [] if planned.best.time is None else ["days\n(band)"]
    columns = ("", "layout", "step s\n(band)", "times\nthe first", "memory\nleft", *days)
    rows = [
        [
            str(number),
            text.layout_short(entry.layout) if number == 1 else _differing(entry.differs),
            f"{text.number(entry.step_time_s)} {_band(entry.step_time_band_s)}",
            f"{entry.ratio:.3f}",
            text.memory(entry.memory_left_bytes, entry.prediction.memory_capacity_bytes),
            *([] if entry.time is None else [_days(entry)]),
        ]
        for number, entry in enumerate(planned.shortlist, start=1)
    ]
    return Table(columns, rows, "", _NUMERIC)


def _band(band: tuple[float, float]) -> str:
    return f"({text.number(band[0])}-{text.number(band[1])})"


def _days(entry: Entry) -> str:
    if entry.time is None:
        return text.MISSING
    low, high = (bound / DAY_S for bound in entry.time.band_s)
    return f"{text.number(entry.time.time_s / DAY_S)} {_band((low, high))}"


def _differing(settings: Mapping[str, Any]) -> str:
    """The settings in which a layout differs from the first."""
    return text.layout_settings(settings) or "the same settings"


def plan_notes(planned: Planned) -> Iterator[str]:
    """How sure the order is, what would settle it, caveats, and why other layouts fell."""
    entries = planned.shortlist
    error = _errors([entry.ratio_error for entry in entries])
    if len(entries) > 1:
        yield (
            f"The model's error between two layouts of one machine is {error}, so it does not say which of "
            "these is the fastest. Rows are the fastest of their degrees and micro-batch, with the settings "
            "that differ from 1."
        )
    else:
        yield f"The model's error between two layouts of one machine is {error}; one layout is shown."
    yield from _wider_bands(planned)
    if planned.experiment is not None:
        yield _experiment(planned.experiment)
    yield from _caveats(planned)
    yield _headroom(planned)
    if refused := "; ".join(_refused(planned)):
        yield f"Left out: {refused}."
    if planned.objective == "cost":
        yield _cost(planned)
    if planned.tried_batches:
        tried = planned.tried_batches
        yield f"The batch is the best of {len(tried)} tried, {tried[0]:,} to {tried[-1]:,} sequences."


def _wider_bands(planned: Planned) -> Iterator[str]:
    """Why the bands of some rows are wider than the narrowest, by what differs from the published runs."""
    runs = [entry.prediction.run for entry in planned.shortlist]
    accuracies = [accuracy_of(run.plan, run.hidden_communication_fraction) for run in runs]
    rows = list(enumerate(accuracies, start=1))
    narrowest = min((accuracy for _, accuracy in rows), key=lambda accuracy: accuracy.step_time_error)
    reasons: dict[str, list[str]] = {}
    for number, accuracy in rows:
        if accuracy.step_time_error > WIDER * narrowest.step_time_error:
            common = set(narrowest.likeness.split("; "))
            own = "; ".join(words for words in accuracy.likeness.split("; ") if words not in common)
            why = own or f"its nearest published runs are {accuracy.family}, not {narrowest.family}"
            reasons.setdefault(why, []).append(str(number))
    for why, numbers in reasons.items():
        bands = "band is" if len(numbers) == 1 else "bands are"
        yield f"Row {', '.join(numbers)}: the {bands} wider, for unlike the published runs: {why}."


def _errors(errors: Sequence[float]) -> str:
    """`15 %`, or `26 % to 37 %` where they differ."""
    low, high = (text.percent(error, 0) for error in (min(errors), max(errors)))
    return high if low == high else f"{low} to {high}"


def _experiment(experiment: Experiment) -> str:
    first, second = experiment.trials
    apart, hours = text.percent(abs(experiment.ratio - 1)), text.trim(text.number(experiment.device_hours))
    runs = (
        f"{first.entry} on {text.counted(first.devices, 'device')} and of {second.entry} on "
        f"{text.integer(second.devices)}"
    )
    fewer = " Fewer replicas do the same work; communication between the others is left out."
    return (
        f"To tell {first.entry} and {second.entry} apart, which by prediction are {apart} apart: run "
        f"{experiment.steps} steps of {runs}, {hours} device-hours in all."
        f"{fewer if experiment.fewer_replicas else ''}"
    )


def _caveats(planned: Planned) -> Iterator[str]:
    """Caveats that are more than information, once by code in the words of the worst, with their entries."""
    about: dict[str, list[tuple[int, Caveat]]] = {}
    for number, entry in enumerate(planned.shortlist, start=1):
        for caveat in entry.prediction.caveats:
            if caveat.severity != "info":
                about.setdefault(caveat.code, []).append((number, caveat))
    worst = {min((caveat for _, caveat in rows), key=rank): rows for rows in about.values()}
    for caveat in sorted(worst, key=rank):
        numbers = ", ".join(str(number) for number, _ in worst[caveat])
        yield f"{caveat.severity}, {numbers}: {caveat.text}."


def _headroom(planned: Planned) -> str:
    limit, above = planned.question.allowed_share, planned.above_limit
    if planned.best.plan.memory_share > limit:
        return f"Nothing fits in {text.percent(limit, 0)} of memory: these are all that fit at all."
    if limit == 1.0:
        return "All of a device's memory may be used."
    if above is None:
        return f"Nothing above {text.percent(limit, 0)} of memory would be faster."
    return (
        f"Memory above {text.percent(limit, 0)} would buy {text.percent(above.gain)}: "
        f"{text.layout_short(above.layout)} fills {text.percent(above.memory_share)} and may not run."
    )


def _refused(planned: Planned) -> Iterator[str]:
    for reason, count in planned.refused.items():
        if count:
            nearest = planned.closest_share if reason == MEMORY else None
            by = f" (the nearest by {text.percent(nearest - 1)})" if nearest and nearest > NEAR else ""
            yield f"{text.integer(count)} {_REASONS.get(reason, reason)}{by}"


def _cost(planned: Planned) -> str:
    best = planned.best
    of = "a billion tokens" if best.time is None else "the run to the target"
    return (
        f"Cost of {of} with 1: {text.number(best.device_hours)} device-hours; on a fixed number of devices "
        "the fastest layout is the cheapest. Prices in money are not known to perfsim."
    )
