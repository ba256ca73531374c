"""Where a machine stops scaling, and what of a step is to blame.

Perfect scaling keeps the device-seconds that a token costs. What they grow by, cause by cause, is what
scaling loses; the knee is the first number of devices that loses a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfsim.prediction.streaming_why import HIDES
from perfsim.sweep.runner import PointResult
from perfsim.sweep.scaling import Series

KNEE = 0.9
"""Share of the ideal under which a machine no longer scales."""
FIXED = "weights over the mesh"


@dataclass(frozen=True)
class Scaling:
    """How the tokens a second of one series grow with its devices."""

    series: Series

    @property
    def first(self) -> PointResult:
        return self.series.points[0]

    @property
    def last(self) -> PointResult:
        return self.series.points[-1]

    @property
    def knee(self) -> PointResult | None:
        """The first point that falls under nine tenths of the ideal; None where none does."""
        return next((each for each in self.series.points if self.efficiency(each) < KNEE), None)

    def speedup(self, each: PointResult) -> float:
        """Tokens a second over those of the smallest machine."""
        return float(each.answer["tokens_per_s"] / self.first.answer["tokens_per_s"])

    def efficiency(self, each: PointResult) -> float:
        """Speed-up over that of perfect scaling."""
        return self.speedup(each) * self.first.point.num_devices / each.point.num_devices

    def losses(self, each: PointResult) -> dict[str, float]:
        """What the device-seconds of a token grew by since the smallest machine, as shares; largest first."""
        before, after = cost_of_token(self.first), cost_of_token(each)
        grown = {cause: seconds - before.get(cause, 0.0) for cause, seconds in after.items()}
        whole = sum(after.values()) - sum(before.values())
        shares = {cause: seconds / whole for cause, seconds in grown.items() if seconds > 0 < whole}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


def scalings(series: list[Series]) -> list[Scaling]:
    """The series that have several numbers of devices."""
    return [Scaling(each) for each in series if len(each.points) > 1]


def parts_of(each: PointResult) -> dict[str, float]:
    """Seconds of a step by cause, the passage of weights over a mesh apart from other computing."""
    parts: dict[str, float] = dict(each.answer["why"]["parts_s"])
    fixed_s = each.answer["why"]["fixed_s"]
    if not fixed_s:
        return parts
    first = {"compute": parts.pop("compute") - fixed_s, FIXED: fixed_s}
    return {**first, **parts}


def cost_of_token(each: PointResult) -> dict[str, float]:
    """Device-seconds of one token by cause."""
    scale = each.point.num_devices / each.answer["batch_tokens"]
    return {cause: seconds * scale for cause, seconds in parts_of(each).items()}


def knee_sentence(scaling: Scaling) -> str:
    """How far a series scales, and why no further."""
    name = scaling.series.circumstance or scaling.series.label
    first, last, knee = scaling.first, scaling.last, scaling.knee
    devices = f"{first.point.num_devices:,} to {last.point.num_devices:,} x {scaling.series.system}"
    reached = f"{scaling.speedup(last):,.3g} times the tokens a second"
    share = f"{100 * scaling.efficiency(last):.0f} % of the ideal"
    head = f"{name}: from {devices} {reached}, {share}{_in_time(scaling)}"
    if knee is None:
        return f"{head}; no knee."
    at_knee = 100 * scaling.efficiency(knee)
    blame = " and ".join(f"{cause} ({100 * part:.0f} %)" for cause, part in _heavy(scaling.losses(knee)))
    text = f"{head}; the knee is at {knee.point.num_devices:,} ({at_knee:.0f} %): lost to {blame}"
    roof = knee.answer["why"]["streaming_roof"]
    if roof is not None and roof["hidden_from_tokens"]:
        text += (
            f"; a system has {roof['tokens']:,.0f} tokens at once there, and "
            f"{roof['hidden_from_tokens']:,.0f} hide {HIDES[roof['lane']]}"
        )
    return f"{text}."


def _in_time(scaling: Scaling) -> str:
    """What is left of it at the target, where a batch that grows wastes tokens."""
    share = scaling.series.efficiency(scaling.last)
    if abs(share - scaling.efficiency(scaling.last)) < 0.05:
        return ""
    return f" ({100 * share:.0f} % in time to the target, since the larger batch needs more tokens)"


def _heavy(losses: dict[str, float]) -> list[tuple[str, float]]:
    """The largest loss, and the second where it is a fifth of all."""
    return [item for index, item in enumerate(losses.items()) if index == 0 or (index == 1 and item[1] > 0.2)]
