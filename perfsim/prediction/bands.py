"""Bands of a step time: how wide they are by unlikeness, from errors on runs left out of the fit.

The log error of a new run has a part that its family shares and a part of its own, and grows with what makes
the run unlike the published ones. The half-width of a 90 % band in log time, at u points of unlikeness:

    w(u) = sqrt(base^2 + (slope u)^2 + unknown^2),   band = [t exp(-w), t exp(w)]

`base` and `slope` are the scale of errors on runs that were left out of the fit and its growth with u, times
the quantile of |log error| over that scale which holds 90 % of new runs (`perfsim.validation.band_fit`);
`base` is at least the same quantile of |log error| itself. For models with experts, whose errors are larger,
it is `experts` times as wide, so that the width holds 90 % of such runs.
`unknown` is the half-width of what no published run shows of this plan, such as more communication behind
compute than in any of them (`perfsim.prediction.accuracy`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

UNKNOWN_ERROR = 1.0
"""assumed: without published runs a step time is known to a factor of two."""


@dataclass(frozen=True)
class BandWidths:
    """Half-widths of 90 % bands in log time."""

    base: float
    """At no unlikeness."""
    slope: float
    """Per point of unlikeness, added in quadrature."""
    unshared: float
    """The part of a band that two runs of one machine do not share, as a fraction of its half-width."""
    experts: float = 1.0
    """How many times as wide the band of a model with experts is at no unlikeness."""

    def of_experts(self, factor: float) -> BandWidths:
        """The widths for a model with experts: at no unlikeness `factor` times as wide."""
        return replace(self, base=self.base * factor)

    def log_width(self, unlikeness: float, unknown: float = 0.0) -> float:
        """Half-width in log time at so many points of unlikeness, with that of what no run shows."""
        return math.hypot(self.base, self.slope * unlikeness, unknown)

    def error(self, unlikeness: float, unknown: float = 0.0) -> float:
        """The same as a relative error e: the band of a time t is [t / (1 + e), t (1 + e)]."""
        return math.expm1(self.log_width(unlikeness, unknown))

    def unshared_error(self, unlikeness: float, unknown: float = 0.0) -> float:
        """The relative error that remains in the ratio to another run of the same machine.

        `unknown` is the part of what no run shows that the two do not share.
        """
        return math.expm1(math.hypot(self.unshared * self.log_width(unlikeness), unknown))

    def as_dict(self) -> dict[str, float]:
        """The form of the record."""
        return {name: round(value, 5) for name, value in asdict(self).items()}


UNKNOWN = BandWidths(math.log1p(UNKNOWN_ERROR), 0.0, 1.0)
"""For a kind of system without published runs."""


def widths_from(record: Mapping[str, float]) -> BandWidths:
    """The widths of a record."""
    return BandWidths(**record)
