"""What limits a step of weight streaming, the tokens that hide its streams, and remedies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfsim.costs.price import Costs, mean_s
from perfsim.costs.streaming_roof import HIDES, StreamingRoof, hidden_from_tokens, roof_tokens
from perfsim.costs.streams import StreamCosts
from perfsim.graph import Kind, TaskGraph, Work
from perfsim.machines.explanation import HEAVY, LOOK, Explanation, Floats, Lane
from perfsim.strategies import Plan
from perfsim.strategies.streaming.blocks import StreamingPlan
from perfsim.topology import WaferTree

LANES = {
    "memoryx_read": "link",
    "reduce": "link",
    "reduce_part": "link",
    "reduce_in_tree": "link",
    "reduce_in_tree_part": "link",
    "flash_read": "flash",
    "flash_write": "flash",
    "samples": "input",
    "spill": "spilling",
    "fetch": "spilling",
    "memoryx_update": "update",
}
"""The lane of each operation that moves data."""
LINK_WAITS = ("exposed streaming", "gradient egress", "update bubble")
CAUSES = {
    "flash": "flash",
    "input": "input",
    "spilling": "exposed spilling",
    "update": "update bubble",
}
"""The cause of each limiting lane; a limiting link is named by the longest of `LINK_WAITS`."""

INPUTS: Mapping[str, tuple[str, ...]] = {
    "exposed streaming": ("memoryx.servers", "memoryx.server.bandwidth", "weight_bytes"),
    "gradient egress": ("swarmx.bandwidth", "gradient_bytes"),
    "update bubble": ("memoryx.server.dram.bandwidth", "memoryx.server.arithmetic"),
    "flash": ("memoryx.server.flash",),
    "input": ("activation_servers",),
    "exposed spilling": ("activation_servers",),
}
"""The fields of the system behind each cause."""


class StreamingExplanation(Explanation):
    """Causes and remedies for steps of weight streaming."""

    lanes = LANES
    layer_fixed_s = 0.0055
    """Forward and backward. assumed: a fit of the same logs with a constant per layer in place of our
    movement over the mesh, which grows with the layer; used only in a remark."""
    more = "more systems, each with the same batch"
    unit = "systems"
    inputs = INPUTS

    def _together_s(self, tree: WaferTree, lane: str, streams_s: Floats, /) -> float:
        """Streams that share a bandwidth take turns; servers with blocks of their own work in parallel."""
        memoryx, flash = tree.system.memoryx, tree.system.memoryx.server.flash
        half_duplex = {"link": not tree.system.swarmx.duplex, "flash": flash is not None and not flash.duplex}
        if not half_duplex.get(lane, False):
            return float(streams_s.max(initial=0.0))
        return float(streams_s.sum()) / (memoryx.servers if memoryx.placement == "by_layer" else 1)

    # ------------------------------------------------------------------------------------ the roof
    def roof(
        self, plan: StreamingPlan, graph: TaskGraph, costs: Costs, duration_s: Floats, /
    ) -> StreamingRoof | None:
        """Tokens of a micro-batch on one system, and the tokens that hide its streams."""
        load, use = _named(graph, "layer.load"), _named(graph, "layer.forward")
        if load is None or use is None:
            return None
        tokens = float(plan.layout.micro_batch_size * plan.job.seq_length)
        load_s = costs.duration_s(load)
        matrices = sum(kernel.flop for kernel in use.kernels if kernel.partition == "streamed")
        weights = use.share * matrices / (2.0 * tokens)
        hidden = {"link": hidden_from_tokens(tokens, costs.duration_s(use), costs.fixed_s(use), load_s)}
        hidden |= self._step_wide(plan, graph, costs, duration_s)
        lane = max(hidden, key=lambda name: hidden[name])
        flop_per_s = costs.arithmetic_flop_per_s(use)
        return StreamingRoof(
            tokens=tokens,
            hidden_from_tokens=hidden[lane],
            formula_tokens=roof_tokens(flop_per_s, load.comm_bytes / weights, load.comm_bytes / load_s),
            lane=lane,
        )

    def _step_wide(
        self, plan: StreamingPlan, graph: TaskGraph, costs: Costs, duration_s: Floats
    ) -> dict[str, float]:
        """Tokens whose compute hides flash and updates, whose times do not depend on tokens."""
        steps = len(graph.step_ends)
        computing = np.array([work.kind is Kind.COMP for work in graph.works])[graph.work]
        compute_s = float(duration_s[computing].sum()) / steps
        fixed_s = mean_s(graph, costs.fixed_s)
        tokens = float(plan.layout.micro_batch_size * plan.job.seq_length)
        return {
            lane: hidden_from_tokens(
                tokens, compute_s, fixed_s, self.busy_s(plan.topology, graph, duration_s, lane)
            )
            for lane in ("flash", "update")
        }

    def about_roof(self, roof: StreamingRoof, lane: Lane | None, /) -> str:
        """The micro-batch compared with the tokens that hide its streams; none hide samples or spills."""
        if lane is not None and lane.name in ("input", "spilling"):
            late = "Samples arrive" if lane.name == "input" else "Spilled activations move"
            return f"{late} more slowly than their tokens are computed, whatever the batch. "
        if not roof.hidden_from_tokens:
            return "A layer's weights take longer to pass over the mesh than to arrive, whatever the batch. "
        than = "above" if roof.tokens >= roof.hidden_from_tokens else "below"
        arithmetic = f" ({roof.formula_tokens:,.0f} by arithmetic alone)" if roof.lane == "link" else ""
        return (
            f"A system's micro-batch of {roof.tokens:,.0f} tokens is {than} the "
            f"{roof.hidden_from_tokens:,.0f} that hide {HIDES[roof.lane]}{arithmetic}. "
        )

    # ------------------------------------------------------------------------------------ remedies
    def cause(self, lane: Lane, wait: str, /) -> str:
        """The cause of a lane; a link is named by the wait that it causes."""
        if lane.name == "link":
            return wait if wait in LINK_WAITS else "exposed streaming"
        return CAUSES[lane.name]

    def wait_remedy(
        self, _cause: str, plan: StreamingPlan, lane: Lane | None, roof: StreamingRoof | None, /
    ) -> str:
        """A faster limiting part, or more tokens per stream of the weights."""
        if roof is None:
            return LOOK
        remedies = []
        if lane is not None:
            part = part_of(lane.name, plan.topology)
            remedies.append(f"{part} twice as fast ({100 * lane.saved:.0f} % off the step)")
        if lane is not None and lane.name == "flash":
            in_flash = sum(use.total_bytes for use in plan.memory if use.place == "MemoryX flash")
            remedies.append(f"{in_flash / 1e12:,.3g} TB more DRAM in MemoryX, so that flash is not needed")
        if lane is None or lane.name not in ("input", "spilling"):
            remedies.append(_more_tokens(plan, roof))
        if lane is not None and lane.name == "spilling":
            remedies.append("a smaller batch, whose activations fit on the wafer")
        return ", or ".join(remedies)

    def _more_compute(self, plan: Plan, moving: float, /) -> str:
        if moving <= HEAVY:
            return self.more
        return (
            f"{self.more}, or layers wider than {plan.job.model.hidden_size:,}: {100 * moving:.0f} % of the "
            "step is movement over the wafer's mesh, which grows more slowly than FLOPs"
        )


def _named(graph: TaskGraph, name: str) -> Work | None:
    return next((work for work in graph.works if work.name == name), None)


def _more_tokens(plan: StreamingPlan, roof: StreamingRoof) -> str:
    """More sequences per micro-batch, or a larger batch where these are enough."""
    size = plan.layout.micro_batch_size
    sequences = int(-(-roof.hidden_from_tokens // plan.job.seq_length))
    if sequences <= size:
        return "a larger batch, so that fewer steps wait for their first weights"
    how = "a larger batch" if plan.num_microbatches == 1 else "room for more activations"
    return (
        f"{sequences:,} sequences per system and micro-batch instead of {size:,} ({how}), whose compute "
        "hides the streams"
    )


def part_of(lane: str, tree: WaferTree) -> str:
    """The part of the machine that sets the speed of a lane."""
    system, costs = tree.system, StreamCosts(tree)
    if lane == "flash":
        return "MemoryX's flash"
    if lane == "update":
        return f"the {_update_bottleneck(costs)} of MemoryX's servers"
    feeders = system.activation_servers.per_system
    if lane in ("input", "spilling") and feeders * costs.rated_bytes_per_s["feed"] <= costs.feed_bytes_per_s:
        return "the activation servers"
    if lane in ("input", "spilling"):
        return "the I/O ports"
    return _link_bottleneck(costs)


def _update_bottleneck(costs: StreamCosts) -> str:
    """DRAM or arithmetic, whichever is slower for Adam's 28 B and 15 FLOP a parameter."""
    return "DRAM" if costs.update_s(28.0, 0.0) >= costs.update_s(0.0, 15.0) else "arithmetic"


PARTS = {
    "the I/O ports": "io",
    "SwarmX": "swarmx",
    "MemoryX's servers": "server",
    "their DRAM": "dram",
}
"""The kinds of links between MemoryX and a system, by the parts that they belong to."""


def _link_bottleneck(costs: StreamCosts) -> str:
    """The slowest parts between MemoryX and a system; parts of equal speed must all become faster."""
    rates = costs.part_bytes_per_s
    slowest = min(rates[kind] for kind in PARTS.values())
    names = [name for name, kind in PARTS.items() if rates[kind] < slowest * 1.001]
    *first, last = [name.replace("their", "the servers'") if len(names) == 1 else name for name in names]
    return f"{', '.join(first)} and {last}" if first else last
