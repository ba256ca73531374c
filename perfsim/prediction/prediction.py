"""The answer to one question: plain values, the run behind them if it is kept, and its JSON document."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Self, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from perfsim.base.errors import PerfsimError
from perfsim.base.sizes import MEMORY_LIMIT
from perfsim.costs.memory import MemoryUse
from perfsim.costs.wafer import PEAK
from perfsim.engine.trace import Simulated
from perfsim.interop.chrome import StepTrace
from perfsim.machines import machine_of
from perfsim.prediction.bands import recorded_errors
from perfsim.prediction.caveats import Caveat, batch_caveats, caveats_of, default_settings
from perfsim.prediction.dates import date_caveats
from perfsim.prediction.perturbed import perturbed
from perfsim.prediction.planner import best_plan, divisible
from perfsim.prediction.question import Question
from perfsim.prediction.risk import Ranked
from perfsim.prediction.run import Evaluation, Perturbed, Training, evaluation_of
from perfsim.prediction.why import LinkUse, Why
from perfsim.specs.layout import text_of
from perfsim.strategies import Plan
from perfsim.version import __version__

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Scaling:
    """The user's cluster calibration, which multiplies step times."""

    name: str
    scale: float
    note: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Prediction:
    """One optimizer step of one model on one machine."""

    model: str
    """Name of the model."""
    strategy: str
    """How the work is divided."""
    system: str
    """Name of the system."""
    num_devices: int
    """Devices of the job."""
    layout: Mapping[str, Any]
    """Settings of the layout by their YAML names."""
    global_batch_size: int
    """Sequences of a step."""
    step_time_s: float
    """Time of a healthy step."""
    tokens_per_s: float
    """Tokens of a step over its time."""
    mfu: float
    """Model FLOPs utilisation: model FLOPs over peak FLOPs of all devices, without recomputation."""
    hfu: float
    """Hardware FLOPs utilisation: the same with recomputation."""
    bubble_fraction: float
    """Share of the step in which devices wait for other pipeline stages."""
    exposed_communication_fraction: float
    """Share of the step in which devices wait for communication."""
    peak_memory_bytes: float
    """Most memory that a device uses."""
    breakdown_s: Mapping[str, float]
    """Every second of the step: compute, exposed communication by kind, optimizer, bubble, ..."""
    why: Why
    utilisation: Mapping[str, LinkUse] = field(default_factory=dict)
    """Use of the network by kind of link: `scale_up` (NVLink ports), `nic`, `uplink`, `io`, ..."""
    simulated: Simulated | None = None
    """What the simulation consisted of; None where only values are known."""
    cluster_calibration: _Scaling | None = None
    """What steps measured on the user's own cluster multiply the time by; None without them."""
    perturbed: Perturbed | None = None
    """The step with waits and slow devices; None for a healthy step."""
    memory: tuple[MemoryUse, ...] = ()
    """One entry per pipeline stage, or one for a wafer."""
    caveats: tuple[Caveat, ...] = ()
    """Reasons to trust the answer less, worst first."""
    notes: tuple[str, ...] = ()
    """Remarks on the plan: where state is kept, safer choices."""
    machine: str = ""
    """Its devices in words: `128 A100-80GB (16 DGX)`."""
    devices_noun: str = ""
    """Several of its devices, such as `A100-80GB`."""
    device: str = ""
    """Name of its kind of device: systems of one kind share a part of their error."""
    training: Training | None = None
    """Recipe, sequence and framework; None where only values are known."""
    ranks: tuple[Ranked, ...] = ()
    """The proven layout and the fastest of all, where the planner chose on GPUs."""
    evaluation: Evaluation | None = field(default=None, repr=False, compare=False)
    """The run behind the values; None for a stored prediction."""

    def __repr__(self) -> str:
        """One line: what is trained on what, in which layout, and how fast."""
        layout = "" if self.evaluation is None else f"{text_of(self.run.plan.layout)}, "
        speed = f"{self.step_time_s:.3g} s a step, MFU {100 * self.mfu:.1f} %"
        return f"<{self.model} on {self.label}: {layout}batch {self.global_batch_size:,}, {speed}>"

    def _repr_html_(self) -> str:
        cells = [f"<td>{escape(part)}</td><td>{own_s:.4g} s</td>" for part, own_s in self.breakdown_s.items()]
        return f"<p>{escape(repr(self)[1:-1])}</p><table><tr>{'</tr><tr>'.join(cells)}</tr></table>"

    @property
    def label(self) -> str:
        """Machine and strategy, such as `128 A100-80GB (16 DGX), 3d`."""
        return f"{self.machine}, {self.strategy}"

    @property
    def band_s(self) -> tuple[float, float] | None:
        """The 90 % band of the step time, from the errors on published runs; None without the run itself."""
        return None if self.evaluation is None else self.evaluation.band_s

    @property
    def memory_capacity_bytes(self) -> float:
        """Memory capacity of the fullest stage; NaN for a stored prediction."""
        fullest = max(self.memory, key=lambda use: use.total_bytes, default=None)
        return fullest.capacity_bytes if fullest is not None else math.nan

    @property
    def run(self) -> Evaluation:
        """The run behind the values. Raises PerfsimError for a stored prediction."""
        if self.evaluation is None:
            raise PerfsimError(f"{self.label}: the run of a stored prediction is not kept; predict it again")
        return self.evaluation

    @property
    def trace(self) -> StepTrace:
        """Start and end of every task of the step. Raises PerfsimError for a stored prediction."""
        return StepTrace(self.run.trace, self.run.placed.pacing_links(), self.run.named_shares)

    def emit(self, tool: str = "") -> str:
        """Flags or a file with which a tool (megatron, deepspeed, torchtitan, modelzoo) runs the layout.

        Without a name it is the tool that takes the plans of the runtime. Raises InputError for another tool
        or a layout that it cannot run, PerfsimError for a stored prediction.
        """
        from perfsim.interop import emit  # writers of many tools

        return emit(tool or self.run.plan.job.runtime.takes_plans or "", self.run.plan)

    def step_document(self) -> Document:
        """The part of the document that runs, candidates of studies and points of sweeps have."""
        values = {name: getattr(self, name) for name in _OF_A_STEP}
        document: Document = to_jsonable_python(values | {"step_breakdown_s": self.breakdown_s})
        return document

    def document(self) -> Document:
        """The answer as `perfsim run --json` prints it."""
        return {
            "model": self.model,
            "memory_capacity_bytes": self.memory_capacity_bytes,
            **self.step_document(),
            "band_s": None if self.band_s is None else list(self.band_s),
            "notes": list(self.notes),
        }

    @classmethod
    def stored(cls, document: Mapping[str, Any]) -> Self:
        """The answer with the fields that its document has; memory and the run itself are not kept."""
        known = {**document, "breakdown_s": document["step_breakdown_s"]}
        names = [field.name for field in fields(cls) if field.name in known]
        owner: Any = cls  # mypy takes a class for unhashable
        return cls(**{name: _reader(owner, name).validate_python(known[name]) for name in names})

    @classmethod
    def of(
        cls,
        evaluation: Evaluation,
        allowed_share: float = MEMORY_LIMIT,
        more: Iterable[Caveat] = (),
        notes: Iterable[str] = (),
        **of_subclass: Any,
    ) -> Self:
        """An evaluation with causes, caveats (`more`, and above `allowed_share` of memory) and notes."""
        plan = evaluation.plan
        causes = Why.of(evaluation)
        cluster = evaluation.cluster
        scaling = None if cluster is None else _Scaling(cluster.name, cluster.scale, cluster.note)
        return cls(
            model=plan.job.model.name,
            strategy=plan.strategy,
            system=_marked(plan, plan.system.name),
            num_devices=plan.topology.num_devices,
            layout=plan.layout.as_dict(plan.num_microbatches),
            global_batch_size=plan.job.global_batch_size,
            peak_memory_bytes=plan.peak_memory_bytes,
            breakdown_s=dict(evaluation.breakdown_s),
            why=causes,
            simulated=evaluation.trace.simulated,
            utilisation=LinkUse.by_kind(evaluation.trace, evaluation.placed),
            cluster_calibration=scaling,
            memory=tuple(use for use in plan.memory if use.on_device),
            caveats=caveats_of(evaluation, causes, allowed_share, more),
            notes=(*plan.notes, *notes),
            machine=_marked(plan, plan.system.machine(plan.topology.num_devices)),
            devices_noun=_marked(plan, plan.system.devices_noun),
            device=plan.system.device.name,
            evaluation=evaluation,
            **{name: getattr(evaluation, name) for name in _OF_THE_RUN},
            **of_subclass,
        )


def predict(question: Question) -> Prediction:
    """Predict one step. Raises InputError, LayoutError or PlanError where the question has no answer."""
    evaluation = best_plan(question, ranks=True)
    caveats = [*batch_caveats(question), *default_settings(question, evaluation.plan)]
    caveats += date_caveats(question)
    near = () if question.layout else divisible(question)
    if near:
        others = " or ".join(f"batch {other.job.global_batch_size:,} on {other.label}" for other in near)
        words = f"the batch hardly divides over the devices; nearest that does: {others} (perfsim plan)"
        caveats.append(Caveat.of("batch-indivisible", words))
    if question.detail == "chunk":
        finer = question.machine.in_chunks(evaluation.plan.layout)
        if finer != evaluation.plan.layout:
            plan = question.chosen.plan(question.job, question.topology, finer)
            evaluation = evaluation_of(question, plan, reported=True)
    if question.perturbations is not None:
        evaluation = perturbed(evaluation, question.perturbations)
    return Prediction.of(evaluation, question.allowed_share, caveats)


def _marked(plan: Plan, name: str) -> str:
    """A name of a plan's system; a system at peak is marked as an upper bound."""
    releases = machine_of(plan.system).releases(plan.system, plan.job.recipe)
    if releases is None or releases[0] != PEAK:
        return name
    return f"{name.removesuffix(' at peak')} at peak (upper bound, never observed)"


@cache
def _reader(answer: type[Prediction], name: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(answer)[name])


_OF_A_STEP = tuple(
    known.name
    for known in fields(Prediction)
    if known.name not in ("model", "breakdown_s", "memory", "notes", "evaluation")
)
"""Fields of `Prediction` that all its documents have."""
_OF_THE_RUN = (
    *("step_time_s", "tokens_per_s", "mfu", "hfu", "bubble_fraction", "exposed_communication_fraction"),
    *("perturbed", "training", "ranks"),
)
"""Fields of `Prediction` that its evaluation has."""
_PRESENTATION = frozenset({"report", "api", "cli", "__main__.py"})


@cache
def model_version() -> str:
    """The version, computing modules and recorded errors of perfsim; no answer of another one is reused."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in _PRESENTATION and name.parts[0] != "_data":
            digest.update(name.as_posix().encode("utf-8") + b"\0" + path.read_bytes() + b"\0")
    digest.update(json.dumps(recorded_errors(), sort_keys=True).encode("utf-8"))
    return f"{__version__}+{digest.hexdigest()[:16]}"
