"""Published runs: case files, read row by row; each run is a question and a measurement."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from perfsim.base.errors import CatalogError, InputError, Problem, UnknownNameError, refused_values
from perfsim.base.limits import present_limits
from perfsim.base.sizes import MOST_CASES, MOST_LAYERS, MOST_WIDTH
from perfsim.base.spec import Name, Spec
from perfsim.base.text import OTHER_NAMES
from perfsim.base.units import BytesPerSecond, number
from perfsim.catalog import Catalog, LocatedMapping, data_root, default_catalog
from perfsim.catalog.yaml_tree import Loc
from perfsim.costs.price import Costs
from perfsim.interop.formats import CASE, CASE_WORDS
from perfsim.interop.source import nested
from perfsim.machines import machine_of
from perfsim.machines.placement import Placed, place
from perfsim.network import Topology
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import Question, question_of
from perfsim.prediction.run import Evaluation, Step, evaluate
from perfsim.specs.calibration import Dispatcher, FusedAttention, RunKind
from perfsim.specs.hardware import Devices, GpuClusterSpec, LinkProtocol, Release, SystemSpec
from perfsim.specs.layout import Recompute, layers_of_stages, recompute_of
from perfsim.specs.model import Heads, Layers, Positions, TransformerConfig, Vocabulary, Width
from perfsim.specs.precisions import PRECISIONS, Precision, StatePrecision
from perfsim.specs.recipe import Recipe, Sequences
from perfsim.specs.runtime import Attention, Runtime
from perfsim.specs.stacks import Stack, usual_stack
from perfsim.specs.trainers import ToolName
from perfsim.strategies import Plan
from perfsim.strategies.schedules import JOINED
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED
from perfsim.studies.executors import IN_PROCESS, Processes
from perfsim.work import TaskGraph

Count = Annotated[int, *number(0, MOST_WIDTH)]
"""A number of experts, layers or positions; 0: none."""


class _CaseSpec(Spec):
    """A part of a case file, in which a key that ends in `_note` is a remark."""

    model_config = ConfigDict(json_schema_extra={"patternProperties": {"_note$": {}}})

    @model_validator(mode="before")
    @classmethod
    def _without_remarks(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: part for key, part in value.items() if not str(key).endswith("_note")}


class CaseSystem(_CaseSpec):
    """The machine of a case."""

    device: str
    """A device or system of the catalogue, or the file of a system, from where the command runs."""
    num_devices: Devices
    devices_per_node: Devices | None = None
    inter_node: BytesPerSecond | None = None
    inter_node_protocol: LinkProtocol | None = None
    """What the NICs speak; None: as the NICs of the system."""
    nvlink_domain: Devices | None = None
    """Devices that one NVLink network joins; None: the devices of a node."""
    software_release: Release | None = None

    @property
    def is_file(self) -> bool:
        return self.device.endswith((".yaml", ".yml"))

    def named(self, catalog: Catalog) -> SystemSpec:
        """The system of that name or file, or the first with that device. Raises InputError for neither."""
        names = catalog.names("system")
        if self.is_file or self.device in names:
            return catalog.system(self.device)
        by_device = {system.device.name: system for system in map(catalog.system, reversed(names))}
        if self.device not in by_device:
            raise UnknownNameError("device or system", self.device, sorted({*by_device, *names}))
        return by_device[self.device]

    def spec(self, catalog: Catalog) -> SystemSpec:
        """The system with the case's node size and network. Raises InputError for an unknown one."""
        system = self.named(catalog)
        return machine_of(system).published_system(system, self.model_dump())


class ModelRow(_CaseSpec):
    """The model of a row, on one level and with Megatron's names; a case has the model described."""

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
    """Every n-th layer attends to all positions; the published runs with a window, GPT-OSS, alternate."""
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

    def described(self) -> TransformerConfig:
        """The model. Raises ValueError for fields that contradict each other."""
        known = {ours: name.partition(".")[2] for ours, name in CASE.items() if ours.startswith("model.")}
        fields = nested({ours: getattr(self, name) for ours, name in known.items()})["model"]
        fields["experts"]["ffn_hidden_size"] = self.moe_ffn_hidden_size or self.ffn_hidden_size
        fields["latent_attention"]["q_lora_rank"] = self.q_lora_rank or None
        is_latent = self.attention_type == "mla"
        in_window = 0 < (self.sliding_window or 0) < self.seq_length
        present = {
            "latent_attention": is_latent,
            **dict.fromkeys(("num_query_groups", "head_dim"), not is_latent),
            **dict.fromkeys(("sliding_window", "sliding_window_pattern"), in_window),
            "experts": self.experts,
        }
        fields |= {name: None for name, is_there in present.items() if not is_there}
        fields |= {"name": "published", "max_position_embeddings": self.seq_length}
        try:
            return TransformerConfig.model_validate(fields)
        except ValidationError as error:
            raise ValueError("; ".join(refused_values(error.errors()))) from None


if TYPE_CHECKING:
    Model = TransformerConfig
else:
    Model = Annotated[ModelRow, AfterValidator(ModelRow.described)]
"""What a row calls its model is read as a `ModelRow`, and kept as the model."""


class CaseParallel(_CaseSpec):
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
    pipeline_layout: Annotated[str, AfterValidator(lambda own: layers_of_stages(own) and own)] | None = None
    """Layers of each virtual stage, in Megatron-Core's notation."""


class CaseTraining(_CaseSpec):
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
    attention_kernel: FusedAttention | None = None
    """Its fused attention, as `attention` of a framework says it; None: as its framework has it."""
    moe_dispatcher: Literal["alltoall", "allgather", "deepep", "hybridep"] | None = None
    moe_capacity_factor: Annotated[float, *number(0, 1e6)] | None = None
    moe_force_balance: bool = False
    moe_a2a_overlap: bool = False
    moe_grouped_gemm: bool | None = None


class Measured(_CaseSpec):
    """The measurement of a case."""

    step_time_s: Annotated[float, *number(1e-9, 1e9)]
    peak_memory_gib: Annotated[float, *number(1e-6, 1e9)] | None = None
    """Of the fullest device."""


STREAMING = "weight-streaming"
_UNFUSED_ATTENTION = "NVTE_FUSED_ATTN=0"
"""The setting of Transformer Engine with which attention is FlashAttention 2 instead of cuDNN's."""
_CONTAINER = re.compile(r"container (\d\d\.\d\d)")
_KEEPS_QKV = "save_qkv_proj"
"""MaxText's policy of full recompute that keeps the results of the QKV projections."""
_BY_OPERATOR = "per-op selective"
"""torchtitan's selective recompute, which is its framework's."""
_DISPATCHERS: Mapping[str | None, Dispatcher | None] = {
    None: None,
    **{theirs: ours for ours, theirs in CASE_WORDS["recipe.dispatcher"].items()},
    "deepep": "deepep",
    "hybridep": "deepep",
}
_DEGREES = ("tensor", "pipeline", "context_parallel", "expert_parallel")
_GRAPHED = "26.06"
"""The container from which on the recipes of Megatron-Bridge in mxfp8 replay whole steps from a CUDA graph
(`cuda_graph_impl="full_iteration"` in its scripts/performance/configs), where all devices are in one NVLink
domain: the recipe of GPT-OSS on eight nodes of B300 has these two lines commented out."""


_ASKED = frozenset({"global_batch_size", "micro_batch_size", "recompute", "precision"})
"""What users say of a run's training when they ask for its step."""


class StepCase(_CaseSpec):
    """One measured training run: a question with the answer that was measured."""

    id: Name
    family: Name = "measured"
    """Of runs that share their errors; a user's own need not name it, nor how far they are to be trusted."""
    evidence: Literal["A", "B", "C"] = "A"
    source: dict[str, Any] = Field(default_factory=dict)
    system: CaseSystem
    model: Model
    strategy: str
    framework: str | None = None
    """The software stack that ran, by name; None: the strategy, the device and the settings suggest one."""
    tool: ToolName | None = None
    """The tool that ran it, where its framework's constants are of another one; None: the framework's."""
    container: Annotated[str, Field(pattern=r"^\d\d\.\d\d(\.\d\d)?$")] | None = None
    """Release of NVIDIA's container that it ran in, as `26.06`."""
    parallel: CaseParallel
    training: CaseTraining
    measured: Measured
    sweep: str | None = None
    assumed: tuple[str, ...] = ()
    notes: str = ""

    @model_validator(mode="before")
    @classmethod
    def _of_older_files(cls, value: Any) -> Any:
        """The two settings that older files give in `notes` only, as fields."""
        notes = str(value.get("notes", "")) if isinstance(value, dict) else ""
        if container := _CONTAINER.search(notes):
            value = {"container": container[1], **value}
        if _UNFUSED_ATTENTION in notes and isinstance(value.get("training"), dict):
            value = {**value, "training": {"attention_kernel": "synchronous", **value["training"]}}
        return value

    @property
    def scored(self) -> bool:
        """Whether its error counts: its evidence is A or B."""
        return self.evidence in ("A", "B")

    @property
    def on_wafers(self) -> bool:
        """Whether it is the log of a wafer, which streams its weights."""
        return self.strategy == STREAMING

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

    @property
    def ignored(self) -> list[str]:
        """Settings of the software stack that a prediction leaves out."""
        detail = self.training.recompute_detail
        unknown = detail is not None and _KEEPS_QKV not in detail and _BY_OPERATOR not in detail
        return ["recompute_detail"] if unknown else []

    @property
    def recompute(self) -> Recompute | None:
        """The mode of recompute; None where nothing is said, or where no mode runs those modules again."""
        training = self.training
        selects = training.recompute == "selective" and training.recompute_modules
        return recompute_of(training.recompute_modules) if selects else training.recompute

    @property
    def trained(self) -> str:
        """The shape of a wafer's model, whose logs are left out together; empty for any other run."""
        if not self.on_wafers:
            return ""
        return f"{self.model.num_layers}x{self.model.hidden_size} at {self.model.max_position_embeddings}"

    @property
    def stack(self) -> Stack:
        """The framework that ran; where the case does not say, the usual one (`perfsim.specs.stacks`)."""
        if self.framework:
            return Stack(self.framework, "")
        training = self.training
        parallel = self.parallel
        sharded = self.strategy == "zero3" or parallel.zero_stage >= GRADIENTS_SHARDED
        return usual_stack(
            self.system.device,
            training.precision,
            sharded=sharded,
            fused=training.attention == "flash",
            split=max(parallel.tensor, parallel.context_parallel, parallel.pipeline) > 1,
            compiled=training.compiled is not None or training.async_tp is not None,
            graphed=training.cuda_graph is not None or (sharded and parallel.shard_group is not None),
            overlaps=training.tp_comm_overlap is not None,
        )

    def question(self, catalog: Catalog) -> Question:
        """The question of the run, which did fit in memory; InputError with all contradictions and lacks.

        A run on GPUs that says nothing of its software is asked as users ask, so that both have one answer.
        """
        system = self.system.spec(catalog)
        if messages := list(self._contradictions(system, catalog)):
            raise InputError([Problem(f"case {self.id}: {message}") for message in messages])
        training = self.training
        settings = {"micro_batch_size": training.micro_batch_size or 1, "recompute": self.recompute or "none"}
        schedule = OTHER_NAMES.get(self.parallel.schedule, self.parallel.schedule)
        joins = training.moe_a2a_overlap and self.parallel.expert_parallel > 1
        settings["schedule"] = JOINED.get(schedule, schedule) if joins else schedule
        described = Question(
            model=self.model.model_copy(update={"name": self.id}),
            recipe=self._recipe(catalog),
            system=system,
            devices=self.system.num_devices,
            strategy=self.strategy,
            batch=training.global_batch_size,
            layout=machine_of(system).published_layout(self.parallel.model_dump() | settings),
            must_fit=False,
        )
        said = self.framework or self.tool or self.container or training.model_fields_set - _ASKED
        return described if self.on_wafers or said else self.as_asked(described)

    def as_asked(self, described: Question) -> Question:
        """The question as users ask it: only the model, machine, sequence, precision and layout are given."""
        # The rule for runs without a runtime (`perfsim.specs.stacks`) chooses all else: framework, container,
        # kernels, overlaps, buckets and dispatcher.
        parts = ("model", "system", "devices", "strategy", "batch", "layout")
        given: dict[str, Any] = {name: getattr(described, name) for name in parts}
        recipe = described.recipe
        given |= {"recipe.seq_length": recipe.seq_length, "recipe.precision": recipe.precision}
        return replace(question_of(given), must_fit=False)

    def _contradictions(self, system: SystemSpec, catalog: Catalog) -> Iterator[str]:
        """What is wrong with the case on its system: no model yet, or a contradiction."""
        machine = machine_of(system)
        training = self.training
        devices = self.system.num_devices
        settings = {setting.name for setting in fields(machine.layout_type)}
        group = self.parallel.shard_group
        if "shard_group" not in settings and group not in (None, 1, self.parallel.data):
            yield f"not modelled yet: shard_group {group}"
        modules = training.recompute_modules
        if modules and training.recompute != "selective":
            yield f"recompute_modules {', '.join(modules)} say something of recompute selective alone"
        elif modules and self.recompute is None:
            yield f"no mode runs these modules again together: recompute_modules {', '.join(modules)}"
        degrees = {name: getattr(self.parallel, name) for name in _DEGREES if "tensor" not in settings}
        if wrong := [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]:
            yield f"{system.name} divides the batch and nothing else, not {', '.join(wrong)}"
        node = machine.devices_per_node(system)
        has_network = self.system.is_file or self.system.device == system.name != system.device.name
        if node is not None and devices > node and self.system.inter_node is None and not has_network:
            yield (
                f"{devices} devices in nodes of {node} without inter_node, which means one node; write what "
                "all NICs of a node carry one way, e.g. inter_node: 1.6 Tb/s"
            )
        try:
            self._recipe(catalog)
        except ValidationError as error:
            yield from refused_values(error.errors())
        if not system.device.computes(training.precision):
            has = ", ".join(system.device.peak)
            yield f"{system.device.name} computes no {training.precision}; it has {has}"

    def _recipe(self, catalog: Catalog) -> Recipe:
        training = self.training
        framework = catalog.framework(self.stack.framework)
        fused = () if training.compiled is False else framework.fused
        sharded = self.strategy == "zero3"
        # A run that says that it overlaps no gradient reduction has the defaults of Megatron-LM, gradients in
        # fp32: the recipes of a framework that reduce them in 16 bits overlap it as well. The peak memory of
        # 24 runs on B200 that say so agrees (2 % in the median, 11 % with gradients in 16 bits). It overlaps
        # no tensor-parallel communication either, unless it says so.
        overlap = training.overlap_grad_reduce
        overlaps = sharded if overlap is None else overlap
        said = [value for value in (training.tp_comm_overlap, training.async_tp) if value is not None]
        reduced = training.reduce_precision
        halves = sharded and reduced is not None and PRECISIONS[reduced].bytes == 2.0
        graphed = training.cuda_graph
        if graphed is None and training.precision == "mxfp8" and self.container is not None:
            domain = self.system.nvlink_domain or self.system.devices_per_node or self.system.num_devices
            graphed = self.container >= _GRAPHED and self.system.num_devices <= domain
        runtime = Runtime(
            name=framework.name,
            attention=training.attention,
            overlap_grad_reduce=overlaps,
            overlap_tensor=any(said) if said else framework.overlaps_tensor and overlaps,
            dispatcher=_DISPATCHERS[training.moe_dispatcher],
            grouped_products=training.moe_grouped_gemm is not False,
            recompute_keeps="qkv" if _KEEPS_QKV in (training.recompute_detail or "") else "nothing",
            fused=fused,
            fused_cross_entropy="cross_entropy" in fused,
            framework=framework,
            tool=self.tool,
            attention_kernel=training.attention_kernel,
            cuda_graph=graphed,
            host_blocking=training.host_blocking,
            software_release=self.system.software_release,
        )
        return Recipe(
            name=self.id,
            seq_length=self.model.max_position_embeddings,
            precision=training.precision,
            recompute=self.recompute or "auto",
            routing="balanced" if training.moe_force_balance else "drawn",
            expert_capacity=training.moe_capacity_factor,
            reduce_precision=reduced or (None if overlap is False else framework.grad_precision),
            # FSDP that reduces gradients in 16 bits keeps all states so (pure bf16).
            optimizer_precision=cast(StatePrecision, reduced) if halves else "fp32",
            dropout=framework.dropout and training.attention == "standard",
            lm_head_positions=training.lm_head_positions,
            runtime=runtime,
        )

    def placed(self, catalog: Catalog) -> PlacedCase:
        """The run planned. Raises PerfsimError if it cannot be planned."""
        return PlacedCase.of(self, self.question(catalog))


NetworkT = TypeVar("NetworkT", bound=Topology)


@dataclass(frozen=True)
class PlacedCase:
    """A case and its plan; its graph is written once, and priced as often as a fit needs it."""

    case: StepCase
    plan: Plan
    costs: Costs

    @classmethod
    def of(cls, case: StepCase, question: Question) -> PlacedCase:
        return cls(case, plan_of(question), question.costs)

    @cached_property
    def graph(self) -> TaskGraph:
        return self.plan.graph()

    @cached_property
    def placed(self) -> Placed:
        """The graph placed without contention."""
        return place(self.graph, self.plan.topology, contention=False)

    @cached_property
    def evaluation(self) -> Evaluation:
        """The run simulated with contention, at its own prices."""
        return evaluate(self.plan, self.costs, graph=self.graph)

    def on(self, kind: type[NetworkT]) -> NetworkT:
        """Its network, of a kind; InputError where it runs on another kind of machine."""
        if not isinstance(self.plan.topology, kind):
            raise InputError(f"{self.case.id} runs on a {self.plan.system.kind}")
        return self.plan.topology

    def step(self, costs: Costs) -> Step:
        """The step of the case at the prices of `costs`, without contention."""
        return Step(self.placed, costs)

    @cached_property
    def slowed(self) -> float:
        """Step time with compute slowed by simultaneous communication, over the time of the longest path."""
        # It hardly depends on the constants that are fitted, so it is computed once, with the recorded ones.
        # Only where gradients or parameters travel on a stream of their own does anything run during compute.
        if not self.plan.job.runtime.overlap_grad_reduce:
            return 1.0
        system = self.plan.system
        step = self.step(self.costs)
        # Where several nodes are one NVLink domain, communications of all kinds meet in its ports.
        meet = isinstance(system, GpuClusterSpec) and system.node.server is not None
        whole_s = self.evaluation.step_time_s if meet else step.run().step_time_s
        return whole_s / step.run(contention=False).step_time_s


class _Envelope(_CaseSpec):
    """A case file whose rows are not read yet."""

    cluster: Name | None = None
    """Where the steps were measured, if all are a user's own."""
    schema_version: Annotated[int, *number(1, 2)] = Field(alias="schema")
    cases: Annotated[tuple[Any, ...], Field(min_length=1, max_length=MOST_CASES)]


class CaseFile(_Envelope):
    """A file of step-time cases."""

    cases: Annotated[tuple[StepCase, ...], Field(max_length=MOST_CASES)]


BatchRow = Annotated[tuple[Annotated[float, *number(0, 1e18)] | None, ...], Field(min_length=2, max_length=4)]
"""Global batch, mean to the target and, if known, standard deviation and number of seeds."""


def _positive(row: BatchRow) -> BatchRow:
    if not (row[0] and row[1]):
        raise ValueError(f"points must be positive, got batch {row[0]} with {row[1]}")
    return row


class ConvergenceCase(_CaseSpec):
    """One benchmark at several batch sizes: samples or epochs to its target."""

    id: Name
    family: Name
    source: dict[str, Any] = Field(default_factory=dict)
    unit: str = ""
    columns: tuple[str, ...] = ()
    points: Annotated[tuple[Annotated[BatchRow, AfterValidator(_positive)], ...], Field(min_length=1)]
    notes: str = ""
    """Begins with `fine-tuning` or `warm` if the runs did not start from random weights."""

    @property
    def run_kind(self) -> RunKind:
        if self.notes.startswith("fine-tuning"):
            return "fine-tuning"
        return "warm-start" if self.notes.startswith("warm") else "pre-training"


class ConvergenceFile(_Envelope):
    """A file of convergence cases."""

    cases: Annotated[tuple[ConvergenceCase, ...], Field(max_length=MOST_CASES)]


CaseT = TypeVar("CaseT", StepCase, ConvergenceCase)


@dataclass(frozen=True)
class _RefusedRow:
    """A row that is no case; its values are as written."""

    id: str
    line: int
    reason: str
    """Everything that is wrong with the row, in one line."""
    values: Mapping[str, Any]


@dataclass(frozen=True)
class CaseRows(Generic[CaseT]):
    """The rows of a file, read and refused."""

    cases: Sequence[CaseT]
    lines: Mapping[str, int] = field(default_factory=dict)
    """Line in which each case begins, by its id."""
    refused: Sequence[_RefusedRow] = ()

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The refused rows as JSON lists them."""
        return [{"id": row.id, "line": row.line, "error": row.reason} for row in self.refused]

    @classmethod
    def read(cls, path: Path, kind: type[CaseT], catalog: Catalog | None = None) -> CaseRows[CaseT]:
        """The rows of a file. Raises CatalogError only for what belongs to no row."""
        catalog = catalog or default_catalog()
        mapping = LocatedMapping.read(path, "study", catalog)
        listed = mapping.node.mapping.get("cases")
        nodes = [] if listed is None else listed.sequence
        starts = [(node.mark.line, node.mark.column) for node in nodes]
        # What is wrong before the first row is wrong with the file.
        problems: list[list[Problem]] = [[] for _ in range(len(nodes) + 1)]
        for problem in mapping.problems:
            problems[sum(start <= (problem.line, problem.column) for start in starts)].append(problem)
        LocatedMapping(path, mapping.node, problems[0]).build((_Envelope,), catalog, path.stem)
        cases: list[CaseT] = []
        lines: dict[str, int] = {}
        refused = []
        for position, node in enumerate(nodes, 1):
            try:
                case = _case(LocatedMapping(path, node, problems[position]), kind, catalog)
                if case.id in lines:
                    message = f"the case in line {lines[case.id]} has the same id"
                    raise CatalogError([node.mapping["id"].mark.problem(message)])
            except CatalogError as error:
                values = node.plain() if node.is_mapping else {}
                line = next((problem.line for problem in error.problems if problem.line), node.mark.line)
                name = str(values.get("id") or f"row {position}")
                reasons = [f"{told.message} ({told.help})".removesuffix(" ()") for told in error.problems]
                refused.append(_RefusedRow(name, line, "; ".join(reasons), values))
            else:
                cases.append(case)
                lines[case.id] = node.mark.line
        return cls(cases, lines, refused)


def published_cases() -> list[Path]:
    """The case files that come with perfsim."""
    return sorted((data_root() / "studies" / "validation").glob("*.yaml"))


def _case(row: LocatedMapping, kind: type[CaseT], catalog: Catalog) -> CaseT:
    """The case of a row. Raises CatalogError with everything that is wrong with it."""
    if not row.node.is_mapping:
        raise CatalogError([*row.problems, row.node.mark.problem("a mapping (key: value) is expected")])
    case = row.build((kind,), catalog, "case")
    if isinstance(case, StepCase):
        named: Loc = ("system", "device")
        try:
            case.system.named(catalog)
            named = ("framework",)
            if case.framework is not None:
                catalog.find("framework", case.framework)
        except InputError as error:
            problems = [row.problem(named, problem.message, problem.help) for problem in error.problems]
            raise CatalogError(problems) from None
    return case


Item = TypeVar("Item")
Result = TypeVar("Result")
_FEWEST = 20
"""Least number of items for which several processes are started."""


def mapped(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`function` of each item on all cores, in order; function, items and results must be picklable."""
    executor = Processes(os.cpu_count() or 1, start=None) if len(items) >= _FEWEST else IN_PROCESS
    say = present_limits().say or (lambda _: None)
    return executor.results(function, items, lambda done: say(f"{done:,} of {len(items):,} runs"))
