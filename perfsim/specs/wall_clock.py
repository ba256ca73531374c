"""What lengthens a run of healthy steps, as ranges: slower steps in production, and waits besides steps."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import Field, model_validator

from perfsim.base.sizes import MOST_CHOICES, MOST_DEVICES, MOST_PARTS
from perfsim.base.spec import CatalogSpec, Spec
from perfsim.base.units import BytesPerSecond, Seconds, number

Ratio = Annotated[float, *number(1e-3, 2)]
Factor = Annotated[float, *number(0, 1e6)]
BytesPerParameter = Annotated[float, *number(1e-3, 1e3)]
Value = TypeVar("Value", bound=float)


class Range(Spec, Generic[Value]):
    """A value that varies between runs."""

    low: Value
    typical: Value
    high: Value

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.typical <= self.high:
            raise ValueError(
                f"low {self.low:g}, typical {self.typical:g} and high {self.high:g} must be in this order"
            )
        return self


class SecondsRange(Range[Seconds]):
    """A duration that varies between runs."""


class RateRange(Range[BytesPerSecond]):
    """A rate in bytes per second that varies between runs."""


class NumberRange(Range[Factor]):
    """A plain number that varies between runs."""


class SlowingRange(NumberRange):
    """A factor on the time of steps that varies between runs."""

    low: Annotated[float, *number(1, 1e6)]


class ProductionRange(Range[Ratio]):
    """The ratio of a production rate to the predicted rate of healthy steps."""

    source: str = "given by the study"


Every = Annotated[int, *number(1, MOST_PARTS)] | Literal["young"]


class FailureDomain(Spec):
    """Units of a machine that fail as one: GPUs, nodes, racks, NVLink domains, wafers."""

    name: str
    devices: Annotated[int, *number(1, MOST_DEVICES)] | None = None
    """Devices of a unit; None: a GPU node, or a wafer-scale system."""
    failures_per_day: NumberRange
    """Of one unit."""
    restart: SecondsRange | None = None
    """From a failure until training resumes, without loading."""
    repair: SecondsRange | None = None
    """Until its nodes are ready again, for each of which one of `spares` stands in; None: none is lost."""


class CheckpointTier(Spec):
    """A copy of the training state that is nearer than checkpoints, and the failures that leave it whole."""

    name: str
    node_rate: RateRange | None = None
    """Of each node or system, for writing, during which training stops, and for reading; None: no time."""
    copy_rate: RateRange | None = None
    """As `checkpoint_copy_rate`."""
    every: Every = "young"
    """Steps between two copies; young: the optimal interval."""
    survives: Annotated[tuple[FailureDomain, ...], Field(max_length=MOST_CHOICES)] = ()
    """After all other failures a run begins again from a farther copy."""


class WallClockSpec(CatalogSpec):
    """Waiting times of a run on one kind of machine besides its steps; an absent part is zero."""

    system_kind: Literal["gpu-cluster", "wafer-cluster"] | None = None
    """The kind of system whose waits these are; None: of any."""
    queue: SecondsRange | None = None
    """Until the machine is free."""
    compile: SecondsRange | None = None
    """Compilation of the model; the low end applies if it was compiled before."""
    load: SecondsRange | None = None
    """Loading the program up to the first step, without weights; repeated at each restart."""
    weight_rate: RateRange | None = None
    """Rate of sending the first weights, and the weights of a checkpoint at each restart."""
    weight_bytes: BytesPerParameter = 4.0
    """Bytes per parameter of the weights that are sent."""
    checkpoint_rate: RateRange | None = None
    """Rate of writing a checkpoint, during which training stops."""
    checkpoint_copy_rate: RateRange | None = None
    """Of each node or system, for a copy to host memory, in which alone training stops; it is written in the
    background, and a restart reads the newest that is complete."""
    checkpoint_bytes: BytesPerParameter = 12.0
    """Bytes per parameter of a checkpoint: fp32 weights and two moments."""
    checkpoint_every: Every = "young"
    """Steps between two checkpoints; young: the optimal interval, sqrt(2 write MTTF)."""
    tiers: Annotated[tuple[CheckpointTier, ...], Field(max_length=MOST_CHOICES)] = ()
    """Nearer copies, nearest first."""
    failures_per_node_day: NumberRange | None = None
    """Per GPU node, or per wafer-scale system."""
    domains: Annotated[tuple[FailureDomain, ...], Field(max_length=MOST_CHOICES)] = ()
    """What fails besides nodes or systems, and leaves nothing but checkpoints."""
    restart: SecondsRange | None = None
    """From a failure until training resumes, without loading."""
    spares: Annotated[int, *number(0, 10_000)] | None = None
    """Nodes or systems held ready to replace one that failed; None: there is always one."""
    repair: SecondsRange | None = None
    """Until a unit that failed is ready again; with `spares`."""
    evaluation: NumberRange | None = None
    """Time of the evaluations during a run over the time of its steps."""
    stragglers: SlowingRange | None = None
    """Ratio of step times with and without stragglers, one factor per run."""
    teardown: SecondsRange | None = None
    """After the last step."""

    @property
    def copies(self) -> tuple[CheckpointTier, ...]:
        """All tiers, nearest first; the last, without a name, are the checkpoints."""
        domains = self.domains
        if (rate := self.failures_per_node_day) is not None:
            own = {"restart": self.restart, "repair": self.repair}
            domains = (FailureDomain(name="node", failures_per_day=rate, **own), *domains)
        rates = {"node_rate": self.checkpoint_rate, "copy_rate": self.checkpoint_copy_rate}
        last = CheckpointTier(name="", every=self.checkpoint_every, survives=domains, **rates)
        return *self.tiers, last

    @model_validator(mode="after")
    def _is_complete(self) -> WallClockSpec:
        failing = [domain for tier in self.copies for domain in tier.survives]
        is_failing = any(domain.failures_per_day.typical for domain in failing)
        if self.checkpoint_rate is not None and self.checkpoint_every == "young" and not is_failing:
            raise ValueError(
                "checkpoint_every young needs failures_per_node_day above 0: write them, or a number of steps"
            )
        of_failures = dict.fromkeys(("restart", "repair"), "failures_per_node_day")
        for name, read_with in {"weight_bytes": "weight_rate", **of_failures}.items():
            usual = type(self).model_fields[name].default
            if getattr(self, name) != usual and getattr(self, read_with) is None:
                raise ValueError(f"{name} has no effect without {read_with}: write that as well")
        if self.spares is not None and not any(domain.repair for domain in failing):
            raise ValueError("spares: write repair and failures_per_node_day as well")
        for tier in self.tiers:
            if tier.node_rate is None and tier.every == "young":
                raise ValueError(f"tiers: {tier.name} takes no time: write every how many steps it is made")
        if any(tier.copy_rate and tier.node_rate is None for tier in self.copies):
            raise ValueError("a copy rate: write at which rate it goes on in the background as well")
        return self
