"""How surely a step time is known: the errors met on published runs, recorded with the constants.

`perfsim validate --record` writes them; a test fails when they are stale. A plan is spoken for by the
family of runs most like it (`perfsim.study.published.likeness`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from perfsim.errors import InputError
from perfsim.strategies import Plan
from perfsim.study.published.leave_out import ALL
from perfsim.study.published.likeness import Traits, traits_of_plan, unlikeness
from perfsim.study.published.score import FEWEST
from perfsim.study.result import Accuracy

RECORD = "accuracy.json"
KINDS = {"gpu.yaml": ("gpu-cluster", "3d"), "weight_streaming.yaml": ("wafer-cluster", "weight-streaming")}
"""Files of public cases: the kind of system and the strategy that their errors speak for."""


HeldOutOfFiles = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By file and family, the score when the family is left out of the fit (`held_out`)."""


def record_of(
    results: Iterable[Mapping[str, Any]], held_out: HeldOutOfFiles | None = None
) -> list[dict[str, Any]]:
    """The record that the results of `perfsim validate` give, over the cases that can be predicted.

    Without `held_out` those figures stay as they are recorded: they take minutes.
    """
    entries: list[dict[str, Any]] = []
    for result in results:
        if result["file"] not in KINDS:
            continue
        kind, strategy = KINDS[result["file"]]
        entries.append(
            {
                "system_kind": kind,
                "strategy": strategy,
                "family": f"studies/validation/{result['file']}",
                **_figures(
                    result["summary_predicted"], result["baseline"], _outside(result["file"], ALL, held_out)
                ),
                "families": [
                    {
                        "family": family,
                        **_figures(
                            figures,
                            result["families_baseline"][family],
                            _outside(result["file"], family, held_out),
                        ),
                        **result["families_traits"][family],
                    }
                    for family, figures in result["families"].items()
                    if figures["n"] and family in result["families_traits"]
                ],
            }
        )
    return entries


def _outside(file: str, family: str, held_out: HeldOutOfFiles | None) -> Mapping[str, Any]:
    """A score of runs left out of the fit: the new one, the recorded one, or the worst there is."""
    if held_out is not None and file in held_out:
        return held_out[file][family]
    known = [entry for entry in recorded() if str(entry["family"]).endswith(f"/{file}")]
    rows = [row for entry in known for row in (entry, *entry["families"]) if row["family"] == family]
    row: Mapping[str, Any] = rows[0] if rows else (known[0] if known else {})
    return {name: row.get(f"held_out_{name}", 1.0) for name in ("median_ape", "p90_ape")}


def _figures(
    summary: Mapping[str, Any], baseline: Mapping[str, Any], outside: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "n": summary["n"],
        "median_ape": round(summary["median_ape"], 4),
        "p90_ape": round(summary["p90_ape"], 4),
        "held_out_median_ape": round(outside["median_ape"], 4),
        "held_out_p90_ape": round(outside["p90_ape"], 4),
        "baseline_median_ape": round(baseline["median_ape"], 4),
    }


def record_text(results: Iterable[Mapping[str, Any]], held_out: HeldOutOfFiles | None = None) -> str:
    """The record as it is kept."""
    return _text(record_of(results, held_out))


def _text(entries: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(entries, indent=2) + "\n"


def write_record(results: Iterable[Mapping[str, Any]], held_out: HeldOutOfFiles | None = None) -> Path:
    """Put the record in the package; for a checkout, after a change that moves results.

    A kind of system that the results do not speak of keeps what is recorded of it.
    """
    path = Path(__file__).with_name(RECORD)
    entries = {entry["system_kind"]: entry for entry in (*recorded(), *record_of(results, held_out))}
    path.write_text(_text(list(entries.values())), encoding="utf-8")
    return path


@cache
def recorded() -> tuple[dict[str, Any], ...]:
    """The record, one entry a kind of system."""
    text = files("perfsim.study.published").joinpath(RECORD).read_text(encoding="utf-8")
    entries: tuple[dict[str, Any], ...] = tuple(json.loads(text))
    return entries


def accuracy_of(plan: Plan) -> Accuracy:
    """The errors of the family of published runs most like a plan.

    Raises InputError for a kind of system that nothing was recorded for.
    """
    return nearest(plan.system.kind, traits_of_plan(plan))


def step_time_error(plan: Plan) -> float:
    """Half-width of the 90 % band of a plan's step time: the worse of in the fit and left out of it."""
    accuracy = accuracy_of(plan)
    return max(accuracy.p90_ape, accuracy.held_out_p90_ape)


def nearest(system_kind: str, traits: Traits) -> Accuracy:
    """The errors of the recorded family most like `traits`; with few runs never below those of all."""
    every = [entry for entry in recorded() if entry["system_kind"] == system_kind]
    if not every:
        raise InputError(f"no published run on a {system_kind} was recorded")
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


def _at_least(figure: str, family: Mapping[str, Any], whole: Mapping[str, Any], few: bool) -> float:
    """A figure of a family, and with few runs no less than that of all."""
    return float(max(family[figure], whole[figure]) if few else family[figure])


def _in_words(differences: tuple[str, ...], few: bool, whole: Mapping[str, Any]) -> str:
    words = "; ".join(differences) or "like it in device, parallelism and size"
    return f"{words}; few runs, so no less than the 90th percentile of all {whole['n']}" if few else words
