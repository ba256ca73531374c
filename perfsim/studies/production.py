"""Time at the rate of published production runs, which are slower than healthy benchmark steps.

The ratio is a production run's published rate over the predicted rate of its healthy steps. It covers what
slows the steps of a long run (stragglers, other jobs on the network, data loading, logging) and the model's
own error on these runs. It does not cover queue, compilation, restarts after failures and lost work, which a
wall clock describes. All known runs are on GPUs; the ratio holds for every machine alike, so that it moves
no comparison.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median

from perfsim.studies.spec import CandidateSpec, StudySpec
from perfsim.wall_clock import ProductionRange

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
