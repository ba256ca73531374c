"""The page of a shortlist: the fastest layouts on one scale, in figures, and what to know of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfsim.prediction.prediction import document_of
from perfsim.report import text
from perfsim.report.document import plain, write_document
from perfsim.report.page import Head, Row, Section, scale_of, write_page
from perfsim.report.table import Table
from perfsim.report.terminal_study import plan_heading, plan_notes, plan_table
from perfsim.studies.scaling import Matched
from perfsim.studies.shortlist import Entry, Experiment, Planned

# A shortlist as one JSON document.

_OF_ENTRY = (
    "layout_text",
    "step_time_band_s",
    "ratio",
    "ratio_error",
    "differs",
    "memory_left_bytes",
    "device_hours",
)
"""What an entry adds to a prediction."""


def plan_document(planned: Planned) -> dict[str, Any]:
    """The document of `perfsim plan --json`; every quantity is SI and its key names the unit."""
    question = planned.question
    search = planned.search
    above = planned.above_limit
    best = planned.best.prediction
    document = {
        "model": question.model.name,
        "system": best.system,
        "num_devices": question.devices,
        "strategy": best.strategy,
        "global_batch_size": best.global_batch_size,
        "objective": planned.objective,
        "memory_limit": question.allowed_share,
        "screened": search.screened,
        "feasible": search.feasible,
        "screening_s": search.screening_s,
        "within": planned.within,
        "shortlist": [_entry(entry) for entry in planned.shortlist],
        "refused": planned.refused,
        "closest_memory_share": planned.closest_share,
        "above_limit": above
        and {"layout": above.layout, "gain": above.gain, "memory_share": above.memory_share},
        "experiment": planned.experiment and _experiment(planned.experiment),
        "tried_batches": planned.tried_batches,
    }
    return {name: plain(value) for name, value in document.items()}


def match_document(matched: Matched) -> dict[str, Any]:
    """How many devices of another system take equal time, and the numbers that were tried."""
    tried = [
        {
            "num_devices": point.devices,
            "global_batch_size": point.global_batch_size,
            "time_to_accuracy_s": point.time.time_s,
            "time_to_accuracy_band_s": point.time.band_s,
            "ratio": point.ratio,
        }
        for point in matched.points
    ]
    return {"system": matched.system, "num_devices": plain(matched.equal), "tried": plain(tried)}


def _entry(entry: Entry) -> dict[str, Any]:
    document = document_of(entry.prediction) | {name: getattr(entry, name) for name in _OF_ENTRY}
    document["memory_capacity_bytes"] = entry.prediction.memory_capacity_bytes
    if entry.time is not None:
        document["time_to_accuracy_s"] = entry.time.time_s
        document["time_to_accuracy_band_s"] = entry.time.band_s
    return document


def _experiment(experiment: Experiment) -> dict[str, Any]:
    trials = [
        {
            "entry": trial.entry,
            "num_devices": trial.devices,
            "global_batch_size": trial.plan.job.global_batch_size,
            "layout": trial.plan.layout.as_dict(trial.plan.num_microbatches),
            "device_hours": trial.device_hours,
        }
        for trial in experiment.trials
    ]
    return {
        "trials": trials,
        "steps": experiment.steps,
        "ratio": experiment.ratio,
        "ratio_error": experiment.ratio_error,
        "device_hours": experiment.device_hours,
    }


def write_plan(planned: Planned, folder: Path) -> Path:
    """Write `index.html` and `summary.json`; returns the page."""
    best = planned.best.prediction
    bands = [
        Row(
            f"{number}: {text.layout_short(entry.layout)}",
            entry.step_time_s,
            entry.step_time_band_s,
            number == 1,
        )
        for number, entry in enumerate(planned.shortlist, start=1)
    ]
    head = Head(
        plan_heading(planned),
        cards_note="Point: the step by prediction. Bar: 90 % range.",
        headline=f"On {best.machine}, {text.layout_short(best.layout)} is the fastest layout, at "
        f"{text.duration(best.step_time_s)} a step; the model's error allows {text.integer(planned.within)}.",
        scale=scale_of(bands, "Step time"),
    )
    notes = [[str(number), note] for number, note in enumerate(plan_notes(planned), start=1)]
    full = [[str(number), entry.layout_text] for number, entry in enumerate(planned.shortlist, start=1)]
    trained = f"Trained by {best.training.words}." if best.training is not None else ""
    sections = [
        Section("The shortlist", trained, table=plan_table(planned), slug="shortlist"),
        Section("What to know", table=Table(("", "note"), notes), slug="notes"),
        Section("As --layout takes them", table=Table(("", "layout"), full), slug="layouts"),
    ]
    write_document(plan_document(planned), folder / "summary.json")
    return write_page(f"Layouts of {best.model}", sections, folder / "index.html", head=head)
