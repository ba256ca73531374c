"""`config.json` of Hugging Face models: a model's shape, whatever its family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perfsim.base.sizes import MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_VOCABULARY, MOST_WIDTH
from perfsim.interop.shape import ExpertShape, Gap, Latent, Shape
from perfsim.interop.source import Settings, Source

# Families of Hugging Face models: what their code fixes and `config.json` does not say.
#
# Source: huggingface/transformers, `src/transformers/models/*/configuration_*.py` and `modeling_*.py`, and
# the
# code beside the weights of families that bring their own. Which linears have biases, how many norms a
# layer
# has and whether the MLP is gated decide the parameter count.

Fields = dict[str, Any]
"""Fields of a `Shape`."""

GPT: Fields = {}
"""The defaults of `Shape`: LayerNorm, biases everywhere, learned positions, tied head, no gate."""
LLAMA: Fields = {
    "gated": True,
    "tied": False,
    "embedding": "rotary",
    "norm_vectors": 1,
    "bias_qkv": False,
    "bias_out": False,
    "bias_mlp": False,
}
PARALLEL: Fields = {"embedding": "rotary", "tied": False, "norms": 1}
"""Attention and MLP on one norm."""
PLAIN_BIAS: Fields = {"norm_vectors": 2, "bias_qkv": True, "bias_out": True, "bias_mlp": True}

FAMILIES: Mapping[str, Fields] = {
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neo": {"bias_qkv": False},
    "gptj": PARALLEL | {"bias_qkv": False, "bias_out": False, "bias_head": True},
    "codegen": PARALLEL | {"bias_qkv": False, "bias_out": False, "bias_head": True},
    "gpt_neox": {"embedding": "rotary", "tied": False},
    "opt": {"extra_positions": 2},
    "bloom": {"embedding": "alibi"},
    "falcon": {"embedding": "rotary", "norms": 1},
    "RefinedWeb": {"embedding": "rotary"},
    "RefinedWebModel": {"embedding": "rotary", "norms": 1},
    "mpt": {"norm_vectors": 1, "bias_qkv": False, "bias_out": False, "bias_mlp": False},
    "dbrx": LLAMA,
    "phi": PARALLEL | {"bias_head": True},
    "phi3": LLAMA,
    "phimoe": LLAMA | {"norm_vectors": 2},
    "stablelm": LLAMA | {"norm_vectors": 2},
    "starcoder2": {"embedding": "rotary"},
    "nemotron": LLAMA | {"gated": False, "norm_vectors": 2},
    "olmo": LLAMA | {"norm_vectors": 0},
    "olmo2": LLAMA,
    "olmo3": LLAMA,
    "olmoe": LLAMA,
    "cohere": LLAMA | {"norms": 1, "tied": True},
    "cohere2": LLAMA | {"norms": 1, "tied": True},
    "gemma": LLAMA | {"tied": True},
    "gemma2": LLAMA | {"tied": True, "norms": 4},
    "gemma3_text": LLAMA | {"tied": True, "norms": 4},
    "qwen": LLAMA | {"bias_qkv": True},
    "qwen2": LLAMA | {"bias_qkv": True},
    "qwen2_moe": LLAMA | {"bias_qkv": True},
    "qwen3": LLAMA,
    "qwen3_moe": LLAMA,
    "chatglm": LLAMA,
    "glm": LLAMA,
    "glm4": LLAMA | {"norms": 4},
    "glm4_moe": LLAMA,
    "gpt_oss": LLAMA | {"bias_qkv": True, "bias_out": True, "bias_mlp": True},
    "deepseek_v2": LLAMA,
    "deepseek_v3": LLAMA,
    "kimi_k2": LLAMA,
    "bert": {"causal": False, "final_norm": False},
    "roberta": {"causal": False, "final_norm": False},
    **dict.fromkeys(
        (
            *("llama", "mistral", "mixtral", "ministral", "internlm", "internlm2", "internlm3", "baichuan"),
            *("yi", "deepseek", "granite", "granitemoe", "smollm3", "aquila", "llama4_text", "arcee", "Yi"),
            *("exaone", "helium", "apertus", "seed_oss", "ernie4_5", "hunyuan_v1_dense"),
        ),
        LLAMA,
    ),
}

OTHER_KINDS: Mapping[str, str] = {
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "whisper", "marian", "longt5", "m2m_100"),
        "an encoder with a decoder",
    ),
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "xlstm"), "a model without attention"
    ),
    **dict.fromkeys(
        ("jamba", "bamba", "zamba", "zamba2", "nemotron_h", "recurrent_gemma", "qwen3_next", "falcon_h1"),
        "a model with recurrent layers",
    ),
    **dict.fromkeys(("vit", "clip", "siglip", "dinov2", "wav2vec2", "swin", "convnext"), "no language model"),
}
"""What is not described at all, by `model_type`."""


# ---------------------------------------------------------------------- what further keys change
def _gpt_bigcode(settings: Settings, fields: Fields) -> None:
    if settings.flag("multi_query", default=True):
        fields["kv_heads"] = 1


def _opt(settings: Settings, fields: Fields) -> None:
    if not settings.flag("enable_bias", default=True):
        fields.update(bias_qkv=False, bias_out=False, bias_mlp=False)
    before = settings.flag("do_layer_norm_before", default=True)
    fields["final_norm"] = before and not settings.flag("_remove_final_layer_norm")
    width = settings.integer("word_embed_proj_dim", default=fields["hidden"])
    if width != fields["hidden"]:
        less = fields["vocab"] * (fields["hidden"] - width)
        added = 2 * width * fields["hidden"] - less
        fields["other"] = ((f"an embedding of width {width} with two projections", added),)


def _bloom(_settings: Settings, fields: Fields) -> None:
    fields["other"] = (("a norm of the embedding", 2 * fields["hidden"]),)


def _falcon(settings: Settings, fields: Fields) -> None:
    bias = settings.flag("bias")
    fields.update(bias_qkv=bias, bias_out=bias, bias_mlp=bias)
    if settings.flag("alibi"):
        fields["embedding"] = "alibi"
    if settings.flag("new_decoder_architecture") or settings.has("n_head_kv"):
        fields["kv_heads"] = settings.integer("num_kv_heads", "n_head_kv", default=fields["heads"])
        fields["norms"] = settings.integer("num_ln_in_parallel_attn", default=2)
    else:
        fields["kv_heads"] = 1 if settings.flag("multi_query", default=True) else fields["heads"]
        fields["norms"] = 1 if settings.flag("parallel_attn", default=True) else 2


def _mpt(settings: Settings, fields: Fields) -> None:
    fields["ffn"] = int((settings.number("expansion_ratio", default=4) or 4) * fields["hidden"])
    if not settings.flag("no_bias", default=True):
        fields.update(PLAIN_BIAS)
    if settings.flag("attn_config.alibi"):
        fields["embedding"] = "alibi"
    elif settings.flag("attn_config.rope"):
        fields["embedding"] = "rotary"
    elif not settings.flag("learned_pos_emb", default=True):
        fields["embedding"] = "none"
    if settings.text("attn_config.attn_type") == "multiquery_attention":
        fields["kv_heads"] = 1


def _phi(settings: Settings, fields: Fields) -> None:
    if settings.flag("qk_layernorm"):
        fields["qk_norm"] = 4 * fields["head_dim"]


def _phimoe(settings: Settings, fields: Fields) -> None:
    fields["bias_head"] = settings.flag("lm_head_bias")


def _stablelm(settings: Settings, fields: Fields) -> None:
    fields["bias_qkv"] = settings.flag("use_qkv_bias")
    if settings.flag("use_parallel_residual"):
        fields["norms"] = 1
    if settings.flag("qk_layernorm"):
        fields["qk_norm"] = (fields["heads"] + fields["kv_heads"]) * fields["head_dim"]


def _starcoder2(settings: Settings, fields: Fields) -> None:
    bias = settings.flag("use_bias", default=True)
    fields.update(bias_qkv=bias, bias_out=bias, bias_mlp=bias)


def _norm_of_heads(_settings: Settings, fields: Fields) -> None:
    fields["qk_norm"] = 2 * fields["head_dim"]


def _norm_of_all_heads(_settings: Settings, fields: Fields) -> None:
    fields["qk_norm"] = (fields["heads"] + fields["kv_heads"]) * fields["head_dim"]


def _cohere(settings: Settings, fields: Fields) -> None:
    if settings.flag("use_qk_norm"):
        _norm_of_all_heads(settings, fields)


def _qwen(_settings: Settings, fields: Fields) -> None:
    fields["ffn"] //= 2  # the file gives gate and up together


def _chatglm(settings: Settings, fields: Fields) -> None:
    biases = settings.flag("add_bias_linear")
    fields.update(bias_qkv=biases or settings.flag("add_qkv_bias"), bias_out=biases, bias_mlp=biases)
    if not settings.flag("rmsnorm", default=True):
        fields["norm_vectors"] = 2
    groups = settings.integer("multi_query_group_num", default=1)
    fields["kv_heads"] = groups if settings.flag("multi_query_attention") else fields["heads"]


def _query_biases(settings: Settings, fields: Fields) -> None:
    """`attention_bias` is of queries, keys and values only."""
    fields.update(bias_qkv=settings.flag("attention_bias"), bias_out=False)


def _glm4_moe(settings: Settings, fields: Fields) -> None:
    _query_biases(settings, fields)
    if settings.flag("use_qk_norm"):
        fields["qk_norm"] = 2 * fields["head_dim"]


def _internlm(settings: Settings, fields: Fields) -> None:
    bias = settings.flag("bias")
    fields.update(bias_qkv=bias, bias_out=bias)


def _gpt_oss(_settings: Settings, fields: Fields) -> None:
    fields["other"] = (("attention sinks", fields["layers"] * fields["heads"]),)


def _bert(settings: Settings, fields: Fields) -> None:
    h = fields["hidden"]
    vocab = fields["vocab"]
    types = settings.integer("type_vocab_size", default=2, least=0) * h
    other = [("token types", types), ("a norm of the embedding", 2 * h)]
    architectures = str(settings.values.get("architectures", ""))
    if "MaskedLM" in architectures or "PreTraining" in architectures or "BertLMHead" in architectures:
        other.append(("the masked-language head's own layer", h * h + 3 * h + vocab))
    if "PreTraining" in architectures:
        other.append(("the head of sentence pairs", 2 * h + 2))
    if "MaskedLM" not in architectures:
        other.append(("the pooler", h * h + h))
    fields["other"] = tuple(other)


REFINEMENTS: Mapping[str, Callable[[Settings, Fields], None]] = {
    "gpt_bigcode": _gpt_bigcode,
    "opt": _opt,
    "bloom": _bloom,
    "falcon": _falcon,
    "RefinedWeb": _falcon,
    "RefinedWebModel": _falcon,
    "mpt": _mpt,
    "phi": _phi,
    "phimoe": _phimoe,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "olmo2": _norm_of_all_heads,
    "olmo3": _norm_of_all_heads,
    "olmoe": _norm_of_all_heads,
    "gemma3_text": _norm_of_heads,
    "qwen3": _norm_of_heads,
    "qwen3_moe": _norm_of_heads,
    "cohere": _cohere,
    "cohere2": _cohere,
    "qwen": _qwen,
    "chatglm": _chatglm,
    "glm": _query_biases,
    "glm4": _query_biases,
    "glm4_moe": _glm4_moe,
    "internlm": _internlm,
    "internlm2": _internlm,
    "gpt_oss": _gpt_oss,
    "bert": _bert,
    "roberta": _bert,
}


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


def _experts(settings: Settings, fields: Fields, family: str) -> ExpertShape | None:
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
    return ExpertShape(
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
