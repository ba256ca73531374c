"""Expert parallelism: ranks of a stage hold different experts, and exchange the rows that experts compute.

A token is routed to k of the experts; its rows travel to the ranks that hold them and back, forward and
backward [2006.16668, 2101.03961]. Experts are divided over the ranks of tensor, context and data groups alike
(Megatron-Core), which therefore hold fewer copies of them than of the rest. Three dispatchers move rows:

- all_to_all: every rank sends each of its rows once, k for a token;
- deepep: one copy of a token to every rank that holds some of its experts, and one to every node between
  nodes (DeepEP, HybridEP);
- all_gather: every rank gets the tokens of all ranks, and results are reduce-scattered.

Ranks that share an expert (expert tensor parallelism) gather one another's rows before it, and reduce-scatter
what it makes of them. Compute waits while rows travel, but for shared experts next to an all-to-all: for
other dispatchers Megatron-Core has no `moe_shared_expert_overlap`. Tensor ranks divide shared experts, gather
tokens before them and reduce-scatter what they make.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from perfsim.specs.calibration import HIDES_SHARED, Dispatcher
from perfsim.specs.layout import RECOMPUTED, Recompute
from perfsim.strategies.three_d.data import collective
from perfsim.strategies.three_d.layers import Backward, Forward, Half, Made, TensorGroup, compute_work
from perfsim.work import WAIT_OF_EXPERTS, RankGroup, TensorClass, Work
from perfsim.work.builder import InBlock
from perfsim.work.counts import layer_activation_bytes, mlp_weight_input_bytes
from perfsim.work.kernels import LayerSlice
from perfsim.work.layer import APART, ExpertStage, expert_kernels, mlp_recompute, mlp_residual

EXPERT_STREAM = "nccl-experts"
HOST_STREAM = "host"
Which = Forward | Backward


class _ExpertWorks(NamedTuple):
    """The compute of a block with experts in parts, in the order of a pass."""

    begin: Work
    """Up to the rows that leave: norm, router and permutation, or in a backward the gradients of rows.

    Where tensor ranks divide shared experts, it also writes the tokens or gradients that they gather.
    """
    shared: Work | None
    experts: Work
    """The rank's experts on the rows that arrived."""
    end: Work
    """Rows that came back summed to tokens, and in a backward what comes before them."""


_PASS: dict[Which, Literal["forward", "backward", "dgrad"]] = {
    "forward": "forward",
    "recompute": "forward",
    "backward": "backward",
    "dgrad": "dgrad",
}


@lru_cache(maxsize=4096)
def _expert_works(part: LayerSlice, which: Which, recompute: Recompute = "none") -> _ExpertWorks:
    """The compute of a block with experts; `recompute` decides what its forward keeps."""
    begin, shared, end = _around_experts(replace(part, expert=1, expert_tensor=1, expert_load=1.0), which)
    made = [TensorClass("rows", part.row_bytes)]
    if which == "dgrad":
        made.append(TensorClass("weight_inputs", mlp_weight_input_bytes(part)))
    if which == "forward":
        saved = TensorClass("saved", layer_activation_bytes(part, recompute))
        end = replace(end, writes=(*end.writes, saved))
    experts = compute_work("experts", which, expert_kernels(part, _PASS[which], "experts"), *made)
    return _ExpertWorks(begin, shared, experts, end)


@lru_cache(maxsize=512)
def _around_experts(part: LayerSlice, which: Which) -> tuple[Work, Work | None, Work]:
    """The begin of a block, its shared experts (None without any) and its end; `part` has all experts.

    A recompute runs no LM head of multi-token prediction again.
    """
    routed = replace(part, kind=replace(part.kind, mtp=False)) if which == "recompute" else part
    named = _PASS[which]
    order: tuple[ExpertStage, ExpertStage] = ("router", "combine")
    begin, end = order if named == "forward" else order[::-1]
    hidden = TensorClass("hidden", part.activation_bytes)
    shared = expert_kernels(part, named, "shared")
    leaving = [TensorClass("rows", part.row_bytes)]
    if shared and part.tensor > 1:
        leaving.append(TensorClass("tokens", part.activation_bytes / part.tensor))
    last = (*expert_kernels(routed, named, end), *(mlp_residual(part) if which == "forward" else ()))
    return (
        compute_work(begin, which, expert_kernels(routed, named, begin), *leaving),
        compute_work("shared_experts", which, shared, hidden) if shared else None,
        compute_work(end, which, last, hidden),
    )


@dataclass(frozen=True)
class ExpertGroup(Half):
    """The experts of a layer, divided over ranks, seen from one of them; a rank routes its own positions."""

    name = "experts"
    divided = True
    ranks: RankGroup
    """Ranks with different experts."""
    shares: RankGroup
    """Ranks that share every expert."""
    group: TensorGroup
    """Ranks that divide shared experts."""
    dispatcher: Dispatcher = "all_to_all"
    waits: bool = False
    """Whether the host has work in every pass, once it knows how many rows go where."""
    joins: bool = False
    """Whether rows travel while another pass computes."""

    @cached_property
    def repeats(self) -> bool:
        return self.repeats_whole or bool(self.again)

    @property
    def repeats_whole(self) -> bool:
        """Whether the recompute mode sends rows to the experts again."""
        return "moe" in RECOMPUTED[self.mode]

    @cached_property
    def again(self) -> list[Work]:
        """The norm and the activation of experts, where the recompute mode runs them by themselves."""
        kernels = () if self.repeats_whole else mlp_recompute(self.part, self.mode)
        rows = TensorClass("rows", self.part.row_bytes)
        return [compute_work(APART[kernel.name][1], "recompute", (kernel,), rows) for kernel in kernels]

    @cached_property
    def to_experts(self) -> list[Work]:
        """The communication of rows from their tokens' ranks to the experts' ranks; none inside one rank."""
        return [*self._exchange("dispatch", "all_gather"), *self._shared("all_gather")]

    @cached_property
    def from_experts(self) -> list[Work]:
        """The communication of what experts made of the rows, back to the ranks of tokens."""
        return [*self._shared("reduce_scatter"), *self._exchange("combine", "reduce_scatter")]

    def parts(self, which: Which) -> _ExpertWorks:
        return _expert_works(self.part, which, self.mode)

    @property
    def hides_shared(self) -> bool:
        """Whether shared experts, if there are any, compute while rows travel."""
        return self.dispatcher == HIDES_SHARED

    def shared_works(self, which: Which) -> list[Work]:
        """Shared experts between the collectives of the ranks that divide them; none in a layer without."""
        work = self.parts(which).shared
        if work is None:
            return []
        product = "shared_fc1" if which in ("forward", "recompute") else "shared_fc2.dgrad"
        return [*self.group.works("all_gather", product), work, *self.group.works("reduce_scatter")]

    def host_works(self, begin: Work) -> list[Work]:
        """What the host does next to the device, from the counts of rows to the end of the block."""
        done = TensorClass("launched", 0.0)
        return [replace(begin, name=WAIT_OF_EXPERTS, kernels=(), writes=(done,))] if self.waits else []

    def forward(self, at: InBlock, which: Forward, reads: Sequence[int]) -> Made:
        if which == "forward" or self.repeats_whole:
            return self._emit(at, which, reads)[0]
        done: list[int] = []
        for work in self.again:
            done.append(self._task(at, work, [*reads, *done]).output)
        return Made(done[-1], done[-1])

    def backward(self, at: InBlock, which: Backward, reads: Sequence[int], after: Sequence[int] = ()) -> Made:
        """Write the backward; its input gradients keep what the experts' weight gradients read."""
        end, experts = self._emit(at, which, reads, after)
        return Made(end.output, experts.kept)

    def _emit(
        self, at: InBlock, which: Which, reads: Sequence[int], after: Sequence[int] = ()
    ) -> tuple[Made, Made]:
        """Write a pass; returns what its last task makes, and what the experts make."""
        works = self.parts(which)
        apart = self.joins or (works.shared is not None and self.hides_shared)
        stream = f"{self.device}/{EXPERT_STREAM}" if apart else self.compute
        begun = self._task(at, works.begin, reads, after)
        first = rows = begun.output
        host = f"{self.device}/{HOST_STREAM}"
        waits = [at.task(work, host, [first]) for work in self.host_works(works.begin)]
        for work in self.to_experts:
            rows = at.task(work, stream, [rows])
        shared: list[int] = []
        for work in self.shared_works(which):
            shared = [self._task(at, work, shared or [begun.kept]).output]
        made = self._task(at, works.experts, [rows, *reads])
        rows = made.output
        for work in self.from_experts:
            rows = at.task(work, stream, [rows])
        return self._task(at, works.end, [rows, *reads, *shared, *waits]), made

    def _exchange(self, name: str, op: str) -> list[Work]:
        """Rows to ranks with other experts or back: `op` where all ranks get all tokens, else all-to-all."""
        n_bytes = self.part.row_bytes
        copies = self.part.experts.top_k
        if self.dispatcher == "all_gather":
            return self._moves(name, op, n_bytes * (self.ranks.size / copies), self.ranks)
        return self._moves(
            name, "all_to_all", n_bytes, self.ranks, copies if self.dispatcher == "deepep" else 1
        )

    def _shared(self, op: str) -> list[Work]:
        return self._moves(op, op, self.part.row_bytes * self.shares.size, self.shares)

    def _moves(self, name: str, op: str, n_bytes: float, ranks: RankGroup, fan_out: int = 1) -> list[Work]:
        """The communication of rows over ranks; none in a group of one."""
        sent_bytes = n_bytes * self.part.expert_load
        made = TensorClass("rows", n_bytes)
        work = collective("expert", op, sent_bytes, ranks, made, name=f"experts.{name}", fan_out=fan_out)
        return [work] if ranks.size > 1 else []
