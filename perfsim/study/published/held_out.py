"""How well runs are predicted by constants that were fitted without them: what a band may claim.

GPU families are left out whole (`leave_out`); wafer logs, of which there are five, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from perfsim.catalog import Catalog, default_catalog, parse_file
from perfsim.errors import PerfsimError
from perfsim.study.fitting.wafer_fit import leave_one_out
from perfsim.study.processes import mapped
from perfsim.study.published.case_graphs import write_case
from perfsim.study.published.cases import CaseFile, StepCase
from perfsim.study.published.leave_out import ALL, Tangent, leave_out, tangent
from perfsim.study.published.score import summary
from perfsim.study.published.validation import scored_case

WAFER = "wse-2"
"""The wafer whose constants the public logs decide."""

HeldOut = dict[str, Mapping[str, Any]]
"""Scores by family, and of all runs under `ALL`."""


def held_out(path: Path, catalog: Catalog | None = None) -> HeldOut:
    """Scores of a file of step-time cases, each family or log left out of the fit; minutes, needs scipy."""
    catalog = catalog or default_catalog()
    cases = parse_file(path, CaseFile, catalog).cases
    if any(case.strategy == "weight-streaming" for case in cases):
        return _wafers(path, cases, catalog)
    tangents = [each for each in mapped(partial(_tangent, catalog=catalog), cases) if each is not None]
    return {row.family: row.outside for row in leave_out(tangents, cases, catalog)}


def _tangent(case: StepCase, catalog: Catalog) -> Tangent | None:
    if not case.scored:
        return None
    try:
        return tangent(write_case(case, catalog), scored_case(case, None))
    except PerfsimError:
        return None


def _wafers(path: Path, cases: tuple[StepCase, ...], catalog: Catalog) -> HeldOut:
    predicted = leave_one_out(path, WAFER, catalog)
    scored = [scored_case(case, predicted.get(case.id)) for case in cases]
    rows: HeldOut = {
        family: summary([each for each in scored if each.family == family])
        for family in dict.fromkeys(each.family for each in scored if each.counts)
    }
    return {**rows, ALL: summary(scored)}
