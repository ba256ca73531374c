"""A configuration of DeepSpeed: batch, ZeRO, precision and tensor parallelism as JSON.

Names: deepspeedai/DeepSpeed, `docs/_pages/config-json.md`. The file holds no model and no pipeline: these are
code of the training script. JSON has no comments, so they are the list under `_comments`, which DeepSpeed
ignores.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

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
from perfsim.workload import ParallelLayout, Place

OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
WIRE = ("fp32", "fp16", "bf16")
PARAMETERS_SHARDED = MICS_STAGE = 3
"""The ZeRO stage of MiCS, which shards in groups."""
MOST_STAGE_OF_AUTOTP = 2
"""AutoTP trains with ZeRO stages up to this one."""


def _tensor(chosen: Chosen) -> int | None:
    layout = chosen.layout
    return layout.tensor if layout.tensor > 1 and layout.zero_stage <= MOST_STAGE_OF_AUTOTP else None


def _place(place: Place) -> Place | None:
    return None if place == "none" else place


SETTINGS: tuple[Setting, ...] = (
    ("train_batch_size", lambda c: c.job.global_batch_size),
    ("train_micro_batch_size_per_gpu", lambda c: c.layout.micro_batch_size),
    ("gradient_accumulation_steps", lambda c: c.num_microbatches),
    ("zero_optimization.stage", lambda c: c.layout.zero_stage),
    ("zero_optimization.mics_shard_size", lambda c: c.layout.shard_group),
    ("zero_optimization.offload_optimizer.device", lambda c: _place(c.layout.offload_optimizer)),
    ("zero_optimization.offload_param.device", lambda c: _place(c.layout.offload_param)),
    (
        "activation_checkpointing.cpu_checkpointing",
        lambda c: True if c.layout.offload_activations == "cpu" else None,
    ),
    ("zero_optimization.overlap_comm", lambda c: c.job.recipe.overlap_grad_reduce),
    ("zero_optimization.reduce_bucket_size", bucket_elements),
    ("tensor_parallel.autotp_size", _tensor),
    ("bf16.enabled", lambda c: c.job.recipe.precision == "bf16"),
    ("fp16.enabled", lambda c: c.job.recipe.precision == "fp16"),
    (
        "communication_data_type",
        lambda c: wire if (wire := c.job.recipe.reduce_precision or "fp32") in WIRE else None,
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
    mode, every = chosen.layout.recompute, chosen.layout.recompute_every
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
    where(lambda _: True, "{c.job.recipe.attention} attention, which the model's code chooses"),
    tf32_products,
    reduced_otherwise(*WIRE),
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
