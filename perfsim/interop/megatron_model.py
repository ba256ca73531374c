"""Megatron's arguments for what is not a dense layer: experts, latent attention, windows, further tokens.

Names: NVIDIA/Megatron-LM, `core/transformer/transformer_config.py` and `megatron/training/arguments.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfsim.calibration import Dispatcher
from perfsim.interop.tool import Chosen, Setting
from perfsim.workload import Experts, LatentAttention, TrainingRecipe, layer_kinds


def _model(field: Callable[[Any], Any]) -> Callable[[Chosen], Any]:
    return lambda chosen: field(chosen.job.model)


def _experts(field: Callable[[Experts], Any]) -> Callable[[Chosen], Any]:
    """A field of the experts; None without any."""

    def value(chosen: Chosen) -> Any:
        experts = chosen.job.model.experts
        return None if experts is None else field(experts)

    return value


def _latent(field: Callable[[LatentAttention], Any]) -> Callable[[Chosen], Any]:
    def value(chosen: Chosen) -> Any:
        latent = chosen.job.model.latent_attention
        return None if latent is None else field(latent)

    return value


def _expert_layers(chosen: Chosen) -> str | None:
    """Which layers have experts, as a list of 0 and 1; None where all or none have."""
    kinds = layer_kinds(chosen.job.model)[: chosen.job.model.num_layers]
    if len({kind.experts for kind in kinds}) == 1:
        return None
    return "[" + ",".join(str(int(kind.experts)) for kind in kinds) + "]"


def _degree(name: str) -> Callable[[Chosen], Any]:
    """An expert degree; None for a model without experts."""
    return lambda chosen: None if chosen.job.model.experts is None else getattr(chosen.layout, name, None)


def _routing(field: Callable[[TrainingRecipe], Any]) -> Callable[[Chosen], Any]:
    """What a recipe says of experts; None for a model without experts."""
    return lambda chosen: None if chosen.job.model.experts is None else field(chosen.job.recipe)


DISPATCHERS: Mapping[Dispatcher, str] = {
    "all_to_all": "alltoall",
    "deepep": "flex",
    "all_gather": "allgather",
}
SETTINGS: tuple[Setting, ...] = (
    ("--kv-channels", _model(lambda model: model.head_dim)),
    ("--qk-layernorm", _model(lambda model: True if model.qk_layernorm else None)),
    ("--multi-latent-attention", _latent(lambda _: True)),
    ("--q-lora-rank", _latent(lambda latent: latent.q_lora_rank)),
    ("--kv-lora-rank", _latent(lambda latent: latent.kv_lora_rank)),
    ("--qk-head-dim", _latent(lambda latent: latent.qk_nope_head_dim)),
    ("--qk-pos-emb-head-dim", _latent(lambda latent: latent.qk_rope_head_dim)),
    ("--v-head-dim", _latent(lambda latent: latent.v_head_dim)),
    ("--window-size", _model(lambda model: f"{model.sliding_window},0" if model.sliding_window else None)),
    ("--window-attn-skip-freq", _model(lambda model: model.sliding_window_pattern)),
    ("--mtp-num-layers", _model(lambda model: model.mtp_num_layers or None)),
    ("--num-experts", _experts(lambda experts: experts.num_experts)),
    ("--moe-router-topk", _experts(lambda experts: experts.top_k)),
    ("--moe-ffn-hidden-size", _experts(lambda experts: experts.ffn_hidden_size)),
    (
        "--moe-shared-expert-intermediate-size",
        _experts(lambda experts: experts.shared_ffn_hidden_size or None),
    ),
    ("--moe-layer-freq", _expert_layers),
    ("--moe-router-num-groups", _experts(lambda experts: experts.groups if experts.groups > 1 else None)),
    (
        "--moe-router-group-topk",
        _experts(lambda experts: experts.top_groups if experts.groups > 1 else None),
    ),
    ("--expert-model-parallel-size", _degree("expert")),
    ("--expert-tensor-parallel-size", _degree("expert_tensor")),
    ("--moe-token-dispatcher-type", _routing(lambda recipe: DISPATCHERS[recipe.expert_dispatcher])),
    ("--moe-expert-capacity-factor", _routing(lambda recipe: recipe.expert_capacity)),
    (
        "--moe-router-force-load-balancing",
        _routing(lambda recipe: True if recipe.routing == "balanced" else None),
    ),
    ("--moe-grouped-gemm", _routing(lambda recipe: True if recipe.grouped_products else None)),
)
