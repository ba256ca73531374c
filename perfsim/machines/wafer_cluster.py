"""The kind of machine `wafer-cluster`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.base.errors import InputError
from perfsim.costs import wafer
from perfsim.costs.price import Costs
from perfsim.machines.machine import (
    HEAVY,
    LARGER_BATCH,
    LOOK,
    Lane,
    Machine,
    Network,
    Part,
    Rate,
    Traffic,
    Unknown,
)
from perfsim.network import WaferTree
from perfsim.network.wafer_tree import STREAMS
from perfsim.specs.calibration import WaferCalibration
from perfsim.specs.hardware import WaferClusterSpec
from perfsim.specs.layout import StreamingLayout
from perfsim.specs.model import layer_kinds
from perfsim.specs.recipe import RUNTIME_FIELDS, Job, Recipe
from perfsim.specs.runtime import Runtime
from perfsim.strategies.streaming.memory import Store
from perfsim.strategies.streaming.passes import StreamingPlan
from perfsim.strategies.streaming.strategy import STREAM_CHUNKS
from perfsim.work import TaskGraph, Work
from perfsim.work.counts import attention_flop_per_step, model_flop_per_step, parameters

# Traffic of wafers on MemoryX, the SwarmX tree, and the ports of each system.


class _WaferNetwork(Network):
    """A tree that streams weights down to all systems and gradients up."""

    def __init__(self, tree: WaferTree, wafers: int = 1) -> None:
        super().__init__(tree)
        self.tree = tree
        self.costs = wafer.StreamCosts(tree)
        self.wafers = wafers
        """Wafers of the graph that stand for all systems."""

    def of_graph(self, graph: TaskGraph, /) -> _WaferNetwork:
        """The network for a graph in which several wafers may be unfolded."""
        # A class of work has one load for all systems, so each unfolded wafer spills its share of it. Spills
        # of wafers at the same time fill the ports as one folded wafer does.
        return _WaferNetwork(self.tree, sum(stream.endswith("/spill") for stream in graph.streams) or 1)

    def _slowed(self, work: Work, load: Traffic, /) -> Traffic | None:
        """The load, if it may share links; InputError where the only route to a system is cut."""
        left = self.capacities[load.links]
        # Samples are megabytes next to gigabytes of weights, so they count only where an activation server is
        # slow; updates, which their own bytes limit, only where DRAM is.
        if work.op in ("samples", "memoryx_update") and (left >= load.bytes_per_s).all():
            return None
        for link in sorted(self.tree.edges.dead) if not left.all() else ():
            if self.tree.counted[link] in load.links[left == 0.0]:
                raise InputError(
                    f"no route without {'-'.join(self.tree.ends(link))}: a wafer that is cut off is a "
                    "failure, as the `wall_clock` of a study counts them"
                )
        return load

    def load(self, work: Work, _peers: Ints, /) -> Traffic | None:
        """Traffic of a class of work on all links: weights go down the whole tree, gradients up.

        Samples and spilled activations pass the ports of their systems, all at the same time. Links that are
        not duplex count as one, and so do the weight servers, and the activation servers of a system.
        """
        if work.op not in STREAMS:
            return None
        lane, way, kinds = STREAMS[work.op]
        links = np.unique(self.tree.counted[self.tree.ways(way, *kinds)])
        rate = self.costs.rate_bytes_per_s(work.op)
        share = rate / self.wafers if lane == "spilling" else rate
        return Traffic(links, np.ones(len(links), dtype=np.int64), share)


# What limits a step of weight streaming, the tokens that hide its streams, and remedies.

LINK_WAITS = ("exposed streaming", "gradient egress", "update bubble")
CAUSES = {"flash": "flash", "input": "input", "spilling": "exposed spilling", "update": "update bubble"}
"""The cause of each limiting lane; a limiting link is named by the longest of `LINK_WAITS`."""


PARTS = {"the I/O ports": "io", "SwarmX": "swarmx", "MemoryX's servers": "server", "their DRAM": "dram"}
"""The kinds of links between MemoryX and a system, by the parts that they belong to."""


def _part_of(lane: str, plan: StreamingPlan) -> str:
    """The part of the machine that sets the speed of a lane."""
    costs = wafer.StreamCosts(plan.topology)
    if lane == "flash":
        return "MemoryX's flash"
    if lane == "update":
        update = Store(plan.job, plan.topology.system).update_kernel(1.0)
        moving_s = costs.update_s(update.bytes_accessed, 0.0)
        slower = "DRAM" if moving_s >= costs.update_s(0.0, update.flop) else "arithmetic"
        return f"the {slower} of MemoryX's servers"
    if lane in wafer.AT_SYSTEMS:
        feeds = costs.bytes_per_s["feed"] <= costs.bytes_per_s["io"]
        return "the activation servers" if feeds else "the I/O ports"
    # Parts of equal speed must all become faster.
    slowest = min(costs.bytes_per_s[kind] for kind in PARTS.values())
    names = [name for name, kind in PARTS.items() if costs.bytes_per_s[kind] < slowest * 1.001]
    *first, last = [name.replace("their", "the servers'") if len(names) == 1 else name for name in names]
    return f"{', '.join(first)} and {last}" if first else last


# What published logs of wafers do not show: newer software, more systems, other kinds of layers.

SHAPE_OUTSIDE = 0.24
"""assumed: half-width for a kind of layer without a log, which together with the errors of left-out models
(0.2) allows a factor of 1.35."""
OUTSIDE = math.log(1.35)
"""assumed: least half-width for a release without a log; the largest error of a log that is left out with
all logs of its model, and with the form of the model chosen anew, is 21 %."""
LOSS_RANGE = (0.011, 0.023)
"""Least and most loss a doubling of systems that published ratios leave open (`cs-2.yaml` lists them)."""
SEQUENCE = 2048
"""Longest sequence of a published log. Configurations of up to 8,192 tokens (Model Zoo 2.2.0, Jais 30B)
and a speed-up on more systems at 10,240 (GenSLM) are published without a step time."""
ATTENTION_SHARE = 0.234
"""Largest share of a model's FLOPs in attention's core of a published log: GPT-2 small at 2,048 tokens."""
ATTENTION_FACTOR = 2.0
"""assumed: beyond that share, attention's core takes half to twice as long as predicted; no log shows it."""

EXPERTS_FACTOR = 2.0
"""assumed: experts take half to twice as long as predicted; no log shows any. Whether cores without a token
of an expert wait for its weights, and how many experts share the mesh at once, is not published."""


def _of_release(wanted: str, calibration: WaferCalibration) -> Iterator[Unknown]:
    """The speed of a software release without a log beyond it, as fast as the nearest measured one.

    assumed: each release between may have changed the speed, either way, by as much as measured releases did
    in the mean, and `OUTSIDE` at least; no product exceeds the peak.
    """
    used = wafer.known_release(wanted, calibration)
    if used in (wafer.PEAK, wanted):
        return
    between = abs(wafer.place_of(wanted) - wafer.place_of(used))
    if not between:
        return
    growth = calibration.growth_per_release
    width = min(max(between * growth, OUTSIDE), -math.log(calibration.product_efficiency))
    words = (
        f"measured releases differ in speed by {_percent(growth)} each; the band allows {_percent(width)} "
        f"for {between} of them"
    )
    yield Unknown("release-borrowed", width, words, shared=True)


def _of_experts(job: Job, tiles: int) -> Iterator[Unknown]:
    """Experts, which no log of a wafer has: their share of a step may be wrong by a factor."""
    experts = job.model.experts
    counts = parameters(job.model)
    if experts is None:
        return
    routed = sum(counts.routed_of(kind) for kind in layer_kinds(job.model))
    active = 6.0 * routed * experts.top_k / experts.num_experts * job.tokens_per_step
    # Products and rows of weights share a step's time: the share of experts is at most the larger of both.
    share = max(active / model_flop_per_step(job), routed / counts.total)
    width = math.log1p(share * (EXPERTS_FACTOR - 1.0))
    words = (
        f"no published run trains experts on wafers: all {experts.num_experts} experts of a layer are taken "
        f"to stream, one after another, past the tokens of each, {experts.top_k} experts a token; the band "
        f"allows {_percent(width)}; attention is "
        + (f"computed in {tiles} tiles of a micro-batch" if tiles > 1 else "not tiled")
        + " (streaming.attention_tiles), of which only the vendor has published speeds"
    )
    yield Unknown("experts-outside", width, words)


def _percent(width: float) -> str:
    return f"{100 * math.expm1(width):.0f} %"


class WaferCluster(Machine):
    """Systems under a SwarmX tree, to which weights are streamed."""

    kind = "wafer-cluster"
    system_type = WaferClusterSpec
    layout_type = StreamingLayout
    unit = "systems"
    more = "more systems, each with the same batch"
    lanes: ClassVar[Mapping[str, str]] = {name: stream.lane for name, stream in STREAMS.items()}
    inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "exposed streaming": ("memoryx.servers", "memoryx.server.bandwidth", "weight_bytes"),
        "gradient egress": ("swarmx.bandwidth", "gradient_bytes"),
        "update bubble": ("memoryx.server.dram.bandwidth", "memoryx.server.arithmetic"),
        "flash": ("memoryx.server.flash",),
        "input": ("activation_servers",),
        "exposed spilling": ("activation_servers",),
    }
    rates: ClassVar[tuple[Rate, ...]] = (
        *Machine.rates,
        Rate("links of MemoryX", "memoryx.server.bandwidth", 0.2),
        Rate("links of SwarmX", "swarmx.bandwidth", 0.2),
        Rate("flash of MemoryX", "memoryx.server.flash.bandwidth", 0.4),
    )
    unread = ("memory_limit", "runs_on")
    unread_without_host = (
        *(f"runtime.{name}" for name in RUNTIME_FIELDS if name not in ("line", "tool", "software_release")),
        *(f"recipe.{name}" for name in ("recompute", "kernels", "reduce_precision")),
        *(f"recipe.{name}" for name in ("routing", "routing_spread", "expert_capacity")),
    )
    default_strategy = "weight-streaming"

    def topology(self, system: WaferClusterSpec, num_devices: int) -> WaferTree:
        return WaferTree(system, num_devices)

    def costs(self, topology: WaferTree, recipe: Recipe) -> Costs:
        """The cost model by the device that computes, a wafer or a GPU."""
        if topology.system.device.kind == "gpu":
            return wafer.StreamedGpuCosts(topology, recipe)
        return wafer.WaferCosts(topology, recipe)

    def network(self, topology: WaferTree, /) -> _WaferNetwork:
        return _WaferNetwork(topology)

    def releases(self, system: WaferClusterSpec, recipe: Recipe, /) -> tuple[str, str] | None:
        """The release of the recipe or the system, and the nearest one that was measured."""
        calibration = system.device.calibration
        if not isinstance(calibration, WaferCalibration):
            return None
        wanted = recipe.runtime.software_release or system.software_release
        return wanted, wafer.known_release(wanted, calibration)

    def parts(self, system: WaferClusterSpec, /) -> Iterator[Part]:
        yield from super().parts(system)
        yield Part.of(system.io_link, "link")

    def software(self, system: WaferClusterSpec, runtime: Runtime, /) -> Part:
        """The software release, dated by the table of the wafer's calibration; on GPUs the runtime."""
        calibration = system.device.calibration
        if not isinstance(calibration, WaferCalibration):
            return super().software(system, runtime)
        release = runtime.software_release or system.software_release
        return Part(f"software release {release}", calibration.releases.get(release, ""), recalled=False)

    def generations(self, system: WaferClusterSpec, runtime: Runtime, /) -> Sequence[Runtime]:
        """The runtime under each dated release; alone where it, or its system, has a release of its own."""
        calibration = system.device.calibration
        if not isinstance(calibration, WaferCalibration):
            return super().generations(system, runtime)
        newest = calibration.measured_releases[1]
        if runtime.software_release is not None or system.software_release != newest:
            return [runtime]
        return [runtime.model_copy(update={"software_release": name}) for name in calibration.releases]

    def unknowns(self, system: WaferClusterSpec, job: Job, num_devices: int, /) -> Iterator[Unknown]:
        """The efficiency of a release without a log, the loss of many systems, and what no log trains.

        No log has grouped queries, gated MLPs, experts, or more than 2,048 tokens. The first two are more
        matrix products of the kind that logs have. What a long sequence adds is attention's core: its share
        of the model's FLOPs above the largest of a log may be wrong by a factor.
        """
        calibration = system.device.calibration
        if isinstance(calibration, WaferCalibration):
            wanted = job.runtime.software_release or system.software_release
            yield from _of_release(wanted, calibration)
        if num_devices > 1:
            least, most = (math.log1p(-loss) for loss in LOSS_RANGE)
            assumed = math.log1p(-system.loss_per_doubling)
            width = math.log2(num_devices) * max(abs(least - assumed), abs(most - assumed))
            low, high = (f"{100 * loss:.1f}" for loss in LOSS_RANGE)
            words = (
                f"published scaling loses {low} to {high} % of speed a doubling of systems; "
                f"{100 * system.loss_per_doubling:.2g} % are assumed, and the band allows {_percent(width)} "
                f"on {num_devices:,}"
            )
            yield Unknown("devices-outside", width, words)
        model = job.model
        unlike = ["grouped queries"] * (model.query_groups < model.num_attention_heads)
        unlike += ["a gated MLP"] * model.gated_mlp
        unlike += ["latent attention"] * (model.latent_attention is not None)
        unlike += ["attention in a window"] * (model.sliding_window is not None)
        if unlike:
            words = (
                f"no published log of a wafer has {' or '.join(unlike)}: such models are published as "
                "configurations without a step time, and take the efficiency of other matrix products; the "
                f"band allows {_percent(SHAPE_OUTSIDE)}"
            )
            yield Unknown("shape-outside", SHAPE_OUTSIDE, words)
        yield from _of_experts(job, system.streaming.attention_tiles)
        if job.seq_length <= SEQUENCE:
            return
        excess = max(0.0, attention_flop_per_step(job) / model_flop_per_step(job) - ATTENTION_SHARE)
        width = math.log1p(excess * (ATTENTION_FACTOR - 1.0))
        words = f"sequences of {job.seq_length:,} tokens, while published logs of wafers have at most "
        core = "the core of attention has no larger share of the work than in them"
        if width:
            core = f"the band allows {_percent(width)} for the core of attention"
        yield Unknown("sequence-outside", width, f"{words}{SEQUENCE:,}; {core}")

    def _together_s(self, tree: WaferTree, lane: str, streams_s: Floats, /) -> float:
        """Streams that share a bandwidth take turns; servers with blocks of their own work in parallel."""
        memoryx = tree.system.memoryx
        flash = memoryx.server.flash
        half_duplex = {"link": not tree.system.swarmx.duplex, "flash": flash is not None and not flash.duplex}
        if not half_duplex.get(lane, False):
            return float(streams_s.max(initial=0.0))
        return float(streams_s.sum()) / (memoryx.servers if memoryx.placement == "by_layer" else 1)

    def roof(
        self, plan: StreamingPlan, graph: TaskGraph, costs: Costs, duration_s: Floats, /
    ) -> wafer.StreamingRoof | None:
        """Tokens of a micro-batch on one system, and the tokens that hide its streams."""
        works = {work.name: work for work in reversed(graph.works)}  # of one name the first
        if not works.keys() >= {"layer.load", "layer.forward"}:
            return None
        load = works["layer.load"]
        use = works["layer.forward"]
        tokens = float(plan.layout.micro_batch_size * plan.job.seq_length)
        load_s = costs.duration_s(load)
        matrices = sum(kernel.flop for kernel in use.kernels if kernel.partition == "streamed")
        weights = use.share * matrices / (2.0 * tokens)
        hidden = {"link": wafer.hidden_from_tokens(tokens, costs.duration_s(use), costs.fixed_s(use), load_s)}
        # The compute of a whole step hides flash and updates, whose times do not depend on tokens.
        compute_s = float(duration_s[graph.is_compute].sum()) / len(graph.step_ends)
        fixed_s = graph.mean_over_steps(costs.fixed_s)
        for lane in ("flash", "update"):
            busy_s = self.busy_s(plan.topology, graph, duration_s, lane)
            hidden[lane] = wafer.hidden_from_tokens(tokens, compute_s, fixed_s, busy_s)
        lane = max(hidden, key=lambda name: hidden[name])
        weight_bytes = load.comm_bytes / weights
        formula = wafer.roof_tokens(costs.arithmetic_flop_per_s(use), weight_bytes, load.comm_bytes / load_s)
        return wafer.StreamingRoof(tokens, hidden[lane], formula, lane)

    def cause(self, lane: Lane, wait: str, /) -> str:
        """The cause of a lane; a link is named by the wait that it causes."""
        if lane.name == "link":
            return wait if wait in LINK_WAITS else "exposed streaming"
        return CAUSES[lane.name]

    def wait_remedy(
        self, _cause: str, plan: StreamingPlan, lane: Lane | None, roof: wafer.StreamingRoof | None, /
    ) -> str:
        """A faster limiting part, or more tokens per stream of the weights."""
        if roof is None:
            return LOOK
        remedies = []
        if lane is not None:
            part = _part_of(lane.name, plan)
            remedies.append(f"{part} twice as fast ({100 * lane.saved:.0f} % off the step)")
        if lane is not None and lane.name == "flash":
            in_flash = sum(use.total_bytes for use in plan.memory if use.place == "MemoryX flash")
            remedies.append(f"{in_flash / 1e12:,.3g} TB more DRAM in MemoryX, so that flash is not needed")
        if lane is None or lane.name not in wafer.AT_SYSTEMS:
            sequences = int(-(-roof.hidden_from_tokens // plan.job.seq_length))
            if sequences <= plan.layout.micro_batch_size:
                remedies.append(f"{LARGER_BATCH}, so that fewer steps wait for their first weights")
            else:
                how = LARGER_BATCH if plan.num_microbatches == 1 else "room for more activations"
                remedies.append(
                    f"{sequences:,} sequences per system and micro-batch instead of "
                    f"{plan.layout.micro_batch_size:,} ({how}), whose compute hides the streams"
                )
        if lane is not None and lane.name == "spilling":
            remedies.append("a smaller batch, whose activations fit on the wafer")
        return ", or ".join(remedies)

    def compute_remedy(self, plan: StreamingPlan, fixed: float, recompute: float, /) -> str:
        """Wider layers where rows of weights take long; a wafer recomputes whatever its memory."""
        most = plan.topology.system.max_systems
        more = self.more if plan.layout.data < most else f"a cluster of more than {most} systems"
        if fixed > HEAVY:
            tiled = not plan.job.model.experts or plan.topology.system.streaming.attention_tiles > 1
            larger = "a larger micro-batch" if tiled else "attention in tiles (streaming.attention_tiles)"
            return (
                f"{more}, or layers wider than {plan.job.model.hidden_size:,}, or {larger}: "
                f"{100 * fixed:.0f} % of the step goes to rows of weights, which take the same time whatever "
                "the tokens"
            )
        if plan.system.device.kind == "wafer":
            return more
        return super().compute_remedy(plan, fixed, recompute)

    def _completed(self, given: dict[str, Any], devices: int) -> StreamingLayout:
        """The layout; `dp` defaults to all systems; `recompute_layers` and full recompute go together."""
        if given.get("recompute_layers") or given.get("recompute") == "full":
            given = {"recompute": "full", "recompute_layers": 1} | given
        return StreamingLayout(**({"data": devices} | given))

    def in_chunks(self, layout: StreamingLayout, /) -> StreamingLayout:
        """The layout with layers streamed in chunks; unchanged where they are already."""
        return layout if layout.stream_chunks > 1 else replace(layout, stream_chunks=STREAM_CHUNKS)
