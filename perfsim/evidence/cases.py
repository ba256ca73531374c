"""Case files of published runs; a case gives a job, a system and a layout."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from perfsim.base.errors import CatalogError, InputError, Problem, refused_values
from perfsim.base.sizes import MOST_CASES, MOST_LAYERS, MOST_WIDTH
from perfsim.base.spec import Spec
from perfsim.base.text import nearest
from perfsim.base.units import BytesPerSecond, number
from perfsim.catalog import Catalog, LocatedMapping, default_catalog, load_mapping
from perfsim.catalog.reader import build
from perfsim.catalog.yaml_tree import Mark, Node
from perfsim.machines import machine_of
from perfsim.specs.calibration import Dispatcher, FrameworkCalibration
from perfsim.specs.hardware import Devices, Precision, Release, SystemSpec
from perfsim.specs.layout import Layout
from perfsim.specs.model import Heads, Layers, Positions, Recompute, TransformerConfig, Vocabulary, Width
from perfsim.specs.recipe import PRECISION_BYTES, Job, Sequences, TrainingRecipe
from perfsim.specs.runtime import Attention, Runtime

Count = Annotated[int, *number(0, MOST_WIDTH)]
"""A number of experts, layers or positions; 0: none."""


class CaseSpec(Spec):
    """A part of a case file, in which a key that ends in `_note` is a remark."""

    model_config = ConfigDict(json_schema_extra={"patternProperties": {"_note$": {}}})

    @model_validator(mode="before")
    @classmethod
    def _without_remarks(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: part for key, part in value.items() if not str(key).endswith("_note")}


class CaseSystem(CaseSpec):
    """The machine of a case."""

    device: str
    """A device or system of the catalogue, or the file of a system, from where the command runs."""
    num_devices: Devices
    devices_per_node: Devices | None = None
    inter_node: BytesPerSecond | None = None
    nvlink_domain: Devices | None = None
    """Devices that one NVLink network joins; None: those of a node."""
    software_release: Release | None = None

    @property
    def is_file(self) -> bool:
        """Whether `device` is the file of a system."""
        return self.device.endswith((".yaml", ".yml"))


_SAME_FIELDS = {
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("head_dim", "gated_mlp", "vocab_size", "tied_embeddings", "bias", "position_embedding"),
}
"""Fields of a case's model that `TransformerConfig` has under the same name."""


class CaseModel(CaseSpec):
    """The model of a case, with Megatron's names."""

    num_layers: Layers
    hidden_size: Width
    ffn_hidden_size: Width
    num_attention_heads: Heads
    num_query_groups: Heads | None = None
    gated_mlp: bool = False
    vocab_size: Vocabulary
    seq_length: Positions
    tied_embeddings: bool = True
    bias: bool = True
    position_embedding: Annotated[
        Literal["learned", "rotary", "alibi", "none"],
        BeforeValidator(lambda name: "rotary" if name == "rope" else name),
    ] = "learned"
    head_dim: Width | None = None
    sliding_window: Count | None = None
    sliding_window_pattern: Layers = 2
    """Every n-th layer attends to all positions; the published runs with a window are of GPT-OSS, which
    alternates."""
    mtp_layers: Count = 0
    """Layers of multi-token prediction."""
    attention_type: Literal["mha", "gqa", "mqa", "mla"] | None = None
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    experts: Count = 0
    top_k: Count | None = None
    moe_ffn_hidden_size: Count | None = None
    shared_expert_ffn: Count = 0
    dense_layers: Count = 0
    moe_layer_interval: Layers = 1

    def config(self, name: str) -> TransformerConfig:
        """The model. Raises ValidationError for fields that contradict each other."""
        fields = self.model_dump(include=_SAME_FIELDS)
        window = self.sliding_window if 0 < (self.sliding_window or 0) < self.seq_length else None
        latent = None
        experts = None
        if self.attention_type == "mla":
            fields["num_query_groups"] = fields["head_dim"] = None
            latent = {
                "q_lora_rank": self.q_lora_rank or None,
                "kv_lora_rank": self.kv_lora_rank,
                "qk_nope_head_dim": self.qk_head_dim,
                "qk_rope_head_dim": self.qk_rope_head_dim,
                "v_head_dim": self.v_head_dim,
            }
        if self.experts:
            experts = {
                "num_experts": self.experts,
                "top_k": self.top_k,
                "ffn_hidden_size": self.moe_ffn_hidden_size or self.ffn_hidden_size,
                "shared_ffn_hidden_size": self.shared_expert_ffn,
                "first_dense_layers": self.dense_layers,
                "interval": self.moe_layer_interval,
            }
        return TransformerConfig.model_validate(
            {
                "name": name,
                "max_position_embeddings": self.seq_length,
                "latent_attention": latent,
                "experts": experts,
                "sliding_window": window,
                "sliding_window_pattern": self.sliding_window_pattern if window else None,
                "mtp_num_layers": self.mtp_layers,
                **fields,
            }
        )


class CaseParallel(CaseSpec):
    """The layout of a case."""

    tensor: Devices = 1
    pipeline: Devices = 1
    data: Devices = 1
    virtual_pipeline: Layers = 1
    sequence_parallel: bool = False
    zero_stage: Annotated[int, *number(0, 3)] = 0
    schedule: str = "1f1b"
    layers_per_stage: (
        Annotated[tuple[Annotated[int, *number(0, MOST_LAYERS)], ...], Field(max_length=MOST_LAYERS)] | None
    ) = None
    context_parallel: Devices = 1
    context_comm: Literal["ring", "a2a"] | None = None
    expert_parallel: Devices = 1
    expert_tensor_parallel: Devices | None = None
    shard_group: Devices | None = None
    """Replicas over which FSDP shards; None: all."""
    pipeline_layout: str | None = None
    """Layers of each virtual stage, in Megatron-Core's notation."""


class CaseTraining(CaseSpec):
    """How a case was trained."""

    global_batch_size: Sequences
    micro_batch_size: Sequences | None = None
    recompute: Recompute | None = None
    precision: Precision = "fp16"
    attention: Attention = "standard"
    overlap_grad_reduce: bool | None = None
    reduce_precision: Precision | None = None
    host_blocking: bool = False
    lm_head_positions: Positions | None = None
    recompute_modules: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    recompute_detail: str | None = None
    tp_comm_overlap: bool | None = None
    async_tp: bool | None = None
    cuda_graph: bool | None = None
    compiled: bool | None = None
    attention_kernel: Literal["synchronous", "asynchronous", "one_block"] | None = None
    """Its fused attention, as `attention` of a framework says it; None: as its framework has it."""
    moe_dispatcher: Literal["alltoall", "allgather", "deepep", "hybridep"] | None = None
    moe_capacity_factor: Annotated[float, *number(0, 1e6)] | None = None
    moe_force_balance: bool = False
    moe_a2a_overlap: bool = False
    moe_grouped_gemm: bool | None = None


class Measured(CaseSpec):
    """The measurement of a case."""

    step_time_s: Annotated[float, *number(1e-9, 1e9)]
    peak_memory_gib: Annotated[float, *number(1e-6, 1e9)] | None = None
    """Of the fullest device."""


class StepCase(CaseSpec):
    """One measured training run."""

    id: str
    family: str
    evidence: Literal["A", "B", "C"]
    source: dict[str, Any] = Field(default_factory=dict)
    system: CaseSystem
    model: CaseModel
    strategy: str
    framework: str | None = None
    """The software stack that ran, by its name in the catalogue; None: `frameworks.suggested` chooses."""
    parallel: CaseParallel
    training: CaseTraining
    measured: Measured
    sweep: str | None = None
    assumed: tuple[str, ...] = ()
    notes: str = ""

    @property
    def scored(self) -> bool:
        """Whether its error counts: its evidence is A or B."""
        return self.evidence in ("A", "B")

    @property
    def setting(self) -> str:
        """Its model and number of devices in a few characters."""
        return f"{self.model.num_layers}x{self.model.hidden_size} on {self.system.num_devices}"

    @property
    def inferred(self) -> tuple[str, ...]:
        """Names of assumed fields: `batch` of "global_batch_size 121: first public ..."."""
        names = (re.split(r"[:(]", reason)[0].strip() for reason in self.assumed)
        plain = (re.sub(r"\s+[\d.]+$", "", name).replace("_", " ") for name in names)
        return tuple(name.replace("global batch size", "batch") for name in plain)


def repeated(ids: Iterable[str]) -> list[str]:
    """One message for each id that several cases of a file have."""
    return [f"{count} cases are called {name}" for name, count in Counter(ids).items() if count > 1]


class CaseFile(CaseSpec):
    """A file of step-time cases."""

    schema_version: Annotated[int, *number(1, 1000)] = Field(alias="schema")
    cases: Annotated[tuple[StepCase, ...], Field(max_length=MOST_CASES)]


BatchRow = Annotated[tuple[Annotated[float, *number(0, 1e18)] | None, ...], Field(min_length=2, max_length=4)]
"""Global batch, mean to the target and, if known, standard deviation and number of seeds."""


class ConvergenceCase(CaseSpec):
    """One benchmark at several batch sizes: samples or epochs to its target."""

    id: str
    family: str
    source: dict[str, Any] = Field(default_factory=dict)
    unit: str = ""
    columns: tuple[str, ...] = ()
    points: Annotated[tuple[BatchRow, ...], Field(min_length=1)]
    notes: str = ""
    """Begins with `fine-tuning` or `warm` if the runs did not start from random weights."""


class ConvergenceFile(CaseSpec):
    """A file of convergence cases."""

    schema_version: Annotated[int, *number(1, 1000)] = Field(alias="schema")
    cases: Annotated[tuple[ConvergenceCase, ...], Field(max_length=MOST_CASES)]


def case_job(case: StepCase, catalog: Catalog) -> Job:
    """The model and recipe of a case.

    A run that says that it does not overlap gradient reduction has the defaults of Megatron-LM, gradients in
    fp32: the recipes of a framework that reduce them in 16 bits overlap it as well. The peak memory of 24
    runs on B200 that say so agrees (2 % in the median, 11 % with gradients in 16 bits).
    """
    try:
        model = case.model.config(case.id)
    except ValidationError as error:
        messages = "; ".join(refused_values(error.errors()))
        raise InputError(f"case {case.id}: {messages}") from None
    training = case.training
    if training.moe_a2a_overlap:
        text = "the all-to-alls of one micro-batch beside the compute of another have no model"
        raise InputError(f"case {case.id}: moe_a2a_overlap: {text}")
    overlap = training.overlap_grad_reduce
    overlaps = case.strategy == "zero3" if overlap is None else overlap
    framework = framework_of(case, catalog)
    runtime = Runtime(
        name=framework.name,
        attention=training.attention,
        overlap_grad_reduce=overlaps,
        overlap_tensor=_overlaps_tensor(case, framework, overlaps),
        dispatcher=_DISPATCHERS.get(training.moe_dispatcher or ""),
        grouped_products=training.moe_grouped_gemm is not False,
        recompute_keeps="qkv" if KEEPS_QKV in (training.recompute_detail or "") else "nothing",
        fused_cross_entropy="cross_entropy" in framework.fused,
        framework=framework,
        host_blocking=training.host_blocking,
        software_release=case.system.software_release,
    )
    recipe = TrainingRecipe(
        name=case.id,
        seq_length=case.model.seq_length,
        precision=training.precision,
        recompute=training.recompute or "auto",
        routing="balanced" if training.moe_force_balance else "drawn",
        expert_capacity=training.moe_capacity_factor,
        reduce_precision=training.reduce_precision
        or (None if overlap is False else framework.grad_precision),
        optimizer_precision=_optimizer_precision(case),
        dropout=framework.dropout and training.attention == "standard",
        lm_head_positions=training.lm_head_positions,
        runtime=runtime,
    )
    return Job(model, recipe, training.global_batch_size)


KEEPS_QKV = "save_qkv_proj"
"""MaxText's policy of full recompute that keeps the results of the QKV projections."""
BY_OPERATOR = "per-op selective"
"""torchtitan's selective recompute, which is its framework's."""
_ELEMENTWISE = {"layernorm", "moe_act"}
"""Modules that recompute a norm or an activation; a prediction leaves them out."""


def recomputes_little(training: CaseTraining) -> bool:
    """Whether a run recomputes nothing but element-wise kernels, which add some 2 % to a layer's time."""
    return bool(training.recompute_modules) and set(training.recompute_modules) <= _ELEMENTWISE


_DISPATCHERS: dict[str, Dispatcher] = {
    "alltoall": "all_to_all",
    "allgather": "all_gather",
    "deepep": "deepep",
    "hybridep": "deepep",
}


def _optimizer_precision(case: StepCase) -> Literal["fp32", "bf16", "fp16"]:
    """16 bits where FSDP reduces gradients in 16 bits, which keeps all states so (pure bf16); else fp32."""
    reduced = case.training.reduce_precision
    return reduced if case.strategy == "zero3" and reduced in ("bf16", "fp16") else "fp32"


def _overlaps_tensor(case: StepCase, framework: FrameworkCalibration, overlaps: bool) -> bool:
    """Whether tensor-parallel communication overlaps products, as the run says or its framework usually does.

    A run that does not even overlap gradient reduction overlaps nothing.
    """
    given = [case.training.tp_comm_overlap, case.training.async_tp]
    said = [value for value in given if value is not None]
    return any(said) if said else framework.overlaps_tensor and overlaps


def case_system(case: StepCase, catalog: Catalog) -> SystemSpec:
    """The system of the catalogue with the case's device, node size and network."""
    described = case.system
    name = described.device
    system = catalog.system(name) if described.is_file else _system_of_device(name, catalog)
    machine = machine_of(system)
    return machine.published_system(
        system, described.devices_per_node, described.inter_node, described.nvlink_domain
    )


def _system_of_device(name: str, catalog: Catalog) -> SystemSpec:
    """The system called `name`, or the first one with a device of that name."""
    names = catalog.names("system")
    if name in names:
        return catalog.system(name)
    systems = [catalog.system(system_name) for system_name in names]
    for system in systems:
        if system.device.name == name:
            return system
    present = sorted({system.device.name for system in systems} | set(names))
    message = f"no system with device {name!r} in the catalogue; it has {', '.join(present)}"
    near = nearest(name, present)
    raise InputError([Problem(message, help=f"did you mean `{near}`?" if near else "")])


def case_layout(case: StepCase, system: SystemSpec) -> Layout | None:
    """The layout of a case; None if the planner chooses it."""
    recompute = "none" if recomputes_little(case.training) else case.training.recompute
    given = case.parallel.model_dump() | {
        "micro_batch_size": case.training.micro_batch_size or 1,
        "recompute": recompute or "none",
    }
    return machine_of(system).published_layout(given)


# The framework of a published run: the one that it names, or the one that its fields suggest.
#
# Family, id, sweep and source decide nothing: a run's stack follows from its strategy and device, and from
# the
# settings that only some stacks have.

_ERA_OF_2021 = ("v100", "a100")
"""Devices whose public runs were made before fused attention and Transformer Engine."""
_AMD = "mi"
UNFUSED_ATTENTION = "NVTE_FUSED_ATTN=0"
"""The setting of Transformer Engine with which attention is FlashAttention 2 instead of cuDNN's."""
_CONTAINER = re.compile(r"container (\d\d\.\d\d)")
_GRAPHED = "26.06"
"""The container from which on the recipes of Megatron-Bridge in mxfp8 replay whole steps from a CUDA graph
(`cuda_graph_impl="full_iteration"` in its scripts/performance/configs), where all devices are in one NVLink
domain: the recipe of GPT-OSS on eight nodes of B300 has these two lines commented out."""


def framework_of(case: StepCase, catalog: Catalog) -> FrameworkCalibration:
    """The framework of a run, with the settings that the run gives.

    A run without `cuda_graph` or `attention_kernel` has them by the container or the setting that its `notes`
    name, which a public row has as its source's own words.

    Raises CatalogError for an unknown name.
    """
    chosen = catalog.framework(case.framework or suggested(case)[0])
    training = case.training
    changes: dict[str, object] = {}
    if training.cuda_graph is not None:
        changes["cuda_graph"] = training.cuda_graph
    elif training.precision == "mxfp8" and (container := _CONTAINER.search(case.notes)):
        changes["cuda_graph"] = container[1] >= _GRAPHED and _one_domain(case)
    if training.attention_kernel is not None:
        changes["attention"] = training.attention_kernel
    elif UNFUSED_ATTENTION in case.notes:
        changes["attention"] = "synchronous"
    if training.compiled is False:
        changes["fused"] = ()
    return chosen.model_copy(update=changes) if changes else chosen


def _one_domain(case: StepCase) -> bool:
    """Whether all devices are in one NVLink domain; true where the run does not say."""
    system = case.system
    domain = system.nvlink_domain or system.devices_per_node
    return domain is None or system.num_devices <= domain


def suggested(case: StepCase) -> tuple[str, str]:
    """Name of the framework that a run without one is given, and why."""
    training = case.training
    fused = case.training.attention == "flash"
    narrow = PRECISION_BYTES[training.precision] < PRECISION_BYTES["bf16"]
    if case.system.device.startswith(_AMD):
        return "primus-te", f"device {case.system.device}"
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
    if fused and not case.system.device.startswith(_ERA_OF_2021):
        return "megatron-core-te", f"fused attention on {case.system.device}"
    return "megatron-2021", f"{training.attention} attention on {case.system.device}"


# Reads the rows of a case file; a row that cannot be read is refused alone, by name and line.

CaseT = TypeVar("CaseT", StepCase, ConvergenceCase)


class _Envelope(CaseSpec):
    """A case file whose rows are not read yet."""

    schema_version: Annotated[int, *number(1, 1000)] = Field(alias="schema")
    cases: Annotated[tuple[Any, ...], Field(max_length=MOST_CASES)]


@dataclass(frozen=True)
class RefusedRow:
    """A row that is no case, with what is wrong in it; its values are as written."""

    id: str
    line: int
    problems: tuple[Problem, ...]
    values: Any

    @property
    def reason(self) -> str:
        """Everything that is wrong with the row, in one line."""
        return "; ".join(
            f"{problem.message} ({problem.help})" if problem.help else problem.message
            for problem in self.problems
        )


@dataclass(frozen=True)
class CaseRows(Generic[CaseT]):
    """The rows of a file, read and refused."""

    cases: tuple[CaseT, ...]
    lines: tuple[int, ...]
    """Line in which each case begins."""
    refused: tuple[RefusedRow, ...]


def step_rows(path: Path, catalog: Catalog | None = None) -> CaseRows[StepCase]:
    """The rows of a file of step times. Raises CatalogError only for what belongs to no row."""
    catalog = catalog or default_catalog()
    return _read(load_mapping(path, catalog), StepCase, catalog)


def step_cases(path: Path, catalog: Catalog | None = None) -> tuple[StepCase, ...]:
    """The cases of a file of step times without the rows that are refused; raises as `step_rows`."""
    return step_rows(path, catalog).cases


def convergence_rows(path: Path, catalog: Catalog | None = None) -> CaseRows[ConvergenceCase]:
    """The rows of a file of convergence points; raises as `step_rows`."""
    catalog = catalog or default_catalog()
    return _read(load_mapping(path, catalog), ConvergenceCase, catalog)


def _read(mapping: LocatedMapping, model: type[CaseT], catalog: Catalog) -> CaseRows[CaseT]:
    listed = mapping.node.mapping.get("cases")
    nodes = [] if listed is None else listed.sequence
    starts = [node.mark for node in nodes]
    by_row = [_within(mapping.problems, start, after) for start, after in _spans(starts)]
    taken = {problem for problems in by_row for problem in problems}
    of_file = [problem for problem in mapping.problems if problem not in taken]
    build(LocatedMapping(mapping.path, mapping.node, of_file), (_Envelope,), catalog, mapping.path.stem)
    read: dict[str, tuple[CaseT, int]] = {}
    refused = []
    for position, (node, problems) in enumerate(zip(nodes, by_row, strict=True), 1):
        try:
            case = _case(LocatedMapping(mapping.path, node, problems), model, catalog)
            if (same := read.get(case.id)) is not None:
                raise CatalogError(
                    [node.mapping["id"].mark.problem(f"the case in line {same[1]} has the same id")]
                )
            read[case.id] = case, node.mark.line
        except CatalogError as error:
            refused.append(_refused(node, position, error.problems))
    return CaseRows(
        tuple(case for case, _ in read.values()), tuple(line for _, line in read.values()), tuple(refused)
    )


def _case(row: LocatedMapping, model: type[CaseT], catalog: Catalog) -> CaseT:
    """The case of a row. Raises CatalogError with everything that is wrong with it."""
    if not row.node.is_mapping:
        message = "a mapping (key: value) is expected"
        raise CatalogError([*row.problems, row.node.mark.problem(message)])
    case = build(row, (model,), catalog, "case")
    if isinstance(case, StepCase):
        try:
            _system_of_device(case.system.device, catalog)
        except InputError as error:
            place = row.node.mapping["system"].mapping["device"].mark
            problems = [place.problem(problem.message, problem.help) for problem in error.problems]
            raise CatalogError(problems) from None
        if case.framework is not None:
            _check_framework(row, case.framework, catalog)
    return case


def _check_framework(row: LocatedMapping, name: str, catalog: Catalog) -> None:
    """Raise CatalogError at the line of a framework that the catalogue lacks."""
    try:
        catalog.find("framework", name)
    except CatalogError as error:
        place = row.node.mapping["framework"].mark
        problems = [place.problem(problem.message, problem.help) for problem in error.problems]
        raise CatalogError(problems) from None


def _refused(node: Node, position: int, problems: Sequence[Problem]) -> RefusedRow:
    values = node.plain()
    named = values.get("id") if isinstance(values, dict) else None
    line = next((problem.line for problem in problems if problem.line), node.mark.line)
    return RefusedRow(str(named or f"row {position}"), line, tuple(problems), values)


def _spans(starts: Sequence[Mark]) -> list[tuple[Mark, Mark | None]]:
    return list(zip(starts, [*starts[1:], None], strict=False))


def _within(problems: Sequence[Problem], start: Mark, after: Mark | None) -> list[Problem]:
    """The problems between two places of the file."""
    return [
        problem
        for problem in problems
        if (start.line, start.column) <= (problem.line, problem.column)
        and (after is None or (problem.line, problem.column) < (after.line, after.column))
    ]
