"""Remedies on GPUs: degrees, schedules, ZeRO."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfsim.costs.streaming_roof import StreamingRoof
from perfsim.machines.explanation import LOOK, Explanation, Lane
from perfsim.strategies import Plan
from perfsim.workload import ParallelLayout

_BETWEEN_NODES = ("node.nic", "node.nics", "fabric.oversubscription")
INPUTS: Mapping[str, tuple[str, ...]] = {
    "exposed tensor communication": ("node.scale_up",),
    "exposed context communication": ("node.scale_up", *_BETWEEN_NODES),
    "exposed expert communication": ("node.scale_up", *_BETWEEN_NODES),
    "exposed data communication": _BETWEEN_NODES,
    "exposed pipeline communication": _BETWEEN_NODES,
    "exposed offload": ("node.host",),
}
"""The fields of the system behind each cause."""


class GpuExplanation(Explanation):
    """What shortens a step on GPUs."""

    unit = "GPUs"
    inputs = INPUTS

    def wait_remedy(self, cause: str, plan: Plan, _lane: Lane | None, _roof: StreamingRoof | None, /) -> str:
        """The remedy for a cause."""
        return _REMEDIES[cause](plan) if cause in _REMEDIES else LOOK

    def _more_compute(self, plan: Plan, _moving: float, /) -> str:
        size = f"micro-batch now {plan.layout.micro_batch_size:,}"
        return f"{self.more}, or larger matrices in each kernel ({size}, tensor {plan.layout.tensor})"


def _bubble(plan: Plan) -> str:
    stages = plan.layout.pipeline
    if stages == 1:
        return LOOK
    return (
        f"more than {plan.num_microbatches:,} micro-batches for {stages} stages (a larger batch or fewer "
        "stages), or a schedule with a smaller bubble (interleaved, zb1p)"
    )


def _optimizer(plan: Plan) -> str:
    layout = plan.layout
    if not isinstance(layout, ParallelLayout):
        return LOOK
    if layout.offload_optimizer != "none":
        spread = "" if layout.zero_stage else "its states sharded over replicas (ZeRO 1), "
        return f"{spread}more hosts to share the update, its states on the devices, or a larger batch"
    if layout.zero_stage or layout.replicas == 1:
        return "a larger batch, so that updates are rarer, or more replicas that share the update (ZeRO 1)"
    return "optimizer states sharded over replicas (ZeRO 1), or a larger batch"


def _data(plan: Plan) -> str:
    layout = plan.layout
    if isinstance(layout, ParallelLayout) and layout.replicas == 1:
        return "nothing is sent: the host launches collectives of one rank; fewer and larger gradient buckets"
    return "a larger batch, so that gradients are reduced less often, or faster links between nodes"


_REMEDIES: Mapping[str, Callable[[Plan], str]] = {
    "bubble": _bubble,
    "exposed tensor communication": lambda plan: (
        f"a tensor degree below {plan.layout.tensor}, or faster links inside the node"
    ),
    "exposed expert communication": lambda _: (
        "a smaller expert degree or one inside a node, one copy of a token a node (dispatcher: deepep), or "
        "faster links"
    ),
    "exposed data communication": _data,
    "exposed pipeline communication": lambda plan: (
        f"fewer than {plan.layout.pipeline} stages, or faster links between them"
    ),
    "exposed offload": lambda plan: (
        f"a larger micro-batch than {plan.layout.micro_batch_size:,}, more devices so that less is "
        "offloaded, or a faster link to the host"
    ),
    "optimizer": _optimizer,
}
