"""Plain values of an answer: caveats, causes, timelines, accuracy, sampling, resilience."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from perfsim.costs.wafer import StreamingRoof
    from perfsim.engine.failures import FailedRun


Severity = Literal["serious", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""Worst first."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """One reason to trust an answer less; docs/caveats.md lists the codes."""

    code: str
    """Its name, as in the list of caveats."""
    severity: Severity
    """serious, warning or info."""
    text: str
    """What is the case; after the first semicolon, what follows from it."""

    @property
    def headline(self) -> str:
        """The part of the text that a verdict quotes: all before the first semicolon."""
        return self.text.partition(";")[0]


@dataclass(frozen=True, slots=True)
class SharedCaveat(Caveat):
    """A caveat of one or more answers that are compared, in the words of the worst of them."""

    systems: tuple[str, ...]
    """Systems that it is about."""
    machines: tuple[str, ...]
    """The answers by system: `1, 4 and 16 CS-2`."""
    nouns: tuple[str, ...]
    """Several devices of each system, such as `CS-2`."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a predicted step trains: what an answer holds for, besides model and machine."""

    recipe: str
    """Name of the recipe."""
    seq_length: int
    """Tokens of a sequence."""
    precision: str
    """Format of the matrix products."""
    attention: str
    """Implementation of attention."""
    dropout: bool
    """Whether activations are dropped at random."""
    framework: str = ""
    """Name of the framework whose constants the step has; empty on a machine without any."""

    @property
    def settings(self) -> str:
        """`gpt3_pretraining: sequences of 2,048 tokens, bf16, standard attention, with dropout`."""
        return (
            f"{self.recipe}: sequences of {self.seq_length:,} tokens, {self.precision}, {self.attention} "
            f"attention, {'with' if self.dropout else 'no'} dropout"
        )

    @property
    def words(self) -> str:
        """The settings and the framework, where there is one."""
        return f"{self.settings}; framework {self.framework}" if self.framework else self.settings


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


@dataclass(frozen=True, slots=True)
class Why:
    """The causes of a step time."""

    cause: str
    """`compute`, or the wait that limits the step."""
    parts_s: Mapping[str, float]
    """Seconds by cause, which add up to the step time."""
    remedy: str
    """The nearest change that would help."""
    sentence: str
    """Cause and remedy in words."""
    fixed_s: float = 0.0
    """Compute seconds that do not depend on the number of tokens, where known."""
    streaming_roof: StreamingRoof | None = None
    """Tokens that hide the weight stream; None on GPUs."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Use of one kind of link in a step, as shares of its capacity."""

    mean: float
    """Bytes of the step on all links of the kind, in both directions, over what they could carry."""
    peak: float
    """The most that the busiest link carries at any instant."""


@dataclass(frozen=True, slots=True)
class SamplingSummary:
    """The result of correctness sampling."""

    tasks_sampled: int
    tasks_total: int
    flop_share: float
    """Share of the step's GEMM FLOPs in the sampled classes of work."""
    worst_relative_error: float
    bound: float
    passed: bool
    by_partition: Mapping[str, int] = field(default_factory=dict)
    mode: str = "sample"
    worst: str = ""
    """The sample closest to its bound: name, pass and partition."""
    failed: tuple[str, ...] = ()
    """Samples whose partitioned product is wrong, in the same format."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of predictions for the family of published runs most like a plan."""

    strategy: str
    """Strategy of the predictions."""
    family: str
    """The family of the most similar published runs."""
    n: int
    """Scored runs."""
    median_ape: float
    """Median of the absolute relative errors."""
    p90_ape: float
    """90th percentile of the absolute relative errors."""
    baseline_median_ape: float
    """The same median of one constant efficiency."""
    held_out_p90_ape: float
    """The 90th percentile for runs left out of the fit."""
    likeness: str = ""
    """Differences between the family and the plan, in words."""
    unlikeness: float = 0.0
    """The differences in points (`likeness.unlikeness`)."""
    step_time_error: float = 0.0
    """Half-width of the 90 % band of the plan's step time, as a fraction (`prediction.bands`)."""
    unshared_error: float = 0.0
    """The part of it that remains in the ratio of two runs of one machine."""


@dataclass(frozen=True, slots=True)
class ResiliencePoint:
    """Step time with one device that computes `severity` times as long."""

    severity: float
    """How many times as slow the device is."""
    step_time_s: float
    """Time of the step."""


@dataclass(frozen=True, slots=True)
class Resilience:
    """Step times of a candidate with one slow device; the first point is without."""

    label: str
    """The candidate."""
    rank: int
    """The slow rank."""
    points: tuple[ResiliencePoint, ...]


@dataclass(frozen=True, slots=True)
class Perturbed:
    """The perturbations of a run, and the step time without them."""

    text: str
    unperturbed_step_time_s: float
    draws_s: tuple[float, ...]
    """Step times of all draws, ascending."""
    tasks: int
    """Tasks of the unfolded graph."""
    note: str = ""
    run: FailedRun | None = None
    """The whole run through failures, if the question has any."""
