"""The whole run of a candidate: its steps at the best batch, and waiting times such as queue and failures."""

from __future__ import annotations

from perfsim.convergence.wall_clock import RunPart, Training, whole_run
from perfsim.prediction.question import Question
from perfsim.studies.batches import BatchChoice
from perfsim.transformer import parameters


def whole_run_of(question: Question, choice: BatchChoice) -> tuple[RunPart, ...]:
    """The parts of a candidate's wall clock; empty if it names none."""
    if question.wall_clock is None:
        return ()
    return whole_run(question.wall_clock, training_of(question, choice))


def training_of(question: Question, choice: BatchChoice) -> Training:
    """The steps of a candidate and the units that run them."""
    return Training(
        steps=choice.answer.steps,
        step_time_s=choice.step_time_s,
        num_parameters=float(parameters(question.model).total),
        num_nodes=-(-question.devices // question.topology.devices_per_node),
    )
