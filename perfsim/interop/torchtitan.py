"""Jobs of torchtitan: TOML files, and what `--print_config` writes into a log.

Names: pytorch/torchtitan, `torchtitan/config/job_config.py` of 2024 and 2025, and the configurations of 2026.
The model is named by its flavor; the shapes of the flavors stand in `torchtitan/models/*/__init__.py`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from perfsim.base.errors import InputError
from perfsim.base.sizes import MOST_DEVICES, MOST_POSITIONS
from perfsim.interop.huggingface import LLAMA
from perfsim.interop.imported import Reading
from perfsim.interop.shape import Gap, Shape
from perfsim.interop.source import Settings, Source
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
from perfsim.specs.layout import ParallelLayout

# A job of torchtitan: parallelism, recompute and batch as TOML.
#
# Names: pytorch/torchtitan, `torchtitan/config/job_config.py` of its releases with TOML files (2025). The
# shape
# of a model is code there, named by `model.name` and `model.flavor`.

SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
}
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}


def _torchtitan_staged(chosen: Chosen) -> bool:
    return bool(chosen.layout.pipeline > 1)


def _local_batch(chosen: Chosen) -> int:
    """Sequences of a replica at once: all micro-batches of a pipeline, else one."""
    layout = chosen.layout
    return int(layout.micro_batch_size * (chosen.num_microbatches if _torchtitan_staged(chosen) else 1))


def _layers_per_stage(chosen: Chosen) -> int | None:
    layout = chosen.layout
    even = _torchtitan_staged(chosen) and layout.layers_per_stage is None
    return chosen.job.model.num_layers // layout.num_stages if even else None


def _modules(chosen: Chosen) -> list[list[str]] | None:
    """The modules of each virtual stage where these are uneven."""
    given = chosen.layout.layers_per_stage
    if given is None or not _torchtitan_staged(chosen):
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
        lambda c: SCHEDULES[c.layout.schedule] if _torchtitan_staged(c) else None,
    ),
    (
        "parallelism.pipeline_parallel_microbatch_size",
        lambda c: c.layout.micro_batch_size if _torchtitan_staged(c) else None,
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
        lambda c: _torchtitan_staged(c) and c.layout.schedule not in SCHEDULES,
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
    where(lambda c: c.job.runtime.attention != "flash", "attention that keeps its scores; SDPA is used"),
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


PRINTED = re.compile(r"Running with (?:args|configs?|config): *(?=\{)")
MESH = re.compile(r"device mesh with \[[^\]]*\], \[(\d{1,6}(?:, \d{1,6})*)\]")
SCHEDULES_READ = {name: schedule for schedule, name in SCHEDULES.items()} | {
    "LoopedBFS": "interleaved",
    "DualPipeV": "zbv",
    "InterleavedZeroBubble": "interleaved",
}
HALVES = {name: precision for precision, name in PRECISIONS.items() if precision != "tf32"}
FLAVORS: Mapping[tuple[str, str], tuple[int, int, int, int, int, int]] = {
    ("llama2", "7b"): (32, 4096, 32, 32, 11008, 32000),
    ("llama2", "13b"): (40, 5120, 40, 40, 13824, 32000),
    ("llama2", "70b"): (80, 8192, 64, 8, 28672, 32000),
    ("llama3", "8b"): (32, 4096, 32, 8, 14336, 128256),
    ("llama3", "70b"): (80, 8192, 64, 8, 28672, 128256),
    ("llama3", "405b"): (126, 16384, 128, 8, 53248, 128256),
}
"""Layers, hidden size, heads, key and value heads, MLP and vocabulary of a flavor."""


def recognise(document: Any) -> bool:
    """Whether this is a job's TOML or JSON, or a log with a printed configuration."""
    if isinstance(document, str):
        return PRINTED.search(document) is not None
    if not isinstance(document, Mapping) or not isinstance(document.get("training"), Mapping):
        return False
    training = document["training"]
    others = ("parallelism", "activation_checkpoint", "experimental", "job")
    return ("seq_len" in training or "local_batch_size" in training) and any(
        name in document for name in others
    )


def read(source: Source, document: Any, beside: Shape | None) -> Reading:
    """Recipe, layout and, by flavor or from the file beside it, the model."""
    text = document if isinstance(document, str) else ""
    settings = Settings.of(source, _printed(source, text) if text else document)
    settings.ignore("job.config_file", "job.print_config", "job.description", "job.dump_folder")
    gaps: list[Gap] = []
    shape = beside or _shape(settings, gaps)
    mesh = MESH.search(text)
    world = None
    if mesh:
        world = 1
        for size in mesh[1].split(", "):
            world *= int(size)
    layout, devices = _layout(settings, world, shape, gaps)
    return Reading(
        settings,
        shape=shape,
        recipe=_recipe(settings, layout, devices),
        layout=layout,
        devices=devices,
        gaps=tuple(gaps),
        name="-".join(filter(None, (settings.text("model.name"), settings.text("model.flavor")))),
    )


def _printed(source: Source, text: str) -> Any:
    """The configuration in a log: JSON, or the text of a Python dictionary."""
    match = PRINTED.search(text)
    start = match.end() if match else 0
    line = source.text.count("\n", 0, start) + 1
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text[start:].split("\n", 1)[0].strip()[:MOST_PRINTED])
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        raise InputError([source.problem("the printed configuration cannot be read", line=line)]) from None


MOST_PRINTED = 200_000


def _shape(settings: Settings, gaps: list[Gap]) -> Shape | None:
    name = settings.text("model.name", "model_spec.name").casefold()
    flavor = settings.text("model.flavor", "model_spec.flavor").casefold()
    known = FLAVORS.get((name, flavor))
    if known is None:
        words = " ".join(filter(None, (name, flavor))) or "its model"
        words += ": the shape stands in torchtitan's code; give the model with --model"
        gaps.append(Gap(words, changes_model=True))
        return None
    layers, hidden, heads, groups, ffn, vocab = known
    positions = settings.integer("training.seq_len", default=2048, most=MOST_POSITIONS)
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=groups,
        head_dim=hidden // heads,
        ffn=ffn,
        vocab=vocab,
        positions=positions,
        **LLAMA,
    )


# ----------------------------------------------------------------------------------------- layout
def _degree(settings: Settings, name: str, default: int = 1) -> int:
    """A degree of parallelism, in whichever section the release has it; -1 is what is left."""
    places = tuple(f"{section}.{name}" for section in ("parallelism", "training", "experimental"))
    return settings.integer(*places, default=default, least=-1, most=MOST_DEVICES) or default


def _layout(
    settings: Settings, world: int | None, shape: Shape | None, gaps: list[Gap]
) -> tuple[ParallelLayout, int | None]:
    tensor = max(1, _degree(settings, "tensor_parallel_degree"))
    pipeline = max(1, _degree(settings, "pipeline_parallel_degree"))
    context = max(1, _degree(settings, "context_parallel_degree"))
    experts = max(1, _degree(settings, "expert_parallel_degree"))
    replicas = max(1, _degree(settings, "data_parallel_replicate_degree"))
    shards = _degree(settings, "data_parallel_shard_degree", default=-1)
    sharing = max(1, _degree(settings, "expert_tensor_parallel_degree"))
    if experts > 1 and shape is not None and shape.experts is None:
        gaps.append(Gap(f"expert parallelism over {experts} ranks: its model has none"))
        experts = sharing = 1
    if shards < 1 and world is not None:
        ways = tensor * pipeline * context * replicas
        if world % ways:
            settings.source.refuse(f"{world} ranks are not a multiple of the degrees, {ways}")
        shards = world // ways
    data = None if shards < 1 else replicas * shards
    reshard = settings.text("parallelism.fsdp_reshard_after_forward", default="default")
    always = reshard == "always" or (reshard == "default" and pipeline == 1)
    stage = 0 if shards == 1 else 3 if always else 2
    mode, every = _recompute(settings)
    layout = ParallelLayout(
        tensor=tensor,
        pipeline=pipeline,
        data=data or 1,
        sequence_parallel=tensor > 1,
        zero_stage=stage,
        micro_batch_size=_micro(settings, pipeline),
        recompute=mode,
        recompute_every=every,
        context=context,
        shard_group=shards * context if stage and replicas > 1 else None,
        expert=experts,
        expert_tensor=sharing if experts > 1 else 1,
    )
    if settings.flag("training.enable_cpu_offload") and stage == 3:
        layout = replace(layout, offload_optimizer="cpu", offload_param="cpu")
    layout = _staged(settings, layout, shape, gaps)
    return layout, None if data is None else layout.num_devices


def _micro(settings: Settings, pipeline: int) -> int:
    local = settings.integer("training.local_batch_size", "training.batch_size", default=1)
    if pipeline == 1:
        settings.ignore("parallelism.pipeline_parallel_microbatch_size")
        return local
    return settings.integer("parallelism.pipeline_parallel_microbatch_size", default=1)


def _recompute(settings: Settings) -> tuple[Any, int]:
    mode = settings.text("activation_checkpoint.mode", default="selective")
    option = settings.text("activation_checkpoint.selective_ac_option", default="op")
    if mode not in ("none", "full", "selective", "memory_budget"):
        raise settings.error("activation_checkpoint.mode", f"{mode[:40]!r} is none of none, selective, full")
    if mode == "selective" and option.isdigit() and 0 < int(option) < 1000:
        return "full", int(option)
    return "selective" if mode == "memory_budget" else mode, 1


def _staged(
    settings: Settings, layout: ParallelLayout, shape: Shape | None, gaps: list[Gap]
) -> ParallelLayout:
    """The layout with its schedule and the layers of its stages."""
    names = ("parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule")
    schedule = settings.choice(names, SCHEDULES_READ, "1f1b")
    if settings.text(*names) == "DualPipeV":
        text = "DualPipeV: all-to-alls beside the compute of another micro-batch; predicted as zbv"
        gaps.append(Gap(f"{text}, one after the other, which takes longer"))
    modules = settings.values.get("parallelism.module_fqns_per_model_part")
    settings.ignore(
        "parallelism.module_fqns_per_model_part",
        "parallelism.pipeline_parallel_first_stage_less_layers",
        "parallelism.pipeline_parallel_last_stage_less_layers",
    )
    per_stage = settings.integer("parallelism.pipeline_parallel_layers_per_stage")
    if layout.pipeline == 1:
        return layout
    stages = 0
    counts: tuple[int, ...] = ()
    if isinstance(modules, list) and modules and all(isinstance(part, list) for part in modules):
        counts = tuple(sum(str(name).startswith("layers.") for name in part) for part in modules)
        stages = len(counts)
    elif per_stage and shape is not None:
        stages = -(-shape.layers // per_stage)
    virtual = max(1, stages // layout.pipeline) if stages else 2 if schedule in ("interleaved", "zbv") else 1
    return replace(
        layout,
        schedule=schedule,
        virtual_pipeline=virtual,
        layers_per_stage=counts if len(set(counts)) > 1 else None,
    )


def _recipe(settings: Settings, layout: ParallelLayout, devices: int | None) -> dict[str, Any]:
    local = settings.integer("training.local_batch_size", "training.batch_size")
    batch = settings.integer("training.global_batch_size", least=-1)
    if (batch is None or batch < 1) and devices is not None and local is not None:
        batch = local * layout.data
    precision = settings.choice(("training.mixed_precision_param",), HALVES, "bf16")
    converters = str(settings.values.get("model.converters", ""))[:1000]
    settings.ignore("model.converters")
    if "float8" in converters or settings.flag("float8.enable_float8_linear"):
        precision = "fp8"
    settings.ignore("training.mixed_precision_reduce")
    optimizers = {"Adam": "adam", "AdamW": "adamw", "SGD": "sgd"}
    return {
        "seq_length": settings.integer("training.seq_len", most=MOST_POSITIONS),
        "precision": precision,
        "optimizer": optimizers.get(settings.text("optimizer.name", default="AdamW"), "adamw"),
        "global_batch_size": batch if batch is not None and batch > 0 else None,
        "attention": "flash",
        "dropout": False,
        "overlap_grad_reduce": True,
        "framework": "torchtitan",
    }
