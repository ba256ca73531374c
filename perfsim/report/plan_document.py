"""A shortlist as one JSON document."""

from __future__ import annotations

from typing import Any

from perfsim.prediction.documents import document_of
from perfsim.report.document import plain
from perfsim.studies.equal_time import Matched
from perfsim.studies.experiment import Experiment
from perfsim.studies.shortlist import Entry, Planned

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
    question, search, above = planned.question, planned.search, planned.above_limit
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
