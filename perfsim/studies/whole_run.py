"""The whole run of a candidate: its steps at the best batch, and waiting times such as queue and failures."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.convergence.wall_clock import RunPart, Training, whole_run
from perfsim.prediction.question import Question
from perfsim.studies.batches import BatchChoice
from perfsim.studies.result import CandidateResult
from perfsim.transformer import parameters
from perfsim.units import DAY_S


def whole_run_of(question: Question, choice: BatchChoice) -> tuple[RunPart, ...]:
    """The parts of a candidate's wall clock; empty if it names none."""
    if question.wall_clock is None:
        return ()
    training = Training(
        steps=choice.answer.steps,
        step_time_s=choice.step_time_s,
        num_parameters=float(parameters(question.model).total),
        num_nodes=-(-question.devices // question.topology.devices_per_node),
    )
    return whole_run(question.wall_clock, training)


def whole_run_sentence(candidates: Sequence[CandidateResult]) -> str:
    """How long the candidates' whole runs take; empty if no candidate names a wall clock."""
    totals = [(candidate.label, candidate.whole_run[-1]) for candidate in candidates if candidate.whole_run]
    words = [
        f"{label} {run.typical_s / DAY_S:.3g} days ({run.low_s / DAY_S:.3g} to {run.high_s / DAY_S:.3g})"
        for label, run in totals
    ]
    if not words:
        return ""
    return f" The whole run, with waiting times besides its steps: {'; '.join(words)}."
