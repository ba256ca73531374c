"""The block of a layer with experts, in the parts between which tokens move to experts and back.

Forward: `router_forward` (residual, norm, router, permutation of tokens to rows in the order of experts),
then the dispatch to the ranks of the experts, `experts_forward` on the rows that arrived, the combination
back, and `combine_forward` (rows weighted and summed). `shared_forward` is that of shared experts, which
needs neither and can run beside dispatch and combination. Backward: `combine_backward`, dispatch,
`experts_backward`, combination, `router_backward`. `mlp_forward` and `mlp_backward` are all parts one after
another: the whole block where every rank has all experts (or a tensor share of each), so that nothing moves.

A rank routes T / t tokens to k experts and computes `LayerSlice.expert_rows` rows. The router has the
precision of activations and never a narrower one; its scores are fp32 (Megatron-Core).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perfsim.work.kernels import (
    FULL,
    Kernel,
    LayerSlice,
    elementwise,
    grouped_gemm,
    linear,
    linear_backward,
    linear_dgrad,
    linear_wgrad,
    norm_backward,
    norm_dgrad,
    norm_wgrad,
    residual_backward,
)
from perfsim.work.layer import activation, mlp_begin, mlp_linears

ROUTER = "router"
"""Name of the router's product, which is never narrower than 16 bits."""
SCORE_PASSES = 4
"""Passes over the scores of a router: scores to probabilities (read, write), choice of the top k, its map."""
Gradients = Callable[[Kernel], tuple[Kernel, ...]]


def _router(part: LayerSlice) -> Kernel:
    """The product that scores the experts for every token of the rank."""
    tokens = max(1, round(part.own_tokens))
    return linear(
        ROUTER, tokens, part.model.hidden_size, part.experts.num_experts, element_bytes=part.element_bytes
    )


def row_bytes(part: LayerSlice) -> float:
    """Bytes of the rows that a rank sends to experts: T k / t of the hidden size each."""
    return part.element_bytes * part.own_tokens * part.experts.top_k * part.model.hidden_size


def _expert_linears(part: LayerSlice) -> tuple[Kernel, Kernel]:
    """The products of a rank's experts with the rows that they compute."""
    model = part.model
    experts = part.experts
    split = part.expert_split
    size = part.element_bytes
    ffn = experts.ffn_hidden_size // split
    rows = part.expert_rows
    count = part.local_experts
    width = (2 if model.gated_mlp else 1) * ffn
    return (
        grouped_gemm("expert_fc1", rows, width, model.hidden_size, count, "column", split, size),
        grouped_gemm("expert_fc2", rows, model.hidden_size, ffn, count, "row", split, size),
    )


def _scores(part: LayerSlice, name: str) -> Kernel:
    scores = part.own_tokens * part.experts.num_experts
    return elementwise(name, SCORE_PASSES * FULL * scores, launches=SCORE_PASSES)


def _permute(part: LayerSlice, name: str) -> Kernel:
    """Tokens are read and rows written, or the other way round; k rows for a token."""
    return elementwise(name, row_bytes(part) * (1 + 1 / part.experts.top_k), launches=2)


def _by_expert(part: LayerSlice, name: str) -> tuple[Kernel, ...]:
    """Rows of several ranks are sorted by expert, or sorted back, where a rank has several experts."""
    if part.expert == 1 or part.local_experts == 1:
        return ()
    return (elementwise(name, 2 * part.element_bytes * part.expert_rows * part.model.hidden_size),)


def _activated(part: LayerSlice, name: str, passes: int) -> Kernel:
    """The experts' activation, which multiplies each row by its weight."""
    elements = part.expert_rows * part.experts.ffn_hidden_size / part.expert_split
    return activation(name, part, passes, elements)


def _shared(part: LayerSlice) -> tuple[Kernel, Kernel] | None:
    ffn = part.experts.shared_ffn_hidden_size
    return mlp_linears(part, "shared_", ffn) if ffn else None


def _shared_activation(part: LayerSlice, name: str, passes: int) -> Kernel:
    elements = part.tokens * part.experts.shared_ffn_hidden_size / part.tensor
    return activation(name, part, passes, elements)


# ------------------------------------------------------------------------------------------- forward
def router_forward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Residual of the attention block, norm, router, and the permutation of tokens to rows."""
    return (*mlp_begin(part), _router(part), _scores(part, "router_scores"), _permute(part, "permute"))


def experts_forward(part: LayerSlice) -> tuple[Kernel, ...]:
    """The rank's experts on the rows that arrived."""
    fc1, fc2 = _expert_linears(part)
    return (
        *_by_expert(part, "sort_by_expert"),
        fc1,
        _activated(part, "expert_activation", 2),
        fc2,
        *_by_expert(part, "sort_by_rank"),
    )


def shared_forward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Shared experts on every token, and the sum with the routed ones; nothing without shared experts."""
    products = _shared(part)
    if products is None:
        return ()
    add = elementwise("shared_add", 3 * part.activation_bytes / part.norm_share)
    return (products[0], _shared_activation(part, "shared_activation", 2), products[1], add)


def combine_forward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Rows that came back are summed to tokens."""
    return (_permute(part, "unpermute"),)


def mlp_forward(part: LayerSlice) -> tuple[Kernel, ...]:
    """The whole block, without anything between its parts."""
    return (
        *router_forward(part),
        *experts_forward(part),
        *combine_forward(part),
        *shared_forward(part),
    )


# ------------------------------------------------------------------------------------------ backward
def combine_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Backward of the residual, and the gradients of rows from those of tokens."""
    return (residual_backward("mlp_residual.backward", part), _permute(part, "unpermute.backward"))


def experts_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Backward of the rank's experts on the gradients that arrived."""
    return tuple(_experts_gradients(part, _whole(part, part.model.has_expert_bias)))


def experts_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """The same without gradients of weights."""
    return tuple(_experts_gradients(part, _inputs))


def shared_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Backward of shared experts; nothing without any."""
    return tuple(_shared_gradients(part, _whole(part, part.model.has_expert_bias)))


def shared_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """The same without gradients of weights."""
    return tuple(_shared_gradients(part, _inputs))


def router_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of rows summed to tokens, backward of the router and of the norm."""
    gradients = _whole(part, part.model.has_expert_bias)
    return (*_router_gradients(part, gradients), norm_backward("mlp_norm.backward", part))


def router_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """The same without gradients of weights."""
    return (*_router_gradients(part, _inputs), norm_dgrad("mlp_norm.dgrad", part))


def mlp_backward(part: LayerSlice) -> tuple[Kernel, ...]:
    """Backward of the whole block, without anything between its parts."""
    return (
        *combine_backward(part),
        *shared_backward(part),
        *experts_backward(part),
        *router_backward(part),
    )


def mlp_dgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradient of the block's input."""
    return (*combine_backward(part), *shared_dgrad(part), *experts_dgrad(part), *router_dgrad(part))


def mlp_wgrad(part: LayerSlice) -> tuple[Kernel, ...]:
    """Gradients of the weights of experts, router and norm, accumulated."""
    grad = part.main_grad_bytes
    bias = part.model.has_expert_bias
    products = (*reversed(_shared(part) or ()), *reversed(_expert_linears(part)), _router(part))
    return (
        *(kernel for product in products for kernel in linear_wgrad(product, grad, bias)),
        norm_wgrad("mlp_norm.wgrad", part),
    )


def _whole(part: LayerSlice, bias: bool) -> Gradients:
    return lambda product: linear_backward(product, part.main_grad_bytes, bias)


def _inputs(product: Kernel) -> tuple[Kernel, ...]:
    return (linear_dgrad(product),)


def _experts_gradients(part: LayerSlice, gradients: Gradients) -> Iterator[Kernel]:
    fc1, fc2 = _expert_linears(part)
    yield from _by_expert(part, "sort_by_expert.backward")
    yield from gradients(fc2)
    yield _activated(part, "expert_activation.backward", 3)
    yield from gradients(fc1)
    yield from _by_expert(part, "sort_by_rank.backward")


def _shared_gradients(part: LayerSlice, gradients: Gradients) -> Iterator[Kernel]:
    products = _shared(part)
    if products is not None:
        yield from gradients(products[1])
        yield _shared_activation(part, "shared_activation.backward", 3)
        yield from gradients(products[0])


def _router_gradients(part: LayerSlice, gradients: Gradients) -> Iterator[Kernel]:
    yield _permute(part, "permute.backward")
    yield _scores(part, "router_scores.backward")
    yield from gradients(_router(part))


# ------------------------------------------------------------------------------------------- memory
def kept_bytes(part: LayerSlice) -> float:
    """Bytes that the experts keep for the backward of one micro-batch.

    The permuted rows, the inputs of the activation and of the second product, and scores and probabilities of
    the router in fp32 (Megatron-Core with the weights applied in the activation); the same of shared experts.
    """
    model = part.model
    experts = part.experts
    size = part.element_bytes
    gate = 1.5 if model.gated_mlp else 1.0
    routed = model.hidden_size + 2 * gate * experts.ffn_hidden_size / part.expert_split
    shared = 2 * gate * experts.shared_ffn_hidden_size / part.tensor
    scores = 2 * FULL * part.own_tokens * experts.num_experts
    return size * (part.expert_rows * routed + part.tokens * shared) + scores


def weight_input_bytes(part: LayerSlice) -> float:
    """Bytes that weight gradients of experts and router read: inputs and output gradients of products."""
    own = products(part)
    weights = sum(float(product.batch) * product.n * product.k for product in own)
    return sum(product.bytes_accessed for product in own) - part.element_bytes * weights


def products(part: LayerSlice) -> tuple[Kernel, ...]:
    """The products with weights of the block: routed experts, shared ones, router."""
    return (*_expert_linears(part), *(_shared(part) or ()), _router(part))
