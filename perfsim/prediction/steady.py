"""Steps of many micro-batches: two shorter steps are simulated, and further micro-batches add as much each.

After the first micro-batches every further one adds the same time to a step, so a step is a line in their
number. Points of curves are found like this; a plan that is reported on its own is simulated in full.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from perfsim.placement.place import place
from perfsim.prediction.evaluation import graph_of
from perfsim.prediction.question import Question
from perfsim.prediction.run import Step
from perfsim.strategies import Plan

LONG_PASSES = 256
"""Layers times micro-batches from which on a point of a curve is found from shorter steps."""
ROUNDS = 2
"""Micro-batches of the shortest step, at least this many for each pipeline rank."""


class CurveSteps:
    """Simulated steps of the points of one curve; shorter steps that several points need run once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, float] = {}

    def step_s(self, question: Question, plan: Plan) -> float:
        """Seconds of a step of `plan`, simulated, or extrapolated from two simulations if it is long."""
        count, few = plan.num_microbatches, few_microbatches(plan)
        if 2 * few >= count or count * plan.job.model.num_layers <= LONG_PASSES:
            return self._simulated_s(question, plan)
        short_s, longer_s = (
            self._simulated_s(question, with_microbatches(question, plan, number))
            for number in (few, 2 * few)
        )
        return longer_s + (longer_s - short_s) / few * (count - 2 * few)

    def _simulated_s(self, question: Question, plan: Plan) -> float:
        key = (plan.layout, plan.job.global_batch_size)
        if key not in self._known:
            placed = place(graph_of(plan, question.chosen), plan.topology)
            self._known[key] = Step(placed, question.costs, question.scale).run().step_time_s
        return self._known[key]


def few_microbatches(plan: Plan) -> int:
    """Micro-batches of the shortest step: whole rounds of the pipeline, enough for a steady state."""
    ranks = plan.layout.pipeline
    rounds = max(ROUNDS, -(-LONG_PASSES // (4 * plan.job.model.num_layers * ranks)))
    return ranks * rounds


def with_microbatches(question: Question, plan: Plan, count: int) -> Plan:
    """The plan with fewer micro-batches; the last one stays as large as it is."""
    fewer = (plan.num_microbatches - count) * plan.layout.micro_batch_size * plan.layout.data
    job = replace(plan.job, global_batch_size=plan.job.global_batch_size - fewer)
    return question.chosen.plan(job, plan.topology, plan.layout)
