"""A configuration of DeepSpeed as JSON: batch, ZeRO and precision; the model stands in a file next to it.

Names: deepspeedai/DeepSpeed, `docs/_pages/config-json.md`. `auto` is what Hugging Face's trainer fills in.
The file holds no model and no pipeline, which are code of the training script. JSON has no comments, so
comments are the list under `_comments`, which DeepSpeed ignores.
"""

import json
from collections.abc import Mapping
from typing import Any

from perfsim.interop import tool
from perfsim.interop.huggingface import model_beside
from perfsim.interop.source import Settings, Source, names_in
from perfsim.interop.tool import Chosen, Reading, Row, Tool
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies.three_d.data import SHARDED

WIRES = {name: name for name in ("fp32", "fp16", "bf16")}
MOST_STAGE_OF_AUTOTP = 2
"""AutoTP trains with ZeRO stages up to this one."""
PLACES = {"cpu": "cpu", "nvme": "nvme"}
BUFFERS = "pin_memory nvme_path buffer_count buffer_size max_in_cpu fast_init pipeline_read"
"""Settings of offload that do not change what moves."""
STATES = ("optimizer", "param")
"""What is offloaded, in names of these settings."""
ACCUMULATION = "gradient_accumulation_steps"
SIGNS = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", ACCUMULATION)
LONGEST = 4096
"""Longest sequence that is assumed where only the model's limit is known."""


def _tensor(chosen: Chosen) -> int | None:
    layout = chosen.layout
    return layout.tensor if layout.tensor > 1 and layout.zero_stage <= MOST_STAGE_OF_AUTOTP else None


def _place(states: str, earlier: str, least_stage: int) -> Row:
    """Where states are offloaded; `earlier` is the flag of older releases."""
    key = f"zero_optimization.offload_{states}.device"

    def read(settings: Settings) -> str | None:
        usual = "cpu" if settings.flag(f"zero_optimization.{earlier}") else "none"
        location = settings.choice((key,), {"none": "none", **PLACES}, usual)
        return location if settings.ours["layout.zero_stage"] >= least_stage else None

    return Row.spelled(f"layout.offload_{states}", key, PLACES, read)


def _precision(settings: Settings) -> str:
    # A precision that the trainer fills in has 16 bits.
    usual = "fp32" if settings.unknown.isdisjoint(("bf16.enabled", "fp16.enabled")) else "bf16"
    half = "fp16" if settings.flag("fp16.enabled") else usual
    return "bf16" if settings.flag("bf16.enabled", "bfloat16.enabled") else half


def wire(settings: Settings) -> str | None:
    """The precision in which gradients are reduced; None: fp32."""
    keys = ("communication_data_type", "data_types.grad_accum_dtype")
    told = settings.choice(keys, {**WIRES, "bfp16": "bf16"}, settings.ours["recipe.precision"])
    return None if told == "fp32" or settings.flag("fp32_allreduce") else told


CPU_CHECKPOINTS = "activation_checkpointing.cpu_checkpointing"
ROWS: tuple[Row, ...] = (
    Row.same("recipe.global_batch_size", "train_batch_size"),
    Row.same("layout.micro_batch_size", "train_micro_batch_size_per_gpu"),
    Row.same("(micro-batches)", ACCUMULATION, write=lambda c: c.num_microbatches),
    Row.same("layout.zero_stage", "zero_optimization.stage", default=0, least=0, most=3),
    Row.same("layout.shard_group", "zero_optimization.mics_shard_size"),
    _place("optimizer", "cpu_offload", 1),
    _place("param", "cpu_offload_params", SHARDED),
    *(Row.known(f"zero_optimization.offload_{own}.{name}") for own in STATES for name in BUFFERS.split()),
    tool.share_on_cpu("zero_optimization.offload_optimizer.ratio"),
    Row.word("layout.offload_activations", CPU_CHECKPOINTS, {"cpu": True}, default="none"),
    Row("layout.recompute", CPU_CHECKPOINTS, read=lambda s: "full" if s.flag(CPU_CHECKPOINTS) else "none"),
    Row.same(
        "runtime.overlap_grad_reduce",
        "zero_optimization.overlap_comm",
        default=lambda s: s.ours["layout.zero_stage"] == SHARDED,
    ),
    Row.noted("weights that are gathered in 8 bits", "zero_optimization.zero_quantized_weights"),
    Row.noted("gradients that are reduced in 4 bits", "zero_optimization.zero_quantized_gradients"),
    Row.noted("a second copy of weights in groups of {}", "zero_optimization.zero_hpz_partition_size"),
    Row("layout.context", "sequence_parallel_size", read=lambda s: s.integer("sequence_parallel_size")),
    Row("layout.context_exchange", read=lambda s: "all_to_all" if s.ours.get("layout.context") else None),
    Row(
        "layout.tensor",
        "tensor_parallel.autotp_size",
        _tensor,
        lambda settings: settings.integer("tensor_parallel.autotp_size", default=1, least=0) or 1,
    ),
    Row(
        "recipe.precision",
        "bf16.enabled bfloat16.enabled",
        lambda c: c.job.recipe.precision == "bf16",
        _precision,
    ),
    Row("recipe.precision", "fp16.enabled", lambda c: c.job.recipe.precision == "fp16"),
    Row.spelled("recipe.reduce_precision", "communication_data_type", {None: "fp32", **WIRES}, wire),
    Row.grad_bucket("zero_optimization.reduce_bucket_size"),
    Row.optimizer("deepspeed", "optimizer.type"),
    Row.spelled("recipe.optimizer", "zero_allow_untested_optimizer", {"sgd": True}),  # ZeRO needs it
    Row.known("_comments steps_per_print wall_clock_breakdown"),
    Row.refuses("recipe.precision", "it has no setting for {}", unless=(*WIRES, "tf32")),
    Row.lacks("model", f"the model, which the training script builds: {tool.SHAPE}"),
    Row.lacks("layout.pipeline", "{0} pipeline stages; PipelineModule(num_stages={0}) has them"),
    Row.lacks("layout.layers_per_stage", "stages of {} layers; PipelineModule divides the layers"),
    Row.lacks("layout.recompute", "recompute {}; the model's code calls the checkpointing"),
    Row.lacks("layout.recompute_every", "recompute of one layer in {}; the model's code chooses the layers"),
    Row.lacks(
        "layout.tensor",
        "tensor parallelism {} with ZeRO 3; the script's mpu object has it",
        when=lambda c: _tensor(c) is None,
    ),
    Row.lacks("layout.context", "context {}; the script wraps attention in DistributedAttention (Ulysses)"),
    Row.lacks(
        "layout.expert", "expert {}, expert_tensor {c.layout.expert_tensor}; its MoE layers set ep_size"
    ),
    Row.lacks(
        "layout.offloads",
        "nvme_path, the folder of the drives",
        when=lambda c: "nvme" in c.layout.offloads.values(),
    ),
    Row.lacks("layout.sequence_parallel", "sequence parallelism of the norms"),
    Row.lacks("runtime.framework.name", "the predicted speed, which is that of {}", unless=()),
    tool.TF32_PRODUCTS,
    Row.lacks("recipe.reduce_precision", "gradients reduced in {}", unless=WIRES),
)


def _recognise(document: Any) -> bool:
    names = names_in(document, "")
    return not names.isdisjoint(SIGNS) and "num_layers" not in names


def _read(source: Source, document: Mapping[str, Any]) -> Reading:
    model = model_beside(source)
    settings = Settings.of(source, document)
    settings.unknown |= {name for name, value in settings.values.items() if value == "auto"}
    settings.values = {name: value for name, value in settings.values.items() if value != "auto"}
    recipe = settings.read(ROWS).recipe
    batch = recipe.get("global_batch_size")
    micro = settings.ours.get("layout.micro_batch_size")
    accumulation = settings.ours.get("(micro-batches)")
    data = None
    if batch is not None and micro is not None and accumulation is not None:
        data, rest = divmod(batch, micro * accumulation)
        if rest:
            message = f"{batch} is not a multiple of micro-batch {micro} × accumulation {accumulation}"
            raise settings.error("train_batch_size", message, "the quotient is the number of replicas")
    elif batch is None:
        product = f"{micro or 'a micro-batch'} × {accumulation or 1} × the number of replicas"
        settings.gap(f"a global batch of {product}, which the file does not tell")
    told = {key for row in ROWS if row.read is not None for key in row.keys.split()}
    if autos := sorted(settings.unknown & told):
        settings.gap(f"{', '.join(autos)}: auto, which the trainer fills in")
    if model is not None:
        # The file does not say it; a recipe has to.
        recipe["seq_length"] = min(model.fields["max_position_embeddings"], LONGEST)
    layout = settings.layout()
    devices = None if data is None else data * layout.num_devices
    layout = settings.layout(devices)
    return Reading(settings, model, recipe, layout, devices)


TOOL = Tool(
    title="DeepSpeed",
    sign="`zero_optimization` or `train_micro_batch_size_per_gpu`",
    syntaxes=("json",),
    recognise=_recognise,
    read=_read,
    rows=ROWS,
    told=("data", "schedule", "virtual_pipeline", "expert_tensor"),
    runs=ParallelLayout,
    render=lambda comments, values: json.dumps({"_comments": comments, **values}, indent=2) + "\n",
    start=lambda c: f"start on {c.layout.num_devices} ranks with --deepspeed_config and this file",
    comment="",
)
