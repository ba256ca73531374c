"""How surely a step time is known: the errors met on published runs, recorded with the constants.

`perfsim validate` repeats these numbers; a test fails when they are stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from perfsim.study.result import Accuracy

RECORD = "accuracy.json"


KINDS = {"gpu.yaml": ("gpu-cluster", "3d"), "weight_streaming.yaml": ("wafer-cluster", "weight-streaming")}
"""Files of public cases: the kind of system and the strategy that their errors speak for."""


def record_of(results: Iterable[Mapping[str, Any]]) -> list[dict[str, object]]:
    """The record that the results of `perfsim validate` give, over the cases that can be predicted."""
    entries: list[dict[str, object]] = []
    for result in results:
        if result["file"] not in KINDS:
            continue
        kind, strategy = KINDS[result["file"]]
        figures = result["summary_predicted"]
        entries.append(
            {
                "system_kind": kind,
                "strategy": strategy,
                "family": f"studies/validation/{result['file']}",
                "n": figures["n"],
                "median_ape": round(figures["median_ape"], 4),
                "p90_ape": round(figures["p90_ape"], 4),
                "baseline_median_ape": round(result["baseline"]["median_ape"], 4),
            }
        )
    return entries


def write_record(results: Iterable[Mapping[str, Any]]) -> Path:
    """Put the record in the package; for a checkout, after a change that moves results.

    A kind of system that the results do not speak of keeps what is recorded of it.
    """
    path = Path(__file__).with_name(RECORD)
    entries = {entry["system_kind"]: entry for entry in (*recorded(), *record_of(results))}
    path.write_text(json.dumps(list(entries.values()), indent=2) + "\n", encoding="utf-8")
    return path


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
