"""Writes the record of errors that studies state (`perfsim validate --record`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfsim.prediction import accuracy
from perfsim.prediction.accuracy import recorded
from perfsim.validation.leave_out import ALL

KINDS = {"gpu.yaml": ("gpu-cluster", "3d"), "weight_streaming.yaml": ("wafer-cluster", "weight-streaming")}
"""Files of public cases, with the kind of system and the strategy to which their errors apply."""


HeldOutOfFiles = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Score of each family left out of the fit, by file and family (`held_out`)."""


def record_of(
    results: Iterable[Mapping[str, Any]], held_out: HeldOutOfFiles | None = None
) -> list[dict[str, Any]]:
    """The record of the results of `perfsim validate`, over the cases that can be predicted.

    Without `held_out`, whose figures take minutes, the recorded ones are kept.
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
    """Score of held-out runs: the new one, else the recorded one, else an error of 1."""
    if held_out is not None and file in held_out:
        return held_out[file][family]
    entries = [entry for entry in recorded() if str(entry["family"]).endswith(f"/{file}")]
    rows = [row for entry in entries for row in (entry, *entry["families"]) if row["family"] == family]
    row: Mapping[str, Any] = rows[0] if rows else (entries[0] if entries else {})
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


def write_record(results: Iterable[Mapping[str, Any]], held_out: HeldOutOfFiles | None = None) -> Path:
    """Write the record into the package; for a checkout, after a change of results.

    Entries for other kinds of system are kept.
    """
    path = Path(accuracy.__file__).with_name(accuracy.RECORD)
    entries = {entry["system_kind"]: entry for entry in (*recorded(), *record_of(results, held_out))}
    path.write_text(json.dumps(list(entries.values()), indent=2) + "\n", encoding="utf-8")
    return path
