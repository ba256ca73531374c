"""How near a streamed step is to waiting, in tokens, and what would shorten it."""

from __future__ import annotations

import numpy as np

from perfsim.costs.price import Costs
from perfsim.costs.streaming_roof import hidden_from_tokens, roof_tokens
from perfsim.costs.wafer import WaferCosts
from perfsim.graph import Kind, TaskGraph, Work
from perfsim.prediction.limiting_lane import Lane, busy_seconds, part_of
from perfsim.prediction.result import StreamingRoof
from perfsim.prediction.run import Step
from perfsim.strategies import Plan

HIDES = {"link": "a layer's weights", "flash": "what flash moves", "update": "the updates"}
"""What tokens hide, by the lane that does it."""


def streaming_roof(plan: Plan, step: Step) -> StreamingRoof | None:
    """Tokens of a micro-batch on one system, and those under which its weights arrive too late."""
    graph, costs = step.placed.graph, step.costs
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
    hidden = {"link": hidden_from_tokens(tokens, use_s, fixed_s, load_s)} | _step_wide(plan, step)
    lane = max(hidden, key=lambda name: hidden[name])
    return StreamingRoof(
        tokens=tokens,
        hidden_from_tokens=hidden[lane],
        formula_tokens=roof_tokens(flop_per_s, load.comm_bytes / weights, load.comm_bytes / load_s),
        lane=lane,
    )


def _step_wide(plan: Plan, step: Step) -> dict[str, float]:
    """Tokens whose computation takes as long as flash and updates do, which tokens do not lengthen."""
    graph, costs, durations = step.placed.graph, step.costs, step.duration_s
    computing = np.array([work.kind is Kind.COMP for work in graph.works])[graph.work]
    compute_s = float(durations[computing].sum()) / len(graph.step_ends)
    tokens, fixed = float(plan.layout.micro_batch_size * plan.job.seq_length), fixed_s(graph, costs)
    return {
        lane: hidden_from_tokens(tokens, compute_s, fixed, busy_seconds(plan, graph, durations, lane))
        for lane in ("flash", "update")
    }


def fixed_s(graph: TaskGraph, costs: Costs) -> float:
    """Seconds of a step in which weights pass a wafer's mesh, whatever the tokens; 0 on GPUs."""
    if not isinstance(costs, WaferCosts):
        return 0.0
    each = np.array([work.share * costs.mesh.weights_s(work.kernels) for work in graph.works])
    return float(each[graph.work].sum()) / len(graph.step_ends)


def _named(graph: TaskGraph, name: str) -> Work | None:
    return next((work for work in graph.works if work.name == name), None)


def about_roof(roof: StreamingRoof | None, lane: Lane | None) -> str:
    """How a micro-batch stands to the tokens that hide what streams; samples grow with it."""
    if roof is None:
        return ""
    if lane is not None and lane.name in ("input", "spilling"):
        what = "Samples come" if lane.name == "input" else "Spilled activations move"
        return f"{what} more slowly than tokens are computed, whatever the batch. "
    if not roof.hidden_from_tokens:
        return "A layer's weights pass the mesh no faster than they arrive. "
    than = "above" if roof.tokens >= roof.hidden_from_tokens else "below"
    arithmetic = f" ({roof.formula_tokens:,.0f} by arithmetic alone)" if roof.lane == "link" else ""
    return (
        f"A system's micro-batch of {roof.tokens:,.0f} tokens is {than} the "
        f"{roof.hidden_from_tokens:,.0f} that hide {HIDES[roof.lane]}{arithmetic}. "
    )


def streaming_remedy(lane: Lane | None, plan: Plan, roof: StreamingRoof) -> str:
    """What shortens the step: the part that limits, twice as fast, or more tokens beside what stays."""
    found = []
    if lane is not None:
        found.append(f"{part_of(lane.name, plan)} twice as fast ({100 * lane.saved:.0f} % off the step)")
    if lane is not None and lane.name == "flash":
        in_flash = sum(use.total_bytes for use in plan.memory if use.place == "MemoryX flash")
        found.append(f"{in_flash / 1e12:,.3g} TB more DRAM in MemoryX, which leave flash nothing to do")
    if lane is None or lane.name not in ("input", "spilling"):
        found.append(_more_tokens(plan, roof))
    if lane is not None and lane.name == "spilling":
        found.append("a smaller batch, which need not leave the wafer")
    return ", or ".join(found)


def _more_tokens(plan: Plan, roof: StreamingRoof) -> str:
    """More sequences at once: they take hardly longer where something else is waited for."""
    size = plan.layout.micro_batch_size
    sequences = int(-(-roof.hidden_from_tokens // plan.job.seq_length))
    if sequences <= size:
        return "a larger batch, so that fewer steps wait for their first weights"
    how = "a larger batch" if plan.num_microbatches == 1 else "room for more activations"
    return (
        f"{sequences:,} sequences a system and micro-batch instead of {size:,} ({how}: more tokens while "
        "the rest takes as long)"
    )
