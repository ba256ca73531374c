"""A shortlist on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfsim.base.units import DAY_S
from perfsim.prediction.bands import accuracy_of
from perfsim.prediction.caveats import Caveat, rank
from perfsim.report import text
from perfsim.report.study import wall_sentence
from perfsim.report.sweep import production_notes
from perfsim.report.table import Table
from perfsim.report.terminal import caveat_lines, paragraph, table_lines, terminal_width
from perfsim.report.validation import efficiencies_table, explanations_table, ratios_table
from perfsim.strategies.plan import MEMORY
from perfsim.studies.answers import CandidateResult, PointResult, StudyResult
from perfsim.studies.scaling import Matched, Series
from perfsim.studies.shortlist import DIVISIBILITY, DOMINATED, MEMORY_LIMIT, Entry, Experiment, Planned
from perfsim.studies.variants import Analysis, Change, SweepResult

# The answer to a study on a terminal.

MOST_CANDIDATES = 24
"""Rows of the table; of more candidates the fastest are shown, and the report has all."""
MOST_INFEASIBLE = 6
"""Candidates without a plan that the terminal names with their reason; the report names all."""
_STUDY_NUMERIC = frozenset(range(2, 10))


def study_lines(result: StudyResult) -> list[str]:
    """A row for each candidate, what to know beside it, the worst caveats, and the comparison last."""
    width = terminal_width()
    lines = [*paragraph(_heading(result), width), ""]
    lines += [*table_lines(_table(result), width), *_left_out(result)]
    lines += [line for note in _notes(result) for line in paragraph(note, width)]
    said = result.verdict + (result.decision.sentence if result.decision is not None else "")
    lines += [*caveat_lines(result.caveats, said, width), ""]
    if result.decision is not None:
        lines += paragraph(result.decision.sentence, width)
    return [*lines, *paragraph(result.verdict, width)]


def _shown(candidates: Sequence[CandidateResult]) -> list[CandidateResult]:
    """The candidates in their order; of too many the fastest."""
    places = sorted(range(len(candidates)), key=lambda place: candidates[place].time_to_accuracy_s)
    return [candidates[place] for place in sorted(places[:MOST_CANDIDATES])]


def _left_out(result: StudyResult) -> list[str]:
    left_out = len(result.candidates) - MOST_CANDIDATES
    return [f"... {left_out} slower candidates in the report"] if left_out > 0 else []


def _heading(result: StudyResult) -> str:
    size = text.large(result.num_parameters)
    target = text.large(result.target_tokens)
    return f"{result.title}: {result.model}, {size} parameters, {target} tokens at small batch"


def _notes(result: StudyResult) -> list[str]:
    """What to know beside the table."""
    more = len(result.infeasible) - MOST_INFEASIBLE
    return [
        "* first at the target; all figures are at each candidate's own best batch",
        *_training_lines(result.candidates),
        *filter(None, [wall_sentence(result.candidates)]),
        *filter(None, [text.perturbed_line(result)]),
        *_sampling_lines(result),
        *(f"not possible: {item.label}: {item.reason}" for item in result.infeasible[:MOST_INFEASIBLE]),
        *([f"... {more} more that are not possible, with their reasons in the report"] if more > 0 else []),
    ]


def _training_lines(candidates: Sequence[CandidateResult]) -> list[str]:
    """How the candidates train: a line for all with like settings, with the framework of each machine."""
    frameworks: dict[str, dict[str, None]] = {}
    for own in candidates:
        if own.training:
            of_these = frameworks.setdefault(own.training.settings, {})
            if own.training.framework:
                of_these[f"{own.training.framework} on {own.system}"] = None
    return [
        f"trained by {settings}" + (f"; framework {', '.join(names)}" if names else "")
        for settings, names in frameworks.items()
    ]


def _sampling_lines(result: StudyResult) -> list[str]:
    """How many products were executed, and how exact they were."""
    samples = list(result.sampling.values())
    if not samples:
        return []
    share = min(sample.flop_share for sample in samples)
    nearest = max(sample.worst_relative_error / sample.bound for sample in samples)
    count = sum(sample.tasks_sampled for sample in samples)
    outcome = "right" if all(sample.passed for sample in samples) else "WRONG, see the report"
    covered = f"{count} matrix products, at least {text.percent(share, 0)} of a step's FLOPs"
    return [f"verified: {covered}, {outcome}; error {nearest:.1g} of its bound"]


def _table(result: StudyResult) -> Table:
    """The candidates; every column in one unit."""
    shown = _shown(result.candidates)
    outcomes = result.decision.outcomes if result.decision else ()
    walls = {outcome.label: outcome.wall_s.typical for outcome in outcomes}
    times = [candidate.time_to_accuracy_s for candidate in shown]
    unit, scale = text.time_unit(times)
    first = min((time for time in times if math.isfinite(time)), default=math.nan)
    memory_unit, memory_scale = text.memory_unit(*(own.memory_capacity_bytes for own in shown))
    step_unit, steps = text.in_one_unit(own.step_time_s for own in shown)
    figures = (
        "batch",
        f"step\n{step_unit}",
        "MFU\n%",
        f"memory\n{memory_unit}",
        "steps\n(1000)",
        f"{unit}\n(band)",
    )
    columns = ("machine", "layout", *figures, *(["on the\nwall"] if walls else []))
    rows = []
    for candidate, step in zip(shown, steps, strict=True):
        memory = text.number(candidate.peak_memory_bytes / memory_scale)
        rows.append(_study_row(candidate, step, memory, scale, walls))
    best = frozenset((row, 0) for row, time in enumerate(times) if time == first)
    return Table(columns, rows, "", _STUDY_NUMERIC, best)


def _study_row(
    candidate: CandidateResult, step: str, memory: str, scale: float, walls: Mapping[str, float]
) -> list[str]:
    times = (candidate.time_to_accuracy_s, *candidate.time_to_accuracy_band_s)
    middle, low, high = (text.number(value / scale).replace(",", "") for value in times)
    return [
        candidate.label,
        text.layout_short(candidate.layout),
        text.integer(candidate.global_batch_size),
        step,
        text.number(100 * candidate.mfu),
        memory,
        text.number(candidate.steps / 1000),
        f"{middle} ({low}-{high})" if middle != text.MISSING else middle,
        *([text.number(walls[candidate.label] / scale).replace(",", "")] if walls else []),
    ]


# A sweep's answer on a terminal.

MOST_ROWS = 40
"""Rows of points or variants; the report has all."""
MARK = " *"


def sweep_lines(result: SweepResult) -> list[str]:
    """Each machine at its best batch by number of devices, or variants by effect; the verdict last."""
    width = terminal_width()
    infeasible = len(result.points) - len(result.feasible)
    count = f"{len(result.points):,} points"
    if infeasible:
        count += f", {infeasible:,} without a feasible plan"
    analysis = result.analysis
    rows = _changes(analysis) if analysis.changes else _series(analysis)
    said = " ".join([result.verdict, *production_notes(result.feasible)])
    return [
        *paragraph(f"{result.title} ({count})", width),
        "",
        *(table_lines(rows, width) if rows.rows else []),
        *caveat_lines(result.caveats, result.verdict, width),
        "",
        *paragraph(said, width),
    ]


def _series(analysis: Analysis) -> Table:
    """The series one below the other, each under its name, every column in one unit."""
    points = [(own, point) for own in analysis.series for point in own.points]
    slowest_s = max(sorted(point.target_time.time_s for _, point in points)[:MOST_ROWS], default=math.inf)
    kept = [(own, point) for own, point in points if point.target_time.time_s <= slowest_s][:MOST_ROWS]
    count = len(points)
    step_unit, steps = text.in_one_unit(point.prediction.step_time_s for _, point in kept)
    unit, scale = text.time_unit(point.target_time.time_s for _, point in kept)
    rows: list[list[str]] = []
    shown: Series | None = None
    for (own, point), step in zip(kept, steps, strict=True):
        if own is not shown:
            rows.append([own.label, *[""] * 7])
            shown = own
        rows.append(
            [
                f"  {point.machine}",
                *_of_step(point, step),
                text.percent(own.efficiency(point), 0),
                *_of_target(point, scale),
            ]
        )
    more = f"{count - len(kept)} more points are in the report, all slower." if count > len(kept) else ""
    columns = ("machine", "batch", f"step\n{step_unit}", "MFU", "efficiency", unit, "90 % band", "wall")
    return Table(columns, rows, more, numeric=frozenset(range(1, 8)))


def _changes(analysis: Analysis) -> Table:
    """The variants below what they have in common, the largest effect first."""
    changes = {name: [own[0], *sorted(own[1:], key=_effect)] for name, own in analysis.changes.items()}
    most = max(2, MOST_ROWS // max(len(changes), 1))
    kept = {name: own[:most] for name, own in changes.items()}
    points = [change.point for own in kept.values() for change in own]
    step_unit, steps = text.in_one_unit(point.prediction.step_time_s for point in points)
    unit, scale = text.time_unit(point.target_time.time_s for point in points)
    left = iter(steps)
    rows: list[list[str]] = []
    for name, own in kept.items():
        rows.append([name, *[""] * 7])
        for change in own:
            point = change.point
            cells = [*_of_step(point, next(left)), _change(change), *_of_target(point, scale)]
            rows.append([f"  {point.variant}", *cells])
    columns = ("variant", "batch", f"step\n{step_unit}", "MFU", "change", unit, "90 % band", "wall")
    notes = []
    if any(change.policy for own in kept.values() for change in own):
        notes.append("* the planner's policy changed too.")
    if (more := sum(map(len, changes.values())) - len(points)) > 0:
        notes.append(f"{more} more variants, of less effect, are in the report.")
    return Table(columns, rows, " ".join(notes), numeric=frozenset(range(1, 8)))


def _effect(change: Change) -> float:
    """A key that sorts the largest effect first, whether it shortens or lengthens the step."""
    return -max(change.ratio, 1.0 / change.ratio)


def _change(change: Change) -> str:
    if change.point is change.base:
        return text.NONE
    return f"{100 * (change.ratio - 1):+.1f} %" + (MARK if change.policy else "")


def _of_step(point: PointResult, step: str) -> list[str]:
    prediction = point.prediction
    return [text.integer(prediction.global_batch_size), step, text.percent(prediction.mfu, 0)]


def _of_target(point: PointResult, scale: float) -> list[str]:
    low, high = (text.number(end / scale) for end in point.target_time.band_s)
    wall_s = point.prediction.wall_s
    wall = text.NONE if wall_s is None else text.number(wall_s / scale)
    return [text.number(point.target_time.time_s / scale), f"{low}{text.NONE}{high}", wall]


# The error table of `perfsim validate` on a terminal.

_COLUMNS = ("", "n", "median", "p90", "mean", "bias", "tau", "regret", "in band")


_CAPTION = (
    "n: cases that are scored. Median, p90, mean: of the absolute relative error; bias: mean with its sign. "
    "Tau: Kendall's, of layouts ranked by step time; regret: time lost by the layout that is predicted to be "
    "the fastest."
)


def validation_lines(result: Mapping[str, Any], worst: int) -> list[str]:
    """The score of one file: all, by family, the baseline, what failed, and the worst cases."""
    failed = result["failed"]
    width = terminal_width()
    rows = [_row("all (a failure counts 1)", result["summary"])]
    if "summary_predicted" in result and failed:
        rows.append(_row("all that were predicted", result["summary_predicted"]))
    rows += _kinds(result)
    rows.append(_row("baseline", result["baseline"]))
    if "larger_batch" in result:
        rows.append(_row("larger batch", result["larger_batch"]))
    rows += [_row(f"  {name}", figures) for name, figures in result["families"].items()]
    for release, figures in result.get("without_release", {}).items():
        rows.append(_row(f"all without {release}", figures))
    if outside := result.get("left_out"):
        rows.append(_row(f"each {outside['by']} left out", outside["summary"]))
        rows += _kinds(outside)
    lines = [f"{result['file']}: {text.counted(result['count'], 'case')}, {len(failed)} failed"]
    lines += table_lines(Table(_COLUMNS, rows, _CAPTION, frozenset(range(1, len(_COLUMNS)))), width)
    if outside:
        lines += _parts(outside, width)
    lines += [*_coverage(result["summary"], width), *_memory(result.get("memory", {}), width)]
    lines += [*_failures(failed, width), *_worst(result["cases"], worst, width)]
    return [*lines, *_scaling(result["scaling"], width)] if result.get("scaling") else lines


def _kinds(scores: Mapping[str, Any]) -> list[list[str]]:
    """Runs without experts and with them, where a file has both."""
    return [_row(f"  {name}", scores[name]) for name in ("dense", "experts") if name in scores]


def _parts(outside: Mapping[str, Any], width: int) -> list[str]:
    """What was left out together with each run."""
    families = {name.rsplit(", ", 1)[0] for name in outside.get("groups", {})}
    if not families:
        return []
    return paragraph(
        f"Left out by model and number of devices, for no other family has their framework or device: "
        f"{', '.join(sorted(families))}.",
        width,
    )


def _row(name: str, figures: Mapping[str, Any]) -> list[str]:
    tau = figures.get("kendall_tau")
    regret = figures.get("regret")
    covered = figures.get("band_coverage")
    return [
        name,
        str(figures.get("n", "")),
        *(_percent(figures.get(key)) for key in ("median_ape", "p90_ape", "mape")),
        _percent(figures.get("bias"), signed=True),
        "" if tau is None else f"{tau:.2f}",
        "" if regret is None else _percent(regret),
        "" if covered is None else _percent(covered),
    ]


def _coverage(summary: Mapping[str, Any], width: int) -> list[str]:
    """How many runs lie in their bands."""
    share = summary.get("band_coverage")
    if share is None:
        return []
    return paragraph(
        f"{text.percent(share)} of the scored runs lie in their 90 % band. A run's band comes from constants "
        "and errors without its family (of a wafer: without its release).",
        width,
    )


def _scaling(scaling: Mapping[str, Any], width: int) -> list[str]:
    """Published ratios of speeds on more systems than any log has."""
    tables = (ratios_table(scaling), efficiencies_table(scaling), explanations_table(scaling))
    return [line for table in tables if table.rows for line in ("", *table_lines(table, width))]


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return text.NONE
    return f"{100 * value:+.1f} %" if signed else text.percent(value)


def _memory(memory: Mapping[str, Any], width: int) -> list[str]:
    """Errors of the predicted peak memory."""
    if not memory.get("n"):
        return []
    return paragraph(
        f"Peak memory, {text.counted(memory['n'], 'case')} that print theirs: median "
        f"{_percent(memory['median'])}, p90 {_percent(memory['p90'])}, mean {_percent(memory['mean'])}, bias "
        f"{_percent(memory['bias'], signed=True)}.",
        width,
    )


def _failures(failed: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Each reason once, with the place of the first case that has it."""
    reasons: dict[str, list[str]] = {}
    for case in failed:
        reason = case["error"].splitlines()[0].removeprefix(f"case {case['id']}: ")
        line = f", line {case['line']}" if case.get("line") else ""
        reasons.setdefault(reason, []).append(f"{case['id']}{line}")
    return [
        line
        for reason, places in reasons.items()
        for line in paragraph(
            f"failed: {text.counted(len(places), 'case')} (first {places[0]}): {reason}", width
        )
    ]


def _worst(cases: Sequence[Mapping[str, Any]], worst: int, width: int) -> list[str]:
    known = [case for case in cases if case.get("error") is not None and case.get("predicted_s") is not None]
    shown = sorted(known, key=lambda case: -abs(case["error"]))[:worst]
    if not shown:
        return []
    unit, times = text.in_one_unit([case[key] for case in shown for key in ("measured_s", "predicted_s")])
    rows = [
        [case["id"], measured, predicted, _percent(case["error"], signed=True), text.evidence(case)]
        for case, measured, predicted in zip(shown, times[::2], times[1::2], strict=True)
    ]
    columns = (f"worst {len(rows)}", f"measured\n{unit}", f"predicted\n{unit}", "error", "evidence")
    return ["", *table_lines(Table(columns, rows, "Evidence C is not scored.", frozenset({1, 2, 3})), width)]


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
    heading = paragraph(plan_heading(planned), width)
    table = table_lines(plan_table(planned), width)
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
    best = planned.best.prediction
    search = planned.search
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
    apart = text.percent(abs(experiment.ratio - 1))
    hours = text.trim(text.number(experiment.device_hours))
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
    limit = planned.question.allowed_share
    above = planned.above_limit
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
