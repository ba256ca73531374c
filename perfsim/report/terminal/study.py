"""The answer to a study on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfsim.report import text
from perfsim.report.study.whole_run import wall_sentence
from perfsim.report.table import Table
from perfsim.report.terminal.layout import caveat_lines, paragraph, table_lines, terminal_width
from perfsim.studies.result import CandidateResult, StudyResult

MOST_CANDIDATES = 24
"""Rows of the table; of more candidates the fastest are shown, and the report has all."""
MOST_INFEASIBLE = 6
"""Candidates without a plan that the terminal names with their reason; the report names all."""
_NUMERIC = frozenset(range(2, 10))


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
    size, target = text.large(result.num_parameters), text.large(result.target_tokens)
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
        rows.append(_row(candidate, step, memory, scale, walls))
    best = frozenset((row, 0) for row, time in enumerate(times) if time == first)
    return Table(columns, rows, "", _NUMERIC, best)


def _row(
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
