"""The tools that train: which layouts the releases of each run, by which of its settings and since when.

A layout runs where every axis that is in use has a row of `TRAINERS` that holds its value. A month is of the
wheel whose files have the setting, of the release's page, or of the paper that brought it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from perfsim.base.dates import existed
from perfsim.specs.layout import AXES, OF_MODULES, RECOMPUTED, ParallelLayout, written
from perfsim.specs.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from perfsim.specs.recipe import Job

ToolName = Literal[
    "megatron", "zero-bubble", "deepspeed", "neox", "torchtitan", "llm-foundry", "maxtext", "modelzoo"
]
"""Tools that run plans; `perfsim.interop.WRITTEN` has those whose files are written."""
RunsOn = Literal[ToolName, "any"]
ANY = "any"
"""Stands for no tool: layouts of the research question, which no released framework needs to run."""
FREE = ("data", "micro_batch_size", "virtual_pipeline")
"""Axes that every tool has: replicas, micro-batches, and the chunks of a schedule that it runs."""
SAID_BY = {"schedule": "pipeline", "context_exchange": "context"}
"""Axes whose default says something too, where a degree is above one."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Values of one axis that a tool runs."""

    axis: str
    setting: str
    """What of the tool says them."""
    since: str
    """Month of the first release that has it; empty: no source dates it, and no day is too early for it."""
    release: str
    values: Collection[Any] | None = None
    """None: all."""
    needs: Mapping[str, Collection[Any]] = field(default_factory=dict)
    """Values of other axes without which it does not run."""
    multiple_of: tuple[str, ...] = ()
    """Axes the product of whose degrees divides the value."""
    until: str = ""
    """Month of the first release that refuses it; empty: none does."""

    def has(self, value: Any) -> bool:
        return self.values is None or value in self.values

    def refusal(self, layout: ParallelLayout, month: str) -> str:
        """Why a value that it has does not run with a release of a month (empty: the newest); else empty."""
        if month and not existed(self.since, month):
            return f"{self.release} of {self.since} is the first with {self.setting}"
        if self.until and (not month or existed(self.until, month)):
            return f"{self.setting} is refused since {self.until}"
        given = {name: getattr(layout, name) for name in (*self.needs, *self.multiple_of)}
        lacking = [
            f"{name} {written(given[name])} (but {' or '.join(map(written, values))})"
            for name, values in self.needs.items()
            if given[name] not in values
        ]
        divisor = math.prod(given[name] for name in self.multiple_of)
        if divisor > 1 and getattr(layout, self.axis) % divisor:
            lacking += [f"{name} {written(given[name])}" for name in self.multiple_of]
        others = " and ".join(lacking)
        return f"{self.setting} does not go with {others}" if others else ""


@dataclass(frozen=True, slots=True)
class _Trainer:
    """A tool that trains on GPUs, and the rows of what it runs."""

    title: str
    source: str
    """Where its settings stand."""
    rows: tuple[Runs, ...] = ()
    divides_experts: Literal["if asked", "alone", "always", "never"] = "if asked"
    """Whether tensor ranks divide every expert; alone: without expert ranks; never: it has not both."""
    no_experts_in: Collection[str] = ()
    """Precisions in which it runs no expert parallelism."""
    filled: Collection[str] = ()
    """Schedules that it starts only with as many micro-batches as stages."""
    even: Collection[str] = ()
    """Schedules whose stages it divides layers, and micro-batches, without a rest."""
    on_cpu: Collection[str] | None = None
    """Optimizers whose states it keeps on the CPU; None: all."""
    releases: Mapping[str, str] = field(default_factory=dict)
    """The release in whose settings a plan is written, and by optimizer a later one that first has it."""


_ALONE = {"pipeline": (1,)}
"""What gathers parameters or shards gradients while a pipeline would still add to them."""
_ZERO = {"zero_stage": (1, 2, 3)}
_ZERO_2 = {"zero_stage": (2, 3)}
_ZERO_3 = {"zero_stage": (3,)}
_FULL = {"recompute": ("full",)}
_JOINED = ("combined-1f1b", "combined-interleaved")
_PARTS = ("selective", "mlp", "full")
"""Recompute of what a model's code puts into a checkpoint."""
_SEQUENCE = {"sequence_parallel": (True,)}
_SINGLE = {"has_replicas": (False,)}
_CPU = ("cpu",)
_FSDP2_ON_CPU = {"offload_optimizer": _CPU, "offload_param": _CPU, "has_replicas": (True,)}
"""torchtitan offloads both, of what it shards."""
_V2 = ("2021-04", "Megatron-LM 2.2")
_V3 = ("2022-05", "Megatron-LM 3.0")
_FSDP_FLAGS = "--use-megatron-fsdp --data-parallel-sharding-strategy"
_CORE_0_14 = ("2025-10", "Megatron-Core 0.14")
_JOINS = "--overlap-moe-expert-parallel-comm"
_NO_EXPERTS = {"recompute": [mode for mode in RECOMPUTED if "moe" not in RECOMPUTED[mode]]}
_CORE_0_10 = ("2025-02", "Megatron-Core 0.10")
_CORE_0_5 = ("2024-02", "Megatron-Core 0.5")
_CORE_0_12 = ("2025-05", "Megatron-Core 0.12")
_CORE_0_13 = ("2025-07", "Megatron-Core 0.13")
_DS_0_3 = ("", "DeepSpeed 0.3")
_DS_0_3_13 = ("2021-03", "DeepSpeed 0.3.13")
_DS_0_3_15 = ("", "DeepSpeed 0.3.15")
_DS_MOE = {**_ALONE, "zero_stage": (0, 1, 2)}
_ULYSSES = ("2023-09", "DeepSpeed 0.10.2 (2309.14509)")
_NEOX_1 = ("", "GPT-NeoX 1.0")
_FOUNDRY = ("2023-05", "llm-foundry 0.1")
_MAX_2023 = ("", "MaxText 2023")
_MAX_2024 = ("", "MaxText 2024")
_MAX_2025 = ("", "MaxText 2025")
_MEGATRON_2021 = (
    Runs("tensor", "--tensor-model-parallel-size", *_V2),
    Runs("pipeline", "--pipeline-model-parallel-size", *_V2),
    Runs("schedule", "--pipeline-model-parallel-size", *_V2, ("1f1b",)),
    Runs("schedule", "--num-layers-per-virtual-pipeline-stage", *_V2, ("interleaved",)),
    Runs("recompute", "--activations-checkpoint-method", *_V2, ("full",)),
    Runs("recompute_every", "--activations-checkpoint-method block", *_V2, needs=_FULL),
    Runs("recompute", "--recompute-activations", *_V3, ("selective",)),
    Runs("sequence_parallel", "--sequence-parallel", *_V3),
)
_TITAN_SCHEDULES = ("1f1b", "gpipe", "interleaved", "zbv")
_TITAN = ("2024-10", "torchtitan as in its paper (2410.06511)")
_TITAN_0_1 = ("2025-06", "torchtitan 0.1")
_SHARDED_BY_ALL = {"zero_stage": (2, 3), "shard_group": (None,)}
"""Its experts lie on ranks that shard, and copies of them are sharded over all other ranks here."""
_TITAN_JOINS = ("2025-12", "torchtitan with its pull request 1721")
_TITAN_REPLICATE = ("2026-02", "torchtitan with composable replicas (pull request 2458)")
_TITAN_TENSOR = "parallelism.tensor_parallel_degree"
_TITAN_EXPERT = "parallelism.expert_parallel_degree"
_ZB = ("2024-01", "sail-sg/zero-bubble-pipeline-parallelism (2401.10241)")
_V_MEMORY = ("2024-05", "sail-sg/zero-bubble-pipeline-parallelism (2405.15362)")

TRAINERS: Mapping[ToolName, _Trainer] = {
    "megatron": _Trainer(
        "Megatron-LM",
        "NVIDIA/Megatron-LM, megatron/training/arguments.py and CHANGELOG.md; files of the wheels",
        (
            *_MEGATRON_2021,
            Runs("zero_stage", "--use-distributed-optimizer", *_V3, (1,)),
            Runs("zero_stage", _FSDP_FLAGS, *_CORE_0_14, (2, 3), _ALONE),
            Runs("shard_group", "--num-distributed-optimizer-instances", *_CORE_0_10),
            Runs("schedule", _JOINS, *_CORE_0_14, _JOINED[:1], {**_ALONE, **_NO_EXPERTS}),
            Runs("schedule", _JOINS, *_CORE_0_14, _JOINED[1:], _NO_EXPERTS),
            Runs("layers_per_stage", "--pipeline-model-parallel-layout", *_CORE_0_13),
            Runs("recompute", "--recompute-modules", *_CORE_0_13, OF_MODULES),
            Runs("context", "--context-parallel-size", *_CORE_0_5),
            Runs("context_exchange", "--cp-comm-type p2p", *_CORE_0_5, ("ring",)),
            Runs("context_exchange", "--cp-comm-type a2a", *_CORE_0_10, ("all_to_all",)),
            Runs("expert", "--expert-model-parallel-size", *_CORE_0_5),
            Runs("expert_tensor", "--expert-tensor-parallel-size", *_CORE_0_10),
            Runs("offload_optimizer", "--optimizer-cpu-offload", *_CORE_0_12, _CPU, {"zero_stage": (1,)}),
        ),
        no_experts_in=("fp16",),
        on_cpu=("adam", "adamw"),
        releases={"": "Megatron-Core 0.15", "muon": "Megatron-Core 0.16"},
    ),
    "zero-bubble": _Trainer(
        "Megatron-LM with zero-bubble schedules",
        "sail-sg/zero-bubble-pipeline-parallelism, README.md and megatron/training/arguments.py",
        (
            *_MEGATRON_2021,
            Runs("layers_per_stage", "--allow-padding-num-layers", *_ZB),
            Runs("schedule", "--enable-zero-bubble", *_ZB, ("zb1p", "zb2p")),
            Runs("schedule", "--zero-bubble-v-schedule", *_ZB, ("zbv",)),
            Runs("schedule", "--zero-bubble-v-schedule-mem-setup", *_V_MEMORY, ("v-half", "v-min")),
        ),
    ),
    "deepspeed": _Trainer(
        "DeepSpeed",
        "deepspeedai/DeepSpeed, docs/_pages/config-json.md and the news of README.md; Megatron-DeepSpeed",
        (
            Runs("zero_stage", "zero_optimization.stage", *_DS_0_3, (1,)),
            Runs("zero_stage", "zero_optimization.stage", *_DS_0_3, (2,), _ALONE),
            Runs("zero_stage", "zero_optimization.stage", *_DS_0_3_13, (3,), _ALONE),
            Runs("shard_group", "zero_optimization.mics_shard_size", "", "DeepSpeed 0.9.5", needs=_ZERO_3),
            Runs("pipeline", "PipelineModule(num_stages)", *_DS_0_3),
            Runs("schedule", "PipelineModule", *_DS_0_3, ("1f1b",)),
            Runs("layers_per_stage", "PipelineModule(partition_method)", *_DS_0_3),
            Runs("tensor", "mpu, tensor_parallel.autotp_size", *_DS_0_3),
            Runs("sequence_parallel", "--sequence-parallel", "", "Megatron-DeepSpeed"),
            Runs("context", "DistributedAttention", *_ULYSSES),
            Runs("context_exchange", "DistributedAttention", *_ULYSSES, ("all_to_all",)),
            Runs("expert", "MoE(ep_size)", "", "DeepSpeed 0.5", needs=_DS_MOE),
            Runs("recompute", "activation_checkpointing", *_DS_0_3, _PARTS),
            Runs("recompute_every", "activation_checkpointing", *_DS_0_3),
            Runs("offload_optimizer", "zero_optimization.offload_optimizer", *_DS_0_3_13, _CPU, _ZERO),
            Runs("offload_optimizer", "zero_optimization.offload_optimizer", *_DS_0_3_15, ("nvme",), _ZERO_3),
            Runs("offload_param", "zero_optimization.offload_param", *_DS_0_3_15, needs=_ZERO_3),
            Runs("offload_activations", "activation_checkpointing.cpu_checkpointing", *_DS_0_3, _CPU, _FULL),
        ),
    ),
    "neox": _Trainer(
        "GPT-NeoX",
        "EleutherAI/gpt-neox, megatron/neox_arguments/neox_args.py; on ZeRO 3 titles of pull requests alone",
        (
            Runs("tensor", "model_parallel_size", *_NEOX_1),
            Runs("pipeline", "pipe_parallel_size", *_NEOX_1),
            Runs("schedule", "pipe_parallel_size", *_NEOX_1, ("1f1b",)),
            Runs("layers_per_stage", "pipe_partition_method", *_NEOX_1),
            Runs("zero_stage", "zero_optimization.stage", *_NEOX_1, (1,)),
            Runs("zero_stage", "zero_optimization.stage", *_NEOX_1, (2,), _ALONE),
            Runs("zero_stage", "zero_optimization.stage", *_NEOX_1, (3,), {**_ALONE, "tensor": (1,)}),
            Runs("recompute", "checkpoint_activations", *_NEOX_1, ("full",)),
            Runs("offload_activations", "checkpoint_in_cpu", *_NEOX_1, _CPU, _FULL),
            Runs("sequence_parallel", "sequence_parallel", "", "GPT-NeoX of 2024"),
            Runs("expert", "moe_expert_parallel_size", "", "GPT-NeoX 2.0", needs=_DS_MOE),
        ),
        divides_experts="never",  # no source shows its MoE next to sequence_parallel
    ),
    "torchtitan": _Trainer(
        "torchtitan",
        "pytorch/torchtitan, torchtitan/config/ (job_config.py until January 2026, configs.py since)",
        (
            Runs("zero_stage", "parallelism.fsdp_reshard_after_forward always", *_TITAN, (3,), _ALONE),
            Runs("zero_stage", "parallelism.fsdp_reshard_after_forward never", *_TITAN, (2,)),
            Runs(
                "shard_group", "parallelism.data_parallel_replicate_degree", *_TITAN, multiple_of=("context",)
            ),
            # Replicas that shard nothing had no other degrees until 2026.
            Runs("tensor", _TITAN_TENSOR, *_TITAN_REPLICATE, needs=_SEQUENCE),
            Runs("tensor", _TITAN_TENSOR, *_TITAN, needs={**_SEQUENCE, **_SINGLE}),
            Runs("tensor", _TITAN_TENSOR, *_TITAN, needs={**_SEQUENCE, **_ZERO_2}),
            Runs("sequence_parallel", _TITAN_TENSOR, *_TITAN),
            Runs("pipeline", "parallelism.pipeline_parallel_degree", *_TITAN_REPLICATE),
            Runs("pipeline", "parallelism.pipeline_parallel_degree", *_TITAN, needs=_SINGLE),
            Runs("pipeline", "parallelism.pipeline_parallel_degree", *_TITAN, needs=_ZERO_2),
            Runs("schedule", "parallelism.pipeline_parallel_schedule", *_TITAN, _TITAN_SCHEDULES),
            Runs("schedule", "parallelism.pipeline_parallel_schedule", *_TITAN_JOINS, ("dualpipev",)),
            Runs("layers_per_stage", "parallelism.module_fqns_per_model_part", *_TITAN),
            Runs("context", "parallelism.context_parallel_degree", *_TITAN, needs=_ZERO_2),
            Runs("context_exchange", "parallelism.context_parallel_rotate_method", *_TITAN, ("ring",)),
            Runs("expert", _TITAN_EXPERT, *_TITAN_0_1, None, _SHARDED_BY_ALL, ("tensor", "context")),
            # Since its pull request 4794 expert ranks are as many as tensor ranks, or more.
            Runs("expert_tensor", _TITAN_TENSOR, *_TITAN_0_1, needs={"expert": (1,)}, until="2026-09"),
            Runs("recompute", "activation_checkpoint.mode", *_TITAN, _PARTS),
            Runs("offload_optimizer", "training.enable_cpu_offload", *_TITAN, _CPU, _FSDP2_ON_CPU),
            Runs("offload_param", "training.enable_cpu_offload", *_TITAN, _CPU, _FSDP2_ON_CPU),
        ),
        divides_experts="alone",
        filled=("1f1b", "gpipe", "dualpipev"),  # as in torch.distributed.pipelining
    ),
    "llm-foundry": _Trainer(
        "llm-foundry",
        "mosaicml/llm-foundry, llmfoundry/models (config_moe_args.py, mpt); mosaicml/composer, SHARDING_MAP",
        (
            Runs("zero_stage", "fsdp_config.sharding_strategy", *_FOUNDRY, (2, 3)),
            Runs("shard_group", "fsdp_config.sharding_strategy HYBRID_SHARD", *_FOUNDRY, needs=_ZERO_2),
            Runs("recompute", "fsdp_config.activation_checkpointing", *_FOUNDRY, ("full",)),
            Runs("recompute", "activation_checkpointing_target mptmlp", "", "llm-foundry 0.6", ("mlp",)),
            Runs("recompute_every", "activation_checkpointing_target", "", "llm-foundry 0.6", needs=_FULL),
            Runs("offload_activations", "fsdp_config.activation_cpu_offload", *_FOUNDRY, _CPU),
            Runs("expert", "ffn_config.moe_world_size", "2024-03", "llm-foundry 0.6", needs=_SHARDED_BY_ALL),
        ),
    ),
    "maxtext": _Trainer(
        "MaxText",
        "AI-Hypercomputer/maxtext, src/MaxText/configs/base.yml (logical_axis_rules) and types.py",
        (
            Runs("zero_stage", "shard_optimizer_over_data", *_MAX_2025, (1,)),
            Runs("zero_stage", "ici_fsdp_parallelism, dcn_fsdp_parallelism", *_MAX_2023, (3,), _ALONE),
            Runs("shard_group", "dcn_data_parallelism", *_MAX_2023, None, _ZERO_3, ("context", "expert")),
            Runs("tensor", "ici_tensor_parallelism", *_MAX_2023),
            Runs("sequence_parallel", "ici_tensor_sequence_parallelism", "", "MaxText 2025"),
            # Ranks of these two axes shard the dense parameters too.
            Runs("context", "ici_context_parallelism", *_MAX_2025, needs=_ZERO_3),
            Runs("expert", "ici_expert_parallelism", *_MAX_2024, needs=_ZERO_3),
            Runs("expert_tensor", "ici_tensor_parallelism", *_MAX_2024),
            Runs("context_exchange", "context_parallel_strategy", *_MAX_2025, ("ring",)),
            Runs("pipeline", "ici_pipeline_parallelism", *_MAX_2024),
            Runs("schedule", "num_pipeline_microbatches", *_MAX_2024, ("gpipe",)),
            Runs("recompute", "remat_policy full", *_MAX_2023, ("full",)),
        ),
        divides_experts="always",
        even=("gpipe",),
    ),
    "modelzoo": _Trainer("Cerebras Model Zoo", "Cerebras/modelzoo"),
}
ON_GPUS = tuple(tool for tool, trainer in TRAINERS.items() if trainer.rows)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one tool runs as it was in one month."""

    tool: ToolName
    month: str = ""
    """Empty: its newest release."""
    zero_stages: tuple[int, ...] | None = None
    """None: all that it runs."""

    @property
    def name(self) -> str:
        """The tool and the month, in words."""
        return TRAINERS[self.tool].title + (f" of {self.month}" if self.month else "")

    def runs(self, layout: ParallelLayout, job: Job | None = None) -> bool:
        return not self.lacks(layout, job)

    def lacks(self, layout: ParallelLayout, job: Job | None = None) -> list[str]:
        """What it cannot run of a layout, of a job if one is given; in words, empty where it runs it."""
        lacking = [] if job is None else [*self.lacks_of(layout, job)]
        if self.zero_stages is not None and layout.zero_stage not in self.zero_stages:
            stages = " and ".join(map(str, self.zero_stages))
            lacking.append(f"zero_stage {layout.zero_stage}: the rule for runtimes takes it for {stages}")
        for axis in (name for name in AXES if _in_use(layout, name)):
            value = getattr(layout, axis)
            rows = [row for row in TRAINERS[self.tool].rows if row.axis == axis]
            refusals = [row.refusal(layout, self.month) for row in rows if row.has(value)]
            if "" in refusals:
                continue
            there = (row for row in rows if not self.month or existed(row.since, self.month))
            known = [written(one) for row in there for one in row.values or ()]
            values = f"its values are {', '.join(known)}" if known else "it has no setting for it"
            lacking.append(f"{axis} {written(value)}: {min(refusals, key=len, default=values)}")
        return lacking

    def lacks_of(self, layout: ParallelLayout, job: Job) -> Iterator[str]:
        """What of a job it cannot divide so, in words: experts, micro-batches and windows."""
        trainer = TRAINERS[self.tool]
        recipe = job.recipe
        stages = layout.num_stages
        passes = job.global_batch_size // (layout.data * layout.micro_batch_size)
        alone = trainer.divides_experts == "alone" and layout.expert == 1
        divides = alone or trainer.divides_experts == "always"
        if job.model.experts is not None and divides and layout.expert_tensor != layout.tensor:
            where = " where expert is 1" if alone else ""
            yield f"expert_tensor must be {layout.tensor}, as tensor ranks divide experts{where}"
        if job.model.experts is not None and layout.tensor > 1 and trainer.divides_experts == "never":
            yield f"tensor {layout.tensor} with experts: its values are 1"
        if layout.expert > 1 and recipe.precision in trainer.no_experts_in:
            yield f"expert parallelism in {recipe.precision}: it has none"
        wide = recipe.precision in ("fp32", "tf32") or recipe.expert_dispatcher == "all_gather"
        if layout.schedule in _JOINED and (wide or layout.expert == 1 or job.model.mtp_num_layers > 1):
            yield f"{layout.schedule}: an all-to-all of expert ranks in 16 bits, one token predicted ahead"
        if recipe.optimizer == "muon" and layout.zero_stage > 1:
            yield f"zero_stage {layout.zero_stage} of muon: its values are 0 and 1"
        if layout.offload_optimizer != "none" and recipe.optimizer not in (trainer.on_cpu or OPTIMIZERS):
            yield f"{recipe.optimizer} on CPUs: it keeps {' and '.join(trainer.on_cpu or ())} there"
        if layout.schedule in trainer.filled and passes < stages > 1:
            yield f"{passes} micro-batches: {layout.schedule} takes as many as stages, {stages}"
        if layout.schedule in trainer.even and (job.model.num_layers % stages or passes % stages):
            yield f"{job.model.num_layers} layers, {passes} micro-batches: it takes multiples of {stages}"
        if layout.context > 1 and layout.context_exchange == "ring" and job.model.sliding_window is not None:
            yield "context_exchange ring: the ring of no tool attends in a window; its values are all_to_all"


def _in_use(layout: ParallelLayout, axis: str) -> bool:
    """Whether an axis asks something of a tool."""
    if axis in SAID_BY and getattr(layout, SAID_BY[axis]) > 1:
        return True
    return axis not in FREE and getattr(layout, axis) != AXES[axis].default


def that_run(layout: ParallelLayout, job: Job | None = None) -> list[ToolName]:
    """The tools whose newest release runs a layout, of a job if one is given."""
    return [tool for tool in ON_GPUS if Limits(tool).runs(layout, job)]
