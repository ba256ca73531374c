"""The files of a study: its page, its summary and a trace of each candidate's step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfsim.base.units import DAY_S
from perfsim.interop.chrome import write_chrome_trace
from perfsim.prediction.prediction import document_of
from perfsim.report.document import plain, write_document
from perfsim.report.page import slugify, write_page
from perfsim.report.study import study_page
from perfsim.studies.answers import CandidateResult, StudyResult
from perfsim.studies.runner import StudyRun
from perfsim.version import __version__

# The summary of a study as one JSON document.

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


def write_study(run: StudyRun, folder: Path) -> Path:
    """Write `index.html`, `summary.json` and the traces; returns the page."""
    page = write_study_page(run.result, folder, trace_names=_write_traces(run, folder))
    write_document(study_document(run.result), folder / "summary.json")
    return page


def write_study_page(result: StudyResult, folder: Path, *, trace_names: Sequence[str] = ()) -> Path:
    """Write `index.html`; `trace_names` are the files of the candidates' traces beside it."""
    title, sections, head = study_page(result, trace_names=trace_names)
    return write_page(title, sections, folder / "index.html", head=head)


def _write_traces(run: StudyRun, folder: Path) -> list[str]:
    """A trace for each candidate, by system, devices and strategy, numbered where two would be the same."""
    names: list[str] = []
    seen = Counter[str]()
    for answered in run.answered:
        system = answered.question.system.name
        strategy = answered.evaluation.plan.strategy
        name = "_".join(["trace", *map(slugify, (system, str(answered.question.devices), strategy))])
        seen[name] += 1
        number = f"_{seen[name]}" if seen[name] > 1 else ""
        write_chrome_trace(answered.evaluation.trace, folder / f"{name}{number}.json.gz")
        names.append(f"{name}{number}.json.gz")
    return names
