"""Kernels by shape, and the share of a layer that one rank computes for one micro-batch.

Kernels hold work (FLOPs and bytes), never seconds.
Symbols: b micro-batch, s sequence length, h hidden size, a heads, t tensor degree, T = b s tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from perfsim.specs.calibration import Fusion, Selective
from perfsim.specs.layout import ContextExchange, Recompute
from perfsim.specs.model import PLAIN, Experts, LayerKind, RecomputeKeeps, TransformerConfig
from perfsim.specs.precisions import Precision
from perfsim.specs.recipe import Job, KernelPrecisions
from perfsim.specs.runtime import Attention

Partition = Literal["none", "column", "row", "streamed"]

HALF = 2.0
"""Bytes of an fp16 or bf16 number."""
FULL = 4.0
"""Bytes of an fp32 number."""


class Kernel(NamedTuple):
    """One kernel on one rank: its FLOPs, the bytes it moves, and its matrix shape if it has one.

    A GEMM multiplies (m, k) by (k, n), `batch` times. `partition` is how its weight is partitioned over
    `parts` ranks: by columns, by rows, or streamed row by row.
    """

    name: str
    op: Literal["gemm", "attention", "elementwise"]
    flop: float = 0.0
    bytes_accessed: float = 0.0
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    partition: Partition = "none"
    parts: int = 1
    launches: int = 1
    """Kernels that the host launches for it."""
    weight_gradient: bool = False
    element_bytes: float = HALF
    """Bytes of one number of a matrix product's operands and result."""
    precision: Precision | None = None
    """Precision of the operands of a matrix product narrower than 16 bits; None: as `element_bytes` says."""
    grouped: bool = False
    """Whether each of its `batch` products is one expert's. `m` is the mean number of rows of an expert (`k`
    in a weight gradient), rounded up; FLOPs and bytes count the exact number."""
    biased: bool = False
    """Whether experts add biases to what it computes."""

    @property
    def has_weights(self) -> bool:
        """Whether a matrix product has weights; the products of attention's core have activations only."""
        return self.batch == 1 or self.grouped

    @property
    def weight_rows(self) -> int:
        """Rows of the weight of a linear layer, one for each of its outputs."""
        return self.k if self.name.endswith(".dgrad") else self.n

    def input_gradient(self) -> Kernel:
        """Input gradient of a linear layer with this forward: the same FLOPs and bytes."""
        return self._replace(name=f"{self.name}.dgrad", n=self.k, k=self.n)

    def weight_gradients(self, main_grad_bytes: float, *, bias: bool) -> tuple[Kernel, ...]:
        """Weight and bias gradients of a linear layer with this forward, added to the main gradients."""
        run = [self._replace(name=f"{self.name}.wgrad", m=self.k, k=self.m, weight_gradient=True)]
        if bias:
            n_bytes = self.element_bytes * self.m * self.n * self.batch
            run.append(elementwise(f"{self.name}.bias_gradient", n_bytes))
        # Reads the new gradient, reads and writes the accumulated one.
        n_bytes = self.n * self.k * self.batch * (self.element_bytes + 2 * main_grad_bytes)
        launches = (2 if bias else 1) * self.batch
        return (*run, elementwise(f"{self.name}.accumulate", n_bytes, launches))


@dataclass(frozen=True, slots=True)
class LayerSlice:
    """The share of one layer that one rank computes for one micro-batch."""

    model: TransformerConfig
    seq_length: int
    micro_batch_size: int
    tensor: int = 1
    sequence_parallel: bool = False
    attention: Attention = "standard"
    attention_length: int | None = None
    """Keys that fused attention computes for each position; None: all positions of a block."""
    main_grad_bytes: float = 4.0
    """Bytes of an accumulated gradient: 4 with fp32 main gradients, 2 in pure bf16."""
    element_bytes: float = HALF
    """Bytes of an activation, a weight or a gradient in a kernel: 2 in 16 bits, 4 in fp32 and tf32."""
    dropout: bool = True
    fused_cross_entropy: bool = False
    """Loss and its gradient in one kernel each."""
    fused: tuple[Fusion, ...] = ()
    """Kernels that the framework merges with others."""
    precisions: KernelPrecisions | None = None
    """What runs in fewer than 16 bits; None: nothing."""
    keeps: RecomputeKeeps = "nothing"
    """Results that full recompute keeps."""
    selective: Selective = "core"
    """What selective recompute runs again."""
    recompute_stops_early: bool = False
    """Recompute of a layer stops at the last tensor that its backward reads, so it skips its last linear."""
    context: int = 1
    """Ranks that share every sequence."""
    context_exchange: ContextExchange = "ring"
    """What these ranks exchange.

    Ring [2310.01889]: every rank has 1 / c of the positions, and keys and values go around the ranks. With
    causal attention a rank has one part from each end of the sequence, so all blocks have equal work
    (Megatron-Core). All-to-all [2309.14509, Ulysses]: before and after attention, ranks exchange heads
    against positions.
    """
    kind: LayerKind = PLAIN
    """Which of the model's layers it is a share of."""
    expert: int = 1
    """Ranks over which the experts of a layer are divided (expert parallelism)."""
    sends_tokens: bool = False
    """Whether tokens travel to experts as they are, and rows are made where they arrive (DeepEP)."""
    expert_tensor: int | None = None
    """Ranks that share every expert, each with a part of its width; None: as `tensor`."""
    expert_load: float = 1.0
    """Rows that the rank's experts compute over the mean of all ranks: 1 where routing is balanced."""

    def __hash__(self) -> int:
        """By what most slices of a search differ in, because works are cached by slice."""
        of_rank = self.tensor, self.context, self.expert, self.expert_tensor
        return hash((self.model.name, self.seq_length, self.micro_batch_size, self.kind, of_rank))

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, job: Job, kind: LayerKind = PLAIN) -> LayerSlice:
        """A whole layer of a kind for one sequence, as the recipe of a job and its runtime have it."""
        recipe = job.recipe
        runtime = recipe.runtime
        stack = runtime.stack
        return cls(
            job.model,
            recipe.seq_length,
            micro_batch_size=1,
            attention=runtime.attention,
            attention_length=runtime.attention_length,
            element_bytes=recipe.element_bytes,
            dropout=recipe.dropout,
            fused_cross_entropy=runtime.fused_cross_entropy,
            fused=() if stack is None else stack.fused,
            precisions=recipe.narrow_kernels,
            keeps=runtime.recompute_keeps,
            selective="core" if stack is None else stack.selective,
            kind=kind,
        )

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one rank: T = b s / c."""
        return self.micro_batch_size * self.seq_length // self.context

    @property
    def blocks(self) -> int:
        """Blocks of keys and values to which attention is computed one after the other."""
        return self.context if self.context_exchange == "ring" else 1

    @property
    def activation_elements(self) -> int:
        """Elements of one hidden activation tensor: s b h."""
        return self.tokens * self.model.hidden_size

    @property
    def activation_bytes(self) -> float:
        """One hidden activation tensor; what a stage sends to the next."""
        return self.element_bytes * self.activation_elements

    @property
    def kv_size(self) -> int:
        """Width of all keys."""
        return self.model.query_groups * self.model.head_size

    @property
    def pair_width(self) -> int:
        """Width of all keys and values together."""
        return self.model.query_groups * (self.model.head_size + self.model.value_size)

    @property
    def experts(self) -> Experts:
        """The experts of a layer that has some."""
        if not self.kind.experts:
            raise ValueError(f"a layer of kind {self.kind} of {self.model.name} has no experts")
        return self.model.given_experts()

    @property
    def local_heads(self) -> int:
        """Attention heads of one rank times micro-batch size: the batch of a score GEMM."""
        return self.micro_batch_size * self.model.num_attention_heads // self.tensor

    @property
    def query_bytes(self) -> float:
        """Bytes of the queries of one rank, or of their gradients."""
        return self.element_bytes * self.tokens * self.model.query_width / self.tensor

    @property
    def pair_bytes(self) -> float:
        """Bytes of the keys and values of one rank, or of their gradients."""
        return self.element_bytes * self.tokens * self.pair_width / self.tensor

    @property
    def context_bytes(self) -> float:
        """Bytes that the core of attention computes on one rank, or of their gradients."""
        return self.element_bytes * self.tokens * self.model.attention_width / self.tensor

    @property
    def exchange_buffer_bytes(self) -> float:
        """Bytes of buffers for what context ranks exchange."""
        if self.context == 1:
            return 0.0
        if self.context_exchange == "ring":
            # In the backward keys, values and their gradients that arrive and that are in use.
            return 4 * self.pair_bytes
        # Queries, keys and values as they arrive.
        return self.query_bytes + self.pair_bytes

    @property
    def routed_tokens(self) -> float:
        """Tokens that a rank routes: its share of the sequence under sequence parallelism."""
        return self.tokens / self.norm_share

    @property
    def row_bytes(self) -> float:
        """Bytes of the rows that a rank sends to experts: T k / t of the hidden size each."""
        return self.element_bytes * self.routed_tokens * self.experts.top_k * self.model.hidden_size

    @property
    def expert_split(self) -> int:
        """Ranks that share every expert."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def local_experts(self) -> int:
        return self.experts.num_experts // self.expert

    @property
    def expert_rows(self) -> float:
        """Rows that the experts of one rank compute: T k e / t with tensor degree e of experts, times load.

        Every rank routes T / t tokens to k experts (with t > 1 under sequence parallelism, else e = t); the
        e ranks that share an expert compute all rows of one another.
        """
        return self.tokens * self.experts.top_k * self.expert_split / self.tensor * self.expert_load

    def by_operator(self, recompute: Recompute) -> bool:
        """Whether a mode of recompute keeps the results of some operators and runs all others again."""
        return recompute == "selective" and self.selective == "every_second_product"

    def repeats_layer(self, recompute: Recompute) -> bool:
        """Whether a mode runs a layer again from its input on, and not modules by themselves."""
        return recompute == "full" or self.by_operator(recompute)

    @property
    def norm_share(self) -> int:
        """Ranks that share layer norms and dropouts: t with sequence parallelism, else 1."""
        return self.tensor if self.sequence_parallel else 1


def gemm(
    name: str, m: int, n: int, k: int, batch: int = 1, element_bytes: float = HALF, **also: Any
) -> Kernel:
    """A GEMM: 2 m n k FLOPs per batch entry, each operand moved once; `also` are further fields."""
    flop = 2.0 * m * n * k * batch
    n_bytes = element_bytes * batch * (m * k + k * n + m * n)
    return Kernel(name, "gemm", flop, n_bytes, m, n, k, batch, element_bytes=element_bytes, **also)


def elementwise(name: str, n_bytes: float, launches: int = 1) -> Kernel:
    """A memory-bound kernel that reads and writes `n_bytes` in all."""
    return Kernel(name=name, op="elementwise", bytes_accessed=n_bytes, launches=launches)
