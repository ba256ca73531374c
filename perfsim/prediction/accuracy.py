"""How surely a step time is known: the errors met on published runs, recorded with the constants.

`perfsim validate --record` writes them; a test fails when they are stale. A plan is spoken for by the
family of runs most like it (`perfsim.prediction.likeness`).
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


@cache
def recorded() -> tuple[dict[str, Any], ...]:
    """The record, one entry a kind of system."""
    text = files("perfsim.prediction").joinpath(RECORD).read_text(encoding="utf-8")
    entries: tuple[dict[str, Any], ...] = tuple(json.loads(text))
    return entries


def accuracy_of(plan: Plan) -> Accuracy:
    """The errors of the family of published runs most like a plan."""
    return nearest(plan.system.kind, traits_of_plan(plan))


def step_time_error(plan: Plan) -> float:
    """Half-width of the 90 % band of a plan's step time: the worse of in the fit and left out of it."""
    accuracy = accuracy_of(plan)
    return max(accuracy.p90_ape, accuracy.held_out_p90_ape)


def nearest(system_kind: str, traits: Traits) -> Accuracy:
    """The errors of the recorded family most like `traits`; with few runs never below those of all.

    A kind of system without published runs has the error that is assumed for the unknown.
    """
    every = [entry for entry in recorded() if entry["system_kind"] == system_kind]
    if not every:
        return _unknown(system_kind)
    whole = every[0]
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
        likeness=f"no published run on a {system_kind} is known: a factor of two is assumed",
    )


def _at_least(figure: str, family: Mapping[str, Any], whole: Mapping[str, Any], few: bool) -> float:
    """A figure of a family, and with few runs no less than that of all."""
    return float(max(family[figure], whole[figure]) if few else family[figure])


def _in_words(differences: tuple[str, ...], few: bool, whole: Mapping[str, Any]) -> str:
    words = "; ".join(differences) or "like it in device, parallelism and size"
    return f"{words}; few runs, so no less than the 90th percentile of all {whole['n']}" if few else words


UNKNOWN_ERROR = 1.0
"""assumed: without published runs a step time is known to a factor of two."""
FEWEST = 8
"""Runs that a family needs for a 90th percentile of its own."""
