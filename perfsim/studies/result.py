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
    """Sequences of a step."""
    batch_tokens: float
    """Tokens of a step."""
    step_time_s: float
    """Time of a step."""
    steps: float
    """Steps to the target."""
    time_to_accuracy_s: float
    """Time to the target."""
    time_to_accuracy_band_s: tuple[float, float]
    """90 % band of the time to the target."""
    layout: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CandidateResult(Prediction):
    """One machine with one strategy at its own best batch."""

    steps: float
    """Steps to the target."""
    time_to_accuracy_s: float
    """Time of healthy steps to the target."""
    time_to_accuracy_band_s: tuple[float, float]
    """90 % band of the time to the target."""
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
    """90 % band of the time at the production rate."""
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
    """What it describes."""
    name: str
    """The input."""
    value: str
    """Its value with unit."""
    source: str
    """Where it is from."""
    kind: str
    """datasheet, fit, assumption, convention."""


@dataclass(frozen=True, slots=True)
class LawRow:
    """A candidate at its best batch by one law."""

    label: str
    """The candidate."""
    global_batch_size: int
    """Its best batch by the law."""
    time_s: float
    """Time to the target."""


@dataclass(frozen=True, slots=True)
class LawAnswer:
    """What a law of the critical batch answers."""

    law: str
    """Name of the law."""
    source: str
    """Where the law is from."""
    critical_batch_tokens: float
    """Batch at which twice the tokens are needed."""
    band_tokens: tuple[float, float]
    """90 % band of the critical batch."""
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
    """Name of the study."""
    title: str
    """Title of the page."""
    question: str
    """What is asked."""
    model: str
    """Name of the model."""
    num_parameters: float
    """Parameters of the model."""
    seq_length: int
    """Tokens of a sequence."""
    target_tokens: float
    """Tokens to the target at small batch."""
    law: str
    """The law of the critical batch."""
    critical_batch_tokens: float
    """Batch at which twice the tokens are needed; 0 for a given number of tokens."""
    critical_batch_band_tokens: tuple[float, float]
    """90 % band of the critical batch."""
    candidates: tuple[CandidateResult, ...]
    verdict: str
    """The comparison of the candidates in words, with a range."""
    caveats: tuple[SharedCaveat, ...] = ()
    """The caveats of all candidates, each once, worst first."""
    infeasible: tuple[Infeasible, ...] = ()
    """Candidates without a plan, with the reason."""
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
