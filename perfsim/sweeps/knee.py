"""Where a machine stops scaling, and which part of a step is the cause.

With perfect scaling the device-seconds of a token stay constant; their growth is the loss, split by cause.
The knee is the first number of devices with a scaling efficiency under 90 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfsim.costs.streaming_roof import HIDES
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.scaling import Series

KNEE = 0.9
"""Scaling efficiency below which a machine no longer scales."""


@dataclass(frozen=True)
class Scaling:
    """How the throughput of one series grows with its devices."""

    series: Series

    @property
    def first(self) -> PointResult:
        """The smallest machine."""
        return self.series.points[0]

    @property
    def last(self) -> PointResult:
        """The largest machine."""
        return self.series.points[-1]

    @property
    def knee(self) -> PointResult | None:
        """The first point under 90 % scaling efficiency, if there is one."""
        return next((point for point in self.series.points if self.efficiency(point) < KNEE), None)

    def speedup(self, point: PointResult) -> float:
        """Throughput relative to the smallest machine."""
        return point.prediction.tokens_per_s / self.first.prediction.tokens_per_s

    def efficiency(self, point: PointResult) -> float:
        """Scaling efficiency in throughput, relative to the smallest machine."""
        return self.speedup(point) * self.first.num_devices / point.num_devices

    def losses(self, point: PointResult) -> dict[str, float]:
        """By cause, its share of the growth in device-seconds per token since the smallest machine.

        Largest first; causes that shrank are left out.
        """
        before, after = cost_of_token(self.first), cost_of_token(point)
        grown = {cause: seconds - before.get(cause, 0.0) for cause, seconds in after.items()}
        total = sum(after.values()) - sum(before.values())
        shares = {cause: seconds / total for cause, seconds in grown.items() if seconds > 0 < total}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    @property
    def sentence(self) -> str:
        """How far the series scales and what limits it."""
        return _sentence(self)


def scalings(series: Sequence[Series]) -> list[Scaling]:
    """The series with more than one number of devices."""
    return [Scaling(member) for member in series if len(member.points) > 1]


def cost_of_token(point: PointResult) -> dict[str, float]:
    """Device-seconds per token by cause."""
    scale = point.num_devices / point.target_time.batch_tokens
    return {cause: seconds * scale for cause, seconds in point.parts_s.items()}


def _sentence(scaling: Scaling) -> str:
    name = scaling.series.circumstance or scaling.series.label
    first, last, knee = scaling.first, scaling.last, scaling.knee
    head = (
        f"{name}: from {first.num_devices:,} to {last.machine}, throughput "
        f"grows {scaling.speedup(last):,.3g} times (scaling efficiency {_percent(scaling.efficiency(last))}"
        f"{_in_time(scaling)})"
    )
    if knee is None:
        return f"{head}; efficiency stays at {_percent(KNEE)} or more."
    causes = " and ".join(
        f"{cause} ({_percent(share)} of the loss)" for cause, share in _largest(scaling.losses(knee))
    )
    return (
        f"{head}; efficiency falls below {_percent(KNEE)} at {knee.num_devices:,} "
        f"({_percent(scaling.efficiency(knee))}), because of {causes}{_roof(knee)}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _in_time(scaling: Scaling) -> str:
    """The efficiency in time to the target, if a growing batch needs noticeably more tokens."""
    share = scaling.series.efficiency(scaling.last)
    if abs(share - scaling.efficiency(scaling.last)) < 0.05:
        return ""
    return f"; {_percent(share)} in time to the target, because the larger batch needs more tokens"


def _roof(point: PointResult) -> str:
    """How many tokens a micro-batch needs to hide streaming; empty on machines that stream nothing."""
    roof = point.prediction.why.streaming_roof
    if roof is None or not roof.hidden_from_tokens:
        return ""
    return (
        f"; a micro-batch has {roof.tokens:,.0f} tokens per system there, and hiding {HIDES[roof.lane]} "
        f"takes {roof.hidden_from_tokens:,.0f}"
    )


def _largest(losses: dict[str, float]) -> list[tuple[str, float]]:
    """The largest loss, and the second if it exceeds a fifth of the total."""
    return [item for index, item in enumerate(losses.items()) if index == 0 or (index == 1 and item[1] > 0.2)]
