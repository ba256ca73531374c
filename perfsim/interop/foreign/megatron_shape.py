"""The model of Megatron's arguments: widths, biases, experts and latent attention.

Names: NVIDIA/Megatron-LM, `core/transformer/transformer_config.py` and `megatron/training/arguments.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from perfsim.interop.foreign.settings import Settings
from perfsim.interop.foreign.shape import Experts, Gap, Latent, Shape
from perfsim.interop.megatron import POSITIONS
from perfsim.sizes import MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_VOCABULARY, MOST_WIDTH

EMBEDDINGS: dict[str, Any] = {
    **{name: position for position, name in POSITIONS.items()},
    **dict.fromkeys(("learned", "absolute"), "learned"),
    **dict.fromkeys(("rotary", "yarn", "mrope"), "rotary"),
    **dict.fromkeys(("nope", "relative"), "none"),
}
GATED = ("swiglu", "fast-swiglu", "geglu", "reglu")
VOCABULARIES = {
    "gpt2bpetokenizer": 50257,
    "megatron-gpt-345m": 50257,
    "bertwordpiecelowercase": 30522,
    "bertwordpiececase": 28996,
    "llama2tokenizer": 32000,
    "llama-2": 32000,
    "llama-3": 128256,
    "llama3": 128256,
    "mixtral": 32000,
    "mistral-7b": 32000,
    "gpt2": 50257,
}
"""Vocabularies by the name of the tokenizer or of its file."""


def read_shape(settings: Settings, gaps: list[Gap]) -> Shape:
    """The shape; gaps are added for what is guessed."""
    layers = settings.needed("num_layers", "encoder_num_layers", most=MOST_LAYERS)
    hidden = settings.needed("hidden_size", most=MOST_WIDTH)
    heads = settings.needed("num_attention_heads", most=MOST_HEADS)
    gated = settings.flag("swiglu", "gated_linear_unit") or settings.text("activation") in GATED
    default_ffn = int(hidden * 4 * 2 / 3 / 64) * 64 if settings.flag("swiglu") else 4 * hidden
    ffn = settings.integer("ffn_hidden_size", default=default_ffn, most=MOST_WIDTH)
    head_dim = settings.integer("kv_channels", default=max(1, hidden // heads), most=MOST_WIDTH)
    bias = settings.flag("add_bias_linear", "bias", default=not settings.flag("disable_bias_linear"))
    positions = settings.needed(
        "max_position_embeddings", "seq_length", "encoder_seq_length", most=MOST_POSITIONS
    )
    tied = settings.flag("share_embeddings_and_output_weights", default=True)
    if settings.flag("untie_embeddings_and_output_weights"):
        tied = False
    norm = settings.text("normalization", default="LayerNorm").casefold()
    latent, window = _latent(settings), _window(settings)
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_groups(settings, heads),
        head_dim=head_dim,
        ffn=ffn,
        vocab=_vocabulary(settings, gaps),
        positions=positions,
        gated=gated,
        tied=tied,
        embedding=_embedding(settings),
        norm_vectors=1 if norm == "rmsnorm" else 2,
        qk_norm=(1 if norm == "rmsnorm" else 2) * 2 * head_dim
        if settings.flag("qk_layernorm") and latent is None
        else 0,
        bias_qkv=bias or settings.flag("add_qkv_bias"),
        bias_out=bias,
        bias_mlp=bias,
        experts=_experts(settings, layers, ffn),
        latent=latent,
        window=window[0] if window is not None else None,
        window_pattern=window[1] if window is not None else None,
        mtp_layers=settings.integer("mtp_num_layers", default=0, least=0, most=16),
        remarks=tuple(_remarks(settings)),
    )


def _groups(settings: Settings, heads: int) -> int:
    groups = settings.integer("num_query_groups", most=MOST_HEADS)
    grouped = settings.flag("group_query_attention", default=groups is not None)
    return groups if groups is not None and grouped else heads


def _embedding(settings: Settings) -> Any:
    if settings.flag("use_rotary_position_embeddings"):
        return "rotary"
    if settings.flag("no_position_embedding") or not settings.flag("add_position_embedding", default=True):
        return "none"
    return settings.choice(("position_embedding_type",), EMBEDDINGS, "learned")


def _vocabulary(settings: Settings, gaps: list[Gap]) -> int:
    """As given, else as the log says, else that of the tokenizer's name."""
    given = settings.integer("vocab_size", most=MOST_VOCABULARY)
    if given is not None:
        return given
    logged = re.search(r"padded vocab \(size: (\d{1,8})\)", settings.source.text)
    if logged:
        return int(logged[1])
    words = " ".join(
        settings.text(name)
        for name in ("tokenizer_model", "tokenizer_name_or_path", "vocab_file", "tokenizer_type")
    ).casefold()
    for name, size in VOCABULARIES.items():
        if name in words:
            gaps.append(Gap(f"a vocabulary of {size}, taken from the tokenizer's name"))
            return size
    padded = settings.integer("padded_vocab_size", most=MOST_VOCABULARY)
    if padded is not None:
        gaps.append(Gap(f"a vocabulary of {padded} that is padded for tensor parallelism"))
        return padded
    raise settings.missing("vocab_size", "padded_vocab_size")


def _experts(settings: Settings, layers: int, ffn: int) -> Experts | None:
    count = settings.integer("num_experts", "num_moe_experts", least=0, most=MOST_WIDTH)
    if not count or count == 1:
        return None
    return Experts(
        count=count,
        active=settings.integer("moe_router_topk", default=2, most=count),
        ffn=settings.integer("moe_ffn_hidden_size", default=ffn, most=MOST_WIDTH),
        pattern=_expert_layers(settings, layers),
        shared_ffn=settings.integer("moe_shared_expert_intermediate_size", default=0, least=0),
        shared_gate=settings.flag("moe_shared_expert_gate"),
        groups=settings.integer("moe_router_num_groups", default=1, most=count),
        top_groups=settings.integer("moe_router_group_topk", default=1, most=count),
    )


def _expert_layers(settings: Settings, layers: int) -> tuple[bool, ...]:
    """Which layers have experts: one in so many, or a pattern such as `([0]*3+[1]*58)`."""
    given = settings.raw("moe_layer_freq")
    if isinstance(given, list):
        return _of_length(tuple(layer in (1, True) for layer in given), layers, settings)
    text = str(1 if given is None else given).replace(" ", "")
    if text.isdigit() and int(text) > 0:
        return tuple(layer % int(text) == 0 for layer in range(layers))
    blocks = re.findall(r"\[([01,]+)\](?:\*(\d{1,4}))?", text)
    if not blocks:
        raise settings.error("moe_layer_freq", f"{text[:60]!r} is neither a number nor a pattern of 0 and 1")
    digits = "".join(block.replace(",", "") * int(times or 1) for block, times in blocks)
    return _of_length(tuple(digit == "1" for digit in digits), layers, settings)


def _of_length(pattern: tuple[bool, ...], layers: int, settings: Settings) -> tuple[bool, ...]:
    if len(pattern) != layers or not any(pattern):
        words = (
            f"a pattern of {len(pattern)} layers, {sum(pattern)} of them with experts, for {layers} layers"
        )
        raise settings.error("moe_layer_freq", words)
    return pattern


def _latent(settings: Settings) -> Latent | None:
    if not settings.flag("multi_latent_attention"):
        return None
    return Latent(
        query_rank=settings.integer("q_lora_rank", most=MOST_WIDTH),
        kv_rank=settings.integer("kv_lora_rank", default=32, most=MOST_WIDTH),
        nope=settings.integer("qk_head_dim", default=128, most=MOST_WIDTH),
        rope=settings.integer("qk_pos_emb_head_dim", default=64, most=MOST_WIDTH),
        value=settings.integer("v_head_dim", default=128, most=MOST_WIDTH),
    )


def _remarks(settings: Settings) -> Iterator[Gap]:
    if _has_window(settings) and _window(settings) is None:
        yield Gap("attention in a sliding window; taken as full attention")
    if settings.integer("mtp_num_layers", least=0):
        yield Gap("layers that predict further tokens, which the count leaves out")


def _has_window(settings: Settings) -> bool:
    return str(settings.raw("window_size")) not in ("None", "(-1,-1)")


def _window(settings: Settings) -> tuple[int, int | None] | None:
    """The window and how often a layer attends to all positions; None where it is not said in numbers."""
    size = re.match(r"[\[(]?(\d{1,8})", str(settings.raw("window_size")))
    every = settings.raw("window_attn_skip_freq")
    if not _has_window(settings) or size is None or isinstance(every, list) or int(size[1]) < 1:
        return None
    return int(size[1]), settings.integer("window_attn_skip_freq", most=MOST_LAYERS)
