"""The whole run as a section: what adds to the time of the steps, part by part."""

from __future__ import annotations

from perfsim.report import text
from perfsim.report.sections import Section
from perfsim.report.table import Table
from perfsim.studies.result import CandidateResult, StudyResult


def whole_run_section(result: StudyResult) -> list[Section]:
    """A table of the candidates whose study names a wall clock; nothing without any."""
    named = [
        (name, candidate)
        for name, candidate in zip(text.labels(result.candidates), result.candidates, strict=True)
        if candidate.whole_run
    ]
    if not named:
        return []
    lead = (
        "Helps to plan: queue, compilation, loading, checkpoints, failures and stragglers come on top of the "
        "time to the target above. Each part is a typical value with the observed range in parentheses; the "
        "ends of the sum add the same ends of all parts. The band of the steps is not included."
    )
    parts = list(dict.fromkeys(part.name for _, candidate in named for part in candidate.whole_run))
    parts.append(parts.pop(parts.index("whole run")))
    rows = [[part, *(_cell(candidate, part) for _, candidate in named)] for part in parts]
    table = Table(["", *(name for name, _ in named)], rows, "", frozenset(range(1, len(named) + 1)))
    return [Section("The whole run", lead, table=table, slug="whole-run")]


def _cell(candidate: CandidateResult, name: str) -> str:
    part = next((part for part in candidate.whole_run if part.name == name), None)
    if part is None:
        return text.NONE
    cell = text.duration(part.typical_s)
    if part.low_s < part.high_s:
        cell += f" ({_time(part.low_s)} to {text.duration(part.high_s)})"
    return f"{cell}; {part.how}" if part.how else cell


def _time(seconds: float) -> str:
    return text.duration(seconds) if seconds else "0"
