"""Predictions as JSON documents, written and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from perfsim.costs.streaming_roof import StreamingRoof
from perfsim.engine.failures import FailedRun
from perfsim.prediction.prediction import Prediction, Scaling
from perfsim.prediction.result import Caveat, LinkUse, Perturbed, Training, Why
from perfsim.trace import Simulated

Document = dict[str, Any]


def document_of(prediction: Prediction) -> Document:
    """The JSON of a step in runs, candidates of studies and points of sweeps."""
    scaling = prediction.cluster_calibration
    return {
        **{name: getattr(prediction, name) for name in (*_PLAIN, *_WORDS)},
        "layout": dict(prediction.layout),
        "step_breakdown_s": dict(prediction.breakdown_s),
        "why": asdict(prediction.why),
        "utilisation": {kind: asdict(use) for kind, use in prediction.utilisation.items()},
        "simulated": None if prediction.simulated is None else prediction.simulated._asdict(),
        "training": None if prediction.training is None else asdict(prediction.training),
        "caveats": [asdict(caveat) for caveat in prediction.caveats],
        "cluster_calibration": None if scaling is None else asdict(scaling),
        "perturbed": None if prediction.perturbed is None else _perturbed(prediction.perturbed),
    }


def run_document(prediction: Prediction) -> Document:
    """The document of `perfsim run --json`."""
    return {
        "model": prediction.model,
        "memory_capacity_bytes": prediction.memory_capacity_bytes,
        **document_of(prediction),
        "band_s": None if prediction.band_s is None else list(prediction.band_s),
        "notes": list(prediction.notes),
    }


def _perturbed(perturbed: Perturbed) -> Document:
    document = {**asdict(perturbed), "draws_s": list(perturbed.draws_s)}
    if perturbed.run is not None:
        document["run"] = {**asdict(perturbed.run), "goodput": perturbed.run.goodput}
    return document


def prediction_from(document: Mapping[str, Any], model: str) -> Prediction:
    """The prediction that `document_of` wrote, without memory, notes and the run itself."""
    fields = {name: document[name] for name in _PLAIN}
    noun = document.get("devices_noun", f"devices of {document['system']}")
    fields |= {
        "machine": document.get("machine", f"{document['num_devices']:,} {noun}"),
        "devices_noun": noun,
    }
    scaling = document["cluster_calibration"]
    return Prediction(
        **fields,
        model=model,
        breakdown_s=document["step_breakdown_s"],
        why=_why_from(document["why"]),
        utilisation={kind: LinkUse(**use) for kind, use in document.get("utilisation", {}).items()},
        simulated=Simulated(**document["simulated"]) if document.get("simulated") else None,
        training=Training(**document["training"]) if document.get("training") else None,
        caveats=tuple(Caveat(**caveat) for caveat in document["caveats"]),
        cluster_calibration=Scaling(**scaling) if scaling else None,
        perturbed=_perturbed_from(document["perturbed"]),
    )


_PLAIN = (
    "strategy",
    "system",
    "num_devices",
    "layout",
    "global_batch_size",
    "step_time_s",
    "tokens_per_s",
    "mfu",
    "hfu",
    "bubble_fraction",
    "exposed_communication_fraction",
    "peak_memory_bytes",
)
"""Fields of `Prediction` that are written as they are, in the order of the document."""
_WORDS = ("machine", "devices_noun")
"""The same, absent from documents of earlier versions."""


def _why_from(document: Mapping[str, Any]) -> Why:
    roof = document["streaming_roof"]
    return Why(**{**document, "streaming_roof": StreamingRoof(**roof) if roof else None})


def _perturbed_from(document: Mapping[str, Any] | None) -> Perturbed | None:
    if document is None:
        return None
    run = document["run"]
    through_failures = FailedRun(**{k: v for k, v in run.items() if k != "goodput"}) if run else None
    return Perturbed(**{**document, "draws_s": tuple(document["draws_s"]), "run": through_failures})
