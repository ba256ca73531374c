"""Which part of a machine limits a step: the step is simulated again with each part twice as fast.

The lane that is busy longest is not always the cause, since lanes wait for one another. The limiting lane
is the one whose speed shortens the step most.
"""

from __future__ import annotations

import numpy as np

from perfsim.machines import machine_of
from perfsim.machines.explanation import Lane
from perfsim.prediction.run import Step
from perfsim.strategies import Plan

SPEED_UP = 2.0
LEAST_BUSY = 0.05
"""Share of the step below which a lane is not tried."""
LEAST_SAVED = 0.01
"""Share of the step that a faster part must save to be a remedy."""


def limiting_lane(plan: Plan, step: Step) -> Lane | None:
    """The lane that shortens the step most when it is twice as fast; None where no lane does."""
    explanation = machine_of(plan.system).explanation
    if not explanation.lanes:
        return None
    graph, durations = step.placed.graph, step.duration_s
    contention = bool(step.placed.links.flows)
    before_s = step.run(contention=contention).step_time_s / step.scale
    tried = []
    for name in dict.fromkeys(explanation.lanes.values()):
        busy_s = explanation.busy_s(plan.topology, graph, durations, name)
        if busy_s >= LEAST_BUSY * before_s:
            faster = np.where(explanation.works_of(graph, name)[graph.work], durations / SPEED_UP, durations)
            after_s = step.run(faster, contention=contention).step_time_s / step.scale
            tried.append(Lane(name, busy_s, 1.0 - after_s / before_s))
    best = max(tried, key=lambda lane: lane.saved, default=None)
    return best if best is not None and best.saved >= LEAST_SAVED else None
