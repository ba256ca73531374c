"""The rules of legal layouts: each refusal as data, with the nearest layouts that keep the rule."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, NamedTuple

from perfsim.base.errors import LayoutError, Problem
from perfsim.base.sizes import passes_problem
from perfsim.network import FatTree
from perfsim.specs.layout import AXES, OF_LATENTS, OFFLOADS, ParallelLayout
from perfsim.specs.model import layer_kinds
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import SCHEDULES, least_chunks
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED, SHARDED, ZERO_STAGES
from perfsim.strategies.three_d.division import ENDS, divided


class _Refusal(NamedTuple):
    """One rule that a layout breaks."""

    words: str
    nearest: tuple[ParallelLayout, ...] = ()
    """Layouts nearest to this one that keep the rule; empty where no change of fields alone mends it."""


_Broken = tuple[str, Sequence[Mapping[str, Any]]]
"""A broken rule in words, and the changes of a layout that each keep it."""


class RefusedLayoutError(LayoutError):
    """A layout that breaks rules of 3D parallelism; `help_text` tells what would be legal."""

    def __init__(self, refusals: Sequence[_Refusal], help_text: str = "") -> None:
        *others, last = [Problem(refusal.words) for refusal in refusals]
        super().__init__([*others, replace(last, help=help_text)])
        self.refusals = tuple(refusals)


def refusals_of(
    job: Job, topology: FatTree, layout: ParallelLayout, strategy: str, free_degrees: Collection[str]
) -> list[_Refusal]:
    """All rules that a layout breaks; empty for a legal layout."""
    broken = chain(
        _of_devices(topology, layout, strategy, free_degrees),
        _of_zero(layout),
        *(rule(job, layout) for rule in DEGREE_RULES.values()),
        _of_stages(job, layout),
        _of_batch(job, layout),
        _of_offload(job, topology, layout),
    )
    return [_Refusal(words, tuple(replace(layout, **mend) for mend in mends)) for words, mends in broken]


def _indivisible(words: str, name: str, count: int, wanted: int, least: int = 1) -> _Broken:
    """The rule that a field must divide a number, with the nearest divisors in words and as changes."""
    near = _nearest_divisors(count, wanted, least)
    return f"{words}; nearest: {' or '.join(map(str, near))}", [{name: number} for number in near]


def _nearest_divisors(count: int, wanted: int, least: int = 1) -> list[int]:
    """The divisors of `count` from `least` on that are nearest to `wanted`: one, or two equally near."""
    divisors = [number for number in range(least, count + 1) if count % number == 0]
    least_apart = min(abs(number - wanted) for number in divisors)
    return [number for number in divisors if abs(number - wanted) == least_apart]


def _of_devices(
    topology: FatTree, layout: ParallelLayout, strategy: str, free_degrees: Collection[str]
) -> Iterator[_Broken]:
    for name, axis in AXES.items():
        value = getattr(layout, name)
        if axis.degree and name not in free_degrees and value != 1:
            yield f"strategy {strategy} holds {name} at 1, the layout has {name} {value}", [{name: 1}]
    if layout.num_devices != topology.num_devices:
        context = f"context {layout.context} × " if layout.context > 1 else ""
        words = (
            f"tensor {layout.tensor} × {context}pipeline {layout.pipeline} × data {layout.data} is "
            f"{layout.num_devices} devices, the question has {topology.num_devices}"
        )
        data, rest = divmod(topology.num_devices, layout.num_devices // layout.data)
        yield words, [] if rest else [{"data": data}]


def _of_zero(layout: ParallelLayout) -> Iterator[_Broken]:
    stage = layout.zero_stage
    if stage not in ZERO_STAGES:
        words = f"zero_stage {stage} is not available; allowed: {', '.join(map(str, ZERO_STAGES))}"
        yield words, [{"zero_stage": SHARDED}]
    if stage == SHARDED and layout.pipeline > 1:
        said = f"zero_stage 3 gathers every layer on every rank, so pipeline must be 1, not {layout.pipeline}"
        replicas = {"pipeline": 1, "data": layout.data * layout.pipeline}
        yield said, [replicas, {"zero_stage": GRADIENTS_SHARDED}]
    group = layout.shard_group
    ranks = layout.replicas
    if group is not None and not stage:
        words = f"shard_group {group} is a part of the ranks over which ZeRO shards; zero_stage is 0"
        yield words, [{"shard_group": None}]
    if group is not None and (group < 2 or ranks % group):
        words = f"shard_group {group} must divide the {ranks} ranks of context × data in groups of 2 or more"
        if ranks > 1:
            yield _indivisible(words, "shard_group", ranks, group, least=2)
        else:
            yield words, [{"shard_group": None}]
    schedule = SCHEDULES.get(layout.schedule)
    if stage == SHARDED and not (schedule is not None and schedule.has("whole_passes")):
        words = (
            "zero_stage 3 takes one micro-batch forward and back before the next, so schedule must be 1f1b, "
            f"not {layout.schedule}"
        )
        yield words, [{"schedule": "1f1b", "virtual_pipeline": 1}]


def _of_tensor(job: Job, layout: ParallelLayout) -> Iterator[_Broken]:
    """Rules of the tensor degree and of sequence parallelism."""
    model = job.model
    tensor = layout.tensor
    counts = {"num_attention_heads": model.num_attention_heads, "num_query_groups": model.query_groups}
    if not all(kind.experts for kind in layer_kinds(model)):
        counts["ffn_hidden_size"] = model.ffn_hidden_size
    if model.experts is not None:
        counts["experts.shared_ffn_hidden_size"] = model.experts.shared_ffn_hidden_size
    for name, count in counts.items():
        if count % tensor:
            words = f"{name} {count} is not a multiple of tensor {tensor}"
            yield _indivisible(words, "tensor", count, tensor)
    if layout.sequence_parallel and job.seq_length % tensor:
        words = f"seq_length {job.seq_length} is not a multiple of tensor {tensor}"
        yield words, [{"sequence_parallel": False}]


def _of_context(job: Job, layout: ParallelLayout) -> Iterator[_Broken]:
    """Rules of the context degree: what it divides, and that attention is fused."""
    model = job.model
    context = layout.context
    if context == 1:
        return
    rings = layout.context_exchange == "ring"
    parts = context * (2 if rings else 1) * (layout.tensor if layout.sequence_parallel else 1)
    if job.seq_length % parts:
        yield f"seq_length {job.seq_length} is not a multiple of {parts}, the parts of context {context}", []
    heads = {"num_attention_heads": model.num_attention_heads, "num_query_groups": model.query_groups}
    for name, count in heads.items():
        if not rings and count % (layout.tensor * context):
            words = (
                f"the all-to-all divides heads: {name} {count} is not a multiple of tensor {layout.tensor} × "
                f"context {context}; context_exchange ring has no such rule"
            )
            yield words, [{"context_exchange": "ring"}]
    if job.runtime.attention != "flash":
        yield f"context {context} needs fused attention: recipe {job.recipe.name} has attention standard", []
    if job.recipe.lm_head_positions is not None:
        words = (
            f"context {context} divides the positions of the LM head, and lm_head_positions leaves some out"
        )
        yield words, []
    if layout.recompute == "selective":
        said = f"context {context}: fused attention keeps no scores to recompute; take recompute none or full"
        yield said, [{"recompute": "none"}, {"recompute": "full"}]


def _of_experts(job: Job, layout: ParallelLayout) -> Iterator[_Broken]:
    """Rules of the expert degrees: what they divide, and that ranks route tokens of their own."""
    experts = job.model.experts
    ranks = layout.expert
    shared = layout.expert_tensor
    if experts is None:
        if ranks * shared > 1:
            words = f"expert {ranks} and expert_tensor {shared} divide experts; {job.model.name} has none"
            yield words, [{"expert": 1, "expert_tensor": 1}]
        return
    if experts.num_experts % ranks:
        words = f"{experts.num_experts} experts do not divide over expert {ranks}"
        yield _indivisible(words, "expert", experts.num_experts, ranks)
    width = experts.ffn_hidden_size
    if width % shared:
        words = f"the experts' ffn_hidden_size {width} is not a multiple of expert_tensor {shared}"
        yield _indivisible(words, "expert_tensor", width, shared)
    if layout.width % (ranks * shared):
        words = (
            f"expert {ranks} × expert_tensor {shared} must divide the {layout.width} ranks of a stage "
            "(tensor × context × data)"
        )
        yield words, []
    if layout.tensor > 1 and not layout.sequence_parallel:
        words = "experts compute a rank's own positions, so tensor parallelism needs sequence_parallel true"
        yield words, [{"sequence_parallel": True}]


DEGREE_RULES: Mapping[
    Literal["tensor", "context", "expert"], Callable[[Job, ParallelLayout], Iterator[_Broken]]
] = {"tensor": _of_tensor, "context": _of_context, "expert": _of_experts}
"""The rules of the degrees that a space tries one by one, given a job and a layout."""


def _of_stages(job: Job, layout: ParallelLayout) -> Iterator[_Broken]:
    layers = job.model.num_layers
    stages = layout.num_stages
    chunks = layout.virtual_pipeline
    schedule = SCHEDULES.get(layout.schedule)
    if layout.recompute in OF_LATENTS and job.model.latent_attention is None:
        words = f"recompute {layout.recompute}: {job.model.name} has no latent attention"
        yield words, [{"recompute": "norms"}, {"recompute": "mlp"}]
    if layout.recompute_every < 1:
        yield f"recompute_every {layout.recompute_every} must be at least 1", [{"recompute_every": 1}]
    if schedule is None:
        yield f"schedule {layout.schedule!r} is not available; allowed: {', '.join(sorted(SCHEDULES))}", []
    elif problem := schedule.chunks_problem(chunks):
        yield problem, [{"virtual_pipeline": least_chunks(layout.schedule)}]
    given = layout.layers_per_stage
    if given is None:
        if stages > layers + ENDS:
            yield f"{layers} layers cannot fill {stages} stages", [{"pipeline": max(1, layers // chunks)}]
        return
    most_even = divided(layout.schedule, layout.pipeline, chunks, layers).layers
    broken = {
        f"layers_per_stage has {len(given)} entries for {stages} stages": len(given) != stages,
        f"layers_per_stage adds up to {sum(given)}, the model has {layers} layers": sum(given) != layers,
        "layers_per_stage has a negative entry": any(count < 0 for count in given),
    }
    for words, is_broken in broken.items():
        if is_broken:
            yield words, [{"layers_per_stage": most_even}]


def _of_batch(job: Job, layout: ParallelLayout) -> Iterator[_Broken]:
    per_pass = layout.data * layout.micro_batch_size
    if job.global_batch_size % per_pass:
        words = (
            f"global_batch_size {job.global_batch_size} is not a multiple of data {layout.data} × "
            f"micro_batch_size {layout.micro_batch_size}; nearest: "
            f"{max(1, round(job.global_batch_size / per_pass)) * per_pass}"
        )
        share, rest = divmod(job.global_batch_size, layout.data)
        near = [] if rest or not share else _nearest_divisors(share, layout.micro_batch_size)
        yield words, [{"micro_batch_size": size} for size in near]
        return
    microbatches = job.global_batch_size // per_pass
    if problem := passes_problem(job.model.num_layers * layout.context, microbatches):
        yield problem, []
    schedule = SCHEDULES.get(layout.schedule)
    if schedule is not None and (problem := schedule.groups_problem(layout.pipeline, microbatches)):
        yield problem, [{"schedule": "1f1b", "virtual_pipeline": 1}]


def _of_offload(job: Job, topology: FatTree, layout: ParallelLayout) -> Iterator[_Broken]:
    stays = dict.fromkeys(OFFLOADS, "none")
    if layout.offloads and job.model.experts is not None:
        yield f"offload of models with experts is not modelled; {job.model.name} has some", [stays]
    if layout.offload_param != "none" and layout.zero_stage != SHARDED:
        words = (
            "offload_param is for parameters that ZeRO 3 gathers layer by layer; "
            f"zero_stage is {layout.zero_stage}"
        )
        yield words, [{"zero_stage": SHARDED}, {"offload_param": "none"}]
    if layout.offload_optimizer != "none" and layout.pipeline > 1 and layout.zero_stage >= GRADIENTS_SHARDED:
        words = (
            "offload_optimizer in a pipeline needs gradients that stay until the last micro-batch: "
            f"zero_stage 0 or 1, not {layout.zero_stage}"
        )
        yield words, [{"zero_stage": 1}]
    if layout.offload_activations != "none" and layout.pipeline > 1:
        said = f"offload_activations has one micro-batch in flight: pipeline must be 1, not {layout.pipeline}"
        yield said, [{"offload_activations": "none"}]
    host = topology.system.node.host
    name = topology.system.name
    if host is None and layout.offloads:
        words = (
            f"{' and '.join(layout.offloads)}: {name} has no `node.host`; describe the devices of a host, "
            "`link`, `memory` (capacity, bandwidth) and `optimizer_fraction` there"
        )
        yield words, [stays]
    elif host is not None and host.nvme is None and "nvme" in layout.offloads.values():
        words = f"offload to nvme: {name} has no `node.host.nvme` (capacity, bandwidth)"
        yield words, [{field: "cpu" for field, place in layout.offloads.items() if place == "nvme"}]
