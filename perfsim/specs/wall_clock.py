"""What lengthens a run of healthy steps, as ranges: slower steps in production, and waits besides the steps.

Waits (queue, compilation, loading, checkpoints, failures) are read from `hardware/wall_clocks/*.yaml` and
named by a study's candidate; without one only the steps count. `perfsim.convergence.wall_clock` converts a
description into seconds.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import model_validator

from perfsim.base.sizes import MOST_PARTS
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


class SlowingRange(Range[Annotated[float, *number(1, 1e6)]]):
    """A factor on the time of steps that varies between runs."""


class ProductionRange(Range[Ratio]):
    """The ratio of a production rate to the predicted rate of healthy steps."""

    source: str = "given by the study"


class WallClockSpec(CatalogSpec):
    """Waiting times of a run on one kind of machine besides its steps; an absent part is zero."""

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
    checkpoint_bytes: BytesPerParameter = 12.0
    """Bytes per parameter of a checkpoint: fp32 weights and two moments."""
    checkpoint_every: Annotated[int, *number(1, MOST_PARTS)] | Literal["young"] = "young"
    """Steps between two checkpoints; young: the optimal interval, sqrt(2 write MTTF)."""
    failures_per_node_day: NumberRange | None = None
    """Per GPU node, or per wafer-scale system."""
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

    @model_validator(mode="after")
    def _is_complete(self) -> WallClockSpec:
        failing = self.failures_per_node_day is not None and self.failures_per_node_day.typical > 0
        if self.checkpoint_rate is not None and self.checkpoint_every == "young" and not failing:
            raise ValueError(
                "checkpoint_every young needs failures_per_node_day above 0: write them, or a number of steps"
            )
        if self.spares is not None and (self.repair is None or self.failures_per_node_day is None):
            raise ValueError("spares: write repair and failures_per_node_day as well")
        return self
