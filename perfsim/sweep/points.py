"""A point of a sweep with its answer, or with the reasons why no plan is feasible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.prediction.result import StreamingRoof, Why
from perfsim.sweep.axes import BATCH_PATHS, VARIANT
from perfsim.sweep.grid import SweepPoint

Circumstances = tuple[tuple[str, str], ...]
"""Settings other than the batch, each value as text."""

OVER_MESH = "weights over the mesh"


@dataclass(frozen=True)
class PointResult:
    """A point with its answer, or with the reasons why it has none."""

    point: SweepPoint
    answer: Mapping[str, Any]
    reasons: tuple[str, ...] = ()
    time: TimeToAccuracy | None = field(default=None, compare=False)
    """What comparisons between points are made with."""

    @property
    def feasible(self) -> bool:
        return self.time is not None

    @property
    def target_time(self) -> TimeToAccuracy:
        """The time to the target; ValueError for a point without a feasible plan."""
        if self.time is None:
            raise ValueError(f"{self.point.label} has no feasible plan")
        return self.time

    @property
    def strategy(self) -> str:
        return self.point.candidate.strategy

    @property
    def system(self) -> str:
        return self.point.candidate.system.name

    @property
    def num_devices(self) -> int:
        return self.point.num_devices

    @property
    def variant(self) -> str:
        return self.point.variant

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.point.settings

    @property
    def circumstances(self) -> Circumstances:
        """The settings that are not a choice of the trainer: all but the batch."""
        return tuple(
            (path, setting_text(value)) for path, value in self.settings.items() if path not in BATCH_PATHS
        )

    @property
    def global_batch_size(self) -> int:
        return int(self.answer["global_batch_size"])

    @property
    def batch_text(self) -> str:
        """The global batch, or what the grid asked for where there is no plan; empty where it did not ask."""
        if self.feasible:
            return setting_text(self.global_batch_size)
        return next((setting_text(self.settings[path]) for path in BATCH_PATHS if path in self.settings), "")

    @property
    def batch_tokens(self) -> float:
        return float(self.answer["batch_tokens"])

    @property
    def step_time_s(self) -> float:
        return float(self.answer["step_time_s"])

    @property
    def tokens_per_s(self) -> float:
        return float(self.answer["tokens_per_s"])

    @property
    def mfu(self) -> float:
        return float(self.answer["mfu"])

    @property
    def layout(self) -> Mapping[str, Any]:
        layout: Mapping[str, Any] = self.answer["layout"]
        return layout

    @property
    def cluster_calibration(self) -> Mapping[str, Any] | None:
        return self.answer.get("cluster_calibration")

    @cached_property
    def why(self) -> Why:
        """Why the step takes as long as it does."""
        why = dict(self.answer["why"])
        roof = why.pop("streaming_roof")
        return Why(**why, streaming_roof=None if roof is None else StreamingRoof(**roof))

    @property
    def parts_s(self) -> dict[str, float]:
        """Seconds of a step by cause; the passage of weights over a wafer's mesh apart from computing."""
        parts, fixed_s = dict(self.why.parts_s), self.why.fixed_s
        if not fixed_s:
            return parts
        return {"compute": parts.pop("compute") - fixed_s, OVER_MESH: fixed_s, **parts}

    def as_dict(self) -> dict[str, Any]:
        """By the names of the JSON interface; `reasons` instead of metrics where no plan is feasible."""
        return {
            "strategy": self.strategy,
            "system": self.system,
            "num_devices": self.num_devices,
            "settings": dict(self.settings),
            "feasible": self.feasible,
            **(self.answer if self.feasible else {"reasons": list(self.reasons)}),
        }


def setting_text(value: Any) -> str:
    """A value of a grid as text."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def settings_text(settings: Circumstances) -> str:
    """`software_release r1.7`: each setting by the last part of its path, a variant by its name alone."""
    return ", ".join(
        value if path == VARIANT else f"{path.rpartition('.')[2]} {value}" for path, value in settings
    )
