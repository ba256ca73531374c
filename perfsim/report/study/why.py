"""Why a step takes as long as it does, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.costs.streaming_roof import StreamingRoof
from perfsim.report import text
from perfsim.report.table import Table
from perfsim.studies.result import CandidateResult


def why_table(named: Sequence[tuple[str, CandidateResult]]) -> Table:
    """For each candidate: what limits its step, waits, tokens that would hide weights, nearest remedy."""
    rows = [
        [name, candidate.why.cause, *_cells(candidate), candidate.why.remedy] for name, candidate in named
    ]
    columns = (
        "candidate", "limited by", "compute", "waits", "tokens", "tokens to hide weights", "nearest remedy",
    )  # fmt: skip
    caption = (
        "Shares of the step; only waits that nothing hides count. Tokens are per micro-batch and system; in "
        "parentheses e P b / (2 B), what arithmetic alone would need to hide the weights."
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
