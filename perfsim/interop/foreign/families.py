"""Families of Hugging Face models: what their code fixes and `config.json` does not say.

Source: huggingface/transformers, `src/transformers/models/*/configuration_*.py` and `modeling_*.py`, and the
code beside the weights of families that bring their own. Which linears have biases, how many norms a layer
has and whether the MLP is gated decide the parameter count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfsim.interop.foreign.settings import Settings

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
    h, vocab = fields["hidden"], fields["vocab"]
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
