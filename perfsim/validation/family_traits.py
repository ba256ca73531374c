"""Common traits of a family of published runs, recorded with their errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from perfsim.catalog import Catalog
from perfsim.errors import PerfsimError
from perfsim.prediction.likeness import Traits, traits_of_plan, traits_together
from perfsim.published.cases import StepCase
from perfsim.published.plans import case_plan
from perfsim.published.processes import mapped


def traits_of_case(case: StepCase, catalog: Catalog) -> Traits | None:
    """The traits of a published run; None if it cannot be planned."""
    try:
        return traits_of_plan(case_plan(case, catalog))
    except PerfsimError:
        return None


def family_traits(cases: Sequence[StepCase], catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Traits of the scored runs of each family: values that occur, and ranges."""
    scored = [case for case in cases if case.scored]
    by_family: dict[str, list[Traits]] = {}
    for case, traits in zip(scored, mapped(partial(traits_of_case, catalog=catalog), scored), strict=True):
        if traits is not None:
            by_family.setdefault(case.family, []).append(traits)
    return {family: traits_together(runs) for family, runs in by_family.items()}
