"""The layout of Megatron's arguments: ranks, degrees, stages, ZeRO and recompute."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfsim.interop.foreign.settings import Settings
from perfsim.interop.foreign.shape import Gap
from perfsim.interop.megatron import CONTEXT, RANKS_IN_ALL, SHARDING
from perfsim.sizes import MOST_DEVICES, MOST_LAYERS
from perfsim.workload import ContextExchange, ParallelLayout, layers_of_stages


def world_size(settings: Settings, variables: Mapping[str, str], text: str) -> int | None:
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


def read_layout(settings: Settings, world: int | None, gaps: list[Gap]) -> tuple[ParallelLayout, int | None]:
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


def divided(settings: Settings, layout: ParallelLayout, layers: int) -> ParallelLayout:
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
