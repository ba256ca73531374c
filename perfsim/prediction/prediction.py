"""What one question is answered with: plain values, and the run behind them where it is at hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfsim.interop.chrome import StepTrace
from perfsim.prediction.evaluation import Evaluation
from perfsim.prediction.result import Perturbed, Why


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """What one pipeline stage or one wafer holds at its peak, part by part."""

    place: str
    parts_bytes: Mapping[str, float]
    """Part name (parameters, gradients, optimizer, activations, ...) to bytes, in drawing order."""
    capacity_bytes: float

    @property
    def total_bytes(self) -> float:
        """All parts together."""
        return sum(self.parts_bytes.values())


@dataclass(frozen=True, slots=True)
class Scaling:
    """The user's own measurements, by which step times were multiplied."""

    name: str
    scale: float
    note: str


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One optimizer step of one model on one machine."""

    model: str
    strategy: str
    system: str
    num_devices: int
    layout: Mapping[str, Any]
    """The settings of the layout by their names in YAML."""
    global_batch_size: int
    step_time_s: float
    tokens_per_s: float
    mfu: float
    """Model FLOPs over what all devices could do in the step; recomputed FLOPs do not count."""
    hfu: float
    """The same with recomputed FLOPs."""
    bubble_fraction: float
    exposed_communication_fraction: float
    peak_memory_bytes: float
    breakdown_s: Mapping[str, float]
    """Every second of the step: compute, exposed communication by kind, optimizer, bubble, ..."""
    why: Why
    cluster_calibration: Scaling | None = None
    perturbed: Perturbed | None = None
    memory: tuple[MemoryBar, ...] = ()
    """One entry a pipeline stage, or one for a wafer."""
    notes: tuple[str, ...] = ()
    evaluation: Evaluation | None = field(default=None, repr=False, compare=False)
    """The run that this was read from; None for a prediction that was stored."""

    @property
    def label(self) -> str:
        """`128 x dgx-a100-80gb, 3d`: how a person names this machine and strategy."""
        return f"{self.num_devices} x {self.system}, {self.strategy}"

    @property
    def memory_capacity_bytes(self) -> float:
        """Capacity of the place that holds most; NaN where memory was not kept."""
        fullest = max(self.memory, key=lambda bar: bar.total_bytes, default=None)
        return fullest.capacity_bytes if fullest is not None else math.nan

    @property
    def run(self) -> Evaluation:
        """The run behind the values. Raises ValueError for a stored prediction."""
        if self.evaluation is None:
            raise ValueError(f"{self.label}: the run of a stored prediction is not kept; predict it again")
        return self.evaluation

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to keep in mind with this step: its notes."""
        return self.notes

    @property
    def trace(self) -> StepTrace:
        """Start and end of every task of the step. Raises ValueError for a stored prediction."""
        return StepTrace(self.run.trace)
