"""From a published run to its question, its plan, and its placed graph, which fits price many times."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

from perfsim.base.errors import InputError, PerfsimError, Problem
from perfsim.catalog import Catalog
from perfsim.costs.price import Costs
from perfsim.engine.limits import present_limits
from perfsim.evidence.cases import StepCase, case_system
from perfsim.machines import machine_of
from perfsim.machines.placement import Placed, place
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import Question
from perfsim.prediction.run import Evaluation, Step, evaluate, graph_of
from perfsim.specs.calibration import Calibration, Dispatcher
from perfsim.specs.hardware import GpuClusterSpec, SystemSpec
from perfsim.specs.layout import Layout
from perfsim.specs.precisions import PRECISIONS, StatePrecision
from perfsim.specs.recipe import Recipe
from perfsim.specs.runtime import Runtime
from perfsim.strategies import Plan

_KEEPS_QKV = "save_qkv_proj"
"""MaxText's policy of full recompute that keeps the results of the QKV projections."""
_BY_OPERATOR = "per-op selective"
"""torchtitan's selective recompute, which is its framework's."""
_ELEMENTWISE = {"layernorm", "moe_act"}
"""Modules that recompute a norm or an activation, some 2 % of a layer; a prediction leaves them out."""
_DISPATCHERS: dict[str, Dispatcher] = {
    "alltoall": "all_to_all",
    "allgather": "all_gather",
    "deepep": "deepep",
    "hybridep": "deepep",
}
_DEGREES = ("tensor", "pipeline", "context_parallel", "expert_parallel")
_ERA_OF_2021 = ("v100", "a100")
"""Devices whose public runs were made before fused attention and Transformer Engine."""
_AMD = "mi"
_GRAPHED = "26.06"
"""The container from which on the recipes of Megatron-Bridge in mxfp8 replay whole steps from a CUDA graph
(`cuda_graph_impl="full_iteration"` in its scripts/performance/configs), where all devices are in one NVLink
domain: the recipe of GPT-OSS on eight nodes of B300 has these two lines commented out."""


def case_question(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> Question:
    """The question of a published run; a fit passes its own `calibration` of the device.

    The run is known to fit in memory, so the memory model cannot refuse it. Raises InputError with all
    contradictions of a case, and with what the catalogue lacks or nothing models yet.
    """
    system = case_system(case, catalog)
    if messages := list(_contradictions(case, system)):
        raise InputError([Problem(f"case {case.id}: {message}") for message in messages])
    if calibration is not None:
        device = system.device.model_copy(update={"calibration": calibration})
        system = system.model_copy(update={"device": device})
    return Question(
        model=case.model.model_copy(update={"name": case.id}),
        recipe=_recipe(case, catalog),
        system=system,
        devices=case.system.num_devices,
        strategy=case.strategy,
        batch=case.training.global_batch_size,
        layout=_layout(case, system),
        must_fit=False,
    )


def ignored(case: StepCase) -> list[str]:
    """Settings of the software stack that a prediction leaves out."""
    detail = case.training.recompute_detail
    known = detail is None or _KEEPS_QKV in detail or _BY_OPERATOR in detail
    little = ["recompute_modules"] if _recomputes_little(case) else []
    return [*(() if known else ("recompute_detail",)), *little]


def _recomputes_little(case: StepCase) -> bool:
    return bool(case.training.recompute_modules) and set(case.training.recompute_modules) <= _ELEMENTWISE


def _contradictions(case: StepCase, system: SystemSpec) -> Iterator[str]:
    """What is wrong with a case on its system: no model yet, or a contradiction."""
    machine = machine_of(system)
    training = case.training
    devices = case.system.num_devices
    settings = getattr(machine.layout_type, "__dataclass_fields__", {})
    if missing := list(_not_modelled(case, settings)):
        yield f"not modelled yet: {'; '.join(missing)}"
    degrees = {name: getattr(case.parallel, name) for name in _DEGREES if "tensor" not in settings}
    if wrong := [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]:
        yield f"{system.name} divides the batch and nothing else, not {', '.join(wrong)}"
    node = machine.devices_per_node(system)
    is_system = case.system.is_file or case.system.device == system.name != system.device.name
    if node is not None and devices > node and case.system.inter_node is None and not is_system:
        yield (
            f"{devices} devices in nodes of {node} without inter_node, which means one node; write what all "
            "NICs of a node carry one way, e.g. inter_node: 1.6 Tb/s"
        )
    length = case.model.max_position_embeddings
    if training.lm_head_positions is not None and training.lm_head_positions > length:
        yield (
            f"lm_head_positions {training.lm_head_positions} is more than seq_length {length}; leave it out "
            "where the output layer reads every position"
        )
    if not system.device.computes(training.precision):
        has = ", ".join(system.device.peak)
        yield f"{system.device.name} computes no {training.precision}; it has {has}"
    if training.moe_a2a_overlap:
        yield "moe_a2a_overlap: all-to-alls of one micro-batch during the compute of another have no model"


def _not_modelled(case: StepCase, settings: Iterable[str]) -> Iterator[str]:
    """What would change the work of a run and has no model yet."""
    group = case.parallel.shard_group
    if "shard_group" not in settings and group not in (None, 1, case.parallel.data):
        yield f"shard_group {group}"
    modules = case.training.recompute_modules
    core_alone = case.training.recompute == "selective" and modules == ("core_attn",)
    if modules and not core_alone and not _recomputes_little(case):
        yield f"recompute_modules {', '.join(modules)}"


def _layout(case: StepCase, system: SystemSpec) -> Layout | None:
    """The layout of a case; None if the planner chooses it."""
    recompute = "none" if _recomputes_little(case) else case.training.recompute
    given = case.parallel.model_dump() | {
        "micro_batch_size": case.training.micro_batch_size or 1,
        "recompute": recompute or "none",
    }
    return machine_of(system).published_layout(given)


def _recipe(case: StepCase, catalog: Catalog) -> Recipe:
    """The recipe of a case.

    A run that says that it does not overlap gradient reduction has the defaults of Megatron-LM, gradients in
    fp32: the recipes of a framework that reduce them in 16 bits overlap it as well. The peak memory of 24
    runs on B200 that say so agrees (2 % in the median, 11 % with gradients in 16 bits). It overlaps no
    tensor-parallel communication either, unless it says so.
    """
    training = case.training
    framework = catalog.framework(case.framework or suggested(case)[0])
    fused = () if training.compiled is False else framework.fused
    sharded = case.strategy == "zero3"
    overlap = training.overlap_grad_reduce
    overlaps = sharded if overlap is None else overlap
    said = [value for value in (training.tp_comm_overlap, training.async_tp) if value is not None]
    reduced = training.reduce_precision
    halves = sharded and reduced is not None and PRECISIONS[reduced].is_16_bit
    runtime = Runtime(
        name=framework.name,
        attention=training.attention,
        overlap_grad_reduce=overlaps,
        overlap_tensor=any(said) if said else framework.overlaps_tensor and overlaps,
        dispatcher=_DISPATCHERS.get(training.moe_dispatcher or ""),
        grouped_products=training.moe_grouped_gemm is not False,
        recompute_keeps="qkv" if _KEEPS_QKV in (training.recompute_detail or "") else "nothing",
        fused=fused,
        fused_cross_entropy="cross_entropy" in fused,
        framework=framework,
        attention_kernel=training.attention_kernel,
        cuda_graph=_replays(case),
        host_blocking=training.host_blocking,
        software_release=case.system.software_release,
    )
    return Recipe(
        name=case.id,
        seq_length=case.model.max_position_embeddings,
        precision=training.precision,
        recompute=training.recompute or "auto",
        routing="balanced" if training.moe_force_balance else "drawn",
        expert_capacity=training.moe_capacity_factor,
        reduce_precision=reduced or (None if overlap is False else framework.grad_precision),
        # FSDP that reduces gradients in 16 bits keeps all states so (pure bf16).
        optimizer_precision=cast(StatePrecision, reduced) if halves else "fp32",
        dropout=framework.dropout and training.attention == "standard",
        lm_head_positions=training.lm_head_positions,
        runtime=runtime,
    )


def _replays(case: StepCase) -> bool | None:
    """Whether a run replays whole steps from a CUDA graph, as it says or as its container does."""
    training = case.training
    if training.cuda_graph is not None or training.precision != "mxfp8" or case.container is None:
        return training.cuda_graph
    domain = case.system.nvlink_domain or case.system.devices_per_node
    one_domain = domain is None or case.system.num_devices <= domain
    return case.container >= _GRAPHED and one_domain


def suggested(case: StepCase) -> tuple[str, str]:
    """Name of the framework that a run without one is given, and why.

    It follows from the strategy, the device, and the settings that only some stacks have; family, id, sweep
    and source of a run decide nothing.
    """
    training = case.training
    device = case.system.device
    fused = training.attention == "flash"
    narrow = PRECISIONS[training.precision].is_narrow
    if device.startswith(_AMD):
        return "primus-te", f"device {device}"
    if case.strategy == "zero3":
        if training.compiled is not None or training.async_tp is not None:
            return "torchtitan", "compiled or async_tp is given"
        if training.cuda_graph is not None or case.parallel.shard_group is not None:
            return "maxtext-xla", "FSDP with cuda_graph or shard_group"
        if narrow:
            return "torchtitan", f"FSDP in {training.precision}"
        return (
            ("fsdp-2023", "FSDP with fused attention") if fused else ("megatron-2021", "standard attention")
        )
    if narrow or training.tp_comm_overlap is not None or training.cuda_graph is not None:
        return "megatron-core-te", "8 bits or fewer, tp_comm_overlap or cuda_graph"
    if fused and not device.startswith(_ERA_OF_2021):
        return "megatron-core-te", f"fused attention on {device}"
    return "megatron-2021", f"{training.attention} attention on {device}"


def evaluate_case(case: StepCase, catalog: Catalog, calibration: Calibration | None = None) -> Evaluation:
    """A published run simulated from its description alone."""
    question = case_question(case, catalog, calibration)
    return evaluate(plan_of(question), question.costs)


@dataclass(frozen=True)
class PlacedCase:
    """A case, its plan, and its graph placed without contention."""

    case: StepCase
    plan: Plan
    placed: Placed

    def step(self, costs: Costs) -> Step:
        """The step of the case at the prices of `costs`."""
        return Step(self.placed, costs)

    @cached_property
    def slowed(self) -> float:
        """Step time with compute slowed by simultaneous communication, over the time of the longest path.

        It hardly depends on the constants that are fitted, so it is found once, with the recorded ones. Only
        where gradients or parameters travel on a stream of their own does anything run during compute. Where
        several nodes are one NVLink domain, communications of all kinds meet in its ports.
        """
        if not self.plan.job.runtime.overlap_grad_reduce:
            return 1.0
        system = self.plan.system
        step = self.step(machine_of(system).costs(self.plan.topology, self.plan.job.recipe))
        whole = step
        if isinstance(system, GpuClusterSpec) and system.node.server is not None:
            whole = Step(place(graph_of(self.plan), self.plan.topology), step.costs)
        return whole.run().step_time_s / step.run(contention=False).step_time_s


def plan_of_case(case: StepCase, catalog: Catalog) -> Plan | None:
    """The plan of a published run; None if it cannot be planned."""
    try:
        return plan_of(case_question(case, catalog))
    except PerfsimError:
        return None


def place_case(case: StepCase, catalog: Catalog) -> PlacedCase:
    """Plan a case and place its graph. Raises PerfsimError if it cannot be planned."""
    plan = plan_of(case_question(case, catalog))
    return PlacedCase(case, plan, place(graph_of(plan), plan.topology, contention=False))


Item = TypeVar("Item")
Result = TypeVar("Result")
_FEWEST = 20
"""Least number of items for which several processes are started."""


def mapped(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`function` of each item on all cores, in order; function, items and results must be picklable."""

    def counted(results: Iterator[Result]) -> Iterator[Result]:
        tell: Any = present_limits().tell_items
        for done, result in enumerate(results, start=1):
            if tell is not None:
                tell(done, len(items))
            yield result

    if len(items) < _FEWEST or (os.cpu_count() or 1) == 1:
        return list(counted(map(function, items)))
    with ProcessPoolExecutor(initializer=_ignore_interrupts) as pool:
        return list(counted(pool.map(function, items)))


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; only the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
