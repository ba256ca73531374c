"""`config.json` of Hugging Face models: a model's shape, whatever its family.

Source: huggingface/transformers, `src/transformers/models/*/configuration_*.py` and `modeling_*.py`, and the
code next to the weights of families that bring their own. Which linears have biases, how many norms a layer
has and whether the MLP is gated decide the parameter count; where the code fixes them, `FAMILIES` has them,
and where a key of one family's decides them, `FAMILY_ROWS` has its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfsim.base.errors import InputError
from perfsim.base.sizes import MOST_LAYERS, MOST_WIDTH
from perfsim.catalog import default_catalog
from perfsim.interop import tool
from perfsim.interop.nearest_model import Nearest
from perfsim.interop.source import Settings, Source, names_in
from perfsim.interop.tool import Reading, Row, Tool, Values

Fields = Mapping[str, Any]
"""Fields of `TransformerConfig` and of `Beyond`."""
GPT: Fields = {}
"""The defaults: LayerNorm, biases everywhere, learned positions, tied head, no gate."""
LLAMA: Fields = {
    "gated_mlp": True,
    "tied_embeddings": False,
    "position_embedding": "rotary",
    "norm_vectors": 1,
    "attention_bias": False,
    "bias": False,
}
PARALLEL: Fields = {"position_embedding": "rotary", "tied_embeddings": False, "norms": 1}
"""Attention and MLP on one norm."""
NO_QKV_BIAS: Fields = {"attention_bias": False, "output_bias": True}
ONLY_QKV_BIAS: Fields = {"attention_bias": True, "output_bias": False}
TIED: Fields = {"tied_embeddings": True}
BERT: Fields = {"causal": False, "final_norm": False}

FAMILIES: Mapping[str, Fields] = {
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neo": NO_QKV_BIAS,
    "gptj": {**PARALLEL, "attention_bias": False, "head_bias": True},
    "codegen": {**PARALLEL, "attention_bias": False, "head_bias": True},
    "gpt_neox": {"position_embedding": "rotary", "tied_embeddings": False},
    "opt": {"extra_positions": 2},
    "bloom": {"position_embedding": "alibi"},
    "falcon": {"position_embedding": "rotary", "norms": 1},
    "RefinedWeb": {"position_embedding": "rotary"},
    "RefinedWebModel": {"position_embedding": "rotary", "norms": 1},
    "mpt": {"norm_vectors": 1, "attention_bias": False, "bias": False},
    "phi": {**PARALLEL, "head_bias": True},
    "phimoe": {**LLAMA, "norm_vectors": 2},
    "stablelm": {**LLAMA, "norm_vectors": 2},
    "starcoder2": {"position_embedding": "rotary"},
    "nemotron": {**LLAMA, "gated_mlp": False, "norm_vectors": 2},
    "olmo": {**LLAMA, "norm_vectors": 0},
    "cohere": {**LLAMA, **TIED, "norms": 1},
    "cohere2": {**LLAMA, **TIED, "norms": 1},
    "gemma": {**LLAMA, **TIED},
    "gemma2": {**LLAMA, **TIED, "norms": 4},
    "gemma3_text": {**LLAMA, **TIED, "norms": 4},
    "qwen": {**LLAMA, **ONLY_QKV_BIAS},
    "qwen2": {**LLAMA, **ONLY_QKV_BIAS},
    "qwen2_moe": {**LLAMA, **ONLY_QKV_BIAS, "shared_gate": True},
    "glm4": {**LLAMA, "norms": 4},
    "gpt_oss": {**LLAMA, "attention_bias": True, "bias": True, "router_bias": True},
    "bert": BERT,
    "roberta": BERT,
    **dict.fromkeys(
        (
            *("llama", "mistral", "mixtral", "ministral", "internlm", "internlm2", "internlm3", "baichuan"),
            *("yi", "deepseek", "granite", "granitemoe", "smollm3", "aquila", "llama4_text", "arcee", "Yi"),
            *("exaone", "helium", "apertus", "seed_oss", "ernie4_5", "hunyuan_v1_dense", "dbrx", "phi3"),
            *("olmo2", "olmo3", "olmoe", "qwen3", "qwen3_moe", "chatglm", "glm", "glm4_moe"),
            *("deepseek_v2", "deepseek_v3", "kimi_k2"),
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


# ------------------------------------------------------------------------ keys of one family's own
def _flag(key: str, *names: str, default: bool = False) -> tuple[Row, ...]:
    """Fields that are what a truth value says."""
    return tuple(Row(f"model.{name}", key, read=lambda s, _: s.flag(key, default=default)) for name in names)


def _if(key: str, field: str, value: Any, *, default: bool = False, usual: Any = None) -> Row:
    """A field with a value where a truth value holds, else with the usual one; None keeps the family's.

    Values may be functions of what was read before.
    """

    def read(settings: Settings, values: Values) -> Any:
        chosen = value if settings.flag(key, default=default) else usual
        return chosen(values) if callable(chosen) else chosen

    return Row(f"model.{field}", key, read=read)


def _always(field: str, value: Any) -> Row:
    """A field that follows from others."""
    return Row(f"model.{field}", "", read=lambda _, values: value(values) if callable(value) else value)


def _of_each_head(values: Values) -> int:
    """Parameters of norms of queries and keys that all heads share."""
    return 2 * int(values["model.head_dim"])


def _of_all_heads(values: Values) -> Any:
    """Parameters of norms of queries and keys over all heads together."""
    heads = values["model.num_attention_heads"]
    return (heads + (values.get("model.num_query_groups") or heads)) * int(values["model.head_dim"])


def _heads(values: Values) -> int:
    return int(values["model.num_attention_heads"])


def _falcon_groups(settings: Settings, values: Values) -> int:
    if settings.flag("new_decoder_architecture") or settings.has("n_head_kv"):
        return settings.integer("num_kv_heads", "n_head_kv", default=_heads(values))
    return 1 if settings.flag("multi_query", default=True) else _heads(values)


def _falcon_norms(settings: Settings, _: Values) -> int:
    if settings.flag("new_decoder_architecture") or settings.has("n_head_kv"):
        return settings.integer("num_ln_in_parallel_attn", default=2)
    return 1 if settings.flag("parallel_attn", default=True) else 2


def _mpt_positions(settings: Settings, _: Values) -> str:
    if settings.flag("attn_config.alibi"):
        return "alibi"
    if settings.flag("attn_config.rope"):
        return "rotary"
    return "learned" if settings.flag("learned_pos_emb", default=True) else "none"


def _opt_parts(settings: Settings, values: Values) -> dict[str, int]:
    hidden: int = values["model.hidden_size"]
    width = settings.integer("word_embed_proj_dim", default=hidden)
    added = 2 * width * hidden - values["model.vocab_size"] * (hidden - width)
    return {f"an embedding of width {width} with two projections": added} if width != hidden else {}


def _bert_parts(settings: Settings, values: Values) -> dict[str, int]:
    hidden: int = values["model.hidden_size"]
    types = settings.integer("type_vocab_size", default=2, least=0)
    parts = {"token types": types * hidden, "a norm of the embedding": 2 * hidden}
    named = str(settings.raw("architectures"))
    if "MaskedLM" in named or "PreTraining" in named or "BertLMHead" in named:
        vocab: int = values["model.vocab_size"]
        parts["the masked-language head's own layer"] = hidden * hidden + 3 * hidden + vocab
    if "PreTraining" in named:
        parts["the head of sentence pairs"] = 2 * hidden + 2
    if "MaskedLM" not in named:
        parts["the pooler"] = hidden * hidden + hidden
    return parts


ALL_BIASES = ("bias", "attention_bias", "output_bias")
ATTENTION_BIASES = ("attention_bias", "output_bias")
FALCON = (
    *_flag("bias", *ALL_BIASES),
    _if("alibi", "position_embedding", "alibi"),
    Row("model.num_query_groups", "num_kv_heads n_head_kv multi_query", read=_falcon_groups),
    Row("model.norms", "num_ln_in_parallel_attn parallel_attn", read=_falcon_norms),
)
GLM = (*_flag("attention_bias", "attention_bias"), _always("output_bias", value=False))
FAMILY_ROWS: Mapping[str, tuple[Row, ...]] = {
    "gpt_bigcode": (_if("multi_query", "num_query_groups", 1, default=True),),
    "opt": (
        *_flag("enable_bias", *ALL_BIASES, default=True),
        Row(
            "model.final_norm",
            "do_layer_norm_before _remove_final_layer_norm",
            read=lambda s, _: (
                s.flag("do_layer_norm_before", default=True) and not s.flag("_remove_final_layer_norm")
            ),
        ),
        Row("model.parts", "word_embed_proj_dim", read=_opt_parts),
    ),
    "bloom": (_always("parts", lambda v: {"a norm of the embedding": 2 * v["model.hidden_size"]}),),
    "falcon": FALCON,
    "RefinedWeb": FALCON,
    "RefinedWebModel": FALCON,
    "mpt": (
        Row(
            "model.ffn_hidden_size",
            "expansion_ratio",
            read=lambda s, v: int((s.number("expansion_ratio") or 4) * v["model.hidden_size"]),
        ),
        *(_if("no_bias", name, None, default=True, usual=True) for name in ALL_BIASES),
        _if("no_bias", "norm_vectors", None, default=True, usual=2),
        Row("model.position_embedding", "attn_config.alibi attn_config.rope", read=_mpt_positions),
        Row(
            "model.num_query_groups",
            "attn_config.attn_type",
            read=lambda s, _: 1 if s.text("attn_config.attn_type") == "multiquery_attention" else None,
        ),
    ),
    "phi": (_if("qk_layernorm", "qk_norm", lambda values: 2 * _of_each_head(values)),),
    "phimoe": _flag("lm_head_bias", "head_bias"),
    "stablelm": (
        *_flag("use_qkv_bias", "attention_bias"),
        _if("use_parallel_residual", "norms", 1),
        _if("qk_layernorm", "qk_norm", _of_all_heads),
    ),
    "starcoder2": _flag("use_bias", *ALL_BIASES, default=True),
    **dict.fromkeys(("olmo2", "olmo3", "olmoe"), (_always("qk_norm", _of_all_heads),)),
    **dict.fromkeys(("gemma3_text", "qwen3", "qwen3_moe"), (_always("qk_norm", _of_each_head),)),
    **dict.fromkeys(("cohere", "cohere2"), (_if("use_qk_norm", "qk_norm", _of_all_heads),)),
    # The file gives gate and up together.
    "qwen": (_always("ffn_hidden_size", lambda values: values["model.ffn_hidden_size"] // 2),),
    "chatglm": (
        *_flag("add_bias_linear", *ALL_BIASES),
        _if("add_qkv_bias", "attention_bias", value=True),
        _if("rmsnorm", "norm_vectors", None, default=True, usual=2),
        Row(
            "model.num_query_groups",
            "multi_query_attention multi_query_group_num",
            read=lambda s, v: (
                s.integer("multi_query_group_num", default=1)
                if s.flag("multi_query_attention")
                else _heads(v)
            ),
        ),
    ),
    "glm": GLM,
    "glm4": GLM,
    "glm4_moe": (*GLM, _if("use_qk_norm", "qk_norm", _of_each_head)),
    "internlm": _flag("bias", *ATTENTION_BIASES),
    "internlm2": _flag("bias", *ATTENTION_BIASES),
    "gpt_oss": (_always("parts", lambda v: {"attention sinks": v["model.num_layers"] * _heads(v)}),),
    "bert": (Row("model.parts", "type_vocab_size", read=_bert_parts),),
    "roberta": (Row("model.parts", "type_vocab_size", read=_bert_parts),),
}


# ------------------------------------------------------------------------------- keys of all families
TEXT = ("text_config", "llm_config", "language_config")
"""Sections that hold the language model of a model for several media."""
METADATA = ("architectures", "model_type", "transformers_version", "_name_or_path", "torch_dtype", "dtype")
"""Keys that describe the file, not the shape."""
ALIBI_BLOOM_POSITIONS = 2048
"""Longest sequence where a file with ALiBi positions gives none."""
ALTERNATING = ("gpt_oss", "gemma2")
"""Families whose layers have a window and all positions in turn, beginning with a window."""
HIDDEN = "hidden_size n_embd d_model n_embed dim"
LAYERS = "num_hidden_layers n_layer n_layers num_layers"
HEADS = "num_attention_heads n_head n_heads num_heads"
KV_HEADS = "num_key_value_heads attn_config.kv_n_heads num_kv_heads n_kv_heads"
FFN = "intermediate_size n_inner ffn_dim ffn_hidden_size ffn_config.ffn_hidden_size d_ff"
POSITIONS = "max_position_embeddings n_positions n_ctx max_seq_len seq_length seq_len"
EXPERTS = (
    "num_local_experts num_experts n_routed_experts ffn_config.moe_num_experts moe_num_experts "
    "num_moe_experts"
)
ACTIVE = "num_experts_per_tok num_experts_per_token ffn_config.moe_top_k moe_topk moe_k num_selected_experts"
EXPERT_LAYERS = "first_k_dense_replace moe_layer_freq decoder_sparse_step interleave_moe_layer_step"


def _positions(settings: Settings, values: Values) -> int:
    if values.get("model.position_embedding") == "alibi":
        return settings.integer(*POSITIONS.split(), default=ALIBI_BLOOM_POSITIONS)
    return settings.needed(*POSITIONS.split(), "model_max_length")


def _shared_width(settings: Settings, values: Values) -> int:
    """Width of all shared experts together."""
    width: int = values["model.experts.ffn_hidden_size"]
    counts = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    count = settings.integer(*counts, default=0, least=0)
    together = settings.integer(
        "shared_expert_intermediate_size", "shared_intermediate_size", least=0, most=MOST_WIDTH
    )
    if settings.text("model_type") == "llama4_text":
        return width
    return count * width if together is None else together


def _dense_width(settings: Settings, _: Values) -> int | None:
    of_family = settings.text("model_type") == "llama4_text"
    return settings.integer("intermediate_size_mlp", most=MOST_WIDTH) if of_family else None


def _expert_layers(settings: Settings, values: Values) -> tuple[bool, ...]:
    layers: int = values["model.num_layers"]
    first_key, *every_keys = EXPERT_LAYERS.split()
    first = settings.integer(first_key, default=0, least=0, most=layers)
    step = max(1, settings.integer(*every_keys, default=1, least=0))
    only = settings.raw("mlp_only_layers")
    settings.ignore("moe_layers")
    dense = {int(layer) for layer in only if isinstance(layer, int)} if isinstance(only, list) else set()
    if settings.text("model_type").startswith("deepseek"):
        return tuple(layer >= first and layer % step == 0 for layer in range(layers))
    return tuple(layer >= first and (layer + 1) % step == 0 and layer not in dense for layer in range(layers))


SHAPE: tuple[Row, ...] = (
    tool.same("model.hidden_size", HIDDEN, needed=True),
    tool.same("model.num_attention_heads", HEADS, needed=True),
    tool.same("model.num_layers", LAYERS, needed=True),
    tool.same("model.num_query_groups", KV_HEADS),
    tool.same(
        "model.head_dim",
        "head_dim kv_channels attention_head_dim",
        default=lambda _, v: max(1, v["model.hidden_size"] // _heads(v)),
    ),
    tool.same("model.ffn_hidden_size", FFN, default=lambda _, values: 4 * values["model.hidden_size"]),
    tool.same("model.vocab_size", "vocab_size padded_vocab_size n_vocab", needed=True),
    Row("model.max_position_embeddings", POSITIONS, read=_positions),
    tool.same("model.tied_embeddings", "tie_word_embeddings"),
    tool.same("model.attention_bias", "attention_bias"),
    tool.same("model.output_bias", "attention_bias"),
    tool.same("model.bias", "mlp_bias"),
    tool.same("model.mtp_num_layers", "num_nextn_predict_layers", default=0),
)
BLOCKS: tuple[Row, ...] = (
    *tool.when(
        lambda settings, _: settings.has("kv_lora_rank"),
        tool.same("model.latent_attention.q_lora_rank", "q_lora_rank"),
        tool.same("model.latent_attention.kv_lora_rank", "kv_lora_rank", needed=True),
        tool.same("model.latent_attention.qk_nope_head_dim", "qk_nope_head_dim", needed=True),
        tool.same("model.latent_attention.qk_rope_head_dim", "qk_rope_head_dim", needed=True),
        tool.same("model.latent_attention.v_head_dim", "v_head_dim", needed=True),
    ),
    *tool.experts(
        EXPERTS,
        tool.same("model.experts.top_k", ACTIVE, needed=True),
        tool.same(
            "model.experts.ffn_hidden_size",
            "moe_intermediate_size expert_ffn_hidden_size",
            default=tool.as_in("model.ffn_hidden_size"),
        ),
        Row("model.experts.shared_ffn_hidden_size", "n_shared_experts", read=_shared_width),
        Row("model.ffn_hidden_size", "intermediate_size_mlp", read=_dense_width),
        Row("model.expert_layers", f"{EXPERT_LAYERS} mlp_only_layers", read=_expert_layers),
        Row(
            "model.router_bias", "topk_method", read=lambda s, _: s.text("topk_method") == "noaux_tc" or None
        ),
        tool.same("model.experts.groups", "n_group", default=1),
        tool.same("model.experts.top_groups", "topk_group", default=1),
    ),
)


def _window(settings: Settings, values: Values, family: str) -> tuple[int | None, int | None]:
    """The window and how often a layer attends to all positions; a gap where the layers follow no pattern."""
    listed = isinstance(settings.raw("sliding_window"), (list, str))
    if listed or not settings.flag("use_sliding_window", default=True):
        return None, None
    window = settings.integer("sliding_window", "window_size", least=0)
    if not window or window >= values["model.max_position_embeddings"]:
        return None, None
    every = settings.integer("sliding_window_pattern", most=MOST_LAYERS)
    types = settings.raw("layer_types")
    if isinstance(types, list):
        windowed = [str(name).startswith("sliding") for name in types]
        every = next((layer for layer, has in enumerate(windowed, 1) if not has), None)
        if windowed != [every is None or layer % every != 0 for layer in range(1, len(windowed) + 1)]:
            settings.gap(f"attention in a sliding window of {window} in some layers; taken as full attention")
            return None, None
    elif every is None and family in ALTERNATING:
        every = 2
    return (None, None) if every == 1 else (window, every)


# ----------------------------------------------------------------------------------------- reading
def _recognise(document: Any) -> bool:
    names = names_in(document, *TEXT, "")
    signs = names_in(document, "") & {"model_type", "architectures"} or names & {*LAYERS.split()}
    return bool(signs) and not names.isdisjoint(HIDDEN.split())


def _read(source: Source, document: Mapping[str, Any]) -> Reading:
    """The shape of a config.json. Raises InputError for what is missing or out of range."""
    section = next((name for name in TEXT if isinstance(document.get(name), Mapping)), "")
    settings = Settings.of(source, document, {"": (f"{section}.",)} if section else None)
    settings.used.update(METADATA)
    family = settings.text("model_type") or _family_of(document)
    if family in OTHER_KINDS:
        source.refuse(
            f"model_type {family!r} is {OTHER_KINDS[family]}, which perfsim cannot describe",
            "decoders and encoders with attention in every layer can be imported",
            source.line_of("model_type"),
        )
    settings.ignore(*METADATA)
    if family not in FAMILIES:
        known = f"model_type {family!r} is unknown: it" if family else "without a model_type the file"
        settings.gap(f"{known} is read with the names and defaults of Llama; check the count")
    defaults = {f"model.{name}": value for name, value in FAMILIES.get(family, LLAMA).items()}
    values = tool.read_rows(SHAPE, settings, defaults)
    if family not in FAMILIES:
        activation = settings.text("hidden_act", default="silu")
        values["model.gated_mlp"] = activation.startswith(("sil", "swi", "glu", "geglu"))
    values = tool.read_rows((*FAMILY_ROWS.get(family, ()), *BLOCKS), settings, values)
    values["model.sliding_window"], values["model.sliding_window_pattern"] = _window(settings, values, family)
    if family == "gpt_neo":
        settings.gap("local attention in every second layer; taken as full attention")
    if values["model.mtp_num_layers"]:
        settings.gap("layers that predict further tokens, which the count leaves out")
    if family == "gpt_neox" and settings.flag("use_parallel_residual", default=True):
        settings.gap("attention and MLP that read the same input, each by its own norm")
    if section:
        settings.gap(f"what stands outside `{section}`: encoders of images and sound")
    name = settings.text("_name_or_path").rstrip("/").split("/")[-1]
    return Reading(settings, values.model, name=name)


def _family_of(document: Mapping[str, Any]) -> str:
    """The family that `architectures` names, as `GPTNeoXForCausalLM`; empty where it names none."""
    named = document.get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else str(document.get("model_type") or "")
    stem = first.split("For")[0].split("LMHead")[0].removesuffix("Model").casefold()
    return next((family for family in FAMILIES if family.replace("_", "").casefold() == stem), stem)


# ------------------------------------------------- the model of a file that holds none, as DeepSpeed's
USUAL = ("config.json", "model.json")
MOST_FILES = 100
"""JSON files of a folder that are looked at."""


def model_beside(source: Source) -> Nearest | None:
    """The model that `--model` names, else the one of the config.json next to the file; None without one.

    Raises InputError for a named model that is not there or that is wrong.
    """
    if source.model:
        path = Path(source.model)
        if path.suffix == ".json" and path.is_file():
            other = Source.read(path)
            return _read(other, other.parsed("json")).model
        described = {"name", "description", "sources", "assumed", "released"}
        known = default_catalog().model(source.model)
        return Nearest(known.model_dump(exclude=described, exclude_none=True), {})
    folder = source.path.resolve().parent
    others = sorted(folder.glob("*.json"))[:MOST_FILES]
    for paths in ([folder / name for name in USUAL], others):
        found = [model for path in paths if path != source.path.resolve() and (model := _model_of(path))]
        if len(found) == 1:
            return found[0]
    return None


def _model_of(path: Path) -> Nearest | None:
    try:
        source = Source.read(path)
        document = source.parsed("json")
        return _read(source, document).model if _recognise(document) else None
    except (InputError, OSError):
        return None


TOOL = Tool(
    name="huggingface",
    title="Hugging Face config.json",
    sign="`model_type` with `hidden_size` or `n_embd`",
    syntaxes=("json",),
    recognise=_recognise,
    read=_read,
    rows=(*SHAPE, *BLOCKS),
)
