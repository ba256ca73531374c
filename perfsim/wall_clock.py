"""What a run waits for besides its steps, as ranges: queue, compilation, loading, checkpoints, failures.

Read from `hardware/wall_clocks/*.yaml`; a study's candidate names one, and without it a run is its steps.
`perfsim.convergence.wall_clock` turns a description into seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from perfsim.hardware import CatalogSpec, Spec
from perfsim.units import BytesPerSecond, Seconds

Positive = Annotated[float, Field(gt=0)]


class SecondsRange(Spec):
    """A duration that was seen to vary."""

    low: Seconds
    typical: Seconds
    high: Seconds

    @model_validator(mode="after")
    def _in_order(self) -> SecondsRange:
        _ordered(self.low, self.typical, self.high)
        return self


class RateRange(Spec):
    """Bytes a second that were seen to vary."""

    low: Annotated[BytesPerSecond, Field(gt=0)]
    typical: Annotated[BytesPerSecond, Field(gt=0)]
    high: Annotated[BytesPerSecond, Field(gt=0)]

    @model_validator(mode="after")
    def _in_order(self) -> RateRange:
        _ordered(self.low, self.typical, self.high)
        return self


class NumberRange(Spec):
    """A plain number that was seen to vary."""

    low: Annotated[float, Field(ge=0)]
    typical: Annotated[float, Field(ge=0)]
    high: Annotated[float, Field(ge=0)]

    @model_validator(mode="after")
    def _in_order(self) -> NumberRange:
        _ordered(self.low, self.typical, self.high)
        return self


def _ordered(low: float, typical: float, high: float) -> None:
    if not low <= typical <= high:
        raise ValueError(f"low {low:g}, typical {typical:g} and high {high:g} must be in this order")


class WallClockSpec(CatalogSpec):
    """What a run on one kind of machine waits for besides its steps; a part that is left out is none."""

    queue: SecondsRange | None = None
    """Until the machine is free."""
    compile: SecondsRange | None = None
    """Of the model; the low end where it was compiled before."""
    load: SecondsRange | None = None
    """Programme on the machine and first step, weights apart; paid again at each restart."""
    weight_rate: RateRange | None = None
    """At which the first weights reach the machine, and those of a checkpoint at each restart."""
    weight_bytes: Positive = 4.0
    """Bytes a parameter of the weights that are sent."""
    checkpoint_rate: RateRange | None = None
    """At which training stands still while a checkpoint is written."""
    checkpoint_bytes: Positive = 12.0
    """Bytes a parameter of a checkpoint: fp32 weights and two moments."""
    checkpoint_every: PositiveInt | Literal["young"] = "young"
    """Steps between two checkpoints; young: the interval that loses least, sqrt(2 write MTTF)."""
    failures_per_node_day: NumberRange | None = None
    """Of one node of GPUs, or of one wafer-scale system."""
    restart: SecondsRange | None = None
    """From a failure until training goes on, loading apart."""
    stragglers: NumberRange | None = None
    """Step time with stragglers over without, one factor a run."""
    teardown: SecondsRange | None = None
    """After the last step."""

    @model_validator(mode="after")
    def _interval_can_be_found(self) -> WallClockSpec:
        failing = self.failures_per_node_day is not None and self.failures_per_node_day.typical > 0
        if self.checkpoint_rate is not None and self.checkpoint_every == "young" and not failing:
            raise ValueError(
                "checkpoint_every young needs failures_per_node_day above 0: write them, or a number of steps"
            )
        return self
