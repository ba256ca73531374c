"""What recompute of a layer keeps, and which kernels it runs again before the backward.

full        all kernels; with `part.keeps` = qkv the results of the QKV projections are kept
selective   the attention core [2205.05198]; with `part.selective` = every_second_product everything but
            fused attention and the first, third, ... matrix product of a layer, whose results are kept:
            torchtitan's selective activation checkpoint by operator. The layer's last product is never
            needed, and experts are kept whole. Queries, keys and values are three products, as are the two
            halves of a gated MLP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from perfsim.work import attention, layer
from perfsim.work.blocks import as_run, attention_forward
from perfsim.work.experts import mlp_forward as experts_forward
from perfsim.work.kernels import Kernel, LayerSlice

CORE = "flash_attention"


def by_operator(part: LayerSlice, recompute: str) -> bool:
    """Whether a mode keeps the results of some operators and runs all others again."""
    return recompute == "selective" and part.selective == "every_second_product"


def kept_shares(part: LayerSlice, recompute: str) -> Mapping[str, float]:
    """Shares of the results of products and fused attention that a mode keeps, by kernel."""
    projections = attention.projections(part)
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
    return shares | ({CORE: 1.0} if part.attention == "flash" else {})


def kept_bytes(part: LayerSlice, recompute: str) -> float:
    """Bytes that a layer under recompute keeps besides its input, one micro-batch."""
    products = [*attention.projections(part), attention.output_projection(part)]
    if not part.kind.experts:
        products += layer.mlp_linears(part)
    shares = kept_shares(part, recompute)
    elements = sum(
        shares.get(product.name, 0.0)
        * product.m
        * product.n
        / (part.norm_share if product.partition == "row" else 1)
        for product in products
    )
    elements += shares.get(CORE, 0.0) * part.tokens * part.model.attention_width / part.tensor
    return part.element_bytes * elements


class ProductFlop(NamedTuple):
    """FLOPs of a layer's products for one micro-batch: those whose results are kept, and those run again."""

    kept: float
    again: float


def product_flop(part: LayerSlice, recompute: str) -> ProductFlop:
    """FLOPs of the products of a layer but experts and the MLP's last."""
    products = [*attention.projections(part), attention.output_projection(part)]
    if not part.kind.experts:
        products.append(layer.mlp_linears(part)[0])
    shares = kept_shares(part, recompute)
    kept = sum(shares.get(product.name, 0.0) * product.flop for product in products)
    return ProductFlop(kept, sum(product.flop for product in products) - kept)


def attention_recompute(part: LayerSlice, recompute: str) -> tuple[Kernel, ...]:
    """Kernels of the attention block that a mode runs again."""
    if recompute == "none":
        return ()
    if recompute == "selective" and not by_operator(part, recompute):
        return attention.attention_core(part)
    return tuple(_without_kept(attention_forward(part), kept_shares(part, recompute)))


def mlp_recompute(part: LayerSlice, recompute: str) -> tuple[Kernel, ...]:
    """Kernels of the MLP block that a mode runs again."""
    again = recompute == "full" or (by_operator(part, recompute) and not part.kind.experts)
    early = part.recompute_stops_early or recompute == "selective"
    return tuple(_without_kept(_mlp(part, early), kept_shares(part, recompute))) if again else ()


@as_run
def _mlp(part: LayerSlice, early: bool) -> tuple[Kernel, ...]:
    """The MLP block up to its end, or up to the last tensor that the backward reads."""
    if part.kind.experts:
        return (*experts_forward(part), *layer.mlp_residual(part))
    if early:
        return layer.mlp_before_fc2(part)
    return (*layer.mlp_forward(part), *layer.mlp_residual(part))


def _without_kept(run: tuple[Kernel, ...], shares: Mapping[str, float]) -> Iterator[Kernel]:
    for kernel in run:
        left = 1.0 - shares.get(kernel.name, 0.0)
        if left >= 1.0:
            yield kernel
        elif left > 0.0:
            n_bytes = left * kernel.bytes_accessed
            yield kernel._replace(
                n=max(1, round(left * kernel.n)), flop=left * kernel.flop, bytes_accessed=n_bytes
            )
