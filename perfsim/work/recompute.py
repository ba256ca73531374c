"""What recompute of a layer keeps, and which kernels it runs again before the backward.

full        all kernels; with `part.keeps` = qkv the results of the QKV projections are kept
selective   the attention core [2205.05198]; with `part.selective` = every_second_product everything but
            fused attention and the first, third, ... matrix product of a layer, whose results are kept:
            torchtitan's selective activation checkpoint by operator. The layer's last product is never
            needed, and experts are kept whole. Queries, keys and values are three products, as are the two
            halves of a gated MLP.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from perfsim.work.kernels import Kernel, LayerSlice
from perfsim.work.layer import (
    FLASH,
    Kernels,
    attention_core,
    attention_kernels,
    attention_products,
    mlp_kernels,
    mlp_products,
    mlp_residual,
)


def by_operator(part: LayerSlice, recompute: str) -> bool:
    """Whether a mode keeps the results of some operators and runs all others again."""
    return recompute == "selective" and part.selective == "every_second_product"


def kept_shares(part: LayerSlice, recompute: str) -> Mapping[str, float]:
    """Shares of the results of products and fused attention that a mode keeps, by kernel."""
    projections = attention_products(part)[:-1]
    if recompute == "full":
        return {product.name: 1.0 for product in projections} if part.keeps == "qkv" else {}
    if not by_operator(part, recompute):
        return {}
    model = part.model
    widths = [(product.name, product.n * product.parts) for product in projections]
    if model.latent_attention is None:
        values = part.pair_width - part.kv_size
        widths = [("qkv", model.query_width), ("qkv", part.kv_size), ("qkv", values)]
    widths.append(("projection", model.hidden_size))
    if not part.kind.experts:
        widths += [("fc1", model.ffn_hidden_size)] * (2 if model.gated_mlp else 1)
        widths.append(("fc2", model.hidden_size))
    shares: dict[str, float] = {}
    for number, (name, width) in enumerate(widths):
        whole = sum(other for same, other in widths if same == name)
        shares[name] = shares.get(name, 0.0) + (width / whole if number % 2 == 0 else 0.0)
    return shares | ({FLASH: 1.0} if part.attention == "flash" else {})


def kept_bytes(part: LayerSlice, recompute: str) -> float:
    """Bytes that a layer under recompute keeps besides its input, one micro-batch."""
    products = (*attention_products(part), *(() if part.kind.experts else mlp_products(part)))
    shares = kept_shares(part, recompute)
    elements = sum(
        shares.get(product.name, 0.0)
        * product.m
        * product.n
        / (part.norm_share if product.partition == "row" else 1)
        for product in products
    )
    elements += shares.get(FLASH, 0.0) * part.tokens * part.model.attention_width / part.tensor
    return part.element_bytes * elements


class _ProductFlop(NamedTuple):
    """FLOPs of a layer's products for one micro-batch: those whose results are kept, and those run again."""

    kept: float
    again: float


def product_flop(part: LayerSlice, recompute: str) -> _ProductFlop:
    """FLOPs of the products of a layer but experts and the MLP's last."""
    products = (*attention_products(part), *(() if part.kind.experts else mlp_products(part)[:1]))
    shares = kept_shares(part, recompute)
    kept = sum(shares.get(product.name, 0.0) * product.flop for product in products)
    return _ProductFlop(kept, sum(product.flop for product in products) - kept)


def attention_recompute(part: LayerSlice, recompute: str) -> Kernels:
    """Kernels of the attention block that a mode runs again."""
    if recompute == "none":
        return ()
    if recompute == "selective" and not by_operator(part, recompute):
        return attention_core(part)
    return tuple(_without_kept(attention_kernels(part, "forward"), kept_shares(part, recompute)))


def mlp_recompute(part: LayerSlice, recompute: str) -> Kernels:
    """Kernels of the MLP block that a mode runs again, without a further LM head behind it."""
    experts = part.kind.experts
    if recompute != "full" and (experts or not by_operator(part, recompute)):
        return ()
    run = mlp_kernels(replace(part, kind=replace(part.kind, mtp=False)), "forward")
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
