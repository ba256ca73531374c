"""Flags of Megatron-LM: `pretrain_gpt.py` under `torchrun`, one flag on each line.

Names: NVIDIA/Megatron-LM, `megatron/training/arguments.py` of Megatron-Core 0.13 and later. Megatron numbers
ranks as perfsim does: tensor innermost, then context, then data, then pipeline.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence

from perfsim.interop.megatron_model import SETTINGS as LAYER_SETTINGS
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
from perfsim.workload import ContextExchange, ParallelLayout

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


def _groups(chosen: Chosen) -> int | None:
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
    return 1 if every == 1 else max(math.ceil(count / every) for count in _stage_layers(chosen))


def _stage_layers(chosen: Chosen) -> tuple[int, ...]:
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
    *LAYER_SETTINGS,
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
    ("--num-distributed-optimizer-instances", _groups),
    ("--optimizer-cpu-offload", lambda c: _flag(c.layout.offload_optimizer == "cpu")),
    ("--overlap-cpu-optimizer-d2h-h2d", lambda c: _flag(c.layout.offload_optimizer == "cpu")),
    ("--use-precision-aware-optimizer", lambda c: _flag(c.layout.offload_optimizer == "cpu")),
    ("--use-megatron-fsdp", lambda c: _flag(_fsdp(c))),
    ("--data-parallel-sharding-strategy", lambda c: SHARDING.get(c.layout.zero_stage)),
    ("--no-gradient-accumulation-fusion", lambda c: _flag(_fsdp(c))),
    ("--ckpt-format", lambda c: "fsdp_dtensor" if _fsdp(c) else None),
    (
        "--overlap-grad-reduce",
        lambda c: _flag(c.job.recipe.overlap_grad_reduce and c.layout.replicas > 1),
    ),
    (
        "--overlap-param-gather",
        lambda c: _flag(
            c.job.recipe.overlap_param_gather and c.layout.zero_stage > 0 and c.layout.replicas > 1
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
        lambda c: "flash" if c.job.recipe.attention == "flash" else "unfused",
    ),
    ("--attention-dropout", _dropout),
    ("--hidden-dropout", _dropout),
    ("--cross-entropy-loss-fusion", lambda c: _flag(c.job.recipe.fused_cross_entropy)),
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
    layout, counts = chosen.layout, set(_stage_layers(chosen))
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
        lambda c: c.job.recipe.host_blocking,
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
