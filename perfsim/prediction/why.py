"""Why a step takes as long as it does: seconds by cause, the limiting cause, and the nearest remedy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfsim.costs.price import mean_s
from perfsim.engine.trace import Trace
from perfsim.machines import machine_of
from perfsim.machines.machine import Lane
from perfsim.prediction.result import Why
from perfsim.prediction.run import Step
from perfsim.strategies import Plan

# Which part of a machine limits a step: the step is simulated again with each part twice as fast.
#
# The lane that is busy longest is not always the cause, since lanes wait for one another. The limiting lane
# is the one whose speed shortens the step most.

SPEED_UP = 2.0
LEAST_BUSY = 0.05
"""Share of the step below which a lane is not tried."""
LEAST_SAVED = 0.01
"""Share of the step that a faster part must save to be a remedy."""


def _limiting_lane(plan: Plan, step: Step) -> Lane | None:
    """The lane that shortens the step most when it is twice as fast; None where no lane does."""
    explanation = machine_of(plan.system).explanation
    if not explanation.lanes:
        return None
    graph = step.placed.graph
    durations = step.duration_s
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


DECIDES = 0.1
"""Share of the step from which the longest wait is the cause; below it, compute is."""
MENTIONED = 0.005
"""Share of the step below which a wait is not mentioned."""

STREAMS = {
    "weight_stream": "exposed streaming",
    "gradient_stream": "gradient egress",
    "update": "update bubble",
    "input": "input",
    "spill": "exposed spilling",
    "offload": "exposed offload",
    "bubble": "bubble",
    "optimizer": "optimizer",
}
"""The cause for each category of tasks, or `bubble`; other waits keep their name."""


def why(plan: Plan, step: Step, trace: Trace) -> Why:
    """The causes of a step time, which add up to it; the sentence names the limiting cause."""
    parts = causes_s(trace)
    graph = step.placed.graph
    costs = step.costs
    step_s = trace.step_time_s
    explanation = machine_of(plan.system).explanation
    roof = explanation.roof(plan, graph, costs, step.duration_s)
    compute_s = sum(parts.values()) - sum(_waits(parts).values())
    waits = sorted(_waits(parts).items(), key=lambda item: -item[1])
    decides = bool(waits) and waits[0][1] >= DECIDES * step_s
    lane = None
    cause = "compute"
    if decides:
        lane = _limiting_lane(plan, step)
        wait = waits[0][0]
        cause = explanation.cause(lane, wait) if lane is not None else wait
        remedy = explanation.wait_remedy(cause, plan, lane, roof)
    else:
        recompute = trace.mean_breakdown().get("recompute", 0.0) / step_s
        remedy = explanation.compute_remedy(plan, mean_s(graph, costs.movement_s) / step_s, recompute)
    shares = [("compute", compute_s), *waits]
    text = ", ".join(
        f"{name} {100 * seconds / step_s:.1f} %"
        for name, seconds in shares
        if name == "compute" or seconds >= MENTIONED * step_s
    )
    about = explanation.about_roof(roof, lane) if roof is not None else ""
    sentence = f"{_verb(cause)}: {text} of the step. {about}Nearest remedy: {remedy}."
    return Why(cause, parts, remedy, sentence, mean_s(graph, costs.fixed_s), roof)


def causes_s(trace: Trace) -> dict[str, float]:
    """Seconds of the step by cause: compute, and exposed waits.

    Where weights are streamed, a weight stall between two steps counts as the update bubble, since the first
    weights of a step are sent when their update is done.
    """
    seconds = trace.mean_breakdown()
    parts: dict[str, float] = {"compute": 0.0}
    for category, value in seconds.items():
        cause = _cause(category)
        parts[cause] = parts.get(cause, 0.0) + value
    if "weight_stream" in seconds:
        late = trace.mean_boundary().get("weight_stream", 0.0)
        parts["exposed streaming"] -= late
        parts["update bubble"] = parts.get("update bubble", 0.0) + late
    return {cause: value for cause, value in parts.items() if value > 0 or cause == "compute"}


def _cause(category: str) -> str:
    if category in STREAMS:
        return STREAMS[category]
    kind = category.removesuffix("_communication")
    return f"exposed {kind} communication" if kind != category else "compute"


def _waits(parts: Mapping[str, float]) -> dict[str, float]:
    return {cause: value for cause, value in parts.items() if cause != "compute"}


def _verb(cause: str) -> str:
    return "Bound by compute" if cause == "compute" else f"Slowed by {cause}"
