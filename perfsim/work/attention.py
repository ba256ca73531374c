"""An attention block whose positions are shared by context ranks: what they exchange, and what that adds.

Ring [2310.01889]: every rank has 1 / c of the positions, and keys and values go around the ranks. With causal
attention a rank has one part from each end of the sequence, so that all blocks have equal work
(Megatron-Core). All-to-all [2309.14509, Ulysses]: before and after attention, ranks exchange heads against
positions.
"""

from __future__ import annotations

from collections.abc import Callable

from perfsim.work.kernels import (
    Kernel,
    LayerSlice,
    elementwise,
    gemm,
    linear,
    linear_backward,
    linear_dgrad,
    linear_wgrad,
    norm,
    norm_backward,
    norm_dgrad,
    norm_wgrad,
    residual_backward,
)

# The attention block: projections, plain or through latents, and its core with or without a window.
#
# Latent attention [2405.04434] as Megatron-Core trains it: queries go down to a latent, through a norm and
# up
# to all heads; keys and values likewise, from a common latent, with a rotary part of the keys for all
# heads.
# The products down are not divided over tensor ranks; under sequence parallelism each rank has its tokens.

QUERIES_KEYS = 1
VALUES = 1
"""Products of the core's forward over the width of a query head, and over that of a value head."""
QUERIES_KEYS_BACKWARD = 3
VALUES_BACKWARD = 2
"""The same of its backward, which computes the scores again."""


def projections(part: LayerSlice) -> tuple[Kernel, ...]:
    """The products before the core, in the order of a forward: one of QKV, or those of latents."""
    model = part.model
    size = part.element_bytes
    latent = part.model.latent_attention
    if latent is None:
        width = model.query_width + part.pair_width
        return (linear("qkv", part.tokens, model.hidden_size, width, "column", part.tensor, size),)
    own = max(1, part.tokens // part.norm_share)
    rank = latent.q_lora_rank
    heads = model.num_attention_heads
    down = latent.kv_lora_rank + latent.qk_rope_head_dim
    up = heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    queries: tuple[Kernel, ...] = (
        linear(
            "query", part.tokens, rank or model.hidden_size, model.query_width, "column", part.tensor, size
        ),
    )
    if rank is not None:
        queries = (linear("query_down", own, model.hidden_size, rank, element_bytes=size), *queries)
    return (
        *queries,
        linear("pair_down", own, model.hidden_size, down, element_bytes=size),
        linear("pair", part.tokens, latent.kv_lora_rank, up, "column", part.tensor, size),
    )


def output_projection(part: LayerSlice) -> Kernel:
    """The product after the core."""
    model = part.model
    width = model.attention_width
    hidden = model.hidden_size
    return linear("projection", part.tokens, width, hidden, "row", part.tensor, part.element_bytes)


def inner_norm_bytes(part: LayerSlice) -> float:
    """Bytes of what norms inside the attention block read: latents, or queries and keys; 0 without one."""
    model = part.model
    latent = part.model.latent_attention
    width = 0.0
    if latent is not None:
        width += ((latent.q_lora_rank or 0) + latent.kv_lora_rank) / part.norm_share
    if model.qk_layernorm:
        width += (model.query_width + part.kv_size) / part.tensor
    return part.element_bytes * part.tokens * width


def _inner_norms(part: LayerSlice, name: str, passes: int) -> tuple[Kernel, ...]:
    n_bytes = inner_norm_bytes(part)
    return (elementwise(name, passes * n_bytes, launches=2),) if n_bytes else ()


def attention_core(part: LayerSlice) -> tuple[Kernel, ...]:
    """Scores, softmax, dropout and context; with flash attention a single kernel for each block of keys."""
    if part.attention == "flash":
        return (_flash("flash_attention", part, QUERIES_KEYS, VALUES),) * part.blocks
    heads = _local_heads(part)
    s = part.seq_length
    d = part.model.head_size
    v = part.model.value_size
    scores = float(heads) * s * s
    size = part.element_bytes
    return (
        gemm("scores", s, s, d, batch=heads, element_bytes=size),
        elementwise("softmax", 2 * size * scores),
        *((elementwise("attention_dropout", (2 * size + 1) * scores),) if part.dropout else ()),
        gemm("context", s, v, s, batch=heads, element_bytes=size),
        _heads_to_tokens("context_transpose", part),
    )


def _heads_to_tokens(name: str, part: LayerSlice) -> Kernel:
    """Transpose the context from one matrix per head to one row per token, or its gradient back."""
    return elementwise(name, 2 * part.element_bytes * part.tokens * part.model.attention_width / part.tensor)


def attention_core_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of the attention core: twice the matrix work, more for flash (recomputes scores)."""
    if part.attention == "flash":
        kernel = _flash("flash_attention.backward", part, QUERIES_KEYS_BACKWARD, VALUES_BACKWARD)
        return (kernel,) * part.blocks
    heads = _local_heads(part)
    s = part.seq_length
    d = part.model.head_size
    v = part.model.value_size
    scores = float(heads) * s * s
    size = part.element_bytes
    return (
        _heads_to_tokens("context_transpose.backward", part),
        gemm("context.dgrad_probabilities", s, s, v, batch=heads, element_bytes=size),
        gemm("context.dgrad_values", s, v, s, batch=heads, element_bytes=size),
        *((elementwise("attention_dropout.backward", (2 * size + 1) * scores),) if part.dropout else ()),
        elementwise("softmax.backward", 3 * size * scores),
        gemm("scores.dgrad_queries", s, d, s, batch=heads, element_bytes=size),
        gemm("scores.dgrad_keys", s, d, s, batch=heads, element_bytes=size),
    )


def _local_heads(part: LayerSlice) -> int:
    """Attention heads of one rank times micro-batch size: the batch of a score GEMM."""
    return part.micro_batch_size * part.model.num_attention_heads // part.tensor


def _seen_share(part: LayerSlice) -> float:
    """Share of all pairs of positions that attention scores: 1/2 under a causal mask, less with a window.

    In a window of w of s positions a position sees min(w, its own number): (w s - w^2 / 2) / s^2.
    """
    if not part.model.causal:
        return 1.0
    share = min(1.0, (part.kind.window or part.seq_length) / part.seq_length)
    return share - 0.5 * share**2


def _flash(name: str, part: LayerSlice, queries_keys: int, values: int) -> Kernel:
    """Flash attention: products of s x s x d per head, for the pairs that the mask leaves.

    Context ranks have s / c positions of all heads, or all positions of a c-th of the heads. The first have
    positions from both ends of the sequence, so under a causal mask too all blocks are equal; under a window
    the blocks far from the diagonal are empty, and the mean of all blocks is taken.
    """
    heads = _local_heads(part)
    s = part.seq_length // part.blocks
    model = part.model
    heads = heads * part.blocks // part.context
    width = queries_keys * model.head_size + values * model.value_size
    keys = s if part.attention_length is None else part.attention_length
    return Kernel(
        name=name,
        op="attention",
        flop=2.0 * heads * s * keys * width * _seen_share(part),
        bytes_accessed=2 * part.element_bytes * heads * s * width,  # scores stay on chip
        m=s,
        n=keys,
        k=model.head_size,
        batch=heads,
        element_bytes=part.element_bytes,
    )


def attention_forward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Layer norm, projections, core and output projection (before the tensor-parallel all-reduce)."""
    return (
        norm("attention_norm", part),
        *projections(part),
        *_inner_norms(part, "inner_norms", 2),
        *_rotary(part),
        *attention_core(part),
        output_projection(part),
    )


def _join_gradients(part: LayerSlice) -> Kernel:
    """Concatenation of the gradients of queries, keys and values, which the QKV linear reads."""
    width = part.model.query_width + part.pair_width
    return elementwise("qkv.join_gradients", 2 * part.element_bytes * part.tokens * width / part.tensor)


def _rotary(part: LayerSlice) -> tuple[Kernel, ...]:
    """Rotation of queries and keys, if positions are rotary; latent attention writes its keys whole."""
    if part.model.position_embedding != "rotary":
        return ()
    width = part.model.query_width + part.kv_size
    return (elementwise("rotary", 2 * part.element_bytes * part.tokens * width / part.tensor, launches=2),)


def _backward(
    part: LayerSlice, gradients: Callable[[Kernel], tuple[Kernel, ...]], inner_passes: int
) -> tuple[Kernel, ...]:
    """The backward up to the block's norm, with these gradients of every product."""
    return (
        residual_backward("attention_residual.backward", part),
        *gradients(output_projection(part)),
        *attention_core_backward(part),
        *_rotary(part),
        _join_gradients(part),
        *_inner_norms(part, "inner_norms.backward", inner_passes),
        *(kernel for product in reversed(projections(part)) for kernel in gradients(product)),
    )


def attention_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Backward of the attention block, residual first."""
    grad = part.main_grad_bytes
    bias = part.model.has_attention_bias
    return (
        *_backward(part, lambda product: linear_backward(product, grad, bias), 5),
        norm_backward("attention_norm.backward", part),
    )


def attention_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradient of the attention block's input, with the whole backward of the attention core."""
    return (
        *_backward(part, lambda product: (linear_dgrad(product),), 3),
        norm_dgrad("attention_norm.dgrad", part),
    )


def attention_wgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of the attention block's weights, biases and norms, accumulated."""
    grad = part.main_grad_bytes
    bias = part.model.has_attention_bias
    products = (output_projection(part), *reversed(projections(part)))
    return (
        *(kernel for product in products for kernel in linear_wgrad(product, grad, bias)),
        *_inner_norms(part, "inner_norms.wgrad", 2),
        norm_wgrad("attention_norm.wgrad", part),
    )


def query_bytes(part: LayerSlice) -> float:
    """Bytes of the queries of one rank, or of their gradients."""
    return part.element_bytes * part.tokens * part.model.query_width / part.tensor


def context_bytes(part: LayerSlice) -> float:
    """Bytes of what the core of attention makes on one rank, or of its gradient."""
    return part.element_bytes * part.tokens * part.model.attention_width / part.tensor


def pair_bytes(part: LayerSlice) -> float:
    """Bytes of the keys and values of one rank, or of their gradients."""
    return part.element_bytes * part.tokens * part.pair_width / part.tensor


def exchange_buffer_bytes(part: LayerSlice) -> float:
    """Bytes of buffers for what context ranks exchange.

    Ring: in the backward, keys, values and their gradients that arrive and that are in use. All-to-all:
    queries, keys and values as they arrive.
    """
    if part.context == 1:
        return 0.0
    if part.context_exchange == "ring":
        return 4 * pair_bytes(part)
    return query_bytes(part) + pair_bytes(part)


def merge_kernel(part: LayerSlice) -> Kernel:
    """Adds the result of a block to that of the earlier ones, rescaled by their softmax sums."""
    return elementwise("attention_merge", 3 * context_bytes(part))


def merge_backward_kernel(part: LayerSlice) -> Kernel:
    """Adds a block's gradients of queries, keys and values to those of the earlier ones."""
    return elementwise("attention_merge.backward", 3 * (query_bytes(part) + pair_bytes(part)), launches=2)


def around_core(
    kernels: tuple[Kernel, ...], core: tuple[Kernel, ...]
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """The kernels of an attention block before and after those of its core."""
    first = next(start for start in range(len(kernels)) if kernels[start : start + len(core)] == core)
    return kernels[:first], kernels[first + len(core) :]
