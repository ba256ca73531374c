"""ZeRO 3, or FSDP: parameters are gathered layer by layer and not kept.

[1910.02054, 2304.11277] Every rank holds a shard of each layer. A layer is all-gathered before its
forward and again before its backward, its gradients are reduce-scattered after it, and at most two
layers are unsharded at once. One communication stream runs both, in the order in which the host
issues them: the next layer's gather before this layer's reduction (backward prefetch).
"""

from __future__ import annotations

from dataclasses import dataclass

from perfsim.graph import EMBEDDING_AND_HEAD, Template, Work
from perfsim.strategies.three_d.data import Held, Replicas

SHARDED = 3
"""The ZeRO stage that shards parameters."""
GROUPS_STREAM = "nccl-groups"
"""Sums over groups that shard."""
IN_FLIGHT = 2
"""Layers that are unsharded at once (`limit_all_gathers`)."""


@dataclass(frozen=True)
class Shards:
    """The sharded layers of one stage, and the root unit of embedding and LM head."""

    replicas: Replicas
    layers: tuple[Held, ...]
    """Parameters of every layer."""
    root: Held
    """Embedding, LM head and final norm: gathered once and kept from forward to backward."""

    def gather_forward(self, template: Template, done: list[int], block: int) -> list[int]:
        """All-gather the next layer, after the forward of the layer `IN_FLIGHT` before it."""
        after = [template.writer(done[-IN_FLIGHT])] if len(done) >= IN_FLIGHT else []
        return self._gather(template, self.layers[len(done)], after, block)

    def gather_backward(self, template: Template, layer: int, num_layers: int, block: int) -> list[int]:
        """All-gather one layer while the layer after it runs backward.

        The first `IN_FLIGHT` gathers wait for the forward of the layers that were unsharded last. Later
        gathers follow, on the same stream, the reduce-scatter of the layer whose memory they take.
        """
        freed = 2 * num_layers - IN_FLIGHT - 1 - layer
        after: list[int] = [template.port(f"saved{freed}")] if 0 <= freed < num_layers else []
        return self._gather(template, self.layers[layer], after, block)

    def gather_root(self, template: Template) -> list[int]:
        """All-gather embedding and LM head."""
        return self._gather(template, self.root, [], EMBEDDING_AND_HEAD)

    def scatter_layer(self, template: Template, layer: int, gradient: int, block: int) -> int:
        """Reduce-scatter one layer's gradient."""
        return self._scatter(template, self.layers[layer], gradient, block)

    def scatter_root(self, template: Template, gradient: int) -> int:
        """Reduce-scatter the gradient of embedding and LM head."""
        return self._scatter(template, self.root, gradient, EMBEDDING_AND_HEAD)

    def gather_works(self, held: Held) -> list[Work]:
        """The all-gathers of some parameters."""
        apart = [] if self.replicas.apart is None else self.replicas.apart.gather_works(Held(held.apart))
        return [self.replicas.gather_work(held.rest), *apart]

    def _gather(self, template: Template, held: Held, after: list[int], block: int) -> list[int]:
        stream = self.replicas.stream
        return [
            template.task(work, stream, (), after, block=block).tensor for work in self.gather_works(held)
        ]

    def _scatter(self, template: Template, held: Held, gradient: int, block: int) -> int:
        """Sums over groups have a stream of their own, beside the gathers of the next layers."""
        replicas = self.replicas
        apart = [] if replicas.apart is None else replicas.apart.reduce_works(Held(held.apart))
        for work in (replicas.reduce_work(held.rest), *apart):
            gradient = template.task(work, replicas.stream, [gradient], block=block).tensor
        for across in replicas.across_works(held.rest):
            stream = f"{replicas.device}/{GROUPS_STREAM}"
            gradient = template.task(across, stream, [gradient], block=block).tensor
        return gradient
