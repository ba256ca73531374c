"""Kernels and counts of layers with experts, latent attention, windows, multi-token prediction, by hand."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from perfsim.specs.model import LayerKind, layer_kinds
from perfsim.specs.recipe import Job
from perfsim.strategies.three_d.expert import ExpertGroup
from perfsim.strategies.three_d.layers import TensorGroup
from perfsim.testing import toys
from perfsim.work import RankGroup, layer
from perfsim.work.counts import model_flop_per_step, parameters
from perfsim.work.kernels import Kernel, LayerSlice

H = 2048
S = 1024
B = 2
E = 16
K = 4
F = 512
SHARED = 1024
EXPERTS: dict[str, Any] = {"num_experts": E, "top_k": K, "ffn_hidden_size": F}
EXPERTS |= {"shared_ffn_hidden_size": SHARED}
HEAD_DIMS = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 48}
LATENT: dict[str, Any] = {"q_lora_rank": 384, "kv_lora_rank": 128, **HEAD_DIMS}
SPARSE = LayerKind(experts=True)
PASSES: tuple[layer.LayerPass, ...] = ("forward", "backward", "dgrad", "wgrad")


def sliced(kind: LayerKind = SPARSE, model: Any = None, **changes: Any) -> LayerSlice:
    fields = {"experts": EXPERTS, "bias": False, "gated_mlp": True} if model is None else model
    return LayerSlice(toys.model(**fields), S, B, kind=kind, **changes)


def flop(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.flop for kernel in kernels)


def test_a_token_is_computed_by_k_experts_the_shared_ones_and_the_router() -> None:
    tokens = B * S
    expected = 2.0 * tokens * (3 * H * (K * F + SHARED) + H * E)
    part = sliced()
    assert flop(layer.mlp_kernels(part, "forward")) == pytest.approx(expected)
    assert flop(layer.mlp_kernels(part, "backward")) == pytest.approx(2 * expected)
    split = flop((*layer.mlp_kernels(part, "dgrad"), *layer.mlp_kernels(part, "wgrad")))
    assert split == pytest.approx(2 * expected)


@pytest.mark.parametrize(
    ("model", "whole"),
    [({"experts": EXPERTS}, H * E), ({"latent_attention": LATENT}, H * (384 + 128 + 32)), ({}, 0)],
)
def test_every_tensor_rank_holds_routers_and_projections_down_whole(model: Any, whole: int) -> None:
    """Megatron-Core: `TopKRouter`, and `parallel_mode="duplicated"` of latents; a module divides its own."""
    counts = parameters(toys.model(**model, mtp_num_layers=1))
    for kind in layer_kinds(counts.model)[-2:]:
        rest = counts.of(kind) - counts.routed_of(kind)
        assert counts.on_tensor_rank(kind, 8) == (rest - whole) / 8 + whole


@pytest.mark.parametrize("kind", [SPARSE, LayerKind(experts=True, mtp=True)])
def test_the_parts_between_dispatch_and_combination_are_the_whole_block(kind: LayerKind) -> None:
    """With the LM head of multi-token prediction behind the layer, which does not run again."""
    part = sliced(kind)
    stages: tuple[layer.ExpertStage, ...] = ("router", "experts", "shared", "combine")
    for which in PASSES[:3]:
        parts = (layer.expert_kernels(part, which, stage) for stage in stages)
        assert Counter(chain.from_iterable(parts)) == Counter(layer.mlp_kernels(part, which))
    alone = RankGroup(0, 1, 1)
    group = ExpertGroup(part, "gpu0", "none", alone, alone, TensorGroup(part, alone, "gpu0"))
    for which, heads in (("forward", int(kind.mtp)), ("recompute", 0)):
        assert [kernel.name for kernel in group.parts(which).end.kernels].count("lm_head") == heads


def routed(part: LayerSlice, which: layer.LayerPass = "forward") -> layer.Kernels:
    return layer.expert_kernels(part, which, "experts")


def test_all_ranks_of_expert_parallelism_together_do_the_products_of_a_layer() -> None:
    """Eight ranks with micro-batches of their own: each has 2 experts, and rows as before, or its load."""
    divided = sliced(expert=8)
    assert flop(routed(divided)) == flop(routed(sliced()))
    fc1 = next(kernel for kernel in routed(divided) if kernel.name == "expert_fc1")
    assert (fc1.batch, fc1.m, fc1.n, fc1.k) == (2, B * S * K // 2, 2 * F, H)
    crowded = replace(divided, expert_load=1.5)
    assert flop(routed(crowded, "backward")) == pytest.approx(1.5 * flop(routed(divided, "backward")))


def test_latent_attention_goes_down_to_latents_and_up_to_heads() -> None:
    part = sliced(LayerKind(), {"latent_attention": LATENT, "bias": False}, attention="flash")
    heads = 16
    tokens = B * S
    weights = H * 384 + 384 * heads * 96 + H * (128 + 32) + 128 * heads * (64 + 48) + heads * 48 * H
    core = 2.0 * B * heads * S * S * (96 + 48) / 2
    assert flop(layer.attention_kernels(part, "forward")) == 2.0 * tokens * weights + core
    whole = layer.attention_kernels(part, "backward")
    assert flop(whole) == 4.0 * tokens * weights + 2.0 * B * heads * S * S * (3 * 96 + 2 * 48) / 2
    split = (*layer.attention_kernels(part, "dgrad"), *layer.attention_kernels(part, "wgrad"))
    assert flop(split) == flop(whole)
    counts = parameters(part.model)
    assert counts.of(matrices=True) == weights + 2 * H * part.model.ffn_hidden_size
    assert counts.of() - counts.of(matrices=True) == 2 * H + 384 + 128


@pytest.mark.parametrize(("window", "share"), [(S, 1.0), (S // 2, 0.75), (S // 8, 0.234375)])
def test_a_window_of_w_of_s_positions_scores_2ws_minus_w_squared_pairs(window: int, share: float) -> None:
    plain, windowed = (sliced(LayerKind(window=size), {}, attention="flash") for size in (None, window))
    shares = [
        flop(layer.attention_core(windowed, backward=backward))
        / flop(layer.attention_core(plain, backward=backward))
        for backward in (False, True)
    ]
    assert shares == [share, share]


def test_model_flops_count_active_weights_windows_and_the_heads_of_multi_token_prediction() -> None:
    changes = {"experts": EXPERTS | {"first_dense_layers": 2}, "mtp_num_layers": 1, "bias": False}
    model = toys.model(**changes, sliding_window=S // 2, sliding_window_pattern=2)
    counts = parameters(model)
    weights = sum(counts.of(kind, active=True, matrices=True) for kind in layer_kinds(model))
    # The layer of multi-token prediction is like the last one, which attends to all positions.
    core = 12.0 * S * H * (4 * 0.75 + 5)
    heads = 2 * 6.0 * model.vocab_size * H
    job = Job(model, toys.job(4).recipe.model_copy(update={"seq_length": S}), 4)
    assert model_flop_per_step(job) == pytest.approx((6.0 * weights + core + heads) * job.tokens_per_step)


def moved(part: LayerSlice, which: layer.LayerPass = "forward") -> Counter[str]:
    """Bytes by name of kernel over the stages of a block."""
    stages: tuple[layer.ExpertStage, ...] = ("router", "experts", "combine")
    kernels = chain.from_iterable(layer.expert_kernels(part, which, stage) for stage in stages)
    found: Counter[str] = Counter()
    for kernel in kernels:
        found[kernel.name] += kernel.bytes_accessed
    return found


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_tokens_that_travel_as_they_are_become_rows_where_they_arrive(which: layer.LayerPass) -> None:
    """DeepEP sends one copy of a token, so nothing permutes before it, and one expert's rows are made too."""
    for expert in (4, E):
        rows, tokens = (moved(sliced(expert=expert, sends_tokens=sends), which) for sends in (False, True))
        gone = {name for name in rows if "permute" in name}
        assert len(gone) == 2
        assert not gone & tokens.keys()
        assert sum(value for name, value in tokens.items() if name.startswith("sort_by")) > 0.0
        assert (tokens.keys() - rows.keys() == set()) == (expert < E)
