"""What a study answers with: plain values, the single input of every report and of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfsim.convergence.wall_clock import RunPart
from perfsim.prediction.result import Accuracy, Resilience, SamplingSummary, TimelineBar, Why


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """What one pipeline stage or one wafer holds at its peak, part by part."""

    place: str
    parts_bytes: Mapping[str, float]
    """Part name (parameters, gradients, optimizer, activations, ...) to bytes, in drawing order."""
    capacity_bytes: float


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """Time to the target at one global batch."""

    global_batch_size: int
    batch_tokens: float
    step_time_s: float
    steps: float
    time_to_accuracy_s: float
    time_to_accuracy_band_s: tuple[float, float]
    layout: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """One machine with one strategy at its own best batch."""

    strategy: str
    system: str
    num_devices: int
    layout: Mapping[str, Any]
    global_batch_size: int
    step_time_s: float
    tokens_per_s: float
    mfu: float
    hfu: float
    bubble_fraction: float
    exposed_communication_fraction: float
    peak_memory_bytes: float
    steps: float
    time_to_accuracy_s: float
    time_to_accuracy_band_s: tuple[float, float]
    step_breakdown_s: Mapping[str, float]
    """Every second of the step: compute, exposed communication by kind, optimizer, bubble, ..."""
    memory: tuple[MemoryBar, ...]
    batch_curve: tuple[BatchPoint, ...]
    timeline: tuple[TimelineBar, ...]
    notes: tuple[str, ...] = ()
    why: Why | None = None
    batch_at_edge: str = ""
    """A remark where the best batch is the smallest or the largest of those tried."""
    whole_run: tuple[RunPart, ...] = ()
    """The wall clock part by part, the sum last; empty where the study asks for the steps alone."""
    cluster_calibration: Mapping[str, Any] | None = None
    """Name, scale and note of the user's own measurements, where step times were multiplied by it."""
    perturbed: Mapping[str, Any] | None = None
    """What disturbed the step, and the step without it; None: nothing."""

    @property
    def label(self) -> str:
        """`128 x dgx-a100-80gb, 3d`: how a person names this candidate."""
        return f"{self.num_devices} x {self.system}, {self.strategy}"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One input of the answer: its value as a person writes it and where it comes from."""

    topic: str
    name: str
    value: str
    source: str
    kind: str
    """datasheet, fit, assumption, convention."""


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A candidate without any feasible plan, and why."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A question, its candidates in the order asked, and the sentence that answers it."""

    study: str
    title: str
    question: str
    model: str
    num_parameters: float
    seq_length: int
    target_tokens: float
    law: str
    critical_batch_tokens: float
    critical_batch_band_tokens: tuple[float, float]
    candidates: tuple[CandidateResult, ...]
    verdict: str
    """One comparison sentence with a range."""
    infeasible: tuple[Infeasible, ...] = ()
    ratio_bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By candidate label: 90 % band of its time over the soonest candidate's."""
    suggested_batch_tokens: Mapping[str, float] = field(default_factory=dict)
    """By published law, the batch that it suggests for this run; no critical batches."""
    assumptions: tuple[Assumption, ...] = ()
    sampling: Mapping[str, SamplingSummary] = field(default_factory=dict)
    """By candidate label."""
    accuracy: tuple[Accuracy, ...] = ()
    resilience: tuple[Resilience, ...] = ()
    """By candidate, where the study asks for it."""
    perturbed: str = ""
    """What disturbs the candidates' steps; empty: nothing."""
    inputs_digest: str = ""
