"""`config.json` of Hugging Face models: a model's shape, whatever its family.

Source: huggingface/transformers, `src/transformers/models/*/configuration_*.py` and `modeling_*.py`, and the
code next to the weights of families that bring their own. Which linears have biases, how many norms a layer
has and whether the MLP is gated decide the parameter count: where the code fixes them, or a key of one
family's decides them, `FAMILIES` has them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfsim.base.errors import InputError
from perfsim.base.sizes import MOST_LAYERS, MOST_WIDTH
from perfsim.catalog import default_catalog
from perfsim.interop import tool
from perfsim.interop.nearest_model import Nearest
from perfsim.interop.source import Settings, Source, names_in
from perfsim.interop.tool import Read, Reading, Row, Tool
from perfsim.specs.model import LatentAttention

Fields = Mapping[str, Any]
"""Fields of `TransformerConfig` and of `Beyond`. A function reads one after the keys that all families have;
None keeps what these say."""
_HIDDEN = "model.hidden_size"
_HEADS = "model.num_attention_heads"


def _flag(key: str, *, default: bool = False) -> Read:
    return lambda settings: settings.flag(key, default=default)


def _if(key: str, value: Any, otherwise: Any = None, *, default: bool = False) -> Read:
    """One of two values by a truth value; they may be functions as well."""

    def read(settings: Settings) -> Any:
        chosen = value if settings.flag(key, default=default) else otherwise
        return chosen(settings) if callable(chosen) else chosen

    return read


def _of_each_head(settings: Settings) -> int:
    """Parameters of norms of queries and keys that all heads share."""
    return 2 * int(settings.ours["model.head_dim"])


def _of_all_heads(settings: Settings) -> Any:
    """Parameters of norms of queries and keys over all heads together."""
    heads = settings.ours[_HEADS]
    return (heads + (settings.ours.get("model.num_query_groups") or heads)) * _of_each_head(settings) // 2


def _falcon_groups(settings: Settings) -> int:
    heads: int = settings.ours[_HEADS]
    if settings.flag("new_decoder_architecture") or settings.has("n_head_kv"):
        return settings.integer("num_kv_heads", "n_head_kv", default=heads)
    return 1 if settings.flag("multi_query", default=True) else heads


def _falcon_norms(settings: Settings) -> int:
    if settings.flag("new_decoder_architecture") or settings.has("n_head_kv"):
        return settings.integer("num_ln_in_parallel_attn", default=2)
    return 1 if settings.flag("parallel_attn", default=True) else 2


def _mpt_positions(settings: Settings) -> str:
    if settings.flag("attn_config.alibi"):
        return "alibi"
    if settings.flag("attn_config.rope"):
        return "rotary"
    return "learned" if settings.flag("learned_pos_emb", default=True) else "none"


def _opt_parts(settings: Settings) -> dict[str, int]:
    hidden: int = settings.ours[_HIDDEN]
    width = settings.integer("word_embed_proj_dim", default=hidden)
    added = 2 * width * hidden - settings.ours["model.vocab_size"] * (hidden - width)
    return {f"an embedding of width {width} with two projections": added} if width != hidden else {}


def _bert_parts(settings: Settings) -> dict[str, int]:
    hidden: int = settings.ours[_HIDDEN]
    types = settings.integer("type_vocab_size", default=2, least=0)
    parts = {"token types": types * hidden, "a norm of the embedding": 2 * hidden}
    named = str(settings.raw("architectures"))
    if "MaskedLM" in named or "PreTraining" in named or "BertLMHead" in named:
        vocab: int = settings.ours["model.vocab_size"]
        parts["the masked-language head's own layer"] = hidden * hidden + 3 * hidden + vocab
    if "PreTraining" in named:
        parts["the head of sentence pairs"] = 2 * hidden + 2
    if "MaskedLM" not in named:
        parts["the pooler"] = hidden * hidden + hidden
    return parts


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
GPTJ: Fields = {**PARALLEL, "attention_bias": False, "head_bias": True}
QWEN2: Fields = {**LLAMA, "attention_bias": True, "output_bias": False}
COHERE: Fields = {**LLAMA, "tied_embeddings": True, "norms": 1, "qk_norm": _if("use_qk_norm", _of_all_heads)}
BERT: Fields = {"causal": False, "final_norm": False, "parts": _bert_parts}
OLMO2: Fields = {**LLAMA, "qk_norm": _of_all_heads}
QWEN3: Fields = {**LLAMA, "qk_norm": _of_each_head}
GEMMA2: Fields = {**LLAMA, "tied_embeddings": True, "norms": 4}
GLM: Fields = {**LLAMA, "attention_bias": _flag("attention_bias"), "output_bias": lambda _: False}
INTERNLM: Fields = {**LLAMA, "attention_bias": _flag("bias"), "output_bias": _flag("bias")}


def _biases(read: Read) -> Fields:
    """All linears of a layer have biases or none."""
    return dict.fromkeys(("bias", "attention_bias", "output_bias"), read)


_AS_LLAMA = (
    "llama mistral mixtral ministral internlm3 baichuan yi Yi deepseek granite granitemoe smollm3 aquila "
    "llama4_text exaone helium ernie4_5 dbrx phi3 deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 ernie4_5_moe"
)
_AS_QWEN3 = "qwen3 qwen3_moe qwen3_vl_text qwen3_vl_moe_text dots1 exaone4 hunyuan_v1_dense"
FALCON: Fields = {
    **_biases(_flag("bias")),
    "position_embedding": _if("alibi", "alibi", "rotary"),
    "num_query_groups": _falcon_groups,
    "norms": _falcon_norms,
}
FAMILIES: Mapping[str, Fields] = {
    # The defaults: LayerNorm, biases everywhere, learned positions, tied head, no gate.
    "gpt2": {"num_query_groups": lambda s: 1 if s.text("attention_head_type") == "multiquery" else None},
    "gpt_bigcode": {"num_query_groups": _if("multi_query", 1, default=True)},
    "gpt_neo": {"attention_bias": False, "output_bias": True},
    **dict.fromkeys(("gptj", "codegen"), GPTJ),
    "gpt_neox": {"position_embedding": "rotary", "tied_embeddings": False},
    "opt": {
        **_biases(_flag("enable_bias", default=True)),
        "extra_positions": 2,
        "final_norm": lambda s: (
            s.flag("do_layer_norm_before", default=True) and not s.flag("_remove_final_layer_norm")
        ),
        "parts": _opt_parts,
    },
    "bloom": {
        "position_embedding": "alibi",
        "parts": lambda s: {"a norm of the embedding": 2 * s.ours[_HIDDEN]},
    },
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"), FALCON),
    "mpt": {
        **_biases(_if("no_bias", False, True, default=True)),
        "norm_vectors": _if("no_bias", 1, 2, default=True),
        "ffn_hidden_size": lambda s: int((s.number("expansion_ratio") or 4) * s.ours[_HIDDEN]),
        "position_embedding": _mpt_positions,
        "num_query_groups": lambda s: (
            1 if s.text("attn_config.attn_type") == "multiquery_attention" else None
        ),
    },
    "phi": {**PARALLEL, "head_bias": True, "qk_norm": _if("qk_layernorm", _of_each_head)},
    "phimoe": {**LLAMA, "norm_vectors": 2, "head_bias": _flag("lm_head_bias")},
    "stablelm": {
        **LLAMA,
        "norm_vectors": 2,
        "attention_bias": _flag("use_qkv_bias"),
        "norms": _if("use_parallel_residual", 1),
        "qk_norm": _if("qk_layernorm", _of_all_heads),
    },
    "starcoder2": {"position_embedding": "rotary", **_biases(_flag("use_bias", default=True))},
    "nemotron": {**LLAMA, "gated_mlp": False, "norm_vectors": 2},
    "olmo": {**LLAMA, "norm_vectors": 0},
    **dict.fromkeys(("olmo2", "olmo3", "olmoe"), OLMO2),
    **dict.fromkeys(("cohere", "cohere2"), COHERE),
    "gemma": {**LLAMA, "tied_embeddings": True},
    "gemma2": GEMMA2,
    "gemma3_text": {**GEMMA2, "qk_norm": _of_each_head},
    # The file gives gate and up together.
    "qwen": {**QWEN2, "ffn_hidden_size": lambda s: s.ours["model.ffn_hidden_size"] // 2},
    **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), QWEN2),
    "qwen2_moe": {**QWEN2, "shared_gate": True},
    **dict.fromkeys(_AS_QWEN3.split(), QWEN3),
    "seed_oss": {**LLAMA, "output_bias": _flag("attention_out_bias")},
    "arcee": {**LLAMA, "gated_mlp": False},
    "apertus": {**QWEN3, "gated_mlp": False, "parts": lambda s: {"xIELU": 2 * s.ours["model.num_layers"]}},
    "chatglm": {
        **LLAMA,
        **_biases(_flag("add_bias_linear")),
        "attention_bias": lambda s: s.flag("add_qkv_bias") or s.flag("add_bias_linear"),
        "norm_vectors": _if("rmsnorm", 1, 2, default=True),
        "num_query_groups": _if(
            "multi_query_attention",
            lambda s: s.integer("multi_query_group_num", default=1),
            lambda s: s.ours[_HEADS],
        ),
    },
    "glm": GLM,
    "glm4": {**GLM, "norms": 4},
    "glm4_moe": {**GLM, "qk_norm": _if("use_qk_norm", _of_each_head)},
    **dict.fromkeys(("internlm", "internlm2"), INTERNLM),
    "gpt_oss": {
        **LLAMA,
        "attention_bias": True,
        "bias": True,
        "router_bias": True,
        "parts": lambda s: {"attention sinks": s.ours["model.num_layers"] * s.ours[_HEADS]},
    },
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), BERT),
    **dict.fromkeys(_AS_LLAMA.split(), LLAMA),
}
_NOT_DESCRIBED = {
    "an encoder with a decoder": "t5 mt5 umt5 bart mbart pegasus whisper marian longt5 m2m_100",
    "a model without attention": "mamba mamba2 falcon_mamba rwkv rwkv5 xlstm",
    "a model with recurrent layers": "jamba bamba zamba zamba2 nemotron_h recurrent_gemma qwen3_next "
    "falcon_h1 granitemoehybrid kimi_linear lfm2 minimax minimax_text_01",
    "no language model": "vit clip siglip dinov2 wav2vec2 swin convnext",
    "an encoder of its own build": "albert distilbert deberta deberta-v2 electra modernbert xlnet",
    "a decoder of its own build": "nemotron-nas openelm gemma3n_text mllama_text_model hunyuan arctic",
}
OTHER_KINDS = {family: kind for kind, families in _NOT_DESCRIBED.items() for family in families.split()}
"""What is not described at all, by `model_type`."""
TEXT = ("text_config", "llm_config", "language_config")
"""Sections that hold the language model of a model for several media."""
METADATA = ("architectures", "model_type", "transformers_version", "_name_or_path", "torch_dtype", "dtype")
"""Keys that describe the file, not the shape."""
_GEMMA3 = {"vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6}
_GEMMA3_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
OMITTED = {"gemma3_text": _GEMMA3 | _GEMMA3_HEADS, "falcon": {"max_position_embeddings": 2048}}
"""What files of a family leave to the defaults of transformers."""
ALIBI_BLOOM_POSITIONS = 2048
"""Longest sequence where a file with ALiBi positions gives none."""
ALTERNATING = {"gpt_oss": 2, "gemma2": 2, "gpt_neo": 2}
"""Families whose layers have a window and all positions in turn."""
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
EXPERT_LAYERS = (
    "first_k_dense_replace moe_layer_start_index moe_layer_freq decoder_sparse_step moe_layer_interval "
    "interleave_moe_layer_step"
)


def _positions(settings: Settings) -> int:
    if settings.ours.get("model.position_embedding") == "alibi":
        return settings.integer(*POSITIONS.split(), default=ALIBI_BLOOM_POSITIONS)
    return settings.needed(*POSITIONS.split(), "model_max_length")


def _shared_width(settings: Settings) -> int:
    width: int = settings.ours["model.experts.ffn_hidden_size"]
    counts = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    count = settings.integer(*counts, default=0, least=0)
    keys = ("shared_expert_intermediate_size", "shared_intermediate_size")
    together = settings.integer(*keys, default=count * width, least=0, most=MOST_WIDTH)
    return width if settings.text("model_type") == "llama4_text" else together


def _expert_layers(settings: Settings) -> tuple[bool, ...]:
    layers: int = settings.ours["model.num_layers"]
    first_key, start_key, *every_keys = EXPERT_LAYERS.split()
    first = settings.integer(first_key, start_key, default=0, least=0, most=layers)
    step = max(1, settings.integer(*every_keys, default=1, least=0))
    only = settings.raw("mlp_only_layers")
    settings.ignore("moe_layers")
    dense = {int(layer) for layer in only if isinstance(layer, int)} if isinstance(only, list) else set()
    from_one = not settings.text("model_type").startswith("deepseek")
    numbered = ((layer, layer + from_one) for layer in range(layers))
    return tuple(layer >= first and nth % step == 0 and layer not in dense for layer, nth in numbered)


SHAPE: tuple[Row, ...] = (
    Row.same("model.hidden_size", HIDDEN, needed=True),
    Row.same("model.num_attention_heads", HEADS, needed=True),
    Row.same("model.num_layers", LAYERS, needed=True),
    Row.same("model.num_query_groups", KV_HEADS),
    Row.same(
        "model.head_dim",
        "head_dim kv_channels attention_head_dim",
        default=lambda s: s.ours[_HIDDEN] // s.ours[_HEADS],
    ),
    Row.same("model.ffn_hidden_size", FFN, default=lambda s: 4 * s.ours[_HIDDEN]),
    Row.same("model.vocab_size", "vocab_size padded_vocab_size n_vocab", needed=True),
    Row("model.max_position_embeddings", POSITIONS, read=_positions),
    Row.same("model.tied_embeddings", "tie_word_embeddings"),
    Row.same("model.attention_bias", "attention_bias"),
    Row.same("model.output_bias", "attention_bias"),
    Row.same("model.bias", "mlp_bias"),
    Row.same("model.mtp_num_layers", "num_nextn_predict_layers", default=0),
)
BLOCKS: tuple[Row, ...] = (
    *tool.when(
        lambda settings: settings.has("kv_lora_rank"),
        *(
            Row.same(f"model.latent_attention.{name}", name, needed=known.is_required())
            for name, known in LatentAttention.model_fields.items()
        ),
    ),
    *tool.experts(
        EXPERTS,
        Row.same("model.experts.top_k", ACTIVE, needed=True),
        Row.same("model.experts.ffn_hidden_size", "moe_intermediate_size expert_ffn_hidden_size"),
        Row("model.experts.shared_ffn_hidden_size", "n_shared_experts", read=_shared_width),
        *tool.when(
            lambda settings: settings.text("model_type") == "llama4_text",
            Row.same("model.ffn_hidden_size", "intermediate_size_mlp"),
        ),
        Row("model.expert_layers", f"{EXPERT_LAYERS} mlp_only_layers", read=_expert_layers),
        Row("model.router_bias", "topk_method", read=lambda s: s.text("topk_method") == "noaux_tc" or None),
        Row.noted("attention in chunks of {} positions; taken as full attention", "attention_chunk_size"),
        Row.noted("attention to {} positions of an indexer; taken as full attention", "index_topk"),
        Row.same("model.experts.groups", "n_group", default=1),
        Row.same("model.experts.top_groups", "topk_group", default=1),
    ),
)


def _window(settings: Settings, family: str) -> dict[str, int | None]:
    """The window and how often a layer attends to all positions; a gap where the layers follow no pattern."""
    if isinstance(settings.raw("sliding_window"), (list, str)):
        return {}
    window = settings.integer("sliding_window", "window_size", least=0)
    used = settings.flag("use_sliding_window", default=True)
    if not used or not window or window >= settings.ours["model.max_position_embeddings"]:
        return {}
    types = settings.raw("layer_types")
    full = settings.integer("max_window_layers", least=0, most=MOST_LAYERS)  # of Qwen: the first ones
    if types is None and full is not None:
        types = ["full"] * full + ["sliding"] * (settings.ours["model.num_layers"] - full)
    if isinstance(types, list):
        settings.ignore("sliding_window_pattern")
        windowed = [str(name).startswith("sliding") for name in types]
        every = next((layer for layer, has in enumerate(windowed, 1) if not has), None)
        if windowed != [every is None or layer % every != 0 for layer in range(1, len(windowed) + 1)]:
            settings.gap(f"attention in a sliding window of {window} in some layers; taken as full attention")
            return {}
    else:
        every = settings.integer("sliding_window_pattern", most=MOST_LAYERS) or ALTERNATING.get(family)
    return {} if every == 1 else {"model.sliding_window": window, "model.sliding_window_pattern": every}


def _recognise(document: Any) -> bool:
    names = names_in(document, *TEXT, "")
    signs = names_in(document, "") & {"model_type", "architectures"} or names & {*LAYERS.split()}
    # A section without sizes is refused in words.
    return bool(signs) and not names.isdisjoint((*HIDDEN.split(), *names_in(document, *TEXT)))


def _read(source: Source, document: Mapping[str, Any]) -> Reading:
    section = next((name for name in TEXT if isinstance(document.get(name), Mapping)), "")
    settings = Settings.of(source, document, {"": (f"{section}.",)} if section else None)
    settings.used.update(METADATA)
    omitted = OMITTED.get(settings.text("model_type"), {})
    start = f"{section}." if section else ""
    settings.values = {f"{start}{name}": omitted[name] for name in omitted} | dict(settings.values)
    family = settings.text("model_type") or _family_of(document)
    if family in OTHER_KINDS:
        source.refuse(
            f"model_type {family!r} is {OTHER_KINDS[family]}, which perfsim cannot describe",
            "decoders and encoders with attention in every layer can be imported",
            source.line_of("model_type"),
        )
    settings.ignore(*METADATA)
    if section and not settings.has(*HIDDEN.split(), *LAYERS.split(), *HEADS.split()):
        other = settings.text("_name_or_path") or f"the {family} that is its default"
        source.refuse(
            f"`{section}` has no sizes of its own: code of transformers takes those of {other}",
            f"import the config.json of {other}, or add its sizes to `{section}`",
            source.line_of(section),
        )
    if family not in FAMILIES:
        known = f"model_type {family!r} is unknown: it" if family else "without a model_type the file"
        settings.gap(f"{known} is read with the names and defaults of Llama; check the count")
    of_family = FAMILIES.get(family, LLAMA)
    settings.ours |= {f"model.{name}": value for name, value in of_family.items() if not callable(value)}
    settings.read(SHAPE)
    if family not in FAMILIES:
        activation = settings.text("hidden_act", default="silu")
        settings.ours["model.gated_mlp"] = activation.startswith(("sil", "swi", "glu", "geglu"))
    settings.read([Row(f"model.{name}", read=read) for name, read in of_family.items() if callable(read)])
    settings.read(BLOCKS)
    settings.ours |= _window(settings, family)
    if family == "gpt_neo":
        settings.gap("attention in a window in the even layers; described in the odd ones")
    if family == "gpt_neox" and settings.flag("use_parallel_residual", default=True):
        settings.gap("attention and MLP that read the same input, each by its own norm")
    if section:
        settings.gap(f"what stands outside `{section}`: encoders of images and sound")
    name = settings.text("_name_or_path").rstrip("/").split("/")[-1]
    return Reading(settings, settings.model, name=name)


def _family_of(document: Mapping[str, Any]) -> str:
    """The family that `architectures` names, as `GPTNeoXForCausalLM`; empty where it names none."""
    named = document.get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else str(document.get("model_type") or "")
    stem = first.split("For")[0].split("LMHead")[0].removesuffix("Model").casefold()
    return next((family for family in FAMILIES if family.replace("_", "").casefold() == stem), stem)


def model_beside(source: Source) -> Nearest | None:
    """The model of `--model`, else of a config.json next to the file, or None; InputError for a bad one."""
    if source.model:
        path = Path(source.model)
        if path.suffix == ".json" and path.is_file():
            other = Source.read(path)
            return _read(other, other.parsed("json")).model
        return Nearest(known_model(source.model), {})
    try:
        other = Source.read(source.path.resolve().with_name("config.json"))
        document = other.parsed("json")
        return _read(other, document).model if _recognise(document) else None
    except (InputError, OSError):
        return None


def known_model(name: str) -> dict[str, Any]:
    """The fields of a model of the catalogue, without those that describe it."""
    described = {"name", "description", "sources", "assumed", "released"}
    return default_catalog().model(name).model_dump(exclude=described, exclude_none=True)


TOOL = Tool(
    title="Hugging Face config.json",
    sign="`model_type` with `hidden_size` or `n_embd`",
    syntaxes=("json",),
    recognise=_recognise,
    read=_read,
    rows=(*SHAPE, *BLOCKS),
)
