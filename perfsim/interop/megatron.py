"""The model of Megatron's arguments: widths, biases, experts and latent attention.

Names: NVIDIA/Megatron-LM, `core/transformer/transformer_config.py` and `megatron/training/arguments.py`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from perfsim.base.sizes import (
    MOST_DEVICES,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_VOCABULARY,
    MOST_WIDTH,
)
from perfsim.interop.imported import Reading, Step
from perfsim.interop.shape import ExpertShape, Gap, Latent, Shape
from perfsim.interop.shell import UNKNOWN, flags_of
from perfsim.interop.source import Settings, Source
from perfsim.interop.tool import (
    Chosen,
    Limit,
    Setting,
    Tool,
    Values,
    bucket_elements,
    commented,
    only_optimizers,
    reduced_otherwise,
    tf32_products,
    where,
)
from perfsim.specs.calibration import Dispatcher
from perfsim.specs.layout import ContextExchange, ParallelLayout, layers_of_stages
from perfsim.specs.model import Experts, LatentAttention, layer_kinds
from perfsim.specs.recipe import TrainingRecipe

# Megatron's arguments for what is not a dense layer: experts, latent attention, windows, further tokens.
#
# Names: NVIDIA/Megatron-LM, `core/transformer/transformer_config.py` and `megatron/training/arguments.py`.


def _model(field: Callable[[Any], Any]) -> Callable[[Chosen], Any]:
    return lambda chosen: field(chosen.job.model)


def _megatron_model_experts(field: Callable[[Experts], Any]) -> Callable[[Chosen], Any]:
    """A field of the experts; None without any."""

    def value(chosen: Chosen) -> Any:
        experts = chosen.job.model.experts
        return None if experts is None else field(experts)

    return value


def _megatron_model_latent(field: Callable[[LatentAttention], Any]) -> Callable[[Chosen], Any]:
    def value(chosen: Chosen) -> Any:
        latent = chosen.job.model.latent_attention
        return None if latent is None else field(latent)

    return value


def _megatron_model_expert_layers(chosen: Chosen) -> str | None:
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
MODEL_SETTINGS: tuple[Setting, ...] = (
    ("--kv-channels", _model(lambda model: model.head_dim)),
    ("--qk-layernorm", _model(lambda model: True if model.qk_layernorm else None)),
    ("--multi-latent-attention", _megatron_model_latent(lambda _: True)),
    ("--q-lora-rank", _megatron_model_latent(lambda latent: latent.q_lora_rank)),
    ("--kv-lora-rank", _megatron_model_latent(lambda latent: latent.kv_lora_rank)),
    ("--qk-head-dim", _megatron_model_latent(lambda latent: latent.qk_nope_head_dim)),
    ("--qk-pos-emb-head-dim", _megatron_model_latent(lambda latent: latent.qk_rope_head_dim)),
    ("--v-head-dim", _megatron_model_latent(lambda latent: latent.v_head_dim)),
    ("--window-size", _model(lambda model: f"{model.sliding_window},0" if model.sliding_window else None)),
    ("--window-attn-skip-freq", _model(lambda model: model.sliding_window_pattern)),
    ("--mtp-num-layers", _model(lambda model: model.mtp_num_layers or None)),
    ("--num-experts", _megatron_model_experts(lambda experts: experts.num_experts)),
    ("--moe-router-topk", _megatron_model_experts(lambda experts: experts.top_k)),
    ("--moe-ffn-hidden-size", _megatron_model_experts(lambda experts: experts.ffn_hidden_size)),
    (
        "--moe-shared-expert-intermediate-size",
        _megatron_model_experts(lambda experts: experts.shared_ffn_hidden_size or None),
    ),
    ("--moe-layer-freq", _megatron_model_expert_layers),
    (
        "--moe-router-num-groups",
        _megatron_model_experts(lambda experts: experts.groups if experts.groups > 1 else None),
    ),
    (
        "--moe-router-group-topk",
        _megatron_model_experts(lambda experts: experts.top_groups if experts.groups > 1 else None),
    ),
    ("--expert-model-parallel-size", _degree("expert")),
    ("--expert-tensor-parallel-size", _degree("expert_tensor")),
    ("--moe-token-dispatcher-type", _routing(lambda recipe: DISPATCHERS[recipe.expert_dispatcher])),
    ("--moe-expert-capacity-factor", _routing(lambda recipe: recipe.expert_capacity)),
    (
        "--moe-router-force-load-balancing",
        _routing(lambda recipe: True if recipe.routing == "balanced" else None),
    ),
    ("--moe-grouped-gemm", _routing(lambda recipe: True if recipe.runtime.grouped_products else None)),
)


# Flags of Megatron-LM: `pretrain_gpt.py` under `torchrun`, one flag on each line.
#
# Names: NVIDIA/Megatron-LM, `megatron/training/arguments.py` of Megatron-Core 0.13 and later. Megatron
# numbers
# ranks as perfsim does: tensor innermost, then context, then data, then pipeline.

POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
"""Strategies of Megatron-FSDP by ZeRO stage."""
SCHEDULES = ("1f1b", "interleaved")
CONTEXT: Mapping[ContextExchange, str] = {"ring": "p2p", "all_to_all": "a2a"}
RANKS_IN_ALL = re.compile(r"torchrun with (\d{1,6}) ranks in all")
"""The comment of the emitted flags that says how many ranks they are for."""
OPTIMIZERS = {"adam": "adam", "adamw": "adam", "muon": "muon", "sgd": "sgd"}
"""Megatron's adam decouples weight decay, as AdamW does."""


def _fsdp(chosen: Chosen) -> bool:
    return chosen.layout.zero_stage in SHARDING


def _megatron_groups(chosen: Chosen) -> int | None:
    """Groups of replicas that shard; its instances of the distributed optimizer."""
    layout = chosen.layout
    return layout.replicas // layout.shards if layout.shards < layout.replicas else None


def _flag(condition: bool) -> bool | None:
    return True if condition else None


def _layers_per_virtual_stage(chosen: Chosen) -> int | None:
    layout = chosen.layout
    even = layout.schedule == "interleaved" and layout.layers_per_stage is None
    return chosen.job.model.num_layers // layout.num_stages if even else None


def _pipeline_layout(chosen: Chosen) -> str | None:
    """`E,t*3|t*4|t*3,L`: embedding, decoder layers of each virtual stage, loss."""
    given = chosen.layout.layers_per_stage
    if given is None:
        return None
    stages = [f"t*{count}" if count else "" for count in given]
    stages[0] = ",".join(filter(None, ("E", stages[0])))
    stages[-1] = ",".join(filter(None, (stages[-1], "L")))
    return "|".join(stages)


def _dropout(chosen: Chosen) -> float | None:
    return None if chosen.job.recipe.dropout else 0.0


def _recompute_method(chosen: Chosen) -> str | None:
    """`block` recomputes the first layers of each virtual stage, `uniform` all of them."""
    if chosen.layout.recompute != "full":
        return None
    return "uniform" if chosen.layout.recompute_every == 1 else "block"


def _recompute_layers(chosen: Chosen) -> int | None:
    if chosen.layout.recompute != "full":
        return None
    every: int = chosen.layout.recompute_every
    return 1 if every == 1 else max(math.ceil(count / every) for count in _megatron_stage_layers(chosen))


def _megatron_stage_layers(chosen: Chosen) -> tuple[int, ...]:
    """Layers of the virtual stages; one number where they are even."""
    layout = chosen.layout
    return layout.layers_per_stage or (chosen.job.model.num_layers // layout.num_stages,)


SETTINGS: tuple[Setting, ...] = (
    ("--num-layers", lambda c: c.job.model.num_layers),
    ("--hidden-size", lambda c: c.job.model.hidden_size),
    ("--ffn-hidden-size", lambda c: c.job.model.ffn_hidden_size),
    ("--num-attention-heads", lambda c: c.job.model.num_attention_heads),
    ("--group-query-attention", lambda c: _flag(c.job.model.num_query_groups is not None)),
    ("--num-query-groups", lambda c: c.job.model.num_query_groups),
    *MODEL_SETTINGS,
    ("--vocab-size", lambda c: c.job.model.vocab_size),
    ("--max-position-embeddings", lambda c: c.job.model.max_position_embeddings),
    ("--position-embedding-type", lambda c: POSITIONS.get(c.job.model.position_embedding)),
    ("--swiglu", lambda c: _flag(c.job.model.gated_mlp)),
    # A model without biases has norms without shifts.
    ("--normalization", lambda c: None if c.job.model.bias else "RMSNorm"),
    ("--disable-bias-linear", lambda c: _flag(not c.job.model.bias)),
    ("--untie-embeddings-and-output-weights", lambda c: _flag(not c.job.model.tied_embeddings)),
    ("--seq-length", lambda c: c.job.seq_length),
    ("--micro-batch-size", lambda c: c.layout.micro_batch_size),
    ("--global-batch-size", lambda c: c.job.global_batch_size),
    ("--tensor-model-parallel-size", lambda c: c.layout.tensor),
    ("--context-parallel-size", lambda c: c.layout.context if c.layout.context > 1 else None),
    ("--cp-comm-type", lambda c: CONTEXT[c.layout.context_exchange] if c.layout.context > 1 else None),
    ("--pipeline-model-parallel-size", lambda c: c.layout.pipeline),
    ("--num-layers-per-virtual-pipeline-stage", _layers_per_virtual_stage),
    ("--pipeline-model-parallel-layout", _pipeline_layout),
    ("--sequence-parallel", lambda c: _flag(c.layout.sequence_parallel)),
    ("--use-distributed-optimizer", lambda c: _flag(c.layout.zero_stage >= 1)),
    ("--num-distributed-optimizer-instances", _megatron_groups),
    ("--optimizer-cpu-offload", lambda c: _flag(c.layout.offload_optimizer == "cpu")),
    ("--overlap-cpu-optimizer-d2h-h2d", lambda c: _flag(c.layout.offload_optimizer == "cpu")),
    ("--use-precision-aware-optimizer", lambda c: _flag(c.layout.offload_optimizer == "cpu")),
    ("--use-megatron-fsdp", lambda c: _flag(_fsdp(c))),
    ("--data-parallel-sharding-strategy", lambda c: SHARDING.get(c.layout.zero_stage)),
    ("--no-gradient-accumulation-fusion", lambda c: _flag(_fsdp(c))),
    ("--ckpt-format", lambda c: "fsdp_dtensor" if _fsdp(c) else None),
    (
        "--overlap-grad-reduce",
        lambda c: _flag(c.job.runtime.overlap_grad_reduce and c.layout.replicas > 1),
    ),
    (
        "--overlap-param-gather",
        lambda c: _flag(
            c.job.runtime.overlap_param_gather and c.layout.zero_stage > 0 and c.layout.replicas > 1
        ),
    ),
    ("--ddp-bucket-size", bucket_elements),
    ("--recompute-granularity", lambda c: None if c.layout.recompute == "none" else c.layout.recompute),
    ("--recompute-method", _recompute_method),
    ("--recompute-num-layers", _recompute_layers),
    ("--fp16", lambda c: _flag(c.job.recipe.precision == "fp16")),
    ("--bf16", lambda c: _flag(c.job.recipe.precision in ("bf16", "fp8"))),
    ("--fp8-format", lambda c: "hybrid" if c.job.recipe.precision == "fp8" else None),
    (
        "--accumulate-allreduce-grads-in-fp32",
        lambda c: _flag(c.job.recipe.reduce_precision in (None, "fp32")),
    ),
    ("--grad-reduce-in-bf16", lambda c: _flag(c.job.recipe.reduce_precision == "bf16")),
    (
        "--attention-backend",
        lambda c: "flash" if c.job.runtime.attention == "flash" else "unfused",
    ),
    ("--attention-dropout", _dropout),
    ("--hidden-dropout", _dropout),
    ("--cross-entropy-loss-fusion", lambda c: _flag(c.job.runtime.fused_cross_entropy)),
    ("--optimizer", lambda c: OPTIMIZERS[c.job.recipe.optimizer]),
)


_other_schedule = where(
    lambda c: c.layout.pipeline > 1 and c.layout.schedule not in SCHEDULES,
    f"its schedules are {' and '.join(SCHEDULES)}, not {{c.layout.schedule}}",
)


def _offload(chosen: Chosen) -> str:
    layout = chosen.layout
    if set(layout.offloads.items()) <= {("offload_optimizer", "cpu")}:
        return (
            "its optimizer on the CPU goes with ZeRO 1 at most" if layout.offloads and _fsdp(chosen) else ""
        )
    return "it offloads the optimizer to the CPU, nothing else and nowhere else"


def _biases(chosen: Chosen) -> str:
    model = chosen.job.model
    if model.has_attention_bias == model.bias:
        return ""
    return f"biases of the linears {'of attention alone' if model.has_attention_bias else 'of the MLP alone'}"


def _recompute_between(chosen: Chosen) -> str:
    """Virtual stages of which an equal number of layers is not recomputed."""
    layout = chosen.layout
    counts = set(_megatron_stage_layers(chosen))
    every = layout.recompute_every
    alone = layout.virtual_pipeline == 1 and len(counts) == 1
    if every == 1 or alone or (len(counts) == 1 and not min(counts) % every):
        return ""
    return f"recompute of one layer in {every} over all virtual stages; more of each stage is recomputed"


GAPS: tuple[Limit, ...] = (
    _recompute_between,
    _biases,
    where(lambda c: c.job.model.norms_per_layer == 1, "attention and MLP on one norm"),
    where(lambda c: c.job.model.head_bias, "a bias of the LM head"),
    where(
        lambda c: c.job.model.position_embedding not in POSITIONS,
        "{c.job.model.position_embedding} positions",
    ),
    where(lambda c: not c.job.model.causal, "attention in both directions; take pretrain_bert.py"),
    where(lambda c: c.job.recipe.lm_head_positions, "an LM head on part of the positions"),
    tf32_products,
    reduced_otherwise("fp32", "bf16"),
    where(
        lambda c: c.job.runtime.host_blocking,
        "a host that waits for every kernel; set CUDA_LAUNCH_BLOCKING=1",
    ),
)


def _start(chosen: Chosen) -> str:
    layout = chosen.layout
    context = f" x {layout.context}" if layout.context > 1 else ""
    return (
        f"torchrun with {layout.num_devices} ranks in all, pretrain_gpt.py and these flags; "
        f"data parallel {layout.data} follows from {layout.num_devices} / "
        f"({layout.tensor} x {layout.pipeline}{context})"
    )


def _text(comments: Sequence[str], values: Values) -> str:
    flags = [name if value is True else f"{name} {shlex.quote(str(value))}" for name, value in values]
    return "\n".join([*commented(comments), *flags, ""])


MEGATRON = Tool(
    name="megatron",
    title="Megatron-LM",
    layout_type=ParallelLayout,
    runs_on="GPUs",
    settings=SETTINGS,
    refusals=(_other_schedule, _offload, only_optimizers(OPTIMIZERS)),
    gaps=GAPS,
    render=_text,
    how_to_start=_start,
)


# The layout of Megatron's arguments: ranks, degrees, stages, ZeRO and recompute.


def _world_size(settings: Settings, variables: Mapping[str, str], text: str) -> int | None:
    """Number of ranks: of the dump, of torchrun's flags, of Slurm's, or of the usual variables."""
    world = settings.integer("world_size", most=MOST_DEVICES)
    if world is not None:
        return world
    named = RANKS_IN_ALL.search(text)
    if named:
        return int(named[1])
    settings.ignore("master_addr", "master_port", "node_rank", "rdzv_id", "rdzv_backend", "rdzv_endpoint")
    nodes = _count(
        settings,
        variables,
        text,
        ("nnodes", "nodes"),
        ("NNODES", "NUM_NODES", "SLURM_NNODES"),
        r"--nodes[= ]|-N ",
    )
    ranks = _count(
        settings,
        variables,
        text,
        ("nproc_per_node", "ntasks_per_node", "gpus_per_node", "npernode"),
        ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE"),
        r"--(?:ntasks-per-node|gpus-per-node|gres)[= ](?:gpu:)?(?:\w+:)?",
    )
    started = settings.text("ranks")
    if re.fullmatch(r"\d{1,6}", started):
        return int(started)
    if ranks is None:
        named = re.match(r"\d{1,6}$", variables.get("WORLD_SIZE", ""))
        return int(named[0]) if named else None
    return ranks * (nodes or 1)


def _count(
    settings: Settings,
    variables: Mapping[str, str],
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


def _read_layout(settings: Settings, world: int | None, gaps: list[Gap]) -> tuple[ParallelLayout, int | None]:
    """Degrees, ZeRO stage and recompute; virtual stages follow when the number of layers is known."""
    tensor = settings.integer(
        "tensor_model_parallel_size", "model_parallel_size", default=1, most=MOST_DEVICES
    )
    pipeline = settings.integer("pipeline_model_parallel_size", default=1, most=MOST_DEVICES)
    context = settings.integer("context_parallel_size", default=1, most=MOST_DEVICES)
    exchanges: dict[str, ContextExchange] = {name: exchange for exchange, name in CONTEXT.items()}
    kind = settings.text("cp_comm_type").split()
    if context > 1 and kind and kind[0] not in exchanges:
        gaps.append(Gap(f"context ranks that exchange by {kind[0]}; a ring is taken"))
    experts = settings.integer("expert_model_parallel_size", default=1, most=MOST_DEVICES)
    sharing = settings.integer("expert_tensor_parallel_size", most=MOST_DEVICES) or tensor
    has_experts = settings.raw("num_experts") is not None or settings.raw("num_moe_experts") is not None
    if settings.flag("overlap_moe_expert_parallel_comm"):
        text = "overlap_moe_expert_parallel_comm: all-to-alls beside the compute of another micro-batch"
        gaps.append(Gap(f"{text}; predicted one after the other, which takes longer"))
    if settings.raw("rampup_batch_size") is not None:
        gaps.append(Gap("a batch that grows at the start of the run"))
    ways = tensor * pipeline * context
    if world is not None and world % ways:
        settings.source.refuse(
            f"{world} ranks are not a multiple of tensor {tensor} × pipeline {pipeline} × context {context}",
            "check the number of nodes and of ranks of a node",
        )
    layout = ParallelLayout(
        tensor=tensor,
        pipeline=pipeline,
        data=1 if world is None else world // ways,
        sequence_parallel=settings.flag("sequence_parallel") and tensor > 1,
        zero_stage=_zero_stage(settings),
        micro_batch_size=settings.integer("micro_batch_size", "batch_size", default=1),
        recompute=_recompute(settings),
        context=context,
        expert=experts,
        expert_tensor=sharing if has_experts else 1,
        shard_group=_shard_group(settings, 0 if world is None else world // (tensor * pipeline)),
        context_exchange=exchanges.get(kind[0], "ring") if kind else "ring",
        offload_optimizer="cpu" if settings.flag("optimizer_cpu_offload") else "none",
    )
    settings.ignore("overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer")
    share = settings.number("optimizer_offload_fraction", default=1.0)
    if layout.offload_optimizer != "none" and share != 1.0:
        gaps.append(Gap(f"the optimizer of a share of {share:g} on the CPU; all is described"))
    return layout, world


def _zero_stage(settings: Settings) -> int:
    """What data-parallel ranks shard."""
    if settings.flag("use_torch_fsdp2"):
        return 3
    distributed = settings.text("optim.name").startswith("distributed")
    stage = int(settings.flag("use_distributed_optimizer") or distributed)
    if not (settings.flag("use_megatron_fsdp") or settings.flag("use_custom_fsdp")):
        return stage
    settings.ignore("no_gradient_accumulation_fusion", "ckpt_format")  # it demands both
    stages = {name: stage for stage, name in SHARDING.items()}
    return stages.get(settings.text("data_parallel_sharding_strategy"), stage)


def _shard_group(settings: Settings, replicas: int) -> int | None:
    """Ranks of an instance of the distributed optimizer where there are several."""
    instances = settings.integer("num_distributed_optimizer_instances", default=1, most=MOST_DEVICES)
    shares = instances > 1 and replicas > instances and replicas % instances == 0
    return replicas // instances if shares else None


def _recompute(settings: Settings) -> Any:
    if settings.flag("checkpoint_activations"):
        return "full"
    granularity = settings.text("recompute_granularity", "activations_checkpoint_granularity")
    if settings.flag("recompute_activations"):
        granularity = granularity or "selective"
    if granularity not in ("", "full", "selective", "None"):
        raise settings.error("recompute_granularity", f"{granularity[:40]!r} is neither full nor selective")
    return granularity if granularity in ("full", "selective") else "none"


def _divided(settings: Settings, layout: ParallelLayout, layers: int) -> ParallelLayout:
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
    ends = _end_layers(settings, layers, pipeline, int(changes.get("virtual_pipeline", 1)))
    if ends and not counts:
        changes["layers_per_stage"] = counts = ends
    recomputed = settings.integer(
        "recompute_num_layers", "activations_checkpoint_num_layers", most=MOST_LAYERS
    )
    method = settings.text("recompute_method", "activations_checkpoint_method")
    if layout.recompute == "full" and method == "block" and recomputed:
        mine = max(counts) if counts else layers // pipeline // int(changes.get("virtual_pipeline", 1))
        changes["recompute_every"] = max(1, math.ceil(mine / recomputed))
    settings.ignore("checkpoint_num_layers", "distribute_checkpointed_activations")
    return replace(layout, **changes)


def _stage_layers(settings: Settings, layers: int) -> tuple[int, ...]:
    """Layers of each virtual stage of `E,t*3|t*4|t*3,L`; empty where the stages are even."""
    pattern = settings.text("pipeline_model_parallel_layout")
    if not pattern or pattern == "None":
        return ()
    try:
        counts = layers_of_stages(pattern.replace("m", ""))  # layers of multi-token prediction
    except ValueError as error:
        raise settings.error("pipeline_model_parallel_layout", str(error)) from None
    if sum(counts) != layers:
        message = f"{sum(counts)} decoder layers, the model has {layers}"
        raise settings.error("pipeline_model_parallel_layout", message)
    return () if len(set(counts)) == 1 else counts


def _end_layers(settings: Settings, layers: int, pipeline: int, virtual: int) -> tuple[int, ...]:
    """Layers of each virtual stage where the first or last rank has another number of them; else empty.

    Either their layers are given, or embedding and loss count as a layer each.
    """
    stages = pipeline * virtual
    first, last = (
        settings.integer(f"decoder_{end}_pipeline_num_layers", most=MOST_LAYERS) for end in ("first", "last")
    )
    counted = [settings.flag(f"account_for_{end}_in_pipeline_split") for end in ("embedding", "loss")]
    if pipeline == 1 or not (first or last or any(counted)):
        return ()
    if any(counted):
        per_stage, rest = divmod(layers + sum(counted), stages)
        counts = [per_stage] * stages
        counts[0] -= counted[0]
        counts[-1] -= counted[1]
    else:
        others = pipeline - bool(first) - bool(last)
        inner, rest = divmod(layers - (first or 0) - (last or 0), max(1, others) * virtual)
        of_chunk = [inner] * pipeline
        of_chunk[0] = (first or inner * virtual) // virtual
        of_chunk[-1] = (last or inner * virtual) // virtual
        counts = of_chunk * virtual
    if rest or sum(counts) != layers or min(counts) < 0:
        raise settings.error(
            "pipeline_model_parallel_size", f"{layers} layers do not divide so over {stages} stages"
        )
    return tuple(counts)


# The log of a run of Megatron-LM: its dump of arguments, and its iterations as measured steps.
#
# Format: `megatron/training/training.py`, with the older spellings; also Megatron-DeepSpeed's.

DUMPED = re.compile(r"(?<![\w.])([a-zA-Z_]\w*) \.{2,} ?([^\n]*)")
"""A line of the dump: `num_layers ........ 24`; ranks or times may stand before it."""
ITERATION = re.compile(
    r"iteration\s+(?P<number>\d{1,12})\s*/\s*\d+\s*\|(?P<rest>[^\n]*?elapsed time per iteration[^\n]*)"
)
ELAPSED = re.compile(r"elapsed time per iteration \((?P<unit>ms|s)\):\s*(?P<value>[0-9.eE+]+)")
BATCH = re.compile(r"global batch size:\s*(\d{1,9})")
WARM_UP = 1
"""Lines at the start that include compilation, allocation and the first reading of data."""
FEWEST = 3
"""Lines of one batch size below which none is left out as warm-up."""


def _iterations(text: str) -> list[tuple[int, float]]:
    """Global batch (0 where the log does not say) and seconds of each logged line."""
    logged = []
    for match in ITERATION.finditer(text):
        elapsed = ELAPSED.search(match["rest"])
        batch = BATCH.search(match["rest"])
        if elapsed is None:
            continue
        try:
            seconds = float(elapsed["value"]) * (1e-3 if elapsed["unit"] == "ms" else 1.0)
        except ValueError:
            continue
        if 0.0 < seconds < float("inf"):
            logged.append((int(batch[1]) if batch else 0, seconds))
    return logged


def iteration_steps(text: str, parts: int = 1) -> tuple[Step, ...]:
    """The median step of each batch size, in the order of the log, without the first line.

    With `parts` each batch size is divided into so many intervals of equal length, in the order of time.
    """
    by_batch: dict[int, list[float]] = defaultdict(list)
    for batch, seconds in _iterations(text):
        by_batch[batch].append(seconds)
    steps = []
    for batch, logged in by_batch.items():
        steady = logged[WARM_UP:] if len(logged) >= FEWEST else logged
        count = min(parts, len(steady))
        bounds = [len(steady) * part // count for part in range(count + 1)]
        steps += [Step(batch, median(steady[a:b]), b - a) for a, b in pairwise(bounds)]
    return tuple(steps)


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


def _read_shape(settings: Settings, gaps: list[Gap]) -> Shape:
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
    latent = _latent(settings)
    window = _window(settings)
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


def _experts(settings: Settings, layers: int, ffn: int) -> ExpertShape | None:
    count = settings.integer("num_experts", "num_moe_experts", least=0, most=MOST_WIDTH)
    if not count or count == 1:
        return None
    return ExpertShape(
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


# Arguments of Megatron-LM: a shell script, a line of flags, or the dump at the head of a log.
#
# Names: NVIDIA/Megatron-LM, `megatron/training/arguments.py`, `core/transformer/transformer_config.py` and
# `core/model_parallel_config.py`, with the older spellings of version 2.5. NeMo and Megatron-Bridge use the
# same names in YAML, so their readers use these functions.

OPTIMIZERS_READ = {"sgd": "sgd", "adamw": "adamw", "adam": "adam"}
"""By a part of the name: `distributed_fused_adam` of NeMo is Adam."""
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
    return read_settings(settings, _world_size(settings, variables, source.text), steps=steps)


def _value(text: str) -> str | None:
    return None if text.strip() in ("None", "") else text.strip()


def _refuse_unknown(settings: Settings) -> None:
    """Values that only running the script would tell count as absent, and are named where they are needed."""
    unknown = {name for name, value in settings.values.items() if isinstance(value, str) and UNKNOWN in value}
    settings.values = {name: value for name, value in settings.values.items() if name not in unknown}
    settings.unknown |= unknown


def read_settings(settings: Settings, world: int | None, *, steps: tuple[Any, ...] = ()) -> Reading:
    """Model, recipe and layout of Megatron's arguments by name; also of YAML that has these names."""
    gaps: list[Gap] = []
    layout, devices = _read_layout(settings, world, gaps)
    shape = _read_shape(settings, gaps)
    layout = _divided(settings, layout, shape.layers)
    optimizer = settings.text("optimizer", "optim.name", default="adam").casefold()
    if not any(name in optimizer for name in OPTIMIZERS_READ):
        gaps.append(Gap(f"the optimizer {optimizer[:40]}; described as adam"))
    return Reading(
        settings,
        shape=shape,
        recipe=_recipe(settings, layout.data if devices else None, shape),
        layout=layout,
        devices=devices,
        steps=steps,
        gaps=tuple(gaps),
    )


def _recipe(settings: Settings, data: int | None, shape: Shape) -> dict[str, Any]:
    micro = settings.integer("micro_batch_size", "batch_size")
    batch = settings.integer("global_batch_size")
    if batch is None and micro is not None and data is not None:
        batch = micro * data
    precision = _precision(settings)
    optimizer = settings.text("optimizer", "optim.name", default="adam").casefold()
    rates = [settings.number(f"{part}_dropout", default=DROPOUT) for part in ("attention", "hidden")]
    wire = _reduced(settings, precision)
    elements = settings.integer("ddp_bucket_size", "bucket_size")
    overlap = settings.flag("overlap_grad_reduce", "overlap_grad_sync")
    return {
        "seq_length": settings.integer(
            "seq_length", "encoder_seq_length", default=shape.positions, most=MOST_POSITIONS
        ),
        "precision": precision,
        "optimizer": next((ours for name, ours in OPTIMIZERS_READ.items() if name in optimizer), "adam"),
        "global_batch_size": batch,
        "attention": _attention(settings),
        "dropout": any(rate != 0 for rate in rates),
        "overlap_grad_reduce": overlap,
        **({"overlap_param_gather": True} if settings.flag("overlap_param_gather") else {}),
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
    named = settings.text("precision", "mixed_precision").casefold()
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
