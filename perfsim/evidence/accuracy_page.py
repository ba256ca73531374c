"""The content of the accuracy page: scores, ablation, and families left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from perfsim.base.errors import PerfsimError
from perfsim.catalog import Catalog, default_catalog
from perfsim.costs.wafer import WaferCosts
from perfsim.evidence.ablation import REMOVALS, without_each
from perfsim.evidence.cases import CaseRows, StepCase, mapped
from perfsim.evidence.left_out import LeavingOut, LeftOut, Tangent
from perfsim.evidence.score import Scored


@dataclass(frozen=True)
class _Priced:
    """A run on GPUs with its step time by removed mechanism."""

    case: StepCase
    steps_s: Mapping[str, float]
    tangent: Tangent | None
    """For fits that leave its family out; None if not requested."""


@dataclass(frozen=True)
class Removed:
    """The score of the public GPU runs without one mechanism."""

    mechanism: str
    instead: str
    """What replaces it."""
    summary: Mapping[str, Any]
    left_out: Mapping[str, Any]
    """The score of runs by a new fit without the mechanism and their family; empty if not requested."""


@dataclass(frozen=True)
class StepAccuracy:
    """The score of a file of step-time cases and its explanation."""

    result: Mapping[str, Any]
    removed: Sequence[Removed]
    leaving: Sequence[LeavingOut] = ()
    """Its runs as predicted without their family or release; empty if not requested."""

    @classmethod
    def of(
        cls, cases: Sequence[StepCase], result: Mapping[str, Any], catalog: Catalog, *, leaves_out: bool
    ) -> StepAccuracy:
        """Explain the score of some step-time cases."""
        parts = mapped(partial(_examine, catalog=catalog, leaves_out=leaves_out), cases)
        on_gpus = [part for part in parts if part is not None]
        tangents = [part.tangent for part in on_gpus if part.tangent is not None]
        removed = _removed(on_gpus, tangents)
        leaving = LeavingOut.by_kind(cases, catalog, tangents) if leaves_out else []
        return cls(result, removed, leaving)

    @property
    def outside(self) -> Mapping[str, Any] | None:
        """`left_out` of the JSON document; None if not requested."""
        return LeavingOut.document(self.leaving)

    @property
    def left_out(self) -> list[LeftOut]:
        """Families of runs on GPUs, then all of them together."""
        return [row for part in self.leaving if part.by == "family" for row in part.rows]

    @property
    def models_left_out(self) -> Mapping[str, Any] | None:
        """Wafer logs predicted without their model."""
        return next((part.as_dict() for part in self.leaving if part.by == "model"), None)


def accuracy_of(
    paths: Sequence[Path], results: Sequence[Mapping[str, Any]], *, leaves_out: bool
) -> list[StepAccuracy]:
    """The files of step times among `results`, as from `validate_file` for `paths`; takes minutes.

    Raises CatalogError for a malformed file, and InputError for `leaves_out` without SciPy.
    """
    catalog = default_catalog()
    return [
        StepAccuracy.of(CaseRows.read(path, StepCase, catalog).cases, result, catalog, leaves_out=leaves_out)
        for path, result in zip(paths, results, strict=True)
        if result["kind"] == "step_time"
    ]


def _examine(case: StepCase, catalog: Catalog, *, leaves_out: bool) -> _Priced | None:
    """A run without each mechanism; None on wafers, and if it cannot be predicted."""
    try:
        placed = case.placed(catalog)
        if isinstance(placed.costs, WaferCosts):
            return None
        tangent = Tangent.of(placed) if leaves_out and case.scored else None
        return _Priced(case, without_each(placed), tangent)
    except PerfsimError:
        return None


def _removed(on_gpus: Sequence[_Priced], tangents: Sequence[Tangent]) -> list[Removed]:
    """The score of the GPU cases with and without each mechanism; with `tangents` also after a new fit."""
    rows = []
    for removal in REMOVALS if on_gpus else ():
        runs = [Scored.of(part.case, part.steps_s[removal.key]) for part in on_gpus]
        left_out = Scored.scores(Tangent.refitted(tangents, runs, removal.constants)) if tangents else {}
        rows.append(Removed(removal.key, removal.instead, Scored.scores(runs), left_out))
    return rows
