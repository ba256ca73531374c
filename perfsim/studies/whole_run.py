"""The whole run of a candidate: its steps at the best batch, and what its wall clock holds besides."""

from __future__ import annotations

from collections.abc import Sequence

from perfsim.convergence.wall_clock import RunPart, Training, whole_run
from perfsim.prediction.question import Question
from perfsim.studies.batches import BatchChoice
from perfsim.studies.result import CandidateResult
from perfsim.transformer import parameters
from perfsim.units import DAY_S


def whole_run_of(question: Question, choice: BatchChoice) -> tuple[RunPart, ...]:
    """The parts of a candidate's wall clock; none where the study names no wall clock for it."""
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
    """How long the candidates take with all that they wait for; empty where no wall clock is named."""
    sums = [(each.label, each.whole_run[-1]) for each in candidates if each.whole_run]
    words = [
        f"{label} {each.typical_s / DAY_S:.3g} days ({each.low_s / DAY_S:.3g} to {each.high_s / DAY_S:.3g})"
        for label, each in sums
    ]
    if not words:
        return ""
    return f" The whole run, with what it waits for besides its steps: {'; '.join(words)}."
