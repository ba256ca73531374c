"""Why a step takes as long as it does: every second by cause, the cause that decides, the nearest remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from perfsim.costs.price import Costs
from perfsim.costs.wafer import WaferCosts
from perfsim.graph import TaskGraph
from perfsim.prediction.limiting_lane import Lane, limiting_lane
from perfsim.prediction.result import Why
from perfsim.prediction.run import Step
from perfsim.prediction.streaming_why import about_roof, fixed_s, streaming_remedy, streaming_roof
from perfsim.strategies import Plan
from perfsim.trace import Trace

DECIDES = 0.1
"""Share of the step from which waiting is the answer, and below which computing is."""
MENTIONED = 0.005
"""Share of the step below which a wait is not worth a word."""
HEAVY = 0.15
"""Share of the computation from which recomputing, or movement over a wafer, is its own cause."""

STREAMS = {
    "weight_stream": "exposed streaming",
    "gradient_stream": "gradient egress",
    "update": "update bubble",
    "input": "input",
    "spill": "exposed spilling",
    "bubble": "bubble",
    "optimizer": "optimizer",
}
"""Category of a task, or `bubble`, to the cause it stands for; other waits keep their name."""
LINK_WAITS = ("exposed streaming", "gradient egress", "update bubble")
LANE_CAUSES = {
    "flash": "flash",
    "input": "input",
    "spilling": "exposed spilling",
    "update": "update bubble",
}
"""What limits, as a cause; a faster link helps whatever of `LINK_WAITS` is waited for most."""


def why(plan: Plan, step: Step, trace: Trace) -> Why:
    """The causes of a step's seconds. They add up to the step; the sentence names the one that decides."""
    parts = causes_s(trace)
    graph, costs = step.placed.graph, step.costs
    roof = streaming_roof(plan, step)
    computing = sum(parts.values()) - sum(_waits(parts).values())
    waits = sorted(_waits(parts).items(), key=lambda item: -item[1])
    decides = bool(waits) and waits[0][1] >= DECIDES * trace.step_time_s
    lane = limiting_lane(plan, step) if decides else None
    cause = _named_after(lane, waits[0][0]) if decides else "compute"
    if decides and roof is not None:
        remedy = streaming_remedy(lane, plan, roof)
    else:
        remedy = _remedy(cause, plan, graph, trace, costs, streams=roof is not None)
    shares = [("compute", computing), *waits]
    text = ", ".join(
        f"{name} {100 * seconds / trace.step_time_s:.1f} %"
        for name, seconds in shares
        if name == "compute" or seconds >= MENTIONED * trace.step_time_s
    )
    sentence = f"{_verb(cause)}: {text} of the step. {about_roof(roof, lane)}Nearest remedy: {remedy}."
    return Why(cause, parts, remedy, sentence, fixed_s(graph, costs), roof)


def _named_after(lane: Lane | None, wait: str) -> str:
    """The cause that a lane stands for; a link shows as the wait that it makes."""
    if lane is None:
        return wait
    if lane.name == "link":
        return wait if wait in LINK_WAITS else "exposed streaming"
    return LANE_CAUSES[lane.name]


def causes_s(trace: Trace) -> dict[str, float]:
    """Every second of the step by cause: compute, and what is waited for where nothing hides it.

    Where weights are streamed, the wait between two steps is the update's, except for gradients that are
    still on their way: the first weights of a step start when their update is done.
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
    return "Bound by computing" if cause == "compute" else f"Slowed by {cause}"


def _remedy(cause: str, plan: Plan, graph: TaskGraph, trace: Trace, costs: Costs, *, streams: bool) -> str:
    if cause == "compute":
        return _faster_compute(plan, graph, trace, costs, streams=streams)
    return _WAITS[cause](plan) if cause in _WAITS else "find what the devices wait for in the timeline"


def _faster_compute(plan: Plan, graph: TaskGraph, trace: Trace, costs: Costs, *, streams: bool) -> str:
    """What computing itself suffers from: movement on a wafer, recomputation, or nothing but its amount."""
    layout, step_s = plan.layout, trace.step_time_s
    size = f"micro-batch now {layout.micro_batch_size:,}"
    moving = _moving_s(graph, costs) / step_s
    again = trace.mean_breakdown().get("recompute", 0.0) / step_s
    more = "more systems, each with the same batch" if streams else "more devices"
    if moving > max(HEAVY, again):
        return (
            f"{more}, or layers wider than {plan.job.model.hidden_size:,}: {100 * moving:.0f} % of the step "
            "is movement over the wafer's mesh, which grows more slowly than FLOPs"
        )
    if again > HEAVY:
        return f"room for activations, of which making again takes {100 * again:.0f} % of the step; or {more}"
    if streams:
        return more
    return f"{more}, or larger matrices in each kernel ({size}, tensor {layout.tensor})"


def _moving_s(graph: TaskGraph, costs: Costs) -> float:
    """Seconds of a step in which a wafer's products wait for its mesh; 0 on GPUs, which have none."""
    if not isinstance(costs, WaferCosts):
        return 0.0
    each = np.array([costs.movement_s(work) for work in graph.works])
    return float(each[graph.work].sum()) / len(graph.step_ends)


def _bubble(plan: Plan) -> str:
    stages = plan.layout.pipeline
    if stages == 1:
        return "find in the timeline what the devices wait for"
    return (
        f"more micro-batches than {plan.num_microbatches:,} through {stages} stages, by a larger batch or "
        "fewer stages, or a schedule with less bubble (interleaved, zb1p)"
    )


_WAITS: Mapping[str, Callable[[Plan], str]] = {
    "bubble": _bubble,
    "exposed tensor communication": lambda plan: (
        f"a tensor degree below {plan.layout.tensor}, or faster links inside the node"
    ),
    "exposed data communication": lambda _: (
        "a larger batch, so that gradients are reduced less often, or faster links between nodes"
    ),
    "exposed pipeline communication": lambda plan: (
        f"fewer than {plan.layout.pipeline} stages, or faster links between them"
    ),
    "optimizer": lambda _: "optimizer states sharded over replicas (ZeRO 1), or a larger batch",
}
