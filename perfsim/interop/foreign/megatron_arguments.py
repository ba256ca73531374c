"""Arguments of Megatron-LM: a shell script, a line of flags, or the dump at the head of a log.

Names: NVIDIA/Megatron-LM, `megatron/training/arguments.py`, `core/transformer/transformer_config.py` and
`core/model_parallel_config.py`, with the older spellings of version 2.5. NeMo and Megatron-Bridge use the
same names in YAML, so their readers use these functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perfsim.interop.foreign.imported import Reading
from perfsim.interop.foreign.megatron_log import DUMPED, iteration_steps
from perfsim.interop.foreign.settings import Settings
from perfsim.interop.foreign.shape import Experts, Gap, Latent, Shape
from perfsim.interop.foreign.shell import UNKNOWN, flags_of
from perfsim.interop.foreign.source import Source
from perfsim.interop.megatron import POSITIONS, RANKS_IN_ALL, SHARDING
from perfsim.sizes import MOST_DEVICES, MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_VOCABULARY, MOST_WIDTH
from perfsim.workload import ParallelLayout

HEADER = "num_layers", "hidden_size"
"""Arguments that every run of Megatron has."""
EMBEDDINGS: dict[str, Any] = {
    **{name: position for position, name in POSITIONS.items()},
    **dict.fromkeys(("learned", "absolute"), "learned"),
    **dict.fromkeys(("rotary", "yarn", "mrope"), "rotary"),
    **dict.fromkeys(("nope", "relative"), "none"),
}
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
OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd"}
DROPOUT = 0.1
"""Megatron's default rate of both dropouts."""


def recognise_text(text: Any) -> bool:
    """Whether a text is a script, a line of flags or a log of Megatron-LM."""
    if not isinstance(text, str):
        return False
    dump = bool(DUMPED.search(text)) and re.search(r"\bnum_layers \.{2,}", text) is not None
    flags = "--num-layers" in text and "--hidden-size" in text
    return dump or flags or iteration_steps(text) != ()


def read_text(source: Source, _text: Any) -> Reading:
    """Model, recipe, layout and measured steps of a script or log."""
    dumped = {match[1]: _value(match[2]) for match in DUMPED.finditer(source.text)}
    steps = iteration_steps(source.text)
    if not dumped and steps and "--num-layers" not in source.text:
        source.refuse(
            "a log of iterations without the arguments of the run",
            "keep the lines from `arguments` to `end of arguments`, which Megatron prints at the start",
        )
    if dumped:
        settings = Settings(source, dumped, textual=True)
        variables: dict[str, str] = {}
    else:
        flags, variables = flags_of(source.text, "--num-layers")
        settings = Settings(source, flags, textual=True)
    _refuse_unknown(settings)
    return read_settings(settings, _world(settings, variables, source.text), steps=steps)


def _value(text: str) -> str | None:
    return None if text.strip() in ("None", "") else text.strip()


def _refuse_unknown(settings: Settings) -> None:
    """Values that only running the script would tell count as absent, and are named where they are needed."""
    unknown = {name for name, value in settings.values.items() if isinstance(value, str) and UNKNOWN in value}
    settings.values = {name: value for name, value in settings.values.items() if name not in unknown}
    settings.unknown |= unknown


def read_settings(
    settings: Settings,
    world: int | None,
    *,
    steps: tuple[Any, ...] = (),
    vocab: int | None = None,
) -> Reading:
    """Model, recipe and layout of Megatron's arguments by name; also of YAML that has these names."""
    gaps: list[Gap] = []
    layout, devices = _layout(settings, world, gaps)
    shape = _shape(settings, vocab, gaps)
    layout = _divided(settings, layout, shape.layers, gaps)
    return Reading(
        settings,
        shape=shape,
        recipe=_recipe(settings, layout.data if devices else None, shape),
        layout=layout,
        devices=devices,
        steps=steps,
        gaps=tuple(gaps),
    )


# ------------------------------------------------------------------------------------------ model
def _shape(settings: Settings, vocab: int | None, gaps: list[Gap]) -> Shape:
    layers = settings.needed("num_layers", "encoder_num_layers", most=MOST_LAYERS)
    hidden = settings.needed("hidden_size", most=MOST_WIDTH)
    heads = settings.needed("num_attention_heads", most=MOST_HEADS)
    gated = settings.flag("swiglu", "gated_linear_unit") or settings.text(
        "activation", "activation_func"
    ) in (*("swiglu", "fast-swiglu", "geglu", "reglu", "silu"),)
    default_ffn = int(hidden * 4 * 2 / 3 / 64) * 64 if settings.flag("swiglu") else 4 * hidden
    ffn = settings.integer("ffn_hidden_size", default=default_ffn, most=MOST_WIDTH) or default_ffn
    head_dim = settings.integer("kv_channels", default=max(1, hidden // heads), most=MOST_WIDTH) or 1
    bias = settings.flag("add_bias_linear", "bias", default=not settings.flag("disable_bias_linear"))
    positions = settings.needed(
        "max_position_embeddings", "seq_length", "encoder_seq_length", most=MOST_POSITIONS
    )
    tied = settings.flag("share_embeddings_and_output_weights", default=True)
    if settings.flag("untie_embeddings_and_output_weights"):
        tied = False
    norm = settings.text("normalization", default="LayerNorm").casefold()
    latent = _latent(settings)
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_groups(settings, heads),
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab or _vocabulary(settings, gaps),
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
        remarks=tuple(_remarks(settings)),
    )


def _groups(settings: Settings, heads: int) -> int:
    groups = settings.integer("num_query_groups", most=MOST_HEADS)
    grouped = settings.flag("group_query_attention", default=groups is not None)
    return groups if groups is not None and grouped else heads


def _embedding(settings: Settings) -> Any:
    if settings.flag("use_rotary_position_embeddings"):
        return "rotary"
    if not settings.flag("add_position_embedding", default=True):
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
            gaps.append(Gap(f"a vocabulary of {size}, taken from the tokenizer's name", changes_model=False))
            return size
    padded = settings.integer("padded_vocab_size", most=MOST_VOCABULARY)
    if padded is not None:
        gaps.append(
            Gap(f"a vocabulary of {padded} that is padded for tensor parallelism", changes_model=False)
        )
        return padded
    raise settings.missing("vocab_size", "padded_vocab_size")


def _experts(settings: Settings, layers: int, ffn: int) -> Experts | None:
    count = settings.integer("num_experts", "num_moe_experts", least=0, most=MOST_WIDTH)
    if not count or count == 1:
        return None
    return Experts(
        count=count,
        active=settings.integer("moe_router_topk", default=2, most=count) or 2,
        ffn=settings.integer("moe_ffn_hidden_size", default=ffn, most=MOST_WIDTH) or ffn,
        layers=_expert_layers(settings, layers),
        shared_ffn=settings.integer("moe_shared_expert_intermediate_size", default=0, least=0) or 0,
        shared_gate=settings.flag("moe_shared_expert_gate"),
    )


def _expert_layers(settings: Settings, layers: int) -> int:
    """How many layers have experts: one in so many, or a pattern such as `([0]*3+[1]*58)`."""
    settings.ignore("moe_layer_freq")
    given = settings.values.get("moe_layer_freq")
    if isinstance(given, list):
        return sum(1 for layer in given if layer in (1, True))
    text = str(1 if given is None else given).replace(" ", "")
    if text.isdigit() and int(text) > 0:
        return sum(layer % int(text) == 0 for layer in range(layers))
    blocks = re.findall(r"\[([01,]+)\](?:\*(\d{1,4}))?", text)
    if not blocks:
        raise settings.error("moe_layer_freq", f"{text[:60]!r} is neither a number nor a pattern of 0 and 1")
    return sum(block.count("1") * int(times or 1) for block, times in blocks)


def _latent(settings: Settings) -> Latent | None:
    if not settings.flag("multi_latent_attention"):
        return None
    return Latent(
        query_rank=settings.integer("q_lora_rank", most=MOST_WIDTH),
        kv_rank=settings.integer("kv_lora_rank", default=32, most=MOST_WIDTH) or 32,
        nope=settings.integer("qk_head_dim", default=128, most=MOST_WIDTH) or 128,
        rope=settings.integer("qk_pos_emb_head_dim", default=64, most=MOST_WIDTH) or 64,
        value=settings.integer("v_head_dim", default=128, most=MOST_WIDTH) or 128,
    )


def _remarks(settings: Settings) -> Iterator[Gap]:
    if settings.has("window_size") and str(settings.values["window_size"]) not in ("None", "(-1,-1)"):
        yield Gap("attention in a sliding window; taken as full attention", changes_model=False)
    if settings.integer("mtp_num_layers", least=0):
        yield Gap("layers that predict further tokens, which are not counted", changes_model=False)


# ----------------------------------------------------------------------------------------- recipe
def _recipe(settings: Settings, data: int | None, shape: Shape) -> dict[str, Any]:
    micro = settings.integer("micro_batch_size", "batch_size")
    batch = settings.integer("global_batch_size")
    if batch is None and micro is not None and data is not None:
        batch = micro * data
    precision = _precision(settings)
    rates = [settings.number(f"{part}_dropout", default=DROPOUT) for part in ("attention", "hidden")]
    wire = _reduced(settings, precision)
    elements = settings.integer("ddp_bucket_size")
    overlap = settings.flag("overlap_grad_reduce", "overlap_grad_sync")
    return {
        "seq_length": settings.integer(
            "seq_length", "encoder_seq_length", default=shape.positions, most=MOST_POSITIONS
        ),
        "precision": precision,
        "optimizer": settings.choice(("optimizer", "optim.name"), OPTIMIZERS | {"muon": "adam"}, "adam"),
        "global_batch_size": batch,
        "attention": _attention(settings),
        "dropout": any(rate != 0 for rate in rates),
        "overlap_grad_reduce": overlap,
        "grad_bucket": None if elements is None else f"{elements * (4 if wire == 'fp32' else 2)} B",
        "reduce_precision": None if wire == "fp32" else wire,
    }


def _precision(settings: Settings) -> str:
    eight = settings.text("fp8", "fp8_format").casefold() not in ("", "none", "false")
    if eight or settings.flag("fp8_hybrid") or settings.flag("fp8_e4m3"):
        settings.ignore("bf16", "fp16")
        return "fp8"
    if settings.flag("bf16"):
        settings.ignore("fp16")
        return "bf16"
    if settings.flag("fp16"):
        return "fp16"
    named = settings.text("precision").casefold()
    return "fp32" if not named else "bf16" if "bf16" in named else "fp16" if "16" in named else "fp32"


def _reduced(settings: Settings, precision: str) -> str:
    """Precision in which gradients are reduced: fp32, but in fp16 training only if a flag says so."""
    if settings.flag("grad_reduce_in_bf16") or not settings.flag("grad_reduce_in_fp32", default=True):
        return "bf16"
    wide = settings.flag("accumulate_allreduce_grads_in_fp32")
    return "fp16" if precision == "fp16" and not wide else "fp32"


def _attention(settings: Settings) -> str | None:
    backend = settings.text("attention_backend").casefold().removeprefix("attnbackend.")
    if (
        backend in ("flash", "fused", "auto")
        or settings.flag("use_flash_attn")
        or settings.flag("use_flash_attention")
    ):
        return "flash"
    if backend in ("unfused", "local"):
        return "standard"
    return "flash" if settings.text("transformer_impl") == "transformer_engine" else None


# ----------------------------------------------------------------------------------------- layout
@dataclass(frozen=True)
class _Degrees:
    tensor: int
    pipeline: int
    context: int


def _world(settings: Settings, variables: dict[str, str], text: str) -> int | None:
    """Number of ranks: of the dump, of torchrun's flags, of Slurm's, or of the usual variables."""
    world = settings.integer("world_size", most=MOST_DEVICES)
    if world is not None:
        return world
    named = RANKS_IN_ALL.search(text)
    if named:
        return int(named[1])
    settings.ignore("master_addr", "master_port", "node_rank", "rdzv_id", "rdzv_backend", "rdzv_endpoint")
    nodes = _count(
        settings, variables, text, ("nnodes",), ("NNODES", "NUM_NODES", "SLURM_NNODES"), r"--nodes[= ]|-N "
    )
    ranks = _count(
        settings,
        variables,
        text,
        ("nproc_per_node", "nproc-per-node"),
        ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE"),
        r"--(?:ntasks-per-node|gpus-per-node|gres)[= ](?:gpu:)?(?:\w+:)?",
    )
    if ranks is None:
        named = re.match(r"\d{1,6}$", variables.get("WORLD_SIZE", ""))
        return int(named[0]) if named else None
    return ranks * (nodes or 1)


def _count(
    settings: Settings,
    variables: dict[str, str],
    text: str,
    flags: Sequence[str],
    names: Sequence[str],
    directive: str,
) -> int | None:
    for flag in flags:
        if re.fullmatch(r"\d{1,6}", settings.text(flag)):
            return int(settings.text(flag))
    for name in names:
        if re.fullmatch(r"\d{1,6}", variables.get(name, "")):
            return int(variables[name])
    match = re.search(rf"^#SBATCH.*?(?:{directive})(\d{{1,6}})", text, re.MULTILINE)
    return int(match[1]) if match else None


def _layout(settings: Settings, world: int | None, gaps: list[Gap]) -> tuple[ParallelLayout, int | None]:
    """Degrees, ZeRO stage and recompute; virtual stages follow when the number of layers is known."""
    tensor = (
        settings.integer("tensor_model_parallel_size", "model_parallel_size", default=1, most=MOST_DEVICES)
        or 1
    )
    pipeline = settings.integer("pipeline_model_parallel_size", default=1, most=MOST_DEVICES) or 1
    context = settings.integer("context_parallel_size", default=1, most=MOST_DEVICES) or 1
    if context > 1:
        gaps.append(Gap(f"context parallelism over {context} ranks", changes_model=False))
    experts = settings.integer("expert_model_parallel_size", default=1, most=MOST_DEVICES) or 1
    if experts > 1:
        gaps.append(Gap(f"expert parallelism over {experts} ranks", changes_model=False))
    if settings.has("rampup_batch_size"):
        settings.ignore("rampup_batch_size")
        gaps.append(Gap("a batch that grows at the start of the run", changes_model=False))
    ways = tensor * pipeline * context
    if world is not None and world % ways:
        settings.source.refuse(
            f"{world} ranks are not a multiple of tensor {tensor} x pipeline {pipeline} x context {context}",
            "check the number of nodes and of ranks of a node",
        )
    sharding = settings.text("data_parallel_sharding_strategy")
    stages = {name: stage for stage, name in SHARDING.items()}
    fsdp = settings.flag("use_megatron_fsdp") or settings.flag("use_custom_fsdp")
    if fsdp:
        settings.ignore("no_gradient_accumulation_fusion", "ckpt_format")  # it demands both
    stage = int(settings.flag("use_distributed_optimizer"))
    if settings.flag("use_torch_fsdp2"):
        stage = 3
    layout = ParallelLayout(
        tensor=tensor,
        pipeline=pipeline,
        data=1 if world is None else world // ways,
        sequence_parallel=settings.flag("sequence_parallel") and tensor > 1,
        zero_stage=stages.get(sharding, stage) if fsdp else stage,
        micro_batch_size=settings.integer("micro_batch_size", "batch_size", default=1) or 1,
        recompute=_recompute(settings),
    )
    return layout, None if world is None else world // context


def _recompute(settings: Settings) -> Any:
    if settings.flag("checkpoint_activations"):
        return "full"
    granularity = settings.text("recompute_granularity", "activations_checkpoint_granularity")
    if settings.flag("recompute_activations"):
        granularity = granularity or "selective"
    if granularity not in ("", "full", "selective", "None"):
        raise settings.error("recompute_granularity", f"{granularity[:40]!r} is neither full nor selective")
    return granularity if granularity in ("full", "selective") else "none"


def _divided(settings: Settings, layout: ParallelLayout, layers: int, gaps: list[Gap]) -> ParallelLayout:
    """The layout with its virtual stages, uneven stages, and the share of layers that is recomputed."""
    changes: dict[str, Any] = {}
    pipeline = layout.pipeline
    if pipeline > layers:
        message = f"{pipeline} stages for {layers} layers"
        raise settings.error("pipeline_model_parallel_size", message)
    counts = _stage_layers(settings, layers)
    chunk = settings.integer("num_layers_per_virtual_pipeline_stage", most=MOST_LAYERS)
    virtual = settings.integer(
        *("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"), most=MOST_LAYERS
    )
    if counts:
        changes["layers_per_stage"] = counts
        virtual = max(1, len(counts) // pipeline)
    elif chunk and not virtual:
        virtual = max(1, layers // pipeline // chunk)
    if virtual and virtual > 1 and pipeline > 1:
        changes |= {"virtual_pipeline": virtual, "schedule": "interleaved"}
    ends = [settings.integer(f"decoder_{end}_pipeline_num_layers") for end in ("first", "last")]
    if any(ends) and not counts:
        gaps.append(Gap("another number of layers in the first or last stage", changes_model=False))
    recomputed = settings.integer(
        "recompute_num_layers", "activations_checkpoint_num_layers", most=MOST_LAYERS
    )
    method = settings.text("recompute_method", "activations_checkpoint_method")
    if layout.recompute == "full" and method == "block" and recomputed:
        mine = max(counts) if counts else layers // pipeline // int(changes.get("virtual_pipeline", 1))
        changes["recompute_every"] = max(1, math.ceil(mine / recomputed))
    settings.ignore("checkpoint_num_layers", "distribute_checkpointed_activations")
    return ParallelLayout(**{name: getattr(layout, name) for name in layout.__slots__} | changes)


def _stage_layers(settings: Settings, layers: int) -> tuple[int, ...]:
    """Layers of each virtual stage of `E,t*3|t*4|t*3,L`; empty where the stages are even."""
    pattern = settings.text("pipeline_model_parallel_layout")
    if not pattern or pattern == "None":
        return ()
    counts = tuple(
        sum(int(times or 1) for times in re.findall(r"t(?:\*(\d{1,4}))?", stage))
        for stage in _stages(pattern)
    )
    if sum(counts) != layers:
        message = f"{sum(counts)} decoder layers, the model has {layers}"
        raise settings.error("pipeline_model_parallel_layout", message)
    return () if len(set(counts)) == 1 else counts


def _stages(pattern: str) -> list[str]:
    """The stages of a layout with repeated groups, `(t*3|)*2`, written out."""
    while match := re.search(r"\(([^()]*)\)\*(\d{1,3})", pattern):
        pattern = pattern[: match.start()] + match[1] * int(match[2]) + pattern[match.end() :]
        if len(pattern) > MOST_LAYERS * 8:
            break
    return pattern.strip("|").split("|")
