"""The result of one candidate: its prediction, batch curve and timeline as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from perfsim.prediction.caveats import edge_batch, extrapolated_law, sensitive_target, worst_first
from perfsim.prediction.evaluation import Evaluation
from perfsim.prediction.predict import prediction_of
from perfsim.prediction.question import MEMORY_LIMIT
from perfsim.prediction.result import TimelineBar
from perfsim.studies.batches import BatchChoice
from perfsim.studies.result import BatchPoint, CandidateResult

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
        timeline=timeline(evaluation),
    )


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
    """The tasks of the measured step as bars; adjacent tasks of one kind on one stream merge.

    Times count from the start of the measured step. Bars beyond the first `MOST_BARS` are left out.
    """
    trace = evaluation.trace
    graph = trace.graph
    low, high = trace.step_window_s
    tasks = np.flatnonzero((trace.end_s > low) & (trace.start_s < high) & (trace.end_s > trace.start_s))
    tasks = tasks[np.lexsort((tasks, trace.start_s[tasks], graph.stream[tasks]))]
    bars: list[TimelineBar] = []
    for task in tasks.tolist():
        span = trace.span(task)
        start, end = max(span.start_s, low) - low, min(span.end_s, high) - low
        last = bars[-1] if bars else None
        merges = (
            last is not None
            and (last.lane, last.category, last.microbatch) == (span.stream, span.category, span.tag)
            and start <= last.end_s
        )
        if last is not None and merges:
            bars[-1] = TimelineBar(last.lane, last.name, last.category, last.start_s, end, last.microbatch)
        else:
            bars.append(TimelineBar(span.stream, span.name, span.category, start, end, span.tag))
    bars.sort(key=lambda bar: bar.start_s)
    return tuple(bars[:MOST_BARS])
