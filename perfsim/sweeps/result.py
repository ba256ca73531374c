"""The result of a sweep: every point in the order of the grid, with the comparisons between them."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from perfsim.prediction.result import SharedCaveat
from perfsim.prediction.shared_caveats import shared_caveats
from perfsim.studies.digests import Digests
from perfsim.studies.result import Assumption
from perfsim.sweeps.analysis import Analysis
from perfsim.sweeps.points import PointResult
from perfsim.sweeps.verdict import sweep_verdict


@dataclass(frozen=True)
class SweepResult:
    """Every point of a grid, in the grid's order."""

    name: str
    """Name of the sweep."""
    title: str
    """Title of the page."""
    question: str
    """What is asked."""
    study: str
    """Name of the study that the grid varies."""
    points: tuple[PointResult, ...]
    assumptions: tuple[Assumption, ...] = ()
    asked: str = ""
    """The name or path by which it was read; empty for one that was not read from a file."""

    @property
    def command(self) -> str:
        """The command line that answers the same."""
        return shlex.join(["perfsim", "sweep", self.asked or self.name])

    @property
    def feasible(self) -> tuple[PointResult, ...]:
        return self.analysis.feasible

    @cached_property
    def analysis(self) -> Analysis:
        """Series, changes and matches of the points; computed once."""
        return Analysis(self.points)

    @cached_property
    def inputs_digest(self) -> str:
        """SHA-256 of the digests of all points."""
        digests = Digests()
        own = "".join(digests.of(point.point.study) for point in self.points)
        return hashlib.sha256(own.encode()).hexdigest()

    @cached_property
    def caveats(self) -> tuple[SharedCaveat, ...]:
        """The caveats of all points, each once, worst first."""
        return shared_caveats([point.prediction for point in self.feasible])

    @cached_property
    def verdict(self) -> str:
        """The sentences that answer the sweep's question."""
        return sweep_verdict(self.analysis, self.caveats)

    def head(self) -> dict[str, Any]:
        """What a document says beside the points."""
        return {
            "sweep": self.name,
            "title": self.title,
            "question": self.question,
            "study": self.study,
            "command": self.command,
            "inputs_digest": self.inputs_digest,
            "caveats": [asdict(caveat) for caveat in self.caveats],
        }

    def as_dict(self) -> dict[str, Any]:
        """The result as one document, independent of which points were already stored."""
        return {**self.head(), "points": [point.as_dict() for point in self.points]}
