"""The files of a study: its page, its summary and a trace of each candidate's step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from perfsim.interop.chrome import write_chrome_trace
from perfsim.report.document import write_document
from perfsim.report.page import write_page
from perfsim.report.study.document import study_document
from perfsim.report.study.page import study_page
from perfsim.studies.result import StudyResult
from perfsim.studies.runner import StudyRun


def write_study(run: StudyRun, folder: Path) -> Path:
    """Write `index.html`, `summary.json` and the traces; returns the page."""
    trace_names = _write_traces(run, folder)
    page = write_study_page(run.result, folder, trace_name=trace_names[0] if trace_names else None)
    write_document(study_document(run.result), folder / "summary.json")
    return page


def write_study_page(result: StudyResult, folder: Path, *, trace_name: str | None) -> Path:
    """Write `index.html`; `trace_name` is the trace file beside it."""
    title, sections, head = study_page(result, trace_name=trace_name)
    return write_page(title, sections, folder / "index.html", head=head)


def _write_traces(run: StudyRun, folder: Path) -> list[str]:
    """A trace for each candidate, named by strategy and devices, numbered where two would be the same."""
    names: list[str] = []
    seen = Counter[str]()
    for answered in run.answered:
        name = f"trace_{answered.evaluation.plan.strategy}_{answered.question.devices}"
        seen[name] += 1
        number = f"_{seen[name]}" if seen[name] > 1 else ""
        write_chrome_trace(answered.evaluation.trace, folder / f"{name}{number}.json.gz")
        names.append(f"{name}{number}.json.gz")
    return names
