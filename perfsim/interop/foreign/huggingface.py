"""`config.json` of Hugging Face models: a model's shape, whatever its family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfsim.interop.foreign.families import FAMILIES, LLAMA, OTHER_KINDS, REFINEMENTS, Fields
from perfsim.interop.foreign.settings import Settings
from perfsim.interop.foreign.shape import Experts, Gap, Latent, Shape
from perfsim.interop.foreign.source import Source
from perfsim.sizes import MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_VOCABULARY, MOST_WIDTH

HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "attn_config.kv_n_heads", "num_kv_heads", "n_kv_heads")
FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "ffn_config.ffn_hidden_size", "d_ff")
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "seq_len")
EXPERTS = (
    *("num_local_experts", "num_experts", "n_routed_experts", "ffn_config.moe_num_experts"),
    *("moe_num_experts", "num_moe_experts"),
)
ACTIVE = (
    *("num_experts_per_tok", "num_experts_per_token", "ffn_config.moe_top_k", "moe_topk", "moe_k"),
    "num_selected_experts",
)
TEXT = ("text_config", "llm_config", "language_config")
"""Sections that hold the language model of a model for several media."""
METADATA = ("architectures", "model_type", "transformers_version", "_name_or_path", "torch_dtype", "dtype")
"""Keys that describe the file, not the shape."""
ALIBI_BLOOM_POSITIONS = 2048
"""Longest sequence where a file with ALiBi positions gives none."""


def recognise(document: Any) -> bool:
    """Whether this is a model's config.json."""
    if not isinstance(document, Mapping):
        return False
    inner = next((document[name] for name in TEXT if isinstance(document.get(name), Mapping)), document)
    named = "model_type" in document or "architectures" in document
    width = any(name in inner for name in HIDDEN)
    return width and (named or any(name in inner for name in LAYERS))


def read_shape(source: Source, document: Mapping[str, Any]) -> tuple[Shape, Settings]:
    """The shape of a config.json and its settings. Raises InputError for what is missing or out of range."""
    section = next((name for name in TEXT if isinstance(document.get(name), Mapping)), "")
    inner = document[section] if section else document
    settings = Settings.of(source, inner)
    family = settings.text("model_type") or _family_of(document)
    if family in OTHER_KINDS:
        source.refuse(
            f"model_type {family!r} is {OTHER_KINDS[family]}, which perfsim cannot describe",
            "decoders and encoders with attention in every layer can be imported",
            source.line_of("model_type"),
        )
    settings.ignore(*METADATA)
    fields = _fields(settings, family)
    remarks = [*_remarks(settings, fields, family)]
    if section:
        remarks.append(Gap(f"what stands outside `{section}`: encoders of images and sound"))
        others = Settings.of(source, {key: value for key, value in document.items() if key != section})
        others.ignore(*METADATA)
        settings = Settings(
            source,
            {**{f"{section}.{key}": value for key, value in settings.values.items()}, **others.values},
            used={*(f"{section}.{key}" for key in settings.used), *others.used},
        )
    return Shape(**fields, remarks=tuple(remarks)), settings


def _family_of(document: Mapping[str, Any]) -> str:
    """The family that `architectures` names, as `GPTNeoXForCausalLM`; empty where it names none."""
    named = document.get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else str(document.get("model_type") or "")
    stem = first.split("For")[0].split("LMHead")[0].removesuffix("Model").casefold()
    return next((family for family in FAMILIES if family.replace("_", "").casefold() == stem), stem)


def _fields(settings: Settings, family: str) -> Fields:
    hidden = settings.needed(*HIDDEN, most=MOST_WIDTH)
    heads = settings.needed(*HEADS, most=MOST_HEADS)
    fields: Fields = dict(FAMILIES.get(family, LLAMA))
    known = family in FAMILIES
    fields |= {
        "layers": settings.needed(*LAYERS, most=MOST_LAYERS),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": settings.integer(*KV_HEADS, default=heads, most=MOST_HEADS),
        "head_dim": settings.integer(
            "head_dim", "kv_channels", "attention_head_dim", default=max(1, hidden // heads), most=MOST_WIDTH
        ),
        "ffn": settings.integer(*FFN, default=4 * hidden, most=MOST_WIDTH),
        "vocab": settings.needed("vocab_size", "padded_vocab_size", "n_vocab", most=MOST_VOCABULARY),
        "positions": _positions(settings, fields),
        "tied": settings.flag("tie_word_embeddings", default=fields.get("tied", True)),
    }
    if not known:
        fields["gated"] = settings.text("hidden_act", default="silu").startswith(
            ("sil", "swi", "glu", "geglu")
        )
    if settings.has("attention_bias"):
        bias = settings.flag("attention_bias")
        fields.update(bias_qkv=bias, bias_out=bias)
    if settings.has("mlp_bias"):
        fields["bias_mlp"] = settings.flag("mlp_bias")
    if family in REFINEMENTS:
        REFINEMENTS[family](settings, fields)
    fields["latent"] = _latent(settings)
    fields["experts"] = _experts(settings, fields, family)
    fields["mtp_layers"] = settings.integer("num_nextn_predict_layers", default=0, least=0, most=16)
    return fields


def _positions(settings: Settings, fields: Fields) -> int:
    if fields.get("embedding", "learned") == "alibi":
        default = ALIBI_BLOOM_POSITIONS
        return settings.integer(*POSITIONS, default=default, most=MOST_POSITIONS)
    return settings.needed(*POSITIONS, "model_max_length", most=MOST_POSITIONS)


def _latent(settings: Settings) -> Latent | None:
    if not settings.has("kv_lora_rank"):
        return None
    return Latent(
        query_rank=settings.integer("q_lora_rank", most=MOST_WIDTH),
        kv_rank=settings.needed("kv_lora_rank", most=MOST_WIDTH),
        nope=settings.needed("qk_nope_head_dim", most=MOST_WIDTH),
        rope=settings.needed("qk_rope_head_dim", most=MOST_WIDTH),
        value=settings.needed("v_head_dim", most=MOST_WIDTH),
    )


def _experts(settings: Settings, fields: Fields, family: str) -> Experts | None:
    count = settings.integer(*EXPERTS, least=0, most=MOST_WIDTH)
    if not count or count == 1:
        return None
    width = (
        settings.integer("moe_intermediate_size", "expert_ffn_hidden_size", most=MOST_WIDTH) or fields["ffn"]
    )
    shared = settings.integer(
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, least=0
    )
    shared_ffn = settings.integer(
        "shared_expert_intermediate_size", "shared_intermediate_size", least=0, most=MOST_WIDTH
    )
    if family == "llama4_text":
        shared_ffn = width
        fields["ffn"] = settings.integer("intermediate_size_mlp", default=fields["ffn"], most=MOST_WIDTH)
    pattern = _expert_layers(settings, fields["layers"], family)
    if not any(pattern):
        return None
    return Experts(
        count=count,
        active=settings.needed(*ACTIVE, most=count),
        ffn=width,
        pattern=pattern,
        shared_ffn=(shared or 0) * width if shared_ffn is None else shared_ffn,
        shared_gate=family == "qwen2_moe",
        router_bias=family == "gpt_oss" or settings.text("topk_method") == "noaux_tc",
        groups=settings.integer("n_group", default=1, most=count),
        top_groups=settings.integer("topk_group", default=1, most=count),
    )


def _expert_layers(settings: Settings, layers: int, family: str) -> tuple[bool, ...]:
    """Which layers have experts."""
    first = settings.integer("first_k_dense_replace", default=0, least=0, most=layers)
    every = settings.integer(
        "moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", default=1, least=0
    )
    only = settings.raw("mlp_only_layers")
    settings.ignore("moe_layers")
    dense = {int(layer) for layer in only if isinstance(layer, int)} if isinstance(only, list) else set()
    step = max(1, every or 1)
    if family.startswith("deepseek"):
        return tuple(layer >= first and layer % step == 0 for layer in range(layers))
    return tuple(layer >= first and (layer + 1) % step == 0 and layer not in dense for layer in range(layers))


def _remarks(settings: Settings, fields: Fields, family: str) -> Iterator[Gap]:
    if family not in FAMILIES:
        known = f"model_type {family!r} is unknown: it" if family else "without a model_type the file"
        yield Gap(f"{known} is read with the names and defaults of Llama; check the count")
    yield from _window(settings, fields, family)
    if family == "gpt_neo":
        yield Gap("local attention in every second layer; taken as full attention")
    if fields["mtp_layers"]:
        yield Gap("layers that predict further tokens, which the count leaves out")
    if family == "gpt_neox" and settings.flag("use_parallel_residual", default=True):
        yield Gap("attention and MLP that read the same input, each by its own norm")


ALTERNATING = ("gpt_oss", "gemma2")
"""Families whose layers have a window and all positions in turn, beginning with a window."""


def _window(settings: Settings, fields: Fields, family: str) -> Iterator[Gap]:
    """Sets the window of `fields`; a gap where its layers follow no pattern."""
    window = settings.integer("sliding_window", "window_size", least=0) if _windowed(settings) else None
    if not window or window >= fields["positions"]:
        return
    every = settings.integer("sliding_window_pattern", most=MOST_LAYERS)
    types = settings.raw("layer_types")
    if isinstance(types, list):
        windowed = [str(name).startswith("sliding") for name in types]
        full = next((layer for layer, has in enumerate(windowed, 1) if not has), None)
        if windowed != [full is None or layer % full != 0 for layer in range(1, len(windowed) + 1)]:
            words = f"attention in a sliding window of {window} in some layers; taken as full attention"
            yield Gap(words)
            return
        every = full
    elif every is None and family in ALTERNATING:
        every = 2
    if every == 1:
        return
    fields.update(window=window, window_pattern=every)


def _windowed(settings: Settings) -> bool:
    if isinstance(settings.values.get("sliding_window"), (list, str)):
        return False
    return settings.flag("use_sliding_window", default=True)
