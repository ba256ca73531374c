"""The accuracy of a step time: errors on published runs, recorded with the calibrations.

`perfsim validate --record` writes the record; a test fails when it is stale. A plan has the errors of the
family of runs that is most like it (`perfsim.prediction.likeness`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from perfsim.prediction.likeness import Traits, traits_of_plan, unlikeness
from perfsim.prediction.result import Accuracy
from perfsim.strategies import Plan

RECORD = "accuracy.json"
UNKNOWN_ERROR = 1.0
"""assumed: without published runs a step time is known to a factor of two."""
FEWEST = 8
"""Runs that a family needs for a 90th percentile of its own."""


@cache
def recorded() -> tuple[dict[str, Any], ...]:
    """The recorded errors, one entry per kind of system."""
    text = files("perfsim.prediction").joinpath(RECORD).read_text(encoding="utf-8")
    entries: tuple[dict[str, Any], ...] = tuple(json.loads(text))
    return entries


def accuracy_of(plan: Plan) -> Accuracy:
    """The errors of the family of published runs most like a plan."""
    return nearest(plan.system.kind, traits_of_plan(plan))


def step_time_error(plan: Plan) -> float:
    """Half-width of the 90 % band of a plan's step time: the larger of the errors in and out of the fit."""
    accuracy = accuracy_of(plan)
    return max(accuracy.p90_ape, accuracy.held_out_p90_ape)


def nearest(system_kind: str, traits: Traits) -> Accuracy:
    """The errors of the recorded family most like `traits`; with few runs, at least the errors of all runs.

    A kind of system without published runs has `UNKNOWN_ERROR`.
    """
    whole = next((entry for entry in recorded() if entry["system_kind"] == system_kind), None)
    if whole is None:
        return _unknown(system_kind)
    ranked = sorted(
        whole["families"],
        key=lambda family: (round(unlikeness(traits, family)[0], 9), -family["n"], family["family"]),
    )
    family = ranked[0]
    points, differences = unlikeness(traits, family)
    few = family["n"] < FEWEST
    return Accuracy(
        strategy=whole["strategy"],
        family=family["family"],
        n=family["n"],
        median_ape=family["median_ape"],
        p90_ape=_at_least("p90_ape", family, whole, few),
        held_out_p90_ape=_at_least("held_out_p90_ape", family, whole, few),
        baseline_median_ape=family["baseline_median_ape"],
        likeness=_in_words(differences, few, whole),
        unlikeness=points,
    )


def _unknown(system_kind: str) -> Accuracy:
    return Accuracy(
        strategy="",
        family="no published run",
        n=0,
        median_ape=UNKNOWN_ERROR,
        p90_ape=UNKNOWN_ERROR,
        held_out_p90_ape=UNKNOWN_ERROR,
        baseline_median_ape=UNKNOWN_ERROR,
        likeness=f"no published run on a {system_kind} is recorded: an error of a factor of two is assumed",
    )


def _at_least(figure: str, family: Mapping[str, Any], whole: Mapping[str, Any], few: bool) -> float:
    """A figure of a family; with few runs, at least that of all runs."""
    return float(max(family[figure], whole[figure]) if few else family[figure])


def _in_words(differences: tuple[str, ...], few: bool, whole: Mapping[str, Any]) -> str:
    words = "; ".join(differences) or "the same device, parallelism and range of sizes"
    return f"{words}; few runs, so at least the 90th percentile of all {whole['n']} runs" if few else words
