"""Data parallelism: gradient reduction over replicas, and the optimizer.

ZeRO 1 [1910.02054] reduce-scatters gradients, updates its shard and all-gathers parameters. Without ZeRO,
gradients are all-reduced and every replica updates all parameters. ZeRO 2 keeps only a shard of the
gradients, so the gradients of each micro-batch are reduce-scattered as they are computed. Where states are
sharded in several groups of replicas (hybrid sharding [2304.11277 section 3.2.2]), each group scatters and
gathers, and shards are summed over the groups.

Under ZeRO 1 a framework may divide whole tensors among the ranks instead (`StateExchange` owner_broadcast, as
InternEvo of 2023): gradients are all-reduced over all replicas, each rank updates what it owns, and owners
broadcast it in turn. Before a bucket's reduction the host waits for the reduction of the last bucket but one.
An optimizer of whole matrices (Megatron-Core's `dist_muon`) divides them likewise, and gathers all at once.

The parameters of experts are on other ranks than the rest. They have replicas of their own, whose
communication follows that of the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfsim.base.arrays import Floats, Ints
from perfsim.costs.memory import state_bytes, update_products
from perfsim.specs.model import TransformerConfig
from perfsim.specs.optimizers import OPTIMIZERS
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.recipe import Recipe
from perfsim.specs.runtime import Runtime
from perfsim.work import Kind, RankGroup, TensorClass, Work
from perfsim.work.counts import parameters
from perfsim.work.kernels import Kernel, elementwise
from perfsim.work.layer import cast_kernel

DATA_STREAM = "nccl-data"
GROUPS_STREAM = "nccl-groups"
"""The stream of sums over groups that shard."""
GRADIENTS_SHARDED = 2
"""The ZeRO stage that shards gradients."""
SHARDED = 3
"""The ZeRO stage that shards parameters."""
ZERO_STAGES = (0, 1, GRADIENTS_SHARDED, SHARDED)
IN_FLIGHT = 2
"""Layers that are unsharded at once (`limit_all_gathers`)."""
LEAST = 1.0
"""Fewer parameters than one are a rounding error."""
TENSORS_OF_LAYER = 9
"""Queries, keys, values, output, gate, up, down and two norms; assumed: layers with experts or biases have no
fewer, and a rank has the same share of the tensors as of the parameters."""
TENSORS_AROUND_LAYERS = 3
"""Embedding, final norm and LM head."""
OPTIMIZER_LAUNCHES = 24
"""Fused multi-tensor kernels of an optimizer step: unscale, norm, clip, update, copy, zero."""


def collective(
    axis: str, op: str, n_bytes: float, ranks: RankGroup, *made: TensorClass, name: str = "", **also: Any
) -> Work:
    """A collective of the ranks of an axis, called by axis and operation unless it has another `name`.

    `also` are further fields of the work.
    """
    category = f"{axis}_communication"
    name = name or f"{axis}.{op}"
    return Work(name, Kind.COMM_COLL, op, category, (), n_bytes, ranks, made, **also)


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters on one rank: of its experts (`apart`, as in `Replicas`), and all others (`rest`)."""

    rest: float = 0.0
    apart: float = 0.0

    def __add__(self, other: Held) -> Held:
        return Held(self.rest + other.rest, self.apart + other.apart)

    def __sub__(self, other: Held) -> Held:
        return Held(self.rest - other.rest, self.apart - other.apart)

    def __mul__(self, count: float) -> Held:
        return Held(count * self.rest, count * self.apart)


@dataclass(frozen=True)
class Replicas:
    """The ranks with the same parameters as one rank, and their number: replicas and their context ranks."""

    recipe: Recipe
    ranks: RankGroup
    device: str
    num_parameters: float
    zero_stage: int
    shard_group: int | None = None
    """Ranks over which ZeRO shards; None: all."""
    model: TransformerConfig | None = None
    """Whose matrices an optimizer may treat otherwise than the rest; None: all parameters alike."""
    apart: Replicas | None = None
    """The ranks with the same experts as this rank; None: it has no experts."""
    experts: bool = False
    """Whether the parameters belong to routed experts."""
    alone: bool = False
    """Whether a single rank calls collectives too, as the software of ZeRO 3 does."""

    @property
    def stream(self) -> str:
        return f"{self.device}/{DATA_STREAM}"

    @property
    def size(self) -> int:
        return self.ranks.size

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO divides a state."""
        return self.size if self.shard_group is None else self.shard_group

    def with_experts(self, holders: int, num_parameters: float) -> Replicas:
        """These with the experts of a rank, which of `holders` consecutive ranks each holds others."""
        if not num_parameters:
            return self
        ranks = RankGroup(self.ranks.start, holders, self.ranks.stride * self.size // holders)
        whole = replace(self, ranks=ranks, num_parameters=num_parameters, shard_group=None)
        return replace(self, apart=replace(whole, alone=False, experts=True))

    @property
    def held(self) -> Held:
        return Held(self.num_parameters, 0.0 if self.apart is None else self.apart.num_parameters)

    @property
    def holders(self) -> int:
        """Consecutive ranks that together hold all gradients, apart ones too, the fewest."""
        own = self.ranks.stride * (self.shards if self.zero_stage else 1)
        return own if self.apart is None else math.lcm(own, self.apart.holders)

    @property
    def shard_ranks(self) -> RankGroup:
        return self.ranks._replace(size=self.shards)

    @property
    def shards_gradients(self) -> bool:
        """Whether gradients are reduce-scattered in every micro-batch (ZeRO 2)."""
        return self.zero_stage == GRADIENTS_SHARDED and self.size > 1

    @property
    def has_owners(self) -> bool:
        """Whether each rank owns whole tensors, which it broadcasts once they are updated."""
        return self.zero_stage == 1 and has_owners(self.recipe.runtime)

    @property
    def owns_whole(self) -> bool:
        """Whether each rank updates whole tensors, and sums all gradients; with Muon in equal parts."""
        of_matrices = OPTIMIZERS[self.recipe.optimizer].orthogonalisations > 0
        return self.has_owners or (self.zero_stage == 1 and of_matrices)

    @property
    def owners(self) -> int:
        """Ranks over which an update is divided: all that shard, but no more than there are tensors."""
        if not self.has_owners or self.model is None:
            return self.shards
        tensors = self.model.num_layers * TENSORS_OF_LAYER + TENSORS_AROUND_LAYERS
        share = self.num_parameters * self.ranks.stride / parameters(self.model).total
        return min(self.shards, max(1, round(share * tensors)))

    @property
    def updated(self) -> float:
        """Parameters that the busiest rank updates; an owner has whole tensors, at least the largest."""
        if not self.zero_stage:
            return self.num_parameters
        share = self.num_parameters / self.owners
        if not self.has_owners or self.model is None or self.experts:
            return share
        return max(share, self.model.vocab_size * self.model.hidden_size / self.ranks.stride)

    @property
    def gathers_ahead(self) -> bool:
        """Whether parameters are gathered next to the first forward of the next step."""
        shards_optimizer = self.zero_stage in (1, GRADIENTS_SHARDED) and not self.owns_whole
        return self.recipe.runtime.overlap_param_gather and shards_optimizer and self.size > 1

    def layers_per_bucket(self, layer_parameters: float) -> int:
        """Number of layers whose gradients fill a bucket."""
        stage = self.zero_stage if self.shards_gradients or self.zero_stage == SHARDED else 0
        return int(layers_per_bucket(self.recipe, np.array(layer_parameters), np.array(stage)))

    def across_works(self, num_parameters: float) -> list[Work]:
        """Sum of the shards of some gradients over groups; none where one group has all replicas."""
        if self.zero_stage == 0 or self.owns_whole or self.size == self.shards:
            return []
        start, stride, size = self.ranks
        copies = RankGroup(start, stride * self.shards, size // self.shards)
        n_bytes = num_parameters * state_bytes(self.recipe).reduced / self.shards
        return [self._collective("all_reduce", n_bytes, "gradient_shards", copies)]

    def reduce_works(self, held: Held) -> list[Work]:
        """The whole reduction of the gradients of some parameters; none where no other rank has them.

        Over replicas, or over one group that shards and then over the groups.
        """
        works = []
        across = []
        if (self.size > 1 or self.alone) and held.rest >= LEAST:
            scatters = self.zero_stage > 0 and not self.owns_whole
            op, ranks = ("reduce_scatter", self.shard_ranks) if scatters else ("all_reduce", self.ranks)
            n_bytes = held.rest * state_bytes(self.recipe).reduced
            works = [self._collective(op, n_bytes, "gradients", ranks)]
            across = self.across_works(held.rest)
        if self.apart is not None:
            works += self.apart.reduce_works(Held(held.apart))
        return works + across

    def gather_works(self, held: Held, tensors: int = 1) -> list[Work]:
        """The gathers of some sharded parameters, as equal tensors; none where no other rank has them.

        Owners broadcast equal parts: of what is sent one after the other, only the sum and the number count.
        """
        works = []
        if (self.size > 1 or self.alone) and held.rest >= LEAST:
            n_bytes = held.rest * self.recipe.element_bytes
            if self.has_owners:
                part = n_bytes / self.owners
                works = [self._collective("broadcast", part, "parameters", self.shard_ranks)] * self.owners
            else:
                works = [self._collective("all_gather", n_bytes, "parameters", self.shard_ranks, tensors)]
        return works if self.apart is None else works + self.apart.gather_works(Held(held.apart), tensors)

    def _collective(self, op: str, n_bytes: float, tensor: str, ranks: RankGroup, tensors: int = 1) -> Work:
        made = TensorClass(tensor, n_bytes / tensors)
        return collective("data", op, n_bytes, ranks, *[made] * tensors, experts=self.experts)

    def optimizer_work(self) -> Work:
        """The optimizer step of the parameters that this rank updates, as memory traffic only."""
        held = (self,) if self.apart is None else (self, self.apart)
        whole = sum(part.num_parameters for part in held)
        shard = sum(part.updated for part in held)
        # The update reads gradient and states, and writes states and the weights that kernels read. The
        # gradient is also unscaled (read, write), used for the norm (read), clipped (read, write) and
        # zeroed (write). An optimizer in fp32 first copies gradients of 16 bits, and does all but zeroing
        # on the copy.
        summed = state_bytes(self.recipe).gradients
        used = max(summed, PRECISIONS[self.recipe.optimizer_precision].bytes)
        copied = summed + used if used > summed else 0.0
        update = used + 2 * state_bytes(self.recipe, self.model).updated + self.recipe.element_bytes
        n_bytes = shard * (copied + update + 5 * used + summed)
        if self.has_owners:  # gradients are copied into flat buckets and back, each with a read and a write
            n_bytes += 4 * summed * whole
        kernel = elementwise("optimizer", n_bytes, launches=OPTIMIZER_LAUNCHES)
        products = update_products(self.recipe, self.model, shard)
        # The cast of a rank's weights to narrow copies, once a step, as if vectors had narrow copies too.
        casts: tuple[Kernel, ...] = ()
        table = self.recipe.narrow_kernels
        if table is not None and PRECISIONS[table.forward].bytes < self.recipe.element_bytes:
            casts = (cast_kernel("weights.cast", whole, table.forward, launches=2),)
        return Work(
            name="optimizer",
            kind=Kind.COMP,
            op="optimizer",
            category="optimizer",
            kernels=(kernel, *products, *casts),
            writes=(TensorClass("parameters", shard * self.recipe.element_bytes),),
        )


WAIT = Work("parameters.wait", Kind.COMP, "wait", "optimizer", writes=(TensorClass("parameters", 0.0),))
"""No work: a stream waits for what it reads, such as the parameters of the next step."""
NORM = TensorClass("norm", 4.0)
LOCAL_NORM = Work("gradients.norm", Kind.COMP, "norm", "optimizer", writes=(NORM,))
"""The norm of a rank's gradients. The optimizer's kernels read the gradients for it, so it has no price."""


def norm_works(start: int, tensor: int, peers: int, width: int, pipeline: int) -> tuple[Work, ...]:
    """How the ranks of a stage learn the norm of all gradients, by which an optimizer clips them [1211.5063].

    `peers` from rank `start` on hold all gradients of a stage of `width` ranks. One number is summed over
    them, then over the stages; DeepSpeed does the same, Megatron-LM sums once over both groups. A single
    rank, or replicas with whole gradients, know the norm without.
    """
    if peers * pipeline == 1:
        return ()
    works = [LOCAL_NORM]
    if peers > 1:
        works = [_sum_of_norms("tensor" if peers == tensor else "data", RankGroup(start, 1, peers))]
    if pipeline > 1:
        works.append(_sum_of_norms("pipeline", RankGroup(0, width, pipeline)))
    return tuple(works)


def _sum_of_norms(axis: str, ranks: RankGroup) -> Work:
    return collective(axis, "all_reduce", NORM.n_bytes, ranks, NORM, name=LOCAL_NORM.name)


def layers_per_bucket(recipe: Recipe, layer_parameters: Floats, zero_stage: Ints) -> Ints:
    """Number of layers whose gradients fill a bucket; 1 under ZeRO 2 and 3, and without buckets."""
    stack = recipe.runtime.stack
    bucket_bytes = recipe.runtime.grad_bucket if stack is None else stack.grad_bucket
    if bucket_bytes is None:
        return np.ones_like(zero_stage)
    of_a_layer = np.maximum(layer_parameters, 1.0)  # an empty virtual stage has none
    layers = np.ceil(bucket_bytes / (of_a_layer * state_bytes(recipe).gradients))
    return np.where(zero_stage >= GRADIENTS_SHARDED, 1, np.maximum(1, layers)).astype(np.int64)


def has_owners(runtime: Runtime) -> bool:
    """Whether a rank owns whole tensors under ZeRO 1, and broadcasts them."""
    states = runtime.states if runtime.stack is None else runtime.stack.states
    return states == "owner_broadcast"
