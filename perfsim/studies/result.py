"""The result of a study as plain values: the only input of its report and of `--json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any

from perfsim.convergence.time_to_accuracy import RampedRun
from perfsim.convergence.wall_clock import RunPart
from perfsim.network.topology import NetworkMap
from perfsim.prediction.bands import Accuracy
from perfsim.prediction.caveats import SharedCaveat
from perfsim.prediction.disturbed import Resilience
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.verification import SamplingSummary
from perfsim.prediction.why import Roofline
from perfsim.specs.wall_clock import ProductionRange
from perfsim.studies.spec import CandidateSpec, StudySpec

# The decision that a study answers, as plain values: when, how much, how sure, and what would change it.


@dataclass(frozen=True, slots=True)
class Spread:
    """A typical value with its 90 % interval."""

    typical: float
    """Value with every input as given."""
    low: float
    """5th percentile."""
    high: float
    """95th percentile."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a candidate takes to the target; None where an input is not given."""

    label: str
    """The candidate."""
    steps_s: Spread
    """Time of healthy steps."""
    wall_s: Spread
    """Time on the wall: with what `basis` says."""
    basis: str
    """What the time on the wall holds besides healthy steps."""
    device_hours: Spread
    energy_kwh: Spread | None
    carbon_kg: Spread | None
    """CO2 of the energy."""
    money: Spread | None
    """Price of the run."""
    first: float
    """Probability that no other candidate is at the target earlier."""
    cheapest: float | None
    """Probability that no other candidate costs less; None unless all have a price."""
    not_given: tuple[str, ...]
    """Inputs without which a figure is None."""


@dataclass(frozen=True, slots=True)
class Lever:
    """An input, the ratio of times (or of money) over its 90 % range, and where the order of two flips."""

    name: str
    """The input."""
    low: float
    """Lower end of its 90 % range."""
    typical: float
    """Its value."""
    high: float
    """Upper end of its 90 % range."""
    unit: str
    """Unit of the three."""
    ratio_at_low: float
    """The ratio with the input at its lower end."""
    ratio_at_high: float
    """The ratio with the input at its upper end."""
    flips_at: float | None
    """The nearest value at which both take as much; None within three standard deviations."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The price at which two machines cost the same, for the work of the study."""

    label: str
    """The candidate."""
    rival: str
    """The one that it is compared with."""
    device_hours_ratio: Spread
    """Device-hours of the rival for one of the candidate: what a device-hour of it may cost, in theirs."""
    price: Spread | None
    """The same in money a device-hour, where the rival's price is given."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Times, money and energy of all candidates from one set of seeded draws."""

    seed: int
    """Seed of the draws."""
    draws: int
    """Number of draws."""
    currency: str
    """Currency of all money."""
    sentence: str
    """The decision in words."""
    outcomes: tuple[Outcome, ...]
    first: str
    """Label of the candidate that is first on the wall."""
    rival: str
    """The one that it is compared with; empty if there is none."""
    ratio: Spread | None
    """Time on the wall of the rival over that of the first."""
    sure: float
    """Probability that the first is earlier than the rival."""
    levers: tuple[Lever, ...]
    """The inputs that move the ratio, most first."""
    break_even: tuple[BreakEven, ...]
    money_ratio: Spread | None = None
    """Money of the rival over that of the first; None unless both have a price."""
    money_levers: tuple[Lever, ...] = ()
    """The inputs that move the ratio of money, most first."""


# Time at the rate of published production runs, which are slower than healthy benchmark steps.
#
# The ratio is a production run's published rate over the predicted rate of its healthy steps. It covers
# what
# slows the steps of a long run (stragglers, other jobs on the network, data loading, logging) and the
# model's
# own error on these runs. It does not cover queue, compilation, restarts after failures and lost work,
# which a
# wall clock describes. All known runs are on GPUs; the ratio holds for every machine alike, so that it
# moves
# no comparison.

RECORD = "production.json"
COVERED_ONCE = (
    "the production ratio and the wall clock's stragglers describe the same slow steps: the whole run counts "
    "the stragglers and not the ratio, the time in production counts the ratio alone"
)
"""The remark on a candidate that has both."""


@dataclass(frozen=True, slots=True)
class Production:
    """The ratio of a production rate to that of healthy steps."""

    ratio: float
    """Rate of production steps over that of healthy ones."""
    range: tuple[float, float]
    """Low and high; taken as a 90 % range."""
    source: str
    """Where the ratio is from."""

    def time_s(self, healthy_s: float) -> float:
        """The time of steps at the production rate."""
        return healthy_s / self.ratio

    def band_s(self, healthy_s: float, band_s: tuple[float, float]) -> tuple[float, float]:
        """The band of that time: band and range combine in quadrature in log time, as independent errors."""
        (low_s, high_s), (low, high), middle_s = band_s, self.range, self.time_s(healthy_s)
        down = math.hypot(math.log(healthy_s / low_s), math.log(high / self.ratio))
        up = math.hypot(math.log(high_s / healthy_s), math.log(self.ratio / low))
        return middle_s * math.exp(-down), middle_s * math.exp(up)

    @property
    def text(self) -> str:
        """`0.81 (0.76 to 0.88)`."""
        low, high = self.range
        return f"{self.ratio:.2f} ({low:.2f} to {high:.2f})" if low < high else f"{self.ratio:.2f}"


@cache
def recorded() -> Production:
    """Median and range over the recorded production runs."""
    rows = json.loads(files("perfsim.studies").joinpath(RECORD).read_text(encoding="utf-8"))
    ratios = [float(row["ratio"]) for row in rows]
    names = ", ".join(f"{row['name']} {row['ratio']:.2f}" for row in rows)
    source = f"median and range of published production rates over predicted healthy steps: {names}"
    return Production(median(ratios), (min(ratios), max(ratios)), source)


def production_of(study: StudySpec, candidate: CandidateSpec) -> Production | None:
    """The production ratio of a candidate, its own or the study's; None where it is switched off."""
    given = study.production if candidate.production is None else candidate.production
    if given == "none":
        return None
    if isinstance(given, ProductionRange):
        return Production(given.typical, (given.low, given.high), given.source)
    if isinstance(given, (int, float)):
        return Production(float(given), (float(given), float(given)), "given by the study")
    return recorded()


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


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """One task (or a run of like tasks) in the timeline of a step."""

    lane: str
    name: str
    category: str
    """forward, backward, recompute, optimizer, tensor_communication, context_communication,
    pipeline_communication, data_communication, weight_stream, gradient_stream or update; it sets the
    colour."""
    start_s: float
    end_s: float
    microbatch: int = -1
    flop: float = 0.0
    n_bytes: float = 0.0
    """Bytes sent by a communication; of a computation, those that it moves in the device's memory."""
    layers: tuple[int, int] | None = None
    """The first and the last layer that it belongs to."""
    tasks: int = 1


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
