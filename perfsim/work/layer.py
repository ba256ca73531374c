"""The kernels of a layer on one rank, by block and pass: attention, MLP or experts, embedding, LM head.

Blocks are written as eager PyTorch runs them, and returned as the framework runs them: `_as_run` merges fused
kernels and casts the operands of narrow products. A pass is the forward, the whole backward, or one half of a
split backward: `dgrad`, the gradients of inputs, or `wgrad`, the gradients of weights.

A block with experts comes whole (`mlp_kernels`) or in the stages between which rows move to experts and back
(`expert_kernels`). Forward: the router (residual, norm, scores, permutation of tokens to rows in the order of
experts), the dispatch to the ranks of the experts, the experts on the rows that arrived, the combination
back, and the weighted sum. Shared experts need no rows of others, so they can run while rows move. The
backward goes the other way. A rank routes T / t tokens to k experts and computes
`LayerSlice.expert_rows` rows.

A layer of multi-token prediction [2412.19437 2.2, as Megatron-Core runs it] begins with the embedding of a
later token and the hidden state, each through a norm, joined and projected from 2 h to h, and ends with the
model's LM head and loss once more. Embedding and head share the weights of the model.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from perfsim.specs.layout import RECOMPUTED, Recompute
from perfsim.specs.model import TransformerConfig
from perfsim.specs.precisions import PRECISIONS, Precision
from perfsim.work.kernels import FULL, Kernel, LayerSlice, Partition, elementwise, gemm

LayerPass = Literal["forward", "backward", "dgrad", "wgrad"]
Kernels = tuple[Kernel, ...]


# What all blocks are made of.


def _products(part: LayerSlice, which: LayerPass, bias: bool, *forward: Kernel) -> Iterator[Kernel]:
    for product in forward:
        if which == "forward":
            yield product
        if which in ("backward", "dgrad"):
            yield product.input_gradient()
        if which in ("backward", "wgrad"):
            yield from product.weight_gradients(part.main_grad_bytes, bias=bias)


def _linear(name: str, part: LayerSlice, n_in: int, n_out: int, partition: Partition, m: int = 0) -> Kernel:
    """A linear layer on m tokens of a rank, by default all: (m, k) x (k, n), divided over tensor ranks."""
    parts = 1 if partition == "none" else part.tensor
    k = n_in // parts if partition == "row" else n_in
    n = n_out // parts if partition == "column" else n_out
    return gemm(name, m or part.tokens, n, k, 1, part.element_bytes, partition=partition, parts=parts)


# Suffix, times that a norm reads or writes an activation, launches. The input gradient is one kernel. Those
# of scale and shift read input and output gradient again, are reduced in two kernels, and accumulated.
_NORM: dict[LayerPass, tuple[str, int, int]] = {
    "forward": ("", 2, 1),
    "backward": (".backward", 5, 4),
    "dgrad": (".dgrad", 3, 1),
    "wgrad": (".wgrad", 2, 3),
}


def _norm(name: str, part: LayerSlice, which: LayerPass) -> Kernel:
    suffix, passes, launches = _NORM[which]
    return elementwise(name + suffix, passes * part.activation_bytes / part.norm_share, launches=launches)


def _residual(name: str, part: LayerSlice) -> Kernel:
    """Bias, dropout and residual in one kernel: two reads, one write, one mask byte."""
    bytes_per_element = 3 * part.element_bytes + (1.0 if part.dropout else 0.0)
    return elementwise(name, bytes_per_element * part.activation_elements / part.norm_share)


def _residual_backward(name: str, part: LayerSlice) -> Kernel:
    """Backward of dropout (read, mask, write); sum of both branches' gradients (two reads, a write)."""
    size = part.element_bytes
    bytes_per_element = 3 * size + (2 * size + 1.0 if part.dropout else 0.0)
    n_bytes = bytes_per_element * part.activation_elements / part.norm_share
    return elementwise(name, n_bytes, launches=2 if part.dropout else 1)


# What a framework makes of a block.


def _as_run(eager: Iterable[Kernel], part: LayerSlice) -> Kernels:
    """The kernels of a block as the framework runs them: fused, and with narrow matrix products."""
    fused = (_fused(kernel, part) for kernel in eager) if part.fused else eager
    run = tuple(kernel for kernel in fused if kernel is not None)
    return run if part.precisions is None else tuple(cast for kernel in run for cast in _cast(kernel, part))


_NORM_BACKWARD_SHARE = 3.0 / 5.0
"""Passes of a fused norm's backward over the passes of an eager one."""


def _fused(kernel: Kernel, part: LayerSlice) -> Kernel | None:
    """The kernel as a framework with these fusions runs it; None where another kernel does its work.

    - accumulation: the weight gradient's product adds to the main gradient, which it reads and writes itself;
    - norm: one pass reads input and output gradient and writes the input gradient; scale and shift in a
      second;
    - qkv: gradients of queries, keys and values are written side by side, so nothing joins them.

    `_cast` has cast: the kernel that makes an operand also writes its narrow copies.
    """
    if "qkv" in part.fused and kernel.name == "qkv.join_gradients":
        return None
    if "norm" in part.fused and kernel.name.endswith("_norm.backward"):
        share = _NORM_BACKWARD_SHARE * kernel.bytes_accessed
        return kernel._replace(bytes_accessed=share, launches=2)
    if "accumulation" in part.fused and kernel.name.endswith(".accumulate"):
        summed = 2 * part.main_grad_bytes
        share = summed / (part.element_bytes + summed)
        return kernel._replace(bytes_accessed=share * kernel.bytes_accessed, launches=0)
    return kernel


def _cast(kernel: Kernel, part: LayerSlice) -> Iterator[Kernel]:
    """A product in its precision, after the cast of its first operand if that is narrower than 16 bits."""
    table = part.precisions
    # The router has the precision of activations and never a narrower one (Megatron-Core).
    if table is None or kernel.op != "gemm" or not kernel.has_weights or kernel.name.startswith(_ROUTER):
        yield kernel
        return
    if kernel.name.startswith("lm_head"):
        narrow = table.head
    elif kernel.weight_gradient:
        narrow = table.weight_gradient
    else:
        narrow = table.input_gradient if kernel.name.endswith(".dgrad") else table.forward
    size = PRECISIONS[narrow].bytes
    if size >= part.element_bytes:
        yield kernel
        return
    # The cast writes the transposed copy too, so the weight gradient reads what earlier products had cast.
    if not kernel.weight_gradient:
        numbers = kernel.m * kernel.k * kernel.batch
        if "cast" in part.fused:
            yield elementwise(f"{kernel.name}.cast", 2 * size * numbers, launches=0)
        else:
            yield cast_kernel(f"{kernel.name}.cast", numbers, narrow)
    moved = size * (kernel.m * kernel.k + kernel.k * kernel.n) * kernel.batch
    moved += kernel.element_bytes * kernel.m * kernel.n * kernel.batch
    yield kernel._replace(precision=narrow, bytes_accessed=moved)


def cast_kernel(name: str, numbers: float, precision: Precision, launches: int = 1) -> Kernel:
    """The cast of `numbers` numbers of 16 bits to two narrow copies, one of them transposed."""
    return elementwise(name, cast_bytes(precision) * numbers, launches)._replace(precision=precision)


def cast_bytes(precision: Precision) -> float:
    """Bytes per number of a cast of 16 bits to two narrow copies, one of them transposed."""
    # One pass reads the number and writes both copies; where the scale is computed from the numbers
    # themselves, they are read once more to find it.
    row = PRECISIONS[precision]
    return row.cast_reads_bytes + 2 * row.bytes


def gathered_bytes(part: LayerSlice, product: str) -> float:
    """Bytes of an activation that tensor ranks gather for a product: as cast for it, where that is narrower.

    Transformer Engine and torchao cast a rank's share before the ranks gather it.
    """
    table = part.precisions
    if table is None:
        return part.activation_bytes
    row = PRECISIONS[table.input_gradient if product.endswith(".dgrad") else table.forward]
    size = min(row.bytes, part.element_bytes) if row.is_gathered else part.element_bytes
    return size * part.activation_elements


# Attention: projections, plain or through latents, and the core with or without a window.
#
# Latent attention [2405.04434] as Megatron-Core trains it: queries go down to a latent, through a norm and up
# to all heads; keys and values likewise, from a common latent, with a rotary part of the keys for all heads.
# The products down are not divided over tensor ranks; under sequence parallelism each rank has its tokens.


def attention_kernels(part: LayerSlice, which: LayerPass) -> Kernels:
    """The attention block, before the tensor-parallel all-reduce; its backward begins with the residual."""
    bias = part.model.has_attention_bias
    *inputs, output = attention_products(part)
    norm = _norm("attention_norm", part, which)
    suffix, passes, _ = _NORM[which]
    n_bytes = inner_norm_bytes(part)
    inner_norms = [elementwise(f"inner_norms{suffix}", passes * n_bytes, launches=2)] if n_bytes else []
    joint = _joined_embedding(part, which) if part.kind.mtp else ()
    run: Iterable[Kernel]
    if which == "forward":
        run = (*joint, norm, *inputs, *inner_norms, *_rotary(part), *attention_core(part), output)
    elif which == "wgrad":
        run = (*_products(part, which, bias, output, *reversed(inputs)), *inner_norms, norm, *joint)
    else:
        # The QKV linear reads the gradients of queries, keys and values side by side.
        width = part.model.query_width + part.pair_width
        joined_bytes = 2 * part.element_bytes * part.tokens * width / part.tensor
        run = (
            _residual_backward("attention_residual.backward", part),
            *_products(part, which, bias, output),
            *attention_core(part, backward=True),
            *_rotary(part),
            elementwise("qkv.join_gradients", joined_bytes),
            *inner_norms,
            *_products(part, which, bias, *reversed(inputs)),
            norm,
            *joint,
        )
    return _as_run(run, part)


def attention_products(part: LayerSlice) -> Kernels:
    """The block's products with weights, in the order of a forward; the last follows the core."""
    model = part.model
    output = _linear("projection", part, model.attention_width, model.hidden_size, "row")
    latent = model.latent_attention
    if latent is None:
        width = model.query_width + part.pair_width
        return (_linear("qkv", part, model.hidden_size, width, "column"), output)
    tokens = max(1, part.tokens // part.norm_share)
    rank = latent.q_lora_rank
    down = latent.kv_lora_rank + latent.qk_rope_head_dim
    up = model.num_attention_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    query_inputs = rank or model.hidden_size
    queries: Kernels = (_linear("query", part, query_inputs, model.query_width, "column"),)
    if rank is not None:
        queries = (_linear("query_down", part, model.hidden_size, rank, "none", tokens), *queries)
    return (
        *queries,
        _linear("pair_down", part, model.hidden_size, down, "none", tokens),
        _linear("pair", part, latent.kv_lora_rank, up, "column"),
        output,
    )


def inner_norm_bytes(part: LayerSlice) -> float:
    """Bytes that norms inside the attention block read: latents, or queries and keys; else 0."""
    model = part.model
    latent = part.model.latent_attention
    width = 0.0
    if latent is not None:
        width += ((latent.q_lora_rank or 0) + latent.kv_lora_rank) / part.norm_share
    if model.qk_layernorm:
        width += (model.query_width + part.kv_size) / part.tensor
    return part.element_bytes * part.tokens * width


def _rotary(part: LayerSlice) -> Kernels:
    """Rotation of queries and keys, if positions are rotary; latent attention writes its keys whole."""
    if part.model.position_embedding != "rotary":
        return ()
    width = part.model.query_width + part.kv_size
    return (elementwise("rotary", 2 * part.element_bytes * part.tokens * width / part.tensor, launches=2),)


def attention_core(part: LayerSlice, *, backward: bool = False) -> Kernels:
    """Scores, softmax, dropout and context; with flash attention a single kernel for each block of keys."""
    if part.attention == "flash":
        return (_flash(part, backward=backward),) * part.blocks
    heads = part.local_heads
    s = part.seq_length
    d = part.model.head_size
    v = part.model.value_size
    scores = float(heads) * s * s
    size = part.element_bytes
    suffix = ".backward" if backward else ""
    dropout = (elementwise(f"attention_dropout{suffix}", (2 * size + 1) * scores),) if part.dropout else ()
    # One matrix per head becomes one row per token, and the gradient goes back.
    transposed = elementwise(f"context_transpose{suffix}", 2 * part.context_bytes)
    if not backward:
        return (
            gemm("scores", s, s, d, batch=heads, element_bytes=size),
            elementwise("softmax", 2 * size * scores),
            *dropout,
            gemm("context", s, v, s, batch=heads, element_bytes=size),
            transposed,
        )
    # Twice the matrix work; flash attention does more, since it computes the scores again.
    return (
        transposed,
        gemm("context.dgrad_probabilities", s, s, v, batch=heads, element_bytes=size),
        gemm("context.dgrad_values", s, v, s, batch=heads, element_bytes=size),
        *dropout,
        elementwise("softmax.backward", 3 * size * scores),
        gemm("scores.dgrad_queries", s, d, s, batch=heads, element_bytes=size),
        gemm("scores.dgrad_keys", s, d, s, batch=heads, element_bytes=size),
    )


FLASH = "flash_attention"
"""Name of the fused forward of the attention core."""


def _flash(part: LayerSlice, *, backward: bool) -> Kernel:
    """Flash attention: products of s x s x d per head, for the pairs that the mask leaves.

    Context ranks have s / c positions of all heads, or all positions of a c-th of the heads. The first have
    positions from both ends of the sequence, so under a causal mask too all blocks are equal; under a window
    the blocks far from the diagonal are empty, and the mean of all blocks is taken.
    """
    s = part.seq_length // part.blocks
    model = part.model
    heads = part.local_heads * part.blocks // part.context
    # Products over the width of a query head, and over the width of a value head. The backward computes the
    # scores again.
    queries_keys, values = (3, 2) if backward else (1, 1)
    width = queries_keys * model.head_size + values * model.value_size
    keys = s if part.attention_length is None else part.attention_length
    seen = 1.0
    if model.causal:
        # In a window of w of s positions a position sees min(w, its number): (w s - w^2 / 2) / s^2 of all.
        share = min(1.0, (part.kind.window or part.seq_length) / part.seq_length)
        seen = share - 0.5 * share**2
    return Kernel(
        name=f"{FLASH}.backward" if backward else FLASH,
        op="attention",
        flop=2.0 * heads * s * keys * width * seen,
        bytes_accessed=2 * part.element_bytes * heads * s * width,  # scores stay on chip
        m=s,
        n=keys,
        k=model.head_size,
        batch=heads,
        element_bytes=part.element_bytes,
    )


def merge_kernel(part: LayerSlice, *, backward: bool = False) -> Kernel:
    """Adds the result of a block of keys to earlier ones, rescaled by softmax sums; or its gradients."""
    if backward:
        n_bytes = 3 * (part.query_bytes + part.pair_bytes)
        return elementwise("attention_merge.backward", n_bytes, launches=2)
    return elementwise("attention_merge", 3 * part.context_bytes)


# The MLP, or the experts of a layer that has some.


def mlp_kernels(part: LayerSlice, which: LayerPass) -> Kernels:
    """The MLP block before its all-reduce, or the block with experts without anything that moves rows."""
    if not part.kind.experts:
        elements = part.tokens * part.model.ffn_hidden_size / part.tensor
        block = _two_products(part, which, "activation", mlp_products(part), elements, bias=part.model.bias)
        # A forward begins with the residual of the attention block, a backward with the block's own residual.
        if which == "forward":
            block = (*_mlp_begin(part), *block)
        else:
            residual = () if which == "wgrad" else (_residual_backward("mlp_residual.backward", part),)
            norms = (_norm("mlp_norm", part, which),) if part.model.norms_per_layer > 1 else ()
            block = (*residual, *block, *norms)
    elif which == "wgrad":
        products = (*reversed(_shared_linears(part)), *reversed(_expert_linears(part)), _router(part))
        run = _products(part, which, part.model.has_expert_bias, *products)
        block = (*run, _norm("mlp_norm", part, which))
    else:
        order: tuple[ExpertStage, ...] = ("router", "experts", "combine", "shared")
        if which != "forward":
            order = ("combine", "shared", "experts", "router")
        block = tuple(kernel for stage in order for kernel in _expert_stage(part, which, stage))
    return _as_run(_with_further_head(block, part, which), part)


def mlp_residual(part: LayerSlice) -> Kernels:
    """Bias, dropout and residual after the MLP's tensor-parallel all-reduce."""
    return (_residual("mlp_residual", part),)


def mlp_products(part: LayerSlice) -> Kernels:
    """The block's products with weights: the two of an MLP, or routed experts, shared ones and router."""
    if part.kind.experts:
        return (*_expert_linears(part), *_shared_linears(part), _router(part))
    return _mlp_linears(part, "", part.model.ffn_hidden_size)


def _mlp_linears(part: LayerSlice, prefix: str, ffn: int) -> tuple[Kernel, Kernel]:
    hidden = part.model.hidden_size
    width = (2 if part.model.gated_mlp else 1) * ffn
    return (
        _linear(f"{prefix}fc1", part, hidden, width, "column"),
        _linear(f"{prefix}fc2", part, ffn, hidden, "row"),
    )


def _two_products(
    part: LayerSlice, which: LayerPass, name: str, products: Kernels, elements: float, *, bias: bool
) -> Kernels:
    """Two products with one kernel between them: GELU or SwiGLU of `elements` elements."""
    fc1, fc2 = products
    gate = 1.5 if part.model.gated_mlp else 1.0
    n_bytes = gate * part.element_bytes * elements
    if which == "forward":
        return (fc1, elementwise(name, 2 * n_bytes), fc2)
    if which == "wgrad":
        return tuple(_products(part, which, bias, fc2, fc1))
    activation = elementwise(f"{name}.backward", 3 * n_bytes)
    return (*_products(part, which, bias, fc2), activation, *_products(part, which, bias, fc1))


def _mlp_begin(part: LayerSlice) -> Kernels:
    """Residual of the attention block, and the MLP's norm unless it shares the norm of attention."""
    norms = (_norm("mlp_norm", part, "forward"),) if part.model.norms_per_layer > 1 else ()
    return (_residual("attention_residual", part), *norms)


ExpertStage = Literal["router", "experts", "shared", "combine"]
_ROUTER = "router"
_ACTIVATION = "expert_activation"
APART: Mapping[str, tuple[str, ExpertStage]] = {
    "mlp_norm": ("layernorm", "router"),
    _ACTIVATION: ("moe_act", "experts"),
}
"""Kernels that are computed again by themselves: the module of recompute that does it, and their stage."""


def expert_kernels(part: LayerSlice, which: LayerPass, stage: ExpertStage) -> Kernels:
    """One stage of a block with experts; shared experts are nothing where the layer has none."""
    run = _expert_stage(part, which, stage)
    return _as_run(_with_further_head(run, part, which) if stage == "combine" else run, part)


_BIASED_PASSES = 7.0
"""Bytes that the activation of experts with biases moves over the bytes of one kernel.

In Megatron-Core no kernel adds the biases of experts: it does so for one expert after the other, with the
probabilities in fp32, and joins the parts. Over the width of an expert that is some 22 reads and writes where
one kernel has 3: bias added and joined (8), halves clamped (4), gate (3), probabilities (3), second bias (4);
a backward reads and writes as many more. assumed: as its code reads.
"""
_BIASED_AGAIN = 18.0 / 22.0
"""The share of these that a recompute of the activation runs again: all but the second bias (assumed)."""
_SCORE_PASSES = 4
"""Passes over the scores of a router: scores to probabilities (read, write), choice of the top k, its map."""


def _router(part: LayerSlice) -> Kernel:
    """The product that scores the experts for every token of the rank."""
    tokens = max(1, round(part.routed_tokens))
    return _linear(_ROUTER, part, part.model.hidden_size, part.experts.num_experts, "none", tokens)


def _expert_linears(part: LayerSlice) -> tuple[Kernel, Kernel]:
    """The products of a rank's experts with the rows that they compute; one kernel for all experts."""
    hidden = part.model.hidden_size
    split = part.expert_split
    size = part.element_bytes
    ffn = part.experts.ffn_hidden_size // split
    rows = part.expert_rows
    count = part.local_experts

    def grouped(name: str, n: int, k: int, partition: Partition) -> Kernel:
        mean = max(1, math.ceil(rows / count))
        product = gemm(name, mean, n, k, count, size, partition=partition, parts=split, grouped=True)
        n_bytes = size * (rows * (n + k) + count * float(n) * k)
        flop = 2.0 * rows * n * k
        biased = part.model.has_expert_bias
        return product._replace(flop=flop, bytes_accessed=n_bytes, biased=biased)

    width = (2 if part.model.gated_mlp else 1) * ffn
    return (grouped("expert_fc1", width, hidden, "column"), grouped("expert_fc2", hidden, ffn, "row"))


def _shared_linears(part: LayerSlice) -> Kernels:
    ffn = part.experts.shared_ffn_hidden_size
    return _mlp_linears(part, "shared_", ffn) if ffn else ()


def _expert_stage(part: LayerSlice, which: LayerPass, stage: ExpertStage) -> Kernels:
    """One stage as eager PyTorch runs it; `wgrad` alone has no stages."""
    forward = which == "forward"
    suffix = "" if forward else ".backward"
    experts = part.experts
    bias = part.model.has_expert_bias
    # Tokens are read and rows written, or the other way round; k rows for a token.
    permuted = part.row_bytes * (1 + 1 / experts.top_k)
    match stage:
        case "router":
            # Residual of the attention block, norm, scores, and the permutation of tokens to rows; or back.
            permute = elementwise(f"permute{suffix}", permuted, launches=2)
            n_bytes = _SCORE_PASSES * FULL * part.routed_tokens * experts.num_experts
            scores = elementwise(f"router_scores{suffix}", n_bytes, launches=_SCORE_PASSES)
            rows = () if part.sends_tokens else (permute,)
            if forward:
                return (*_mlp_begin(part), _router(part), scores, *rows)
            router = _products(part, which, bias, _router(part))
            return (*rows, scores, *router, _norm("mlp_norm", part, which))
        case "experts":
            # The activation multiplies each row by its weight.
            elements = part.expert_rows * experts.ffn_hidden_size / part.expert_split
            elements *= _BIASED_PASSES if bias else 1.0
            run = _two_products(part, which, _ACTIVATION, _expert_linears(part), elements, bias=bias)
            if part.expert == 1 or (part.local_experts == 1 and not part.sends_tokens):
                return run
            # Rows of several ranks are sorted by expert, and sorted back, where a rank has several experts.
            moved = 2 * part.element_bytes * part.expert_rows * part.model.hidden_size
            names = (f"sort_by_expert{suffix}", f"sort_by_rank{suffix}")
            first, last = (elementwise(name, moved) for name in names)
            return (first, *run, last)
        case "shared":
            # Shared experts on every token, and the sum with the routed ones.
            products = _shared_linears(part)
            if not products:
                return ()
            elements = part.tokens * experts.shared_ffn_hidden_size / part.tensor
            run = _two_products(part, which, "shared_activation", products, elements, bias=bias)
            add = elementwise("shared_add", 3 * part.activation_bytes / part.norm_share)
            return (*run, add) if forward else run
        case "combine":
            # Rows that came back are summed to tokens; or the residual's backward, and gradients of rows.
            residual = () if forward else (_residual_backward("mlp_residual.backward", part),)
            if part.sends_tokens:
                return residual
            return (*residual, elementwise(f"unpermute{suffix}", permuted, launches=2))


# Outside the layers: embedding, LM head and loss, which layers of multi-token prediction repeat.

VOCAB_MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this times the tensor degree."""


def padded_vocab_size(model: TransformerConfig, tensor: int) -> int:
    """Vocabulary rounded up to whole tiles on every tensor rank (Megatron's padding)."""
    multiple = VOCAB_MULTIPLE * tensor
    return math.ceil(model.vocab_size / multiple) * multiple


def embedding_kernels(part: LayerSlice, which: Literal["forward", "backward"]) -> Kernels:
    """Word lookup, addition of positions, dropout; or the lookup's gradient, scattered and accumulated."""
    return _as_run(_embedding(part, which), part)


def _embedding(part: LayerSlice, which: Literal["forward", "backward"]) -> Kernels:
    if which == "forward":
        return (
            elementwise("embedding_lookup", 2 * part.activation_bytes, launches=4),
            elementwise("embedding_positions", 5 * part.activation_bytes, launches=2),
        )
    rows = padded_vocab_size(part.model, part.tensor) / part.tensor
    table = rows * part.model.hidden_size
    size = part.element_bytes
    return (
        elementwise("embedding.scatter", 3 * part.activation_bytes + size * table, launches=4),
        elementwise("embedding.accumulate", table * (size + 2 * part.main_grad_bytes)),
    )


CROSS_ENTROPY_FORWARD_BYTES = 32.0
"""Per logit, in the fp32 passes of Megatron-LM's vocabulary-parallel cross-entropy: maximum (4), subtract
(8), exponential (8), sum (4), divide by the sum (8); before them logits in 16 bits are cast."""
CROSS_ENTROPY_BACKWARD_BYTES = 8.0
"""Per logit: scale by the incoming gradient; after it the gradient is cast to the precision of the logits."""
_MERGED_PASSES_BYTES = {"cross_entropy": 26.0, "cross_entropy.backward": 6.0}
"""Per logit in 16 bits where a compiler merges neighbouring passes in fp32, as Megatron-Core's fused
cross-entropy does: cast with maximum (2 + 4), subtraction with exponential (8), sum (4), division (8); in the
backward the gradient with its cast (6). assumed: as its code reads."""


def head_kernels(part: LayerSlice, positions: int, which: LayerPass) -> Kernels:
    """Final norm, LM head on `positions` of every sequence, and cross-entropy."""
    return _as_run(_head(part, positions, which), part)


def _head(part: LayerSlice, positions: int, which: LayerPass) -> Kernels:
    vocab = padded_vocab_size(part.model, part.tensor)
    tokens = part.micro_batch_size * positions
    size = part.element_bytes
    head = _linear("lm_head", part, part.model.hidden_size, vocab, "column", tokens)
    norm = _norm("final_norm", part, which)
    products = tuple(_products(part, which, False, head))
    if which == "wgrad":
        return (*products, norm)
    logits = float(head.m) * head.n
    cast = size + FULL if size < FULL else 0.0
    if which == "forward":
        loss = elementwise("cross_entropy", (cast + CROSS_ENTROPY_FORWARD_BYTES) * logits, launches=12)
        if part.fused_cross_entropy:
            loss = _fused_loss(loss, size * logits, logits, part)
        return (norm, *products, loss)
    name = "cross_entropy.backward"
    loss = elementwise(name, (CROSS_ENTROPY_BACKWARD_BYTES + cast) * logits, launches=6)
    if part.fused_cross_entropy:
        # The gradient replaces the logits in place.
        loss = _fused_loss(loss, 2 * size * logits, logits, part)
    return (loss, *products, norm)


def _fused_loss(eager: Kernel, n_bytes: float, logits: float, part: LayerSlice) -> Kernel:
    """The loss in one kernel that moves `n_bytes`, or in a compiler's merged passes."""
    if "cross_entropy_passes" in part.fused and part.element_bytes < FULL:
        merged = _MERGED_PASSES_BYTES[eager.name] * logits
        return eager._replace(bytes_accessed=merged, launches=eager.launches // 2)
    return elementwise(eager.name, n_bytes)


def _with_further_head(run: Kernels, part: LayerSlice, which: LayerPass) -> Kernels:
    """The end of a layer with, for multi-token prediction, the LM head and loss that follow it."""
    if not part.kind.mtp:
        return run
    head = _head(part, part.seq_length // part.context, which)
    return (*run, *head) if which == "forward" else (*head, *run)


def _joined_embedding(part: LayerSlice, which: LayerPass) -> Kernels:
    """What a layer of multi-token prediction begins with: embedding, two norms and a projection."""
    hidden = part.model.hidden_size
    joint = _linear("mtp_joint", part, 2 * hidden, hidden, "column")
    products = tuple(_products(part, which, False, joint))
    norms = (_norm("mtp_norm", part, which),) * 2
    n_bytes = 4 * part.activation_bytes / part.norm_share
    if which == "forward":
        concatenate = elementwise("mtp_concatenate", n_bytes)
        return (*_embedding(part, which), *norms, concatenate, *products)
    concatenate = elementwise("mtp_concatenate.backward", n_bytes)
    lookup = () if which == "dgrad" else _embedding(part, "backward")
    return (*products, *(() if which == "wgrad" else (concatenate,)), *norms, *lookup)


# What recompute of a layer keeps, and which kernels it runs again before the backward.
#
# full        all kernels; with `part.keeps` = qkv the results of the QKV projections are kept
# others      the modules of `RECOMPUTED`: norms and the activation of experts by themselves, latents from
#             their norms to queries, keys and values, the MLP or all of the experts from their norm on
# selective   the attention core [2205.05198]; with `part.selective` = every_second_product everything but
#             fused attention and the first, third, ... matrix product of a layer, whose results are kept:
#             torchtitan's selective activation checkpoint by operator. The layer's last product is never
#             needed, and experts are kept whole. Queries, keys and values are three products, as are the two
#             halves of a gated MLP.


def kept_shares(part: LayerSlice, recompute: Recompute) -> Mapping[str, float]:
    """Shares of the results of products and fused attention that a mode keeps, by kernel."""
    projections = attention_products(part)[:-1]
    if recompute == "full":
        return {product.name: 1.0 for product in projections} if part.keeps == "qkv" else {}
    if not part.by_operator(recompute):
        return {}
    model = part.model
    widths = [(product.name, product.n * product.parts) for product in projections]
    if model.latent_attention is None:
        widths = [("qkv", model.query_width), ("qkv", part.kv_size), ("qkv", part.pair_width - part.kv_size)]
    widths.append(("projection", model.hidden_size))
    if not part.kind.experts:
        widths += [("fc1", model.ffn_hidden_size)] * (2 if model.gated_mlp else 1)
        widths.append(("fc2", model.hidden_size))
    shares: dict[str, float] = {}
    for number, (name, width) in enumerate(widths):
        whole = sum(other for same, other in widths if same == name)
        shares[name] = shares.get(name, 0.0) + (width / whole if number % 2 == 0 else 0.0)
    return shares | ({FLASH: 1.0} if part.attention == "flash" else {})


def kept_bytes(part: LayerSlice, recompute: Recompute) -> float:
    """Bytes that a layer under recompute keeps besides its input, one micro-batch."""
    products = (*attention_products(part), *(() if part.kind.experts else mlp_products(part)))
    shares = kept_shares(part, recompute)
    elements = 0.0
    for product in products:
        divided = part.norm_share if product.partition == "row" else 1
        elements += shares.get(product.name, 0.0) * product.m * product.n / divided
    elements += shares.get(FLASH, 0.0) * part.tokens * part.model.attention_width / part.tensor
    return part.element_bytes * elements


@lru_cache(maxsize=1024)
def attention_recompute(part: LayerSlice, recompute: Recompute) -> Kernels:
    """Kernels of the attention block that a mode runs again."""
    run = attention_kernels(part, "forward")
    if part.repeats_layer(recompute):
        return tuple(_without_kept(run, kept_shares(part, recompute)))
    modules = RECOMPUTED[recompute]
    again = {"attention_norm"} if "layernorm" in modules else set[str]()
    if "mla_up_proj" in modules and part.model.latent_attention is not None:
        again |= {"inner_norms", "rotary", *(product.name for product in up_projections(part))}
    if "core_attn" in modules:
        again |= {kernel.name for kernel in attention_core(part)}
    return tuple(kernel for kernel in run if kernel.name.removesuffix(".cast") in again)


def up_projections(part: LayerSlice) -> Kernels:
    """The products of latent attention from latents to the queries, keys and values of all heads."""
    latent = part.model.latent_attention is not None
    products = attention_products(part) if latent else ()
    return tuple(product for product in products if product.name in ("query", "pair"))


@lru_cache(maxsize=1024)
def mlp_recompute(part: LayerSlice, recompute: Recompute) -> Kernels:
    """Kernels of the MLP block that a mode runs again, without a further LM head behind it."""
    experts = part.kind.experts
    alone = replace(part, kind=replace(part.kind, mtp=False)) if part.kind.mtp else part
    run = mlp_kernels(alone, "forward")
    modules = RECOMPUTED[recompute]
    if not part.repeats_layer(recompute):
        if "mlp" in modules:  # from its kept norm on
            return tuple(kernel for kernel in run if kernel.name not in ("attention_residual", "mlp_norm"))
        again = [name for name, (module, _) in APART.items() if module in modules]
        scales = {_ACTIVATION: _BIASED_AGAIN} if part.model.has_expert_bias else {}
        return tuple(
            kernel._replace(bytes_accessed=scales.get(kernel.name, 1.0) * kernel.bytes_accessed)
            for kernel in run
            if kernel.name in again
        )
    if recompute != "full" and experts:
        return ()
    if not experts and (part.recompute_stops_early or recompute == "selective"):
        # The backward reads nothing of the last product, so neither it nor its cast runs again.
        run = tuple(kernel for kernel in run if not kernel.name.startswith("fc2"))
    else:
        run = (*run, *mlp_residual(part))
    return tuple(_without_kept(run, kept_shares(part, recompute)))


def _without_kept(run: Iterable[Kernel], shares: Mapping[str, float]) -> Iterator[Kernel]:
    for kernel in run:
        left = 1.0 - shares.get(kernel.name, 0.0)
        if left >= 1.0:
            yield kernel
        elif left > 0.0:
            n_bytes = left * kernel.bytes_accessed
            yield kernel._replace(
                n=max(1, round(left * kernel.n)), flop=left * kernel.flop, bytes_accessed=n_bytes
            )
