"""The terminal's answer, and `Table`: the form in which figures hand their numbers to a page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perfsim.prediction.prediction import Scaling
from perfsim.report import text
from perfsim.study.result import CandidateResult, StudyResult

MAX_LINES = 25
_VERDICT_LINES = 6


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of finished text under named columns.

    `numeric` lists the columns set flush right; `best` the (row, column) cells to be marked.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    numeric: frozenset[int] = field(default_factory=frozenset)
    best: frozenset[tuple[int, int]] = field(default_factory=frozenset)


MOST_INFEASIBLE = 3
"""Candidates without a plan that the terminal names with their reason; the report names all."""


def terminal_table(result: StudyResult, *, width: int = 100, encoding: str = "ascii") -> str:
    """The answer in at most 25 lines: one row per candidate, then the comparison sentence.

    Plain text without colours or box characters, so NO_COLOR, pipes and terminals without UTF-8
    all show it alike; `encoding` lets a caller keep the characters that its terminal knows.
    """
    lines = [*textwrap.wrap(_heading(result), width)[:2], ""]
    verdict = _shorten(textwrap.wrap(result.verdict, width), _VERDICT_LINES, width)
    scales = [note[:width] for note in scale_notes(each.cluster_calibration for each in result.candidates)]
    disturbed = filter(None, [_cut(perturbed_line(result), width)])
    checked = [*disturbed, *_edge_lines(result, width), *_sampling_lines(result)]
    unfit = min(len(result.infeasible), MOST_INFEASIBLE)
    room = (
        MAX_LINES - len(lines) - len(verdict) - len(scales) - len(checked) - unfit - 6
    )  # heading, rule, left-out row, note, blank
    shown = result.candidates[: max(room, 1)]
    lines += _grid(shown, width)
    if len(shown) < len(result.candidates):
        lines.append(f"... {len(result.candidates) - len(shown)} more candidates in the report")
    lines += ["* soonest at the target; steps and days at each candidate's own best batch", *scales, *checked]
    lines += [
        f"does not fit: {each.label}: {each.reason}"[:width] for each in result.infeasible[:MOST_INFEASIBLE]
    ]
    lines.append("")
    safe = text.encodable("\n".join(lines + verdict), encoding)
    return "\n".join(line[:width].rstrip() for line in safe.split("\n"))


def perturbed_line(result: StudyResult) -> str:
    """That steps are perturbed, how much longer they are, and by what; empty where nothing disturbs them."""
    ratios = sorted(
        each.step_time_s / each.perturbed.unperturbed_step_time_s
        for each in result.candidates
        if each.perturbed
    )
    if not result.perturbed or not ratios:
        return ""
    least, most = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
    spread = most if least == most else f"{least} to {most}"
    return f"perturbed steps, {spread} times as long: {result.perturbed}"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 4].rstrip() + " ..."


def _edge_lines(result: StudyResult, width: int) -> list[str]:
    """One line that names candidates whose best batch is an end of the grid; none where there are none."""
    ends = [each for each in result.candidates if each.batch_at_edge]
    if not ends:
        return []
    names = ", ".join(f"{each.num_devices} x {each.system}" for each in ends)
    return [f"best batch at the edge of those tried, another may be better: {names}"[:width]]


def _sampling_lines(result: StudyResult) -> list[str]:
    """One line on the products that were executed for real; none where none were."""
    sampled = list(result.sampling.values())
    if not sampled:
        return []
    share = min(each.flop_share for each in sampled)
    nearest = max(each.worst_relative_error / each.bound for each in sampled)
    done = sum(each.tasks_sampled for each in sampled)
    outcome = "right" if all(each.passed for each in sampled) else "WRONG, see the report"
    line = f"verified: {done} matrix products, at least {text.percent(share, 0)} of a step's FLOPs, {outcome}"
    return [f"{line}; error {nearest:.1g} of its bound"]


def scale_notes(used: Iterable[Scaling | None]) -> list[str]:
    """What to say of the users' own scales that an answer rests on, each once."""
    return list(dict.fromkeys(str(each.note) for each in used if each))


def _heading(result: StudyResult) -> str:
    size, target = text.large(result.num_parameters), text.large(result.target_tokens)
    return f"{result.title}: {result.model}, {size} parameters, {target} tokens at small batch"


def _shorten(lines: list[str], most: int, width: int) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], lines[most - 1][: width - 4].rstrip() + " ..."]


_COLUMNS = (
    ("", "strategy"),
    ("", "devices"),
    ("", "layout"),
    ("", "batch"),
    ("step", "s"),
    ("MFU", "%"),
    ("", "memory"),
    ("steps", "1000"),
    ("{unit}", "(band)"),
)
"""Two lines of heading for each column."""
_NUMERIC = frozenset(range(3, 9))
_STRATEGY_LEAST = 10


def _grid(candidates: Sequence[CandidateResult], width: int) -> list[str]:
    unit, scale = text.time_unit(candidate.time_to_accuracy_s for candidate in candidates)
    head = [[column[i].format(unit=unit) for column in _COLUMNS] for i in (0, 1)]
    head[1][0] = " " + head[1][0]
    soonest = min((candidate.time_to_accuracy_s for candidate in candidates), default=math.nan)
    rows = [*head, *(_row(candidate, scale, soonest) for candidate in candidates)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    _squeeze(widths, width)
    lines = [_line(row, widths) for row in rows]
    return [*lines[:2], "-" * min(sum(widths) + len(widths) - 1, width), *lines[2:]]


def _squeeze(widths: list[int], width: int) -> None:
    """Take what is over from the names, the strategy's first, so that the figures are never cut."""
    while sum(widths) + len(widths) - 1 > width:
        column = 0 if widths[0] > _STRATEGY_LEAST else max((0, 1, 2), key=lambda i: widths[i])
        if widths[column] <= _STRATEGY_LEAST:
            return
        widths[column] -= 1


def _row(candidate: CandidateResult, scale: float, soonest: float) -> list[str]:
    times = (candidate.time_to_accuracy_s, *candidate.time_to_accuracy_band_s)
    middle, low, high = (text.number(value / scale).replace(",", "") for value in times)
    first = math.isfinite(soonest) and candidate.time_to_accuracy_s == soonest
    return [
        f"{'*' if first else ' '}{candidate.strategy}",
        f"{candidate.num_devices} {candidate.system}",
        text.layout_short(candidate.layout),
        text.integer(candidate.global_batch_size),
        text.number(candidate.step_time_s),
        text.number(100 * candidate.mfu),
        text.peak_memory(candidate),
        text.number(candidate.steps / 1000),
        f"{middle} ({low}-{high})" if middle != text.MISSING else middle,
    ]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for column, (cell, size) in enumerate(zip(cells, widths, strict=True)):
        cut = cell if len(cell) <= size else cell[: max(size - 1, 1)] + "~"
        parts.append(cut.rjust(size) if column in _NUMERIC else cut.ljust(size))
    return " ".join(parts)
