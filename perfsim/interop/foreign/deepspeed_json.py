"""A configuration of DeepSpeed as JSON: batch, ZeRO and precision; the model stands in a file beside it.

Names: deepspeedai/DeepSpeed, `docs/_pages/config-json.md`. `auto` is what Hugging Face's trainer fills in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfsim.interop.deepspeed import OPTIMIZERS, PARAMETERS_SHARDED
from perfsim.interop.foreign.imported import Reading
from perfsim.interop.foreign.settings import Settings
from perfsim.interop.foreign.shape import Gap, Shape
from perfsim.interop.foreign.source import Source
from perfsim.sizes import MOST_DEVICES
from perfsim.workload import ParallelLayout, Place

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
