"""The answer to a study on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfsim.report import text
from perfsim.report.caveats import MOST_AT_HEAD
from perfsim.report.study.whole_run import wall_sentence
from perfsim.report.table import Table
from perfsim.report.terminal.layout import caveat_lines, paragraph, table_lines, terminal_width
from perfsim.studies.result import CandidateResult, StudyResult

MAX_LINES = 25
MAX_VERDICT_LINES = 6
MAX_INFEASIBLE = 3
"""Candidates without a plan that the terminal names with their reason; the report names all."""
_NUMERIC = frozenset(range(3, 10))


def study_lines(result: StudyResult) -> list[str]:
    """A row for each candidate, the comparison sentence, the worst caveats.

    At most 25 lines, unless serious caveats need more. Candidates come before caveats that are not serious.
    """
    width = terminal_width()
    heading = paragraph(_heading(result), width, 2)
    verdict = paragraph(result.verdict, width, MAX_VERDICT_LINES)
    if result.decision is not None:
        verdict += paragraph(result.decision.sentence, width, MAX_VERDICT_LINES)
    notes = [line for note in _notes(result) for line in paragraph(note, width, 2)]
    room = MAX_LINES - sum(map(len, (heading, verdict, notes))) - 2  # two lines are blank
    for most in range(MOST_AT_HEAD, -1, -1):
        caveats = caveat_lines(result.caveats, result.verdict, width, most)
        rows, left_out = _rows(result, width, room - len(caveats))
        if not left_out:
            break
    return [*heading, "", *rows, *notes, "", *verdict, *caveats]


def _rows(result: StudyResult, width: int, room: int) -> tuple[list[str], int]:
    """The table in so many lines, and how many candidates it leaves out; never the first at the target."""
    candidates = result.candidates
    outcomes = result.decision.outcomes if result.decision else ()
    walls = {outcome.label: outcome.wall_s.typical for outcome in outcomes}
    for count in range(max(len(candidates), 1), 0, -1):
        left_out = max(len(candidates) - count, 0)
        more = [f"... {left_out} more candidates in the report"] if left_out else []
        lines = [*table_lines(_table(_shown(candidates, count), walls), width), *more]
        if len(lines) <= room:
            break
    return lines, left_out


def _shown(candidates: Sequence[CandidateResult], count: int) -> Sequence[CandidateResult]:
    """So many candidates in their order, with the first at the target among them."""
    shown = list(candidates[:count])
    first = min(candidates, key=lambda candidate: candidate.time_to_accuracy_s, default=None)
    return shown if first is None or any(known is first for known in shown) else [*shown[:-1], first]


def _heading(result: StudyResult) -> str:
    size, target = text.large(result.num_parameters), text.large(result.target_tokens)
    return f"{result.title}: {result.model}, {size} parameters, {target} tokens at small batch"


def _notes(result: StudyResult) -> list[str]:
    """What to know beside the table."""
    return [
        "* first at the target; all figures are at each candidate's own best batch",
        *filter(None, [wall_sentence(result.candidates)]),
        *filter(None, [text.perturbed_line(result)]),
        *_sampling_lines(result),
        *(f"not possible: {item.label}: {item.reason}" for item in result.infeasible[:MAX_INFEASIBLE]),
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


def _table(candidates: Sequence[CandidateResult], walls: Mapping[str, float]) -> Table:
    times = [candidate.time_to_accuracy_s for candidate in candidates]
    unit, scale = text.time_unit(times)
    first = min((time for time in times if math.isfinite(time)), default=math.nan)
    figures = ("batch", "step\ns", "MFU\n%", "memory", "steps\n1000", f"{unit}\n(band)")
    columns = ("strategy", "devices", "layout", *figures, *(["on the\nwall"] if walls else []))
    best = frozenset((row, 0) for row, time in enumerate(times) if time == first)
    return Table(columns, [_row(candidate, scale, walls) for candidate in candidates], "", _NUMERIC, best)


def _row(candidate: CandidateResult, scale: float, walls: Mapping[str, float]) -> list[str]:
    times = (candidate.time_to_accuracy_s, *candidate.time_to_accuracy_band_s)
    middle, low, high = (text.number(value / scale).replace(",", "") for value in times)
    return [
        candidate.strategy,
        f"{candidate.num_devices} {candidate.system}",
        text.layout_short(candidate.layout),
        text.integer(candidate.global_batch_size),
        text.number(candidate.step_time_s),
        text.number(100 * candidate.mfu),
        text.peak_memory(candidate),
        text.number(candidate.steps / 1000),
        f"{middle} ({low}-{high})" if middle != text.MISSING else middle,
        *([text.number(walls[candidate.label] / scale).replace(",", "")] if walls else []),
    ]
