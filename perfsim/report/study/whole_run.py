"""The whole run as a section: what the wall clock holds besides the steps, part by part."""

from __future__ import annotations

from perfsim.report import text
from perfsim.report.sections import Section
from perfsim.report.table import Table
from perfsim.studies.result import CandidateResult, StudyResult


def whole_run_section(result: StudyResult) -> list[Section]:
    """One table over the candidates that name a wall clock; nothing where none does."""
    named = [
        (name, each)
        for name, each in zip(text.labels(result.candidates), result.candidates, strict=True)
        if each.whole_run
    ]
    if not named:
        return []
    lead = (
        "Helps to plan: queue, compilation, loading, checkpoints, failures and stragglers, none of which is "
        "in the time to the target above. Each part is typical, and in parentheses the range that was seen; "
        "the sum takes all parts at the same end. The band of the steps themselves is not in it."
    )
    parts = list(dict.fromkeys(part.name for _, each in named for part in each.whole_run))
    parts.append(parts.pop(parts.index("whole run")))
    rows = [[part, *(_cell(each, part) for _, each in named)] for part in parts]
    table = Table(["", *(name for name, _ in named)], rows, "", frozenset(range(1, len(named) + 1)))
    return [Section("The whole run", lead, table=table, slug="whole-run")]


def _cell(candidate: CandidateResult, name: str) -> str:
    found = [part for part in candidate.whole_run if part.name == name]
    if not found:
        return text.NONE
    part = found[0]
    cell = text.duration(part.typical_s)
    if part.low_s < part.high_s:
        cell += f" ({_time(part.low_s)} to {text.duration(part.high_s)})"
    return f"{cell}; {part.how}" if part.how else cell


def _time(seconds: float) -> str:
    return text.duration(seconds) if seconds else "0"
