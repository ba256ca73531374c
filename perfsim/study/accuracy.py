"""How surely a step time is known: the errors met on published runs, recorded with the constants.

`perfsim validate` repeats these numbers; a test fails when they are stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from perfsim.study.result import Accuracy

RECORD = "accuracy.json"


@cache
def recorded() -> tuple[dict[str, object], ...]:
    """The record, one entry a kind of system."""
    text = files("perfsim.study").joinpath(RECORD).read_text(encoding="utf-8")
    entries: tuple[dict[str, object], ...] = tuple(json.loads(text))
    return entries


def _number(entry: dict[str, object], key: str) -> float:
    return float(str(entry[key]))


def step_time_errors() -> dict[str, float]:
    """Half-width of the 90 % band of a step time, by kind of system."""
    return {str(entry["system_kind"]): _number(entry, "p90_ape") for entry in recorded()}


def accuracy_of(system_kinds: Iterable[str]) -> list[Accuracy]:
    """The record of the kinds of system that a study uses."""
    wanted = set(system_kinds)
    return [
        Accuracy(
            strategy=str(entry["strategy"]),
            family=str(entry["family"]),
            n=int(_number(entry, "n")),
            median_ape=_number(entry, "median_ape"),
            p90_ape=_number(entry, "p90_ape"),
            baseline_median_ape=_number(entry, "baseline_median_ape"),
        )
        for entry in recorded()
        if entry["system_kind"] in wanted
    ]
