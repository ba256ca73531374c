"""A candidate's run with the batch ramp of its study."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.convergence.ramp import RampedRun, Segment, ramped
from perfsim.errors import PerfsimError
from perfsim.prediction.question import Question
from perfsim.prediction.steady import CurveSteps
from perfsim.studies.batches import BatchChoice, Target, time_at
from perfsim.studies.spec import RampSpec


def ramp_of(
    question: Question, target: Target, choice: BatchChoice, ramp: Sequence[RampSpec]
) -> tuple[RampedRun | None, str]:
    """The run that begins with a ramp and ends at the chosen batch, and a remark on it; None without one.

    Each segment runs the layout that is best at its own batch. Where a batch has no plan the remark says so.
    """
    if not ramp:
        return None, ""
    full, critical = choice.plan.job.global_batch_size, target.critical.tokens
    steps = CurveSteps()
    segments = []
    try:
        for part in ramp:
            batch = max(1, round(part.batch * full))
            point = choice if batch == full else time_at(question, target, batch, steps)
            tokens = point.answer.batch_tokens
            segments.append(Segment(part.share, tokens, point.step_time_s, critical * part.critical_batch))
    except PerfsimError as error:
        return None, f"no run with the batch ramp: {error.problems[0].message}"
    rest = 1.0 - sum(segment.share for segment in segments)
    last = Segment(rest, choice.answer.batch_tokens, choice.step_time_s, critical)
    run = ramped([*segments, last], target.d_min_tokens)
    fixed = choice.answer
    remark = (
        f"with the batch ramp the steps take {run.time_s / fixed.time_s:.3f} times as long: "
        f"{run.steps / fixed.steps:.3f} times the steps, "
        f"{run.examples_tokens / fixed.examples_tokens:.3f} times the tokens"
    )
    return run, remark
