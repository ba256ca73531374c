"""The files of a study: its page, its summary and a trace of each candidate's step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perfsim.interop.chrome import write_chrome_trace
from perfsim.report.document import write_document
from perfsim.report.page import write_page
from perfsim.report.sections import slugify
from perfsim.report.study.document import study_document
from perfsim.report.study.page import study_page
from perfsim.studies.result import StudyResult
from perfsim.studies.runner import StudyRun


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
        system, strategy = answered.question.system.name, answered.evaluation.plan.strategy
        name = "_".join(["trace", *map(slugify, (system, str(answered.question.devices), strategy))])
        seen[name] += 1
        number = f"_{seen[name]}" if seen[name] > 1 else ""
        write_chrome_trace(answered.evaluation.trace, folder / f"{name}{number}.json.gz")
        names.append(f"{name}{number}.json.gz")
    return names
