"""The summary of a study as one JSON document."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfsim.report import text
from perfsim.report.document import plain
from perfsim.study.result import CandidateResult, StudyResult


def study_document(result: StudyResult, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim study --json`.

    Every quantity is SI and its key names the unit. `report` is where the page stands, as the
    caller wants it written.
    """
    document: dict[str, Any] = plain(replace(result, candidates=()))
    document["candidates"] = [_candidate(candidate) for candidate in result.candidates]
    document["report"] = report
    return document


def _candidate(candidate: CandidateResult) -> dict[str, Any]:
    document: dict[str, Any] = plain(replace(candidate, timeline=()))
    del document["timeline"]  # the trace file has it; the summary would be a thousand times longer
    document["label"] = candidate.label
    document["tokens_per_s_per_device"] = plain(candidate.tokens_per_s / max(candidate.num_devices, 1))
    document["memory_capacity_bytes"] = plain(text.capacity_bytes(candidate))
    return document
