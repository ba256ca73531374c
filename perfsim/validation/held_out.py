"""Errors of runs predicted with constants that were fitted without them, from which bands are taken.

GPU runs are left out by family (`leave_out`), wafer logs by software release. Five wafer logs are too few for
a percentile, so the half-width of their 90 % band is Student's, from their root mean square error r:
t_95(n) r sqrt(1 + 1/n).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.catalog import Catalog, default_catalog, parse_file
from perfsim.errors import PerfsimError
from perfsim.fitting.fit_tables import scipy_stats
from perfsim.fitting.wafer_fit import leave_releases_out
from perfsim.prediction.accuracy import FEWEST
from perfsim.published.cases import CaseFile, StepCase
from perfsim.published.placed_cases import place_case
from perfsim.published.processes import mapped
from perfsim.validation.leave_out import ALL, Tangent, leave_out, tangent
from perfsim.validation.score import Scored, summary
from perfsim.validation.validate import scored_case

WAFER = "wse-2"
"""The wafer whose constants are fitted to the public logs."""

HeldOut = dict[str, Mapping[str, Any]]
"""Scores by family, and over all runs under `ALL`."""


def held_out(path: Path, catalog: Catalog | None = None) -> HeldOut:
    """Scores of a file of step-time cases, each left out of its fit; takes minutes, needs scipy."""
    catalog = catalog or default_catalog()
    cases = parse_file(path, CaseFile, catalog).cases
    if any(case.strategy == "weight-streaming" for case in cases):
        return _wafers(path, cases, catalog)
    tangents = mapped(partial(_tangent, catalog=catalog), cases)
    rows = leave_out([run for run in tangents if run is not None], cases, catalog)
    return {row.family: row.outside for row in rows}


def releases_left_out(path: Path, catalog: Catalog | None = None) -> dict[str, Any] | None:
    """Each scored wafer log predicted without the logs of its release; None for a file without wafers."""
    catalog = catalog or default_catalog()
    cases = parse_file(path, CaseFile, catalog).cases
    if not any(case.strategy == "weight-streaming" and case.scored for case in cases):
        return None
    predicted = leave_releases_out(path, WAFER, catalog)
    scored = [scored_case(case, predicted.get(case.id)) for case in cases if case.scored]
    rows = [
        {"id": run.id, "measured_s": run.measured_s, "predicted_s": run.predicted_s, "error": run.error}
        for run in scored
    ]
    return {"summary": _band_of_few(scored), "cases": rows}


def add_releases_left_out(paths: Sequence[Path], results: Sequence[dict[str, Any]]) -> bool:
    """Add `left_out` to the result of each file of wafer logs; returns whether all files are such."""
    for path, result in zip(paths, results, strict=True):
        left_out = releases_left_out(path) if result["kind"] == "step_time" else None
        if left_out is not None:
            result["left_out"] = left_out
    return all("left_out" in result for result in results)


def _tangent(case: StepCase, catalog: Catalog) -> Tangent | None:
    if not case.scored:
        return None
    try:
        return tangent(place_case(case, catalog), scored_case(case, None))
    except PerfsimError:
        return None


def _wafers(path: Path, cases: tuple[StepCase, ...], catalog: Catalog) -> HeldOut:
    predicted = leave_releases_out(path, WAFER, catalog)
    scored = [scored_case(case, predicted.get(case.id)) for case in cases]
    rows: HeldOut = {
        family: summary([run for run in scored if run.family == family])
        for family in dict.fromkeys(run.family for run in scored if run.counts)
    }
    return {**rows, ALL: _band_of_few(scored)}


def _band_of_few(scored: Sequence[Scored]) -> dict[str, Any]:
    """The summary; for few runs with Student's half-width if it is wider than the percentile."""
    figures = summary(scored)
    errors = np.array([run.error for run in scored if run.counts and run.error is not None])
    count = len(errors)
    if 0 < count < FEWEST:
        stats: Any = scipy_stats()
        rms = float(np.sqrt(np.mean(errors**2)))
        width = float(stats.t.ppf(0.95, count)) * rms * float(np.sqrt(1 + 1 / count))
        figures["p90_ape"] = max(figures["p90_ape"], width)
    return figures
