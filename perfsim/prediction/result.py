"""Parts of an answer that are plain values: reasons, timelines, accuracy, sampling, resilience."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfsim.costs.streaming_roof import StreamingRoof
from perfsim.engine.failures import FailedRun


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """One task (or a run of like tasks) in the timeline of a step."""

    lane: str
    name: str
    category: str
    """forward, backward, recompute, optimizer, tensor_communication, pipeline_communication,
    data_communication, weight_stream, gradient_stream, update: decides the colour."""
    start_s: float
    end_s: float
    microbatch: int = -1


@dataclass(frozen=True, slots=True)
class Why:
    """Why a step takes as long as it does."""

    cause: str
    """`compute`, or the wait that decides."""
    parts_s: Mapping[str, float]
    """Every second of the step by cause; they add up to it."""
    remedy: str
    sentence: str
    fixed_s: float = 0.0
    """Of the seconds of computing, those that layers take whatever their tokens, where that is known."""
    streaming_roof: StreamingRoof | None = None


@dataclass(frozen=True, slots=True)
class SamplingSummary:
    """What correctness sampling covered."""

    tasks_sampled: int
    tasks_total: int
    flop_share: float
    """Share of the step's GEMM FLOPs that the sampled work classes stand for."""
    worst_relative_error: float
    bound: float
    passed: bool
    by_partition: Mapping[str, int] = field(default_factory=dict)
    mode: str = "sample"
    worst: str = ""
    """The sample that came closest to its bound: name, pass, and how it was partitioned."""
    failed: tuple[str, ...] = ()
    """Samples whose partition gave another product, in the same words."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How well predictions of this kind met published runs."""

    strategy: str
    family: str
    n: int
    median_ape: float
    p90_ape: float
    baseline_median_ape: float
    held_out_p90_ape: float
    """The 90th percentile for runs that were left out of the fit; what bands are made of."""
    likeness: str = ""
    """In what the family differs from what was asked, in words."""
    unlikeness: float = 0.0
    """The same in points."""


@dataclass(frozen=True, slots=True)
class ResiliencePoint:
    """The step with one device that computes `severity` times as long."""

    severity: float
    step_time_s: float


@dataclass(frozen=True, slots=True)
class Resilience:
    """How a candidate's step suffers from one slow device; the first point is the step without."""

    label: str
    rank: int
    points: tuple[ResiliencePoint, ...]


@dataclass(frozen=True, slots=True)
class Perturbed:
    """What disturbed a run, and the step without it."""

    text: str
    unperturbed_step_time_s: float
    draws_s: tuple[float, ...]
    """Step times of all draws, ascending."""
    tasks: int
    """Tasks of the graph with the ranks that differ written out."""
    note: str = ""
    run: FailedRun | None = None
    """Many steps with failures, where they were asked for."""
