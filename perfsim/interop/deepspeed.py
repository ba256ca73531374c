"""A configuration of DeepSpeed as JSON: batch, ZeRO and precision; the model stands in a file beside it.

Names: deepspeedai/DeepSpeed, `docs/_pages/config-json.md`. `auto` is what Hugging Face's trainer fills in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from perfsim.base.sizes import MOST_DEVICES
from perfsim.interop.imported import Reading
from perfsim.interop.shape import Gap, Shape
from perfsim.interop.source import Settings, Source
from perfsim.interop.tool import (
    Chosen,
    Limit,
    Setting,
    Tool,
    Values,
    bucket_elements,
    nested,
    only_optimizers,
    reduced_otherwise,
    tf32_products,
    where,
)
from perfsim.specs.layout import ParallelLayout, Place

# A configuration of DeepSpeed: batch, ZeRO, precision and tensor parallelism as JSON.
#
# Names: deepspeedai/DeepSpeed, `docs/_pages/config-json.md`. The file holds no model and no pipeline: these
# are
# code of the training script. JSON has no comments, so they are the list under `_comments`, which DeepSpeed
# ignores.

OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
WIRES = ("fp32", "fp16", "bf16")
PARAMETERS_SHARDED = MICS_STAGE = 3
"""The ZeRO stage of MiCS, which shards in groups."""
MOST_STAGE_OF_AUTOTP = 2
"""AutoTP trains with ZeRO stages up to this one."""


def _tensor(chosen: Chosen) -> int | None:
    layout = chosen.layout
    return layout.tensor if layout.tensor > 1 and layout.zero_stage <= MOST_STAGE_OF_AUTOTP else None


def _deepspeed_place(place: Place) -> Place | None:
    return None if place == "none" else place


SETTINGS: tuple[Setting, ...] = (
    ("train_batch_size", lambda c: c.job.global_batch_size),
    ("train_micro_batch_size_per_gpu", lambda c: c.layout.micro_batch_size),
    ("gradient_accumulation_steps", lambda c: c.num_microbatches),
    ("zero_optimization.stage", lambda c: c.layout.zero_stage),
    ("zero_optimization.mics_shard_size", lambda c: c.layout.shard_group),
    ("zero_optimization.offload_optimizer.device", lambda c: _deepspeed_place(c.layout.offload_optimizer)),
    ("zero_optimization.offload_param.device", lambda c: _deepspeed_place(c.layout.offload_param)),
    (
        "activation_checkpointing.cpu_checkpointing",
        lambda c: True if c.layout.offload_activations == "cpu" else None,
    ),
    ("zero_optimization.overlap_comm", lambda c: c.job.runtime.overlap_grad_reduce),
    ("zero_optimization.reduce_bucket_size", bucket_elements),
    ("tensor_parallel.autotp_size", _tensor),
    ("bf16.enabled", lambda c: c.job.recipe.precision == "bf16"),
    ("fp16.enabled", lambda c: c.job.recipe.precision == "fp16"),
    (
        "communication_data_type",
        lambda c: wire if (wire := c.job.recipe.reduce_precision or "fp32") in WIRES else None,
    ),
    ("optimizer.type", lambda c: OPTIMIZERS[c.job.recipe.optimizer]),
)


def _offload(chosen: Chosen) -> str:
    layout = chosen.layout
    if layout.offload_optimizer == "nvme" and layout.zero_stage < PARAMETERS_SHARDED:
        return f"it offloads to nvme with ZeRO {PARAMETERS_SHARDED}, not {layout.zero_stage}"
    if layout.offload_activations != "none" and layout.recompute != "full":
        return "activations that it offloads are the checkpoints of full recompute"
    unsharded = layout.offload_optimizer != "none" and not layout.zero_stage
    return "it offloads the optimizer with ZeRO 1 to 3, not without" if unsharded else ""


REFUSALS: tuple[Limit, ...] = (
    only_optimizers(OPTIMIZERS),
    where(
        lambda c: c.layout.pipeline > 1 and c.layout.schedule != "1f1b",
        "its pipelines run 1f1b, not {c.layout.schedule}",
    ),
    where(
        lambda c: c.layout.pipeline > 1 and c.layout.zero_stage > 1,
        "ZeRO {c.layout.zero_stage} does not go with its pipelines",
    ),
    _offload,
    where(
        lambda c: c.layout.shard_group is not None and c.layout.zero_stage < MICS_STAGE,
        f"groups that shard (MiCS) have ZeRO {MICS_STAGE}, not {{c.layout.zero_stage}}",
    ),
    where(
        lambda c: c.layout.context > 1 and c.layout.context_exchange == "ring",
        "its context ranks exchange heads (context_exchange all_to_all), not keys and values",
    ),
    where(lambda c: c.job.recipe.precision == "fp8", "it has no setting for {c.job.recipe.precision}"),
)


def _pipeline(chosen: Chosen) -> str:
    layout = chosen.layout
    if layout.pipeline == 1:
        return ""
    uneven = layout.layers_per_stage
    split = f" with {'-'.join(map(str, uneven))} layers" if uneven else ""
    return f"{layout.pipeline} pipeline stages{split}; PipelineModule(num_stages={layout.pipeline}) has them"


def _recompute(chosen: Chosen) -> str:
    mode = chosen.layout.recompute
    every = chosen.layout.recompute_every
    part = f" of one layer in {every}" if every > 1 else ""
    return "" if mode == "none" else f"recompute {mode}{part}; the model's code calls the checkpointing"


GAPS: tuple[Limit, ...] = (
    where(
        lambda _: True,
        "the model, which the training script builds: {c.job.model.num_layers} layers, hidden "
        "{c.job.model.hidden_size}, {c.job.model.num_attention_heads} heads, {c.job.model.query_groups} key "
        "and value heads, MLP {c.job.model.ffn_hidden_size}, vocabulary {c.job.model.vocab_size}, sequences "
        "of {c.job.seq_length}",
    ),
    _pipeline,
    _recompute,
    where(
        lambda c: c.layout.tensor > 1 and _tensor(c) is None,
        "tensor parallelism {c.layout.tensor} with ZeRO 3; the script's mpu object has it",
    ),
    where(
        lambda c: c.layout.context > 1,
        "context {c.layout.context}; the script wraps attention in DistributedAttention (Ulysses)",
    ),
    where(
        lambda c: c.layout.expert > 1,
        "expert {c.layout.expert} and expert_tensor {c.layout.expert_tensor}; its MoE layers set ep_size",
    ),
    where(lambda c: "nvme" in c.layout.offloads.values(), "nvme_path, the folder of the drives"),
    where(lambda c: c.layout.sequence_parallel, "sequence parallelism of the norms"),
    where(lambda _: True, "{c.job.runtime.attention} attention, which the model's code chooses"),
    tf32_products,
    reduced_otherwise(*WIRES),
)


def _text(comments: Sequence[str], values: Values) -> str:
    return json.dumps({"_comments": list(comments), **nested(values)}, indent=2) + "\n"


DEEPSPEED = Tool(
    name="deepspeed",
    title="DeepSpeed",
    layout_type=ParallelLayout,
    runs_on="GPUs",
    settings=SETTINGS,
    refusals=REFUSALS,
    gaps=GAPS,
    render=_text,
    how_to_start=lambda c: f"start on {c.layout.num_devices} ranks with --deepspeed_config and this file",
)


SIGNS = (
    "zero_optimization",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
KNOWN = {
    **{name.casefold(): ours for ours, name in OPTIMIZERS.items()},
    **dict.fromkeys(("onebitadam", "zerooneadam", "fusedadam", "cpuadam", "torchadam"), "adam"),
    **dict.fromkeys(("lamb", "onebitlamb", "adagrad", "lion", "muon"), "adam"),
}
PLACES: dict[str, Place] = {"none": "none", "cpu": "cpu", "nvme": "nvme"}
BUFFERS = (
    "pin_memory",
    "nvme_path",
    "buffer_count",
    "buffer_size",
    "max_in_cpu",
    "fast_init",
    "pipeline_read",
)
"""Settings of offload that do not change what moves."""
WIRE = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "bfp16": "bf16"}


def recognise(document: Any) -> bool:
    """Whether this is a configuration of DeepSpeed."""
    return (
        isinstance(document, Mapping)
        and any(name in document for name in SIGNS)
        and "num_layers" not in document
    )


def read(source: Source, document: Mapping[str, Any], shape: Shape | None) -> Reading:
    """Recipe and layout; `shape` is that of the model beside it."""
    settings = Settings.of(source, document)
    settings.values = {name: value for name, value in settings.values.items() if value != "auto"}
    settings.ignore("_comments", "steps_per_print", "wall_clock_breakdown")
    micro = settings.integer("train_micro_batch_size_per_gpu")
    accumulation = settings.integer("gradient_accumulation_steps")
    batch = settings.integer("train_batch_size")
    tensor = settings.integer("tensor_parallel.autotp_size", default=1, least=0, most=MOST_DEVICES) or 1
    data = _replicas(settings, batch, micro, accumulation)
    on_cpu = settings.flag("activation_checkpointing.cpu_checkpointing")
    stage = settings.integer("zero_optimization.stage", default=0, least=0, most=3)
    layout = ParallelLayout(
        tensor=tensor,
        data=data or 1,
        zero_stage=stage,
        micro_batch_size=micro or 1,
        recompute="full" if on_cpu else "none",
        offload_activations="cpu" if on_cpu else "none",
        offload_optimizer=_place(settings, "optimizer", "cpu_offload") if stage else "none",
        offload_param=_place(settings, "param", "cpu_offload_params")
        if stage == PARAMETERS_SHARDED
        else "none",
    )
    return Reading(
        settings,
        shape=shape,
        recipe=_recipe(settings, batch, shape),
        layout=layout if micro is not None else None,
        devices=None if data is None else data * tensor,
        gaps=tuple(_gaps(settings, micro, accumulation, batch)),
    )


def _place(settings: Settings, states: str, earlier: str) -> Place:
    """Where states are offloaded to; `earlier` is the flag of older releases."""
    part = f"zero_optimization.offload_{states}"
    settings.ignore(*(f"{part}.{name}" for name in BUFFERS))
    usual: Place = "cpu" if settings.flag(f"zero_optimization.{earlier}") else "none"
    return settings.choice((f"{part}.device",), PLACES, usual)


def _replicas(
    settings: Settings, batch: int | None, micro: int | None, accumulation: int | None
) -> int | None:
    """Batch = micro-batch x accumulation x replicas, where the file has all three."""
    if batch is None or micro is None or accumulation is None:
        return None
    if batch % (micro * accumulation):
        message = f"{batch} is not a multiple of micro-batch {micro} × accumulation {accumulation}"
        raise settings.error("train_batch_size", message, "the quotient is the number of replicas")
    return batch // (micro * accumulation)


def _recipe(settings: Settings, batch: int | None, shape: Shape | None) -> dict[str, Any]:
    precision = "fp32"
    if settings.flag("fp16.enabled"):
        precision = "fp16"
    if settings.flag("bf16.enabled", "bfloat16.enabled"):
        precision = "bf16"
    wire = settings.choice(("communication_data_type", "data_types.grad_accum_dtype"), WIRE, precision)
    elements = settings.integer("zero_optimization.reduce_bucket_size")
    name = settings.text("optimizer.type", default="Adam")
    return {
        # The file does not say it; a recipe has to.
        "seq_length": None if shape is None else min(shape.positions, LONGEST),
        "precision": precision,
        "optimizer": KNOWN.get(name.casefold(), "adam"),
        "global_batch_size": batch,
        "overlap_grad_reduce": settings.flag("zero_optimization.overlap_comm"),
        "grad_bucket": None if elements is None else f"{elements * (4 if wire == 'fp32' else 2)} B",
        "reduce_precision": None if wire == "fp32" else wire,
    }


LONGEST = 4096
"""Longest sequence that is assumed where only the model's limit is known."""


def _gaps(settings: Settings, micro: int | None, accumulation: int | None, batch: int | None) -> Any:
    ratio = settings.number("zero_optimization.offload_optimizer.ratio")
    if ratio not in (None, 1.0):
        yield Gap(f"the optimizer of a share of {ratio:g} on the CPU; all is described")
    if batch is None and micro is not None:
        product = f"{micro} × {accumulation or 1} × the number of replicas"
        yield Gap(f"a global batch of {product}, which the file does not tell")
    name = settings.text("optimizer.type", default="Adam")
    if name.casefold() not in ("adam", "adamw", "sgd"):
        yield Gap(f"the optimizer {name[:40]}; described as {KNOWN.get(name.casefold(), 'adam')}")
