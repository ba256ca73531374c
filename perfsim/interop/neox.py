"""YAML of GPT-NeoX: model, batch, parallelism and ZeRO, with hyphens or underscores.

Names: EleutherAI/gpt-neox, `megatron/neox_arguments/neox_args.py` and `configs/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfsim.base.sizes import (
    MOST_DEVICES,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_VOCABULARY,
    MOST_WIDTH,
)
from perfsim.interop.imported import Reading
from perfsim.interop.shape import ExpertShape, Gap, Shape
from perfsim.interop.source import Settings, Source
from perfsim.specs.layout import ParallelLayout

SIGNS = ("pipe_parallel_size", "model_parallel_size", "train_micro_batch_size_per_gpu", "pos_emb")
EMBEDDINGS: Mapping[str, Any] = {
    "learned": "learned",
    "rotary": "rotary",
    "alibi": "alibi",
    **dict.fromkeys(("sinusoidal", "rpe", "none"), "none"),
}
VOCABULARIES = {
    "gpt2bpetokenizer": 50257,
    "hfgpt2tokenizer": 50257,
    "hftokenizer": 50277,
    "charleveltokenizer": 512,
    "tiktokentokenizer": 50257,
    "spmtokenizer": 32000,
    "hfllamatokenizer": 32000,
}
"""Entries by type of tokenizer; that of `HFTokenizer` is the tokenizer of GPT-NeoX-20B."""
DIVISIBLE = 128
"""Vocabularies are padded to a multiple of this times the tensor parallelism."""
LLAMA_MULTIPLE = 256
"""The width of a Llama MLP is rounded up to a multiple of it."""
GATED = ("swiglu", "geglu", "reglu", "bilinear", "glu")
OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd", "cpu_adam": "adam", "onebitadam": "adam"}


def recognise(document: Any) -> bool:
    """Whether this is a configuration of GPT-NeoX."""
    if not isinstance(document, Mapping):
        return False
    keys = {str(key).replace("-", "_") for key in document}
    return {"num_layers", "hidden_size", "num_attention_heads"} <= keys and bool(keys & set(SIGNS))


def read(source: Source, document: Mapping[str, Any]) -> Reading:
    """Model, recipe and layout."""
    if isinstance(document, Mapping):
        document = {str(key).replace("-", "_"): value for key, value in document.items()}
    settings = Settings.of(source, document)
    tensor = settings.integer("model_parallel_size", default=1, most=MOST_DEVICES)
    gaps: list[Gap] = []
    shape = _shape(settings, tensor, gaps)
    layout, devices, batch = _layout(settings, tensor)
    return Reading(
        settings,
        shape=shape,
        recipe=_recipe(settings, shape, batch),
        layout=layout,
        devices=devices,
        gaps=tuple(gaps),
    )


def _shape(settings: Settings, tensor: int, gaps: list[Gap]) -> Shape:
    hidden = settings.needed("hidden_size", most=MOST_WIDTH)
    heads = settings.needed("num_attention_heads", most=MOST_HEADS)
    positions = settings.needed("max_position_embeddings", "seq_length", most=MOST_POSITIONS)
    activation = settings.text("activation", default="gelu").casefold()
    gated = activation in GATED or settings.text("mlp_type") == "llama"
    norm = settings.text("norm", default="layernorm").casefold()
    one_vector = "rms" in norm or not settings.flag("use_bias_in_norms", default=True)
    attention_bias = settings.flag("use_bias_in_attn_linear", default=True)
    mlp_bias = settings.flag("use_bias_in_mlp", default=settings.text("mlp_type") != "llama")
    tied_norms = settings.flag("gpt_j_residual") and settings.flag("gpt_j_tied")
    if settings.flag("gpt_j_residual") and not tied_norms:
        gaps.append(Gap("attention and MLP that read the same input, each by its own norm"))
    layers = settings.needed("num_layers", most=MOST_LAYERS)
    ffn = _ffn(settings, hidden, gated=gated)
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=settings.integer("num_kv_heads", default=heads, most=MOST_HEADS),
        head_dim=max(1, hidden // heads),
        ffn=ffn,
        vocab=_vocabulary(settings, tensor, gaps),
        positions=positions,
        gated=gated,
        tied=not settings.flag("no_weight_tying"),
        embedding=settings.choice(("pos_emb",), EMBEDDINGS, "learned"),
        norm_vectors=1 if one_vector else 2,
        norms=1 if tied_norms else 2,
        qk_norm=(1 if one_vector else 2) * 2 * (hidden // heads) if settings.flag("use_qk_layernorm") else 0,
        bias_qkv=attention_bias,
        bias_out=attention_bias,
        bias_mlp=mlp_bias,
        bias_head=settings.flag("final_linear_bias"),
        experts=_experts(settings, layers, ffn),
    )


def _ffn(settings: Settings, hidden: int, *, gated: bool) -> int:
    """Width of the MLP; two thirds of the plain one where it is gated."""
    given = settings.integer("intermediate_size", most=3 * MOST_WIDTH)
    multiple = settings.integer("mlp_multiple_of", default=1, most=MOST_WIDTH)
    plain = given or 4 * hidden
    if settings.text("mlp_type") == "llama":
        multiple = LLAMA_MULTIPLE
        width = given or int(plain * 2 / 3)
    elif gated:
        width = int(plain * 2 / 3) // 2 if given else int(plain * 2 / 3)
    else:
        width = plain
    return min(-(-width // multiple) * multiple, MOST_WIDTH)


def _vocabulary(settings: Settings, tensor: int, gaps: list[Gap]) -> int:
    """The padded vocabulary, which the weights have."""
    given = settings.integer("padded_vocab_size", most=MOST_VOCABULARY)
    multiple = tensor * settings.integer("make_vocab_size_divisible_by", default=DIVISIBLE, most=MOST_WIDTH)
    if given is not None:
        return given
    size = settings.integer("vocab_size", most=MOST_VOCABULARY)
    tokenizer = settings.text("tokenizer_type", default="GPT2BPETokenizer")
    if size is None:
        size = VOCABULARIES.get(tokenizer.casefold())
        if size is None:
            raise settings.missing("vocab_size", "padded_vocab_size")
        gaps.append(Gap(f"a vocabulary of {size} from the type of its tokenizer, padded"))
    return -(-size // multiple) * multiple


def _experts(settings: Settings, layers: int, ffn: int) -> ExpertShape | None:
    count = settings.integer("moe_num_experts", "num_experts", least=0, most=MOST_WIDTH)
    if not count or count == 1:
        return None
    every = settings.integer("moe_expert_interval", "expert_interval", default=1)
    every = min(every, layers)
    active = settings.integer("moe_top_k", default=1, most=count)
    return ExpertShape(
        count=count,
        active=active,
        ffn=ffn,
        pattern=tuple((layer + 1) % every == 0 for layer in range(layers)),
    )


def _layout(settings: Settings, tensor: int) -> tuple[ParallelLayout, int | None, int | None]:
    """The layout, the number of devices and the global batch, as far as the file tells them."""
    pipeline = max(1, settings.integer("pipe_parallel_size", default=1, least=0, most=MOST_DEVICES))
    micro = settings.integer("train_micro_batch_size_per_gpu", "batch_size", default=1)
    accumulation = settings.integer("gradient_accumulation_steps", "gas", default=1)
    batch = settings.integer("train_batch_size")
    devices = settings.integer("global_num_gpus", "world_size", most=MOST_DEVICES)
    if devices is None and batch is not None and batch % (micro * accumulation) == 0:
        devices = batch // (micro * accumulation) * tensor * pipeline
    data = None if devices is None else devices // (tensor * pipeline)
    if devices is not None and (not data or devices % (tensor * pipeline)):
        settings.source.refuse(f"{devices} GPUs are no multiple of tensor {tensor} × pipeline {pipeline}")
    if batch is None and data is not None:
        batch = micro * accumulation * data
    recomputed = settings.flag("checkpoint_activations")
    settings.ignore("checkpoint_num_layers", "partition_activations", "synchronize_each_layer")
    layout = ParallelLayout(
        tensor=tensor,
        pipeline=pipeline,
        data=data or 1,
        zero_stage=settings.integer("zero_optimization.stage", "zero_stage", default=0, least=0, most=3),
        micro_batch_size=micro,
        recompute="full" if recomputed else "none",
    )
    return layout, devices, batch


def _recipe(settings: Settings, shape: Shape, batch: int | None) -> dict[str, Any]:
    named = settings.text("precision").casefold()
    half = {"bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32"}.get(named, "")
    if settings.flag("bf16.enabled"):
        half = "bf16"
    if settings.flag("fp16.enabled"):
        half = half or ("bf16" if settings.text("fp16.type") == "bfloat16" else "fp16")
    settings.ignore("fp16.fp16", "attention_config")
    elements = settings.integer("zero_optimization.reduce_bucket_size")
    flash = "flash" in str(settings.values.get("attention_config", ""))[:2000]
    return {
        "seq_length": settings.integer("seq_length", default=shape.positions, most=MOST_POSITIONS),
        "precision": half or "fp32",
        "optimizer": settings.choice(
            ("optimizer.type", "optimizer_type"), OPTIMIZERS | {"lion": "sgd"}, "adam"
        ),
        "global_batch_size": batch,
        "attention": "flash" if flash else None,
        "dropout": bool(
            settings.number("hidden_dropout", default=0) or settings.number("attention_dropout", default=0)
        ),
        "overlap_grad_reduce": settings.flag("zero_optimization.overlap_comm"),
        "grad_bucket": None if elements is None else f"{2 * elements} B",
    }
