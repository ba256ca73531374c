"""Case files of published runs, read row by row: a row that cannot be read is refused alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from perfsim.base.errors import CatalogError, InputError, Problem, refused_values
from perfsim.base.sizes import MOST_CASES, MOST_LAYERS, MOST_WIDTH
from perfsim.base.spec import Spec
from perfsim.base.text import nearest
from perfsim.base.units import BytesPerSecond, number
from perfsim.catalog import Catalog, LocatedMapping, data_root, default_catalog, load_mapping
from perfsim.catalog.reader import Loc, build
from perfsim.catalog.yaml_tree import Node
from perfsim.machines import machine_of
from perfsim.specs.hardware import Devices, Release, SystemSpec
from perfsim.specs.model import Heads, Layers, Positions, Recompute, TransformerConfig, Vocabulary, Width
from perfsim.specs.precisions import Precision
from perfsim.specs.recipe import Sequences
from perfsim.specs.runtime import Attention

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
    nvlink_domain: Devices | None = None
    """Devices that one NVLink network joins; None: the devices of a node."""
    software_release: Release | None = None

    @property
    def is_file(self) -> bool:
        """Whether `device` is the file of a system."""
        return self.device.endswith((".yaml", ".yml"))


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

    def described(self) -> TransformerConfig:
        """The model. Raises ValueError for fields that contradict each other."""
        fields = self.model_dump(include=set(TransformerConfig.model_fields))
        fields |= {"max_position_embeddings": self.seq_length, "mtp_num_layers": self.mtp_layers}
        if not 0 < (self.sliding_window or 0) < self.seq_length:
            fields |= {"sliding_window": None, "sliding_window_pattern": None}
        if self.attention_type == "mla":
            fields |= {"num_query_groups": None, "head_dim": None}
            fields["latent_attention"] = {
                "q_lora_rank": self.q_lora_rank or None,
                "kv_lora_rank": self.kv_lora_rank,
                "qk_nope_head_dim": self.qk_head_dim,
                "qk_rope_head_dim": self.qk_rope_head_dim,
                "v_head_dim": self.v_head_dim,
            }
        fields["experts"] = self.experts and {
            "num_experts": self.experts,
            "top_k": self.top_k,
            "ffn_hidden_size": self.moe_ffn_hidden_size or self.ffn_hidden_size,
            "shared_ffn_hidden_size": self.shared_expert_ffn,
            "first_dense_layers": self.dense_layers,
            "interval": self.moe_layer_interval,
        }
        try:
            return TransformerConfig.model_validate(
                fields | {"name": "published", "experts": fields["experts"] or None}
            )
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
    pipeline_layout: str | None = None
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
    attention_kernel: Literal["synchronous", "asynchronous", "one_block"] | None = None
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


class StepCase(_CaseSpec):
    """One measured training run."""

    id: str
    family: str
    evidence: Literal["A", "B", "C"]
    source: dict[str, Any] = Field(default_factory=dict)
    system: CaseSystem
    model: Model
    strategy: str
    framework: str | None = None
    """The software stack that ran, by its name in the catalogue; None: `plans.suggested` chooses."""
    container: str | None = None
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


class _Envelope(_CaseSpec):
    """A case file whose rows are not read yet."""

    schema_version: Annotated[int, *number(1, 1000)] = Field(alias="schema")
    cases: Annotated[tuple[Any, ...], Field(max_length=MOST_CASES)]


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

    id: str
    family: str
    source: dict[str, Any] = Field(default_factory=dict)
    unit: str = ""
    columns: tuple[str, ...] = ()
    points: Annotated[tuple[Annotated[BatchRow, AfterValidator(_positive)], ...], Field(min_length=1)]
    notes: str = ""
    """Begins with `fine-tuning` or `warm` if the runs did not start from random weights."""


class ConvergenceFile(_Envelope):
    """A file of convergence cases."""

    cases: Annotated[tuple[ConvergenceCase, ...], Field(max_length=MOST_CASES)]


def case_system(case: StepCase, catalog: Catalog) -> SystemSpec:
    """The system of the catalogue with the case's device, node size and network.

    A device stands for the first system that has it. Raises InputError for an unknown one.
    """
    described = case.system
    system = _system_named(described, catalog)
    return machine_of(system).published_system(
        system, described.devices_per_node, described.inter_node, described.nvlink_domain
    )


def _system_named(described: CaseSystem, catalog: Catalog) -> SystemSpec:
    """The system of that name or file, or the first one with a device of that name."""
    name = described.device
    names = catalog.names("system")
    if described.is_file or name in names:
        return catalog.system(name)
    systems = [catalog.system(system_name) for system_name in names]
    for system in systems:
        if system.device.name == name:
            return system
    present = sorted({system.device.name for system in systems} | set(names))
    message = f"no system with device {name!r} in the catalogue; it has {', '.join(present)}"
    near = nearest(name, present)
    raise InputError([Problem(message, help=f"did you mean `{near}`?" if near else "")])


CaseT = TypeVar("CaseT", StepCase, ConvergenceCase)


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


def public_cases() -> list[Path]:
    """The case files that come with perfsim."""
    return sorted((data_root() / "studies" / "validation").glob("*.yaml"))


def read_cases(path: Path, kind: type[CaseT], catalog: Catalog | None = None) -> CaseRows[CaseT]:
    """The rows of a file. Raises CatalogError only for what belongs to no row."""
    catalog = catalog or default_catalog()
    mapping = load_mapping(path, catalog)
    listed = mapping.node.mapping.get("cases")
    nodes = [] if listed is None else listed.sequence
    starts = [(node.mark.line, node.mark.column) for node in nodes]
    of_file: list[Problem] = []
    by_row: list[list[Problem]] = [[] for _ in nodes]
    for problem in mapping.problems:
        before = sum(start <= (problem.line, problem.column) for start in starts)
        (by_row[before - 1] if before else of_file).append(problem)
    build(LocatedMapping(path, mapping.node, of_file), (_Envelope,), catalog, path.stem)
    read: dict[str, tuple[CaseT, int]] = {}
    refused = []
    for position, (node, problems) in enumerate(zip(nodes, by_row, strict=True), 1):
        try:
            case = _case(LocatedMapping(path, node, problems), kind, catalog)
            if (same := read.get(case.id)) is not None:
                message = f"the case in line {same[1]} has the same id"
                raise CatalogError([node.mapping["id"].mark.problem(message)])
            read[case.id] = case, node.mark.line
        except CatalogError as error:
            refused.append(_refused(node, position, error.problems))
    return CaseRows(
        tuple(case for case, _ in read.values()), tuple(line for _, line in read.values()), tuple(refused)
    )


def _case(row: LocatedMapping, kind: type[CaseT], catalog: Catalog) -> CaseT:
    """The case of a row. Raises CatalogError with everything that is wrong with it."""
    if not row.node.is_mapping:
        message = "a mapping (key: value) is expected"
        raise CatalogError([*row.problems, row.node.mark.problem(message)])
    case = build(row, (kind,), catalog, "case")
    if isinstance(case, StepCase):
        named: Loc = ("system", "device")
        try:
            _system_named(case.system, catalog)
            named = ("framework",)
            if case.framework is not None:
                catalog.find("framework", case.framework)
        except InputError as error:
            raise CatalogError(
                [row.problem(named, problem.message, problem.help) for problem in error.problems]
            ) from None
    return case


def _refused(node: Node, position: int, problems: Sequence[Problem]) -> RefusedRow:
    values = node.plain()
    named = values.get("id") if isinstance(values, dict) else None
    line = next((problem.line for problem in problems if problem.line), node.mark.line)
    return RefusedRow(str(named or f"row {position}"), line, tuple(problems), values)
