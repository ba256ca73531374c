"""The summary of a study as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfsim.prediction.documents import document_of
from perfsim.report.document import plain
from perfsim.studies.result import CandidateResult, StudyResult
from perfsim.units import DAY_S
from perfsim.version import __version__

_OF_CANDIDATE = (
    "steps",
    "time_to_accuracy_s",
    "time_to_accuracy_band_s",
    "memory",
    "batch_curve",
    "roofline",
    "network",
    "notes",
    "batch_at_edge",
    "whole_run",
    "ramp",
    "production",
    "production_time_s",
    "production_band_s",
)
"""What a candidate adds to a prediction; its timeline is in the trace file."""


def study_document(result: StudyResult, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim study --json`.

    Every quantity is SI and its key names the unit. `report` is where the page stands, as the
    caller wants it written.
    """
    document: dict[str, Any] = plain(replace(result, candidates=()))
    document["verdict"] += _whole_runs(result.candidates)
    document["candidates"] = [_candidate(candidate) for candidate in result.candidates]
    document["report"] = report
    document["version"] = __version__
    return document


def _whole_runs(candidates: Sequence[CandidateResult]) -> str:
    """How long the candidates' whole runs take; empty if no candidate names a wall clock."""
    words = [
        f"{own.label} {run.typical_s / DAY_S:.3g} days ({run.low_s / DAY_S:.3g} to {run.high_s / DAY_S:.3g})"
        for own in candidates
        for run in own.whole_run[-1:]
    ]
    return f" The whole run, with waiting times besides its steps: {'; '.join(words)}." if words else ""


def _candidate(candidate: CandidateResult) -> dict[str, Any]:
    document = document_of(candidate)
    document |= {name: getattr(candidate, name) for name in _OF_CANDIDATE}
    document["label"] = candidate.label
    document["tokens_per_s_per_device"] = candidate.tokens_per_s / max(candidate.num_devices, 1)
    document["memory_capacity_bytes"] = candidate.memory_capacity_bytes
    return {name: plain(value) for name, value in document.items()}
