"""The result of a study as plain values: the only input of its report and of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfsim.convergence.ramp import RampedRun
from perfsim.convergence.wall_clock import RunPart
from perfsim.prediction.network_map import NetworkMap
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.result import Accuracy, Resilience, SamplingSummary, SharedCaveat, TimelineBar
from perfsim.prediction.roofline import Roofline
from perfsim.studies.decided import Decision
from perfsim.studies.production import Production


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


@dataclass(frozen=True, kw_only=True)
class CandidateResult(Prediction):
    """One machine with one strategy at its own best batch."""

    steps: float
    time_to_accuracy_s: float
    time_to_accuracy_band_s: tuple[float, float]
    batch_curve: tuple[BatchPoint, ...] = field(repr=False)
    timeline: tuple[TimelineBar, ...] = field(repr=False)
    timeline_devices: int = 0
    """Devices that were simulated on their own; the timeline has the lanes of some of them."""
    roofline: Roofline | None = field(default=None, repr=False)
    """Its kernels and the limits of its device; None where kernels have no price of their own."""
    network: NetworkMap | None = field(default=None, repr=False)
    """Its network, folded by kind of place."""
    whole_run: tuple[RunPart, ...] = ()
    """The parts of the wall clock, the sum last; empty if the candidate names no wall clock."""
    production: Production | None = None
    """Ratio of production steps to healthy ones; None if it is switched off."""
    production_time_s: float | None = None
    """Time to the target at the production rate."""
    production_band_s: tuple[float, float] | None = None
    ramp: RampedRun | None = None
    """Its steps with the study's batch ramp."""
    apart: str = ""
    """What tells it from other candidates of this machine and strategy: its given layout, or a number."""

    @property
    def label(self) -> str:
        """Machine and strategy, with what tells it from others: `128 A100-80GB (16 DGX), 3d, tp=8,pp=4`."""
        return ", ".join(filter(None, [super().label, self.apart]))

    @property
    def batch_at_edge(self) -> str:
        """The caveat if the best batch is the smallest or the largest of those tried, else empty."""
        return next((caveat.text for caveat in self.caveats if caveat.code == "batch-at-edge"), "")


@dataclass(frozen=True, slots=True)
class Assumption:
    """One input of the answer: its value with a unit, and its source."""

    topic: str
    name: str
    value: str
    source: str
    kind: str
    """datasheet, fit, assumption, convention."""


@dataclass(frozen=True, slots=True)
class LawRow:
    """A candidate at its best batch by one law."""

    label: str
    global_batch_size: int
    time_s: float


@dataclass(frozen=True, slots=True)
class LawAnswer:
    """What a law of the critical batch answers."""

    law: str
    source: str
    critical_batch_tokens: float
    band_tokens: tuple[float, float]
    rows: tuple[LawRow, ...]
    first: str
    """Label of the candidate that is first."""


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A candidate without a feasible plan, and the reason."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A question, its candidates in the order of the study, and the sentence that answers it."""

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
    """The comparison of the candidates in words, with a range."""
    caveats: tuple[SharedCaveat, ...] = ()
    """The caveats of all candidates, each once, worst first."""
    infeasible: tuple[Infeasible, ...] = ()
    ratio_bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By candidate label: 90 % band of the ratio of its time to the fastest candidate's."""
    suggested_batch_tokens: Mapping[str, float] = field(default_factory=dict)
    """Global batch by published scaling law; these are not critical batches."""
    assumptions: tuple[Assumption, ...] = ()
    sampling: Mapping[str, SamplingSummary] = field(default_factory=dict)
    """By candidate label."""
    accuracy: tuple[Accuracy, ...] = ()
    resilience: tuple[Resilience, ...] = ()
    """By candidate, if the study asks for it."""
    perturbed: str = ""
    """The perturbations of the candidates' steps; empty if there are none."""
    laws: tuple[LawAnswer, ...] = ()
    """The study's law of the critical batch first, then the others."""
    decision: Decision | None = None
    """When, how much and how sure."""
    command: str = ""
    """The command line that asks the same; empty where a study was not asked by name or path."""
    inputs_digest: str = ""
    """SHA-256 of the study's resolved descriptions without their prose, and of the version of the model."""
