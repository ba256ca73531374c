"""Why a step takes as long as it does: every second by cause, the cause that decides, the nearest remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from perfsim.costs.price import Costs
from perfsim.costs.streaming_roof import hidden_from_tokens, roof_tokens
from perfsim.costs.wafer import WaferCosts
from perfsim.graph import TaskGraph, Work
from perfsim.strategies import Plan
from perfsim.study.result import StreamingRoof, Why
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


def why(plan: Plan, graph: TaskGraph, trace: Trace, costs: Costs) -> Why:
    """The causes of a step's seconds. They add up to the step; the sentence names the one that decides."""
    parts = causes_s(trace)
    roof = streaming_roof(plan, graph, costs)
    computing = sum(parts.values()) - sum(_waits(parts).values())
    waits = sorted(_waits(parts).items(), key=lambda item: -item[1])
    decides = bool(waits) and waits[0][1] >= DECIDES * trace.step_time_s
    cause = waits[0][0] if decides else "compute"
    remedy = _remedy(cause, plan, graph, trace, costs, roof)
    shares = [("compute", computing), *waits]
    text = ", ".join(
        f"{name} {100 * seconds / trace.step_time_s:.1f} %"
        for name, seconds in shares
        if name == "compute" or seconds >= MENTIONED * trace.step_time_s
    )
    sentence = f"{_verb(cause)}: {text} of the step. {_about_roof(roof)}Nearest remedy: {remedy}."
    fixed_s = _fixed_s(graph, costs)
    return Why(cause, parts, remedy, sentence, fixed_s, roof)


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


def streaming_roof(plan: Plan, graph: TaskGraph, costs: Costs) -> StreamingRoof | None:
    """Tokens of a micro-batch on one system, and those under which its weights arrive too late."""
    load, use = _named(graph, "layer.load"), _named(graph, "layer.forward")
    if load is None or use is None:
        return None
    tokens = float(plan.layout.micro_batch_size * plan.job.seq_length)
    load_s = costs.duration_s(load)
    matrices = sum(kernel.flop for kernel in use.kernels if kernel.partition == "streamed")
    weights = use.share * matrices / (2.0 * tokens)
    use_s, fixed_s = costs.duration_s(use), 0.0
    flop_per_s = use.flop / use_s
    if isinstance(costs, WaferCosts):
        fixed_s, flop_per_s = use.share * costs.mesh.weights_s(use.kernels), costs.flop_per_s
    return StreamingRoof(
        tokens=tokens,
        hidden_from_tokens=hidden_from_tokens(tokens, use_s, fixed_s, load_s),
        formula_tokens=roof_tokens(flop_per_s, load.comm_bytes / weights, load.comm_bytes / load_s),
    )


def _named(graph: TaskGraph, name: str) -> Work | None:
    return next((work for work in graph.works if work.name == name), None)


def _about_roof(roof: StreamingRoof | None) -> str:
    if roof is None:
        return ""
    if not roof.hidden_from_tokens:
        return "A layer's weights pass the mesh no faster than they arrive. "
    than = "above" if roof.tokens >= roof.hidden_from_tokens else "below"
    return (
        f"A system's micro-batch of {roof.tokens:,.0f} tokens is {than} the "
        f"{roof.hidden_from_tokens:,.0f} that hide a layer's weights "
        f"({roof.formula_tokens:,.0f} by arithmetic alone). "
    )


def _remedy(
    cause: str, plan: Plan, graph: TaskGraph, trace: Trace, costs: Costs, roof: StreamingRoof | None
) -> str:
    if cause == "compute":
        return _faster_compute(plan, graph, trace, costs, streams=roof is not None)
    if cause == "exposed streaming" and roof is not None:
        sequences = -(-roof.hidden_from_tokens // plan.job.seq_length)
        per_system = plan.layout.micro_batch_size
        return (
            f"{sequences:,.0f} sequences a system and micro-batch instead of {per_system:,} (a larger batch, "
            f"or fewer systems), or a link {roof.hidden_from_tokens / roof.tokens:.1f} times as fast"
        )
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


def _fixed_s(graph: TaskGraph, costs: Costs) -> float:
    """Seconds of a step in which weights pass a wafer's mesh, whatever the tokens; 0 on GPUs."""
    if not isinstance(costs, WaferCosts):
        return 0.0
    each = np.array([work.share * costs.mesh.weights_s(work.kernels) for work in graph.works])
    return float(each[graph.work].sum()) / len(graph.step_ends)


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
    "gradient egress": lambda _: "a larger batch, fewer micro-batches, or a faster way up to MemoryX",
    "update bubble": lambda _: (
        "a larger batch, so that updates are rarer, or a MemoryX that updates faster: the first layer's "
        "weights wait for the last gradient and its update"
    ),
    "optimizer": lambda _: "optimizer states sharded over replicas (ZeRO 1), or a larger batch",
    "input": lambda _: "more activation servers, which feed the samples",
    "exposed spilling": lambda _: (
        "more activation servers, which keep the activations, or smaller micro-batches"
    ),
}
