"""Kernels of one layer by shape: what one rank runs per micro-batch with tensor parallelism `tensor`.

Kernels hold work (FLOPs and bytes), never seconds.
Symbols: b micro-batch, s sequence length, h hidden size, a heads, t tensor degree, T = b s tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfsim.calibration import Fusion
from perfsim.hardware import Precision
from perfsim.workload import Attention, ContextExchange, KernelPrecisions, TransformerConfig

Partition = Literal["none", "column", "row", "streamed"]

HALF = 2.0
"""Bytes of an fp16 or bf16 number."""
FULL = 4.0
"""Bytes of an fp32 number."""


@dataclass(frozen=True, slots=True)
class Kernel:
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
    recompute_stops_early: bool = False
    """Recompute of a layer stops at the last tensor that its backward reads, so it skips its last linear."""
    context: int = 1
    """Ranks that share every sequence."""
    context_exchange: ContextExchange = "ring"

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
        """Width of all keys, which is that of all values."""
        return self.model.query_groups * self.model.head_size

    @property
    def norm_share(self) -> int:
        """Ranks that share layer norms and dropouts: t with sequence parallelism, else 1."""
        return self.tensor if self.sequence_parallel else 1


def linear(
    name: str,
    tokens: int,
    n_in: int,
    n_out: int,
    partition: Partition = "none",
    parts: int = 1,
    element_bytes: float = HALF,
) -> Kernel:
    """Forward GEMM of a linear layer partitioned over `parts` ranks: (tokens, k) x (k, n)."""
    k = n_in // parts if partition == "row" else n_in
    n = n_out // parts if partition == "column" else n_out
    return gemm(name, tokens, n, k, partition=partition, parts=parts, element_bytes=element_bytes)


def gemm(
    name: str,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    partition: Partition = "none",
    parts: int = 1,
    weight_gradient: bool = False,
    element_bytes: float = HALF,
) -> Kernel:
    """A GEMM: 2 m n k FLOPs per batch entry, each operand moved once."""
    return Kernel(
        name=name,
        op="gemm",
        flop=2.0 * m * n * k * batch,
        bytes_accessed=element_bytes * batch * (m * k + k * n + m * n),
        m=m,
        n=n,
        k=k,
        batch=batch,
        partition=partition,
        parts=parts,
        weight_gradient=weight_gradient,
        element_bytes=element_bytes,
    )


def elementwise(name: str, n_bytes: float, launches: int = 1) -> Kernel:
    """A memory-bound kernel that reads and writes `n_bytes` in all."""
    return Kernel(name=name, op="elementwise", bytes_accessed=n_bytes, launches=launches)


def linear_dgrad(forward: Kernel) -> Kernel:
    """Input gradient of a linear layer."""
    return gemm(
        f"{forward.name}.dgrad",
        forward.m,
        forward.k,
        forward.n,
        partition=forward.partition,
        parts=forward.parts,
        element_bytes=forward.element_bytes,
    )


def linear_wgrad(forward: Kernel, main_grad_bytes: float, bias: bool) -> tuple[Kernel, ...]:
    """Weight and bias gradients, and their addition to the accumulated main gradients."""
    m, n, k = forward.m, forward.n, forward.k
    cut, parts, size = forward.partition, forward.parts, forward.element_bytes
    return (
        gemm(
            f"{forward.name}.wgrad",
            k,
            n,
            m,
            partition=cut,
            parts=parts,
            weight_gradient=True,
            element_bytes=size,
        ),
        *((elementwise(f"{forward.name}.bias_gradient", size * m * n),) if bias else ()),
        elementwise(
            # Reads the new gradient, reads and writes the accumulated one.
            f"{forward.name}.accumulate",
            n * k * (size + 2 * main_grad_bytes),
            launches=2 if bias else 1,
        ),
    )


def linear_backward(forward: Kernel, main_grad_bytes: float, bias: bool) -> tuple[Kernel, ...]:
    """Input gradient, weight and bias gradients, and their addition to the accumulated main gradients."""
    return (linear_dgrad(forward), *linear_wgrad(forward, main_grad_bytes, bias))


def norm(name: str, part: LayerSlice) -> Kernel:
    """A norm: one read, one write."""
    return elementwise(name, 2 * part.activation_bytes / part.norm_share)


def norm_backward(name: str, part: LayerSlice) -> Kernel:
    """Input gradient in one kernel; scale and shift in others, which read input and output gradient again."""
    return elementwise(name, 5 * part.activation_bytes / part.norm_share, launches=4)


def _residual(name: str, part: LayerSlice) -> Kernel:
    """Bias, dropout and residual in one kernel: two reads, one write, one mask byte."""
    bytes_per_element = 3 * part.element_bytes + (1.0 if part.dropout else 0.0)
    return elementwise(name, bytes_per_element * part.activation_elements / part.norm_share)


def residual_backward(name: str, part: LayerSlice) -> Kernel:
    """Backward of dropout (read, mask, write); sum of both branches' gradients (two reads, a write)."""
    size = part.element_bytes
    bytes_per_element = 3 * size + (2 * size + 1.0 if part.dropout else 0.0)
    launches = 2 if part.dropout else 1
    return elementwise(
        name, bytes_per_element * part.activation_elements / part.norm_share, launches=launches
    )


def attention_projections(part: LayerSlice) -> tuple[Kernel, Kernel]:
    """The linear layers of the attention block: QKV and output projection."""
    model, size = part.model, part.element_bytes
    qkv_out = model.hidden_size + 2 * part.kv_size
    return (
        linear("qkv", part.tokens, model.hidden_size, qkv_out, "column", part.tensor, size),
        linear("projection", part.tokens, model.hidden_size, model.hidden_size, "row", part.tensor, size),
    )


def attention_core(part: LayerSlice) -> tuple[Kernel, ...]:
    """Scores, softmax, dropout and context; with flash attention a single kernel for each block of keys."""
    if part.attention == "flash":
        return (_flash("flash_attention", part, matmuls=2),) * part.blocks
    heads, s, d = _local_heads(part), part.seq_length, part.model.head_size
    scores, size = float(heads) * s * s, part.element_bytes
    return (
        gemm("scores", s, s, d, batch=heads, element_bytes=size),
        elementwise("softmax", 2 * size * scores),
        *((elementwise("attention_dropout", (2 * size + 1) * scores),) if part.dropout else ()),
        gemm("context", s, d, s, batch=heads, element_bytes=size),
        _heads_to_tokens("context_transpose", part),
    )


def _heads_to_tokens(name: str, part: LayerSlice) -> Kernel:
    """Transpose the context from one matrix per head to one row per token, or its gradient back."""
    return elementwise(name, 2 * part.activation_bytes / part.tensor)


def attention_core_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of the attention core: twice the matrix work, more for flash (recomputes scores)."""
    if part.attention == "flash":
        return (_flash("flash_attention.backward", part, matmuls=5),) * part.blocks
    heads, s, d = _local_heads(part), part.seq_length, part.model.head_size
    scores, size = float(heads) * s * s, part.element_bytes
    return (
        _heads_to_tokens("context_transpose.backward", part),
        gemm("context.dgrad_probabilities", s, s, d, batch=heads, element_bytes=size),
        gemm("context.dgrad_values", s, d, s, batch=heads, element_bytes=size),
        *((elementwise("attention_dropout.backward", (2 * size + 1) * scores),) if part.dropout else ()),
        elementwise("softmax.backward", 3 * size * scores),
        gemm("scores.dgrad_queries", s, d, s, batch=heads, element_bytes=size),
        gemm("scores.dgrad_keys", s, d, s, batch=heads, element_bytes=size),
    )


def _local_heads(part: LayerSlice) -> int:
    """Attention heads of one rank times micro-batch size: the batch of a score GEMM."""
    return part.micro_batch_size * part.model.num_attention_heads // part.tensor


def _flash(name: str, part: LayerSlice, matmuls: int) -> Kernel:
    """Flash attention: `matmuls` products of s x s x d per head, half of each under a causal mask.

    Context ranks have s / c positions of all heads, or all positions of a c-th of the heads. The first have
    positions from both ends of the sequence, so under a causal mask too all blocks are equal.
    """
    heads, s, d = _local_heads(part), part.seq_length // part.blocks, part.model.head_size
    heads = heads * part.blocks // part.context
    seen = 0.5 if part.model.causal else 1.0
    keys = s if part.attention_length is None else part.attention_length
    return Kernel(
        name=name,
        op="attention",
        flop=matmuls * 2.0 * heads * s * keys * d * seen,
        bytes_accessed=2 * matmuls * part.element_bytes * heads * s * d,  # scores stay on chip
        m=s,
        n=keys,
        k=d,
        batch=heads,
        element_bytes=part.element_bytes,
    )


def attention_forward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Layer norm, QKV, core and output projection (before the tensor-parallel all-reduce)."""
    qkv, projection = attention_projections(part)
    return (norm("attention_norm", part), qkv, *rotary(part), *attention_core(part), projection)


def join_gradients(part: LayerSlice) -> Kernel:
    """Concatenation of the gradients of queries, keys and values, which the QKV linear reads."""
    width = part.model.hidden_size + 2 * part.kv_size
    return elementwise("qkv.join_gradients", 2 * part.element_bytes * part.tokens * width / part.tensor)


def rotary(part: LayerSlice) -> tuple[Kernel, ...]:
    """Rotation of queries and keys, if positions are rotary."""
    if part.model.position_embedding != "rotary":
        return ()
    width = part.model.hidden_size + part.kv_size
    return (elementwise("rotary", 2 * part.element_bytes * part.tokens * width / part.tensor, launches=2),)


def attention_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Backward of the attention block, residual first."""
    qkv, projection = attention_projections(part)
    return (
        residual_backward("attention_residual.backward", part),
        *linear_backward(projection, part.main_grad_bytes, part.model.has_attention_bias),
        *attention_core_backward(part),
        *rotary(part),
        join_gradients(part),
        *linear_backward(qkv, part.main_grad_bytes, part.model.has_attention_bias),
        norm_backward("attention_norm.backward", part),
    )


def mlp_linears(part: LayerSlice) -> tuple[Kernel, Kernel]:
    """The linear layers of the MLP."""
    model = part.model
    width, size = (2 if model.gated_mlp else 1) * model.ffn_hidden_size, part.element_bytes
    return (
        linear("fc1", part.tokens, model.hidden_size, width, "column", part.tensor, size),
        linear("fc2", part.tokens, model.ffn_hidden_size, model.hidden_size, "row", part.tensor, size),
    )


def activation(name: str, part: LayerSlice, passes: int) -> Kernel:
    """GELU (or SwiGLU) in one kernel: `passes` reads and writes of the ffn activations."""
    gate = 1.5 if part.model.gated_mlp else 1.0
    elements = part.tokens * part.model.ffn_hidden_size / part.tensor
    return elementwise(name, passes * gate * part.element_bytes * elements)


def mlp_forward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Residual of the attention block, layer norm, and both linears of the MLP."""
    return (*_mlp_before_fc2(part), mlp_linears(part)[1])


def mlp_recompute(part: LayerSlice) -> tuple[Kernel, ...]:
    """The part of the MLP block that is recomputed before its backward."""
    if part.recompute_stops_early:
        return _mlp_before_fc2(part)
    return (*mlp_forward(part), *mlp_residual(part))


def _mlp_before_fc2(part: LayerSlice) -> tuple[Kernel, ...]:
    return (
        _residual("attention_residual", part),
        *_mlp_norm(part),
        mlp_linears(part)[0],
        activation("activation", part, 2),
    )


def mlp_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Backward of the MLP block, residual first."""
    fc1, fc2 = mlp_linears(part)
    return (
        residual_backward("mlp_residual.backward", part),
        *linear_backward(fc2, part.main_grad_bytes, part.model.bias),
        activation("activation.backward", part, 3),
        *linear_backward(fc1, part.main_grad_bytes, part.model.bias),
        *_mlp_norm_backward(part),
    )


def _mlp_norm(part: LayerSlice) -> tuple[Kernel, ...]:
    """The MLP's norm; none if it shares the norm of the attention block."""
    return (norm("mlp_norm", part),) if part.model.norms_per_layer > 1 else ()


def _mlp_norm_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    return (norm_backward("mlp_norm.backward", part),) if part.model.norms_per_layer > 1 else ()


def mlp_residual(part: LayerSlice) -> tuple[Kernel, ...]:
    """Bias, dropout and residual after the MLP's tensor-parallel all-reduce."""
    return (_residual("mlp_residual", part),)
