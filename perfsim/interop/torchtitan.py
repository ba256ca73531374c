"""A job of torchtitan: parallelism, recompute and batch as TOML.

Names: pytorch/torchtitan, `torchtitan/config/job_config.py` of its releases with TOML files (2025). The shape
of a model is code there, named by `model.name` and `model.flavor`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from perfsim.interop.tool import (
    Chosen,
    Limit,
    Setting,
    Tool,
    Values,
    commented,
    equal_dense_layers,
    nested,
    only_optimizers,
    reduced_otherwise,
    tf32_products,
    where,
)
from perfsim.workload import ParallelLayout

SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
}
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}


def _staged(chosen: Chosen) -> bool:
    return bool(chosen.layout.pipeline > 1)


def _local_batch(chosen: Chosen) -> int:
    """Sequences of a replica at once: all micro-batches of a pipeline, else one."""
    layout = chosen.layout
    return int(layout.micro_batch_size * (chosen.num_microbatches if _staged(chosen) else 1))


def _layers_per_stage(chosen: Chosen) -> int | None:
    layout = chosen.layout
    even = _staged(chosen) and layout.layers_per_stage is None
    return chosen.job.model.num_layers // layout.num_stages if even else None


def _modules(chosen: Chosen) -> list[list[str]] | None:
    """The modules of each virtual stage where these are uneven."""
    given = chosen.layout.layers_per_stage
    if given is None or not _staged(chosen):
        return None
    ends = list(accumulate(given))
    stages = [
        [f"layers.{layer}" for layer in range(end - count, end)]
        for end, count in zip(ends, given, strict=True)
    ]
    return [["tok_embeddings", *stages[0]], *stages[1:-1], [*stages[-1], "norm", "output"]]


def _selective(chosen: Chosen) -> str | None:
    """`op`: results of chosen operations are kept; a number: one layer in so many is recomputed."""
    if chosen.layout.recompute_every > 1:
        return str(chosen.layout.recompute_every)
    return "op" if chosen.layout.recompute == "selective" else None


def _all_on_cpu(chosen: Chosen) -> bool:
    layout = chosen.layout
    return bool(layout.offloads == {"offload_optimizer": "cpu", "offload_param": "cpu"})


SETTINGS: tuple[Setting, ...] = (
    ("training.local_batch_size", _local_batch),
    ("training.global_batch_size", lambda c: c.job.global_batch_size),
    ("training.seq_len", lambda c: c.job.seq_length),
    ("training.mixed_precision_param", lambda c: PRECISIONS.get(c.job.recipe.precision)),
    ("training.mixed_precision_reduce", lambda _: "float32"),
    (
        "parallelism.data_parallel_replicate_degree",
        lambda c: c.layout.replicas // c.layout.shards if c.layout.zero_stage else c.layout.data,
    ),
    (
        "parallelism.data_parallel_shard_degree",
        lambda c: c.layout.shards // c.layout.context if c.layout.zero_stage else 1,
    ),
    (
        "parallelism.fsdp_reshard_after_forward",
        lambda c: "always" if c.layout.zero_stage == 3 else "never",
    ),
    (
        "parallelism.context_parallel_degree",
        lambda c: c.layout.context if c.layout.context > 1 else None,
    ),
    (
        "parallelism.context_parallel_rotate_method",
        lambda c: "alltoall" if c.layout.context > 1 else None,
    ),
    ("parallelism.tensor_parallel_degree", lambda c: c.layout.tensor),
    ("parallelism.pipeline_parallel_degree", lambda c: c.layout.pipeline),
    (
        "parallelism.pipeline_parallel_schedule",
        lambda c: SCHEDULES[c.layout.schedule] if _staged(c) else None,
    ),
    (
        "parallelism.pipeline_parallel_microbatch_size",
        lambda c: c.layout.micro_batch_size if _staged(c) else None,
    ),
    ("parallelism.pipeline_parallel_layers_per_stage", _layers_per_stage),
    (
        "parallelism.pipeline_parallel_first_stage_less_layers",
        lambda c: None if _layers_per_stage(c) is None else 0,
    ),
    (
        "parallelism.pipeline_parallel_last_stage_less_layers",
        lambda c: None if _layers_per_stage(c) is None else 0,
    ),
    ("parallelism.module_fqns_per_model_part", _modules),
    (
        "activation_checkpoint.mode",
        lambda c: "selective" if c.layout.recompute_every > 1 else c.layout.recompute,
    ),
    ("activation_checkpoint.selective_ac_option", _selective),
    ("training.enable_cpu_offload", lambda c: True if _all_on_cpu(c) else None),
)


REFUSALS: tuple[Limit, ...] = (
    only_optimizers(("adam", "adamw")),
    equal_dense_layers,
    where(
        lambda c: _staged(c) and c.layout.schedule not in SCHEDULES,
        f"its schedules are {', '.join(SCHEDULES)}, not {{c.layout.schedule}}",
    ),
    where(
        lambda c: c.layout.offloads and not _all_on_cpu(c),
        "it offloads parameters and optimizer together, to the CPU",
    ),
    where(
        lambda c: c.job.recipe.precision not in PRECISIONS,
        f"it trains in {' or '.join(PRECISIONS)}, not {{c.job.recipe.precision}}",
    ),
    where(
        lambda c: c.layout.context > 1 and c.layout.context_exchange == "all_to_all",
        "its context ranks rotate keys and values, they do not exchange heads",
    ),
    where(
        lambda c: c.layout.zero_stage and c.layout.shards % c.layout.context,
        "context ranks shard together, so shard_group must be a multiple of context",
    ),
)


GAPS: tuple[Limit, ...] = (
    where(
        lambda _: True,
        "the model: register {c.job.model.num_layers} layers, hidden {c.job.model.hidden_size}, "
        "{c.job.model.num_attention_heads} heads, {c.job.model.query_groups} key and value heads, MLP "
        "{c.job.model.ffn_hidden_size}, vocabulary {c.job.model.vocab_size}, and name it by model.name and "
        "model.flavor",
    ),
    where(
        lambda c: c.layout.zero_stage == 1,
        "ZeRO 1; the nearest is FSDP that keeps parameters after the forward pass (ZeRO 2)",
    ),
    where(
        lambda c: c.layout.recompute == "selective",
        "recompute of attention alone; 'op' keeps the results of chosen operations",
    ),
    where(
        lambda c: c.layout.tensor > 1 and not c.layout.sequence_parallel,
        "tensor parallelism without sequence parallelism",
    ),
    reduced_otherwise("fp32"),
    tf32_products,
    where(lambda c: c.job.recipe.attention != "flash", "attention that keeps its scores; SDPA is used"),
    where(lambda c: c.job.recipe.dropout, "dropout; its models have none"),
)


def _text(comments: Sequence[str], values: Values) -> str:
    lines = commented(comments)
    for section, settings in nested(values).items():
        lines += ["", f"[{section}]", *_settings(settings)]
    return "\n".join([*lines, ""])


def _settings(settings: Mapping[str, Any]) -> list[str]:
    """Numbers, strings and lists of strings are the same in TOML and JSON."""
    return [f"{name} = {json.dumps(value)}" for name, value in settings.items()]


TORCHTITAN = Tool(
    name="torchtitan",
    title="torchtitan",
    layout_type=ParallelLayout,
    runs_on="GPUs",
    settings=SETTINGS,
    refusals=REFUSALS,
    gaps=GAPS,
    render=_text,
    how_to_start=lambda c: (
        f"torchrun with {c.layout.num_devices} ranks in all, train.py --job.config_file and this file"
    ),
)
