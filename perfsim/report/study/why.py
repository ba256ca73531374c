"""Why a step takes as long as it does, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.costs.streaming_roof import StreamingRoof
from perfsim.report import text
from perfsim.report.table import Table
from perfsim.studies.result import CandidateResult


def why_table(named: Sequence[tuple[str, CandidateResult]]) -> Table:
    """Of each candidate what decides its step, every wait, the nearest remedy, and how near streaming is."""
    rows = [
        [name, candidate.why.cause, *_cells(candidate), candidate.why.remedy] for name, candidate in named
    ]
    columns = (
        "candidate", "decides", "compute", "waits", "tokens at once", "needed to hide weights", "remedy",
    )  # fmt: skip
    caption = (
        "Shares of the step; waits are what nothing hides. Tokens are those of one micro-batch and system. "
        "In parentheses e P b / (2 B): what arithmetic alone would need to hide the weights."
    )
    return Table(columns, rows, caption, frozenset({2, 4, 5}))


def _cells(candidate: CandidateResult) -> list[str]:
    parts = candidate.why.parts_s
    waits = sorted(((s, name) for name, s in parts.items() if name != "compute"), reverse=True)
    words = [f"{name} {text.percent(s / candidate.step_time_s)}" for s, name in waits]
    return [
        text.percent(parts.get("compute", 0.0) / candidate.step_time_s),
        ", ".join(words) or text.NONE,
        *_roof(candidate.why.streaming_roof),
    ]


def _roof(roof: StreamingRoof | None) -> list[str]:
    if roof is None:
        return [text.NONE, text.NONE]
    needed = f"{text.integer(roof.hidden_from_tokens)} ({text.integer(roof.formula_tokens)})"
    return [text.integer(roof.tokens), needed]
