"""The result of one candidate: its prediction, batch curve and timeline as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from perfsim.prediction.caveats import edge_batch, extrapolated_law, sensitive_target, worst_first
from perfsim.prediction.evaluation import Evaluation
from perfsim.prediction.network_map import network_map
from perfsim.prediction.predict import prediction_of
from perfsim.prediction.question import MEMORY_LIMIT
from perfsim.prediction.result import TimelineBar
from perfsim.prediction.roofline import roofline
from perfsim.studies.batches import BatchChoice
from perfsim.studies.result import BatchPoint, CandidateResult
from perfsim.studies.timeline import bars_of, devices_of, grouped

MOST_BARS = 4000
"""Timeline bars of one candidate; a step of a large run has hundreds of thousands of tasks."""


def candidate_result(
    evaluation: Evaluation,
    choice: BatchChoice,
    batch_curve: Sequence[BatchChoice],
    tried: Sequence[int] = (),
    memory_limit: float = MEMORY_LIMIT,
) -> CandidateResult:
    """A candidate at its best batch of those in `tried`."""
    prediction = prediction_of(evaluation, memory_limit)
    caveats = worst_first(
        [
            *prediction.caveats,
            *edge_batch(tried, prediction.global_batch_size),
            *extrapolated_law(choice.answer.critical.notes),
            *([] if choice.loss is None else [sensitive_target(choice.loss)]),
        ]
    )
    notes = (*prediction.notes, choice.answer.regime_text)
    values = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
    return CandidateResult(
        **{**values, "caveats": caveats, "notes": notes},
        steps=choice.answer.steps,
        time_to_accuracy_s=choice.answer.time_s,
        time_to_accuracy_band_s=choice.answer.band_s,
        batch_curve=tuple(_point(point) for point in batch_curve),
        **drawn(evaluation),
    )


def drawn(evaluation: Evaluation) -> dict[str, Any]:
    """What only figures show: timeline, roofline and network."""
    return {
        "timeline": timeline(evaluation),
        "timeline_devices": len(devices_of(evaluation.trace.graph)),
        "roofline": roofline(evaluation),
        "network": network_map(evaluation.placed.topology),
    }


def _point(choice: BatchChoice) -> BatchPoint:
    return BatchPoint(
        global_batch_size=choice.plan.job.global_batch_size,
        batch_tokens=choice.answer.batch_tokens,
        step_time_s=choice.step_time_s,
        steps=choice.answer.steps,
        time_to_accuracy_s=choice.answer.time_s,
        time_to_accuracy_band_s=choice.answer.band_s,
        layout=choice.plan.layout.as_dict(choice.plan.num_microbatches),
    )


def timeline(evaluation: Evaluation) -> tuple[TimelineBar, ...]:
    """The measured step as at most `MOST_BARS` bars, in the order of their starts."""
    return grouped(bars_of(evaluation.trace), MOST_BARS)
