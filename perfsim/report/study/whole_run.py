"""What adds to the time of healthy steps: the rate in production, and the whole run part by part."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.report import text
from perfsim.report.sections import Section
from perfsim.report.table import Table
from perfsim.studies.production import Production, recorded
from perfsim.studies.result import CandidateResult, StudyResult


def wall_sentence(candidates: Sequence[CandidateResult]) -> str:
    """What days on the wall hold besides healthy steps; empty if nothing."""
    words = []
    if any(candidate.whole_run for candidate in candidates):
        words.append("the whole run where a wall clock is named")
    ratios = list(
        dict.fromkeys(
            candidate.production
            for candidate in candidates
            if candidate.production and not candidate.whole_run
        )
    )
    if ratios:
        rate = production_rate(ratios[0]) if len(ratios) == 1 else "the rates in production that are named"
        words.append(f"at {rate}")
    return f"on the wall: {'; '.join(words)}" if words else ""


def production_rate(production: Production | None) -> str:
    """`0.81 (0.76 to 0.88) of the rate of healthy steps, as in published production runs`."""
    if production is None:
        return "their own rate"
    of_runs = ", as in published production runs" if production == recorded() else ""
    return f"{production.text} of the rate of healthy steps{of_runs}"


def whole_run_section(result: StudyResult) -> list[Section]:
    """A table of the candidates whose study names a wall clock; nothing without any."""
    named = [
        (name, candidate)
        for name, candidate in zip(text.names(result.candidates), result.candidates, strict=True)
        if candidate.whole_run
    ]
    if not named:
        return []
    lead = (
        "Helps to plan: queue, compilation, loading, checkpoints, failures and stragglers come on top of the "
        "time to the target above. Each part is a typical value with the observed range in parentheses; the "
        "ends of the sum add the same ends of all parts. The band of the steps is not included. The "
        "production ratio above describes the same slow steps as the stragglers, so it is not counted here."
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
