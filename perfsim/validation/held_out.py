"""Runs predicted with constants that were fitted without them, from whose errors bands are made.

GPU runs are left out by family (`leave_out`), wafer logs by software release. Five wafer logs are too few for
a percentile, so the half-width of their 90 % band is Student's, from their root mean square error r:
t_95(n) r sqrt(1 + 1/n).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from perfsim.catalog import Catalog, default_catalog
from perfsim.errors import PerfsimError
from perfsim.fitting.wafer_fit import leave_releases_out
from perfsim.published.cases import StepCase
from perfsim.published.placed_cases import place_case
from perfsim.published.processes import mapped
from perfsim.published.rows import step_cases
from perfsim.validation.band_fit import LeftOutRun, student_quantile
from perfsim.validation.case_bands import WAFER, groups_of
from perfsim.validation.family_traits import traits_of_case
from perfsim.validation.leave_out import ALL, LeftOut, Tangent, leave_out, outside_scores, tangent
from perfsim.validation.score import Scored, summary
from perfsim.validation.validate import scored_case

STREAMING = "weight-streaming"
FEWEST = 8
"""Runs that a 90th percentile needs."""


@dataclass(frozen=True)
class HeldOut:
    """The runs of a file, each left out of the fit."""

    scores: Mapping[str, Mapping[str, Any]]
    """By family, and over all runs under `ALL`."""
    runs: tuple[LeftOutRun, ...]
    constants: Mapping[str, Mapping[str, Any]]
    """By group left out: the `calibration` of its device, and the `constants` that the other groups give."""


def held_out(path: Path, rows: Sequence[LeftOut] = ()) -> HeldOut:
    """Scores of a file of step-time cases, each left out of its fit; takes minutes, needs scipy.

    `rows` are those of `leave_out` over the runs of the file, where they are known already.
    """
    catalog = default_catalog()
    cases = step_cases(path, catalog)
    if any(case.strategy == STREAMING for case in cases):
        return _wafers(path, cases, catalog)
    rows = rows or _rows(path, catalog)
    outside = outside_scores(rows)
    scores = {**outside["families"], ALL: outside["summary"]}
    constants = {
        row.family: {"calibration": row.calibration, "constants": row.constants}
        for row in rows
        if row.family != ALL
    }
    groups = {run.id: row.family for row in rows if row.family != ALL for run in row.runs}
    return HeldOut(scores, _runs(rows[-1].runs, cases, groups, catalog), constants)


def releases_left_out(path: Path, catalog: Catalog) -> dict[str, Any] | None:
    """Each scored wafer log predicted without the logs of its release; None for a file without wafers."""
    logs = [case for case in step_cases(path, catalog) if case.scored and case.strategy == STREAMING]
    if not logs:
        return None
    predicted, _ = leave_releases_out(path, WAFER, catalog)
    scored = [scored_case(case, predicted.get(case.id)) for case in logs]
    return {
        "by": "release",
        "summary": _band_of_few(scored),
        "families": _by_family(scored),
        "cases": [run.as_dict() for run in scored],
    }


def left_out(path: Path) -> dict[str, Any]:
    """Scores of a file of step-time cases, each predicted by a fit without it; takes minutes, needs scipy.

    GPU runs are left out `by` family, wafer logs by release: `summary`, `families` and `cases`; of GPU runs
    also `dense` and `experts`, where some have them. Of a file with both, the scores of the logs stand under
    `wafers`.
    """
    catalog = default_catalog()
    wafers = releases_left_out(path, catalog)
    if wafers is not None and all(case.strategy == STREAMING for case in step_cases(path, catalog)):
        return wafers
    scores = outside_scores(_rows(path, catalog))
    return scores if wafers is None else {**scores, "wafers": wafers}


def _rows(path: Path, catalog: Catalog) -> list[LeftOut]:
    cases = step_cases(path, catalog)
    tangents = mapped(partial(_tangent, catalog=catalog), cases)
    return leave_out([run for run in tangents if run is not None], cases, catalog)


def _tangent(case: StepCase, catalog: Catalog) -> Tangent | None:
    if not case.scored:
        return None
    try:
        return tangent(place_case(case, catalog), scored_case(case, None))
    except PerfsimError:
        return None


def _runs(
    scored: Sequence[Scored], cases: Sequence[StepCase], groups: Mapping[str, str], catalog: Catalog
) -> tuple[LeftOutRun, ...]:
    """The runs that were predicted without their group, which `groups` gives by id."""
    by_id = {case.id: case for case in cases}
    runs = []
    for run in scored:
        case = by_id[run.id]
        traits = traits_of_case(case, catalog)
        if run.counts and run.predicted_s is not None and traits is not None:
            error = float(np.log(run.predicted_s / run.measured_s))
            runs.append(LeftOutRun(groups[run.id], case.family, error, traits))
    return tuple(runs)


def _wafers(path: Path, cases: tuple[StepCase, ...], catalog: Catalog) -> HeldOut:
    predicted, calibrations = leave_releases_out(path, WAFER, catalog)
    scored = [scored_case(case, predicted.get(case.id)) for case in cases]
    constants = {
        release: {"calibration": WAFER, "constants": {"efficiency": calibration.efficiency[release]}}
        for release, calibration in calibrations.items()
    }
    groups = {case.id: groups_of(case, catalog)[0] for case in cases}
    return HeldOut(
        {**_by_family(scored), ALL: _band_of_few(scored)}, _runs(scored, cases, groups, catalog), constants
    )


def _by_family(scored: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    return {
        family: summary([run for run in scored if run.family == family])
        for family in dict.fromkeys(run.family for run in scored if run.counts)
    }


def _band_of_few(scored: Sequence[Scored]) -> dict[str, Any]:
    """The summary; for few runs with Student's half-width if it is wider than the percentile."""
    figures = summary(scored)
    errors = np.array([run.error for run in scored if run.counts and run.error is not None])
    count = len(errors)
    if 0 < count < FEWEST:
        width = student_quantile(count) * float(np.sqrt(np.mean(errors**2)))
        figures["p90_ape"] = max(figures["p90_ape"], width)
    return figures
