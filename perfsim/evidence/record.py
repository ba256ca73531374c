"""The records that the package quotes, written by `perfsim validate --record` in a checkout.

They hold the errors of each family of public cases with and without the family in the fit, the utilisation
that the public runs reached, and the rates of production runs with those of their predicted healthy steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsim.base.files import write_file
from perfsim.catalog import Catalog, default_catalog
from perfsim.evidence.bands import FEWEST_FAMILIES, LeftOutRun, fitted_widths
from perfsim.evidence.cases import StepCase, public_cases, read_cases
from perfsim.evidence.left_out import ALL, LeavingOut, left_out
from perfsim.evidence.plans import case_question
from perfsim.evidence.production import healthy_tokens_per_s, production_runs
from perfsim.prediction import bands
from perfsim.prediction.bands import (
    SHARDED,
    UNKNOWN,
    BandWidths,
    Reached,
    alone,
    recorded_errors,
)
from perfsim.studies import answers as study_answers
from perfsim.work.counts import model_flop_per_step, parameters

KINDS = {
    "gpu.yaml": ("gpu-cluster", "3d"),
    "modern.yaml": ("gpu-cluster", "3d"),
    "weight_streaming.yaml": ("wafer-cluster", "weight-streaming"),
}
"""Files of public cases, with the kind of system and the strategy to which their errors apply."""
_DIGITS = 4

Runs = Mapping[str, tuple[LeavingOut, Sequence[LeftOutRun]]]
"""By file, its runs as predicted when they are left out of the fit, and the same with their traits."""


def record_of(results: Iterable[Mapping[str, Any]], outside: Runs | None = None) -> list[dict[str, Any]]:
    """The record of the results of `perfsim validate`, over the cases that can be predicted.

    Without `outside`, whose figures take minutes, the recorded ones are kept, with the bands they give. A
    file of too few families takes the growth of its bands from a file before it, or from the record.
    """
    outside = outside or {}
    results = [result for result in results if result["file"] in KINDS]
    entries: list[dict[str, Any]] = []
    widths = _widths_of_many(recorded_errors())
    for result in results:
        file = result["file"]
        kind, strategy = KINDS[file]
        # The traits of all families on a kind of system: those on record, and in their place the new ones.
        traits = {
            family["family"]: family
            for entry in recorded_errors()
            if entry["system_kind"] == kind
            for family in entry["families"]
        }
        for other in results:
            traits |= other["families_traits"] if KINDS[other["file"]][0] == kind else {}
        families = [
            {
                "family": family,
                **_figures(
                    figures, result["families_baseline"][family], _score_outside(file, family, outside)
                ),
                **result["families_traits"][family],
                "hidden_communication": round(figures["hidden_communication"], _DIGITS),
                "alone": alone(family, traits),
            }
            for family, figures in result["families"].items()
            if figures["n"] and family in result["families_traits"]
        ]
        entries.append(
            {
                "system_kind": kind,
                "strategy": strategy,
                "family": f"studies/validation/{file}",
                **_figures(
                    result["summary_predicted"], result["baseline"], _score_outside(file, ALL, outside)
                ),
                "families": families,
                **_bands(file, kind, widths, outside),
            }
        )
        widths = _widths_of_many(entries) or widths
    return entries


def outside_of(
    path: Path, found: Sequence[LeavingOut], catalog: Catalog
) -> tuple[LeavingOut, Sequence[LeftOutRun]]:
    """The runs of `left_out` that make the bands of a file, as scores and with their traits."""
    leaving = found[-1]
    return leaving, leaving.with_traits(read_cases(path, StepCase, catalog).cases, catalog)


def _widths_of_many(entries: Iterable[Mapping[str, Any]]) -> BandWidths | None:
    """The widths of the first entry whose families are enough to show them all."""
    return next(
        (BandWidths(**entry["band"]) for entry in entries if len(entry["families"]) >= FEWEST_FAMILIES), None
    )


def _bands(file: str, kind: str, widths: BandWidths | None, outside: Runs) -> dict[str, Any]:
    """The widths of bands, and for each group left out its constants and the widths that the others give."""
    if file not in outside:
        alike = [entry for entry in recorded_errors() if entry["system_kind"] == kind]
        of_file = [entry for entry in alike if str(entry["family"]).endswith(f"/{file}")]
        known = next(iter([*of_file, *alike]), {"band": UNKNOWN.as_dict(), "left_out": []})
        return {name: known[name] for name in ("band", "left_out")}
    leaving, runs = outside[file]
    return {
        "band": fitted_widths(runs, widths).as_dict(),
        "left_out": [
            {
                "group": group,
                **constants,
                "band": fitted_widths([run for run in runs if run.group != group], widths).as_dict(),
            }
            for group, constants in leaving.constants.items()
        ],
    }


def _score_outside(file: str, family: str, outside: Runs) -> Mapping[str, Any]:
    """Score of the left-out runs of a family: the new one, else the recorded one, else an error of 1."""
    if file in outside:
        leaving = outside[file][0]
        return leaving.summary if family == ALL else leaving.families[family]
    entries = [entry for entry in recorded_errors() if str(entry["family"]).endswith(f"/{file}")]
    rows = {row["family"]: row for entry in entries for row in entry["families"]}
    row = rows.get(family, entries[0] if entries else {})
    return {name: row.get(f"held_out_{name}", 1.0) for name in ("median_ape", "p90_ape")}


def _figures(
    summary: Mapping[str, Any], baseline: Mapping[str, Any], outside: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "n": summary["n"],
        "median_ape": round(summary["median_ape"], _DIGITS),
        "p90_ape": round(summary["p90_ape"], _DIGITS),
        "held_out_median_ape": round(outside["median_ape"], _DIGITS),
        "held_out_p90_ape": round(outside["p90_ape"], _DIGITS),
        "baseline_median_ape": round(baseline["median_ape"], _DIGITS),
    }


def write_record(results: Iterable[Mapping[str, Any]], outside: Runs | None = None) -> Path:
    """Write the record of errors into the package. Entries for other kinds of system are kept."""
    path = Path(bands.__file__).with_name(bands.ERRORS_RECORD)
    entries = {entry["family"]: entry for entry in (*recorded_errors(), *record_of(results, outside))}
    write_file(path, json.dumps([entries[family] for family in sorted(entries)], indent=2) + "\n")
    return path


def production_record(catalog: Catalog) -> list[dict[str, Any]]:
    """By production run, its published rate, its predicted rate in tokens/s per device, and their ratio."""
    rows = []
    for run in production_runs(catalog):
        healthy = healthy_tokens_per_s(run)
        rows.append(
            {
                "name": run.name,
                "published_tokens_per_s_per_device": run.tokens_per_s_per_device,
                "healthy_tokens_per_s_per_device": round(healthy, 1),
                "ratio": round(run.tokens_per_s_per_device / healthy, _DIGITS),
            }
        )
    return rows


def _reached(case: StepCase, catalog: Catalog) -> Reached:
    question = case_question(case, catalog)
    job = question.job
    device = question.system.device
    count = question.devices
    layout = case.parallel
    peak = count * device.peak_flop_per_s(job.recipe.precision)
    return Reached(
        id=case.id,
        device=device.name,
        attention=case.training.attention,
        num_devices=count,
        mfu=round(model_flop_per_step(job) / (case.measured.step_time_s * peak), _DIGITS),
        sequences=round(job.global_batch_size / count, 2),
        kind=question.system.kind,
        constants=device.constants,
        precision=job.recipe.precision,
        parameters=float(parameters(job.model).total),
        sharded=case.strategy == "zero3" or layout.zero_stage == SHARDED,
        tensor=layout.tensor,
        data=count // (layout.tensor * layout.pipeline * layout.context_parallel),
        micro_batch_tokens=(case.training.micro_batch_size or 0) * job.seq_length,
    )


def reached_record(paths: Iterable[Path]) -> str:
    """The text of the record of what the scored runs of files reached, the best of each file first."""
    catalog = default_catalog()
    rows = []
    for path in paths:
        cases = read_cases(path, StepCase, catalog).cases
        reached = [_reached(case, catalog) for case in cases if case.scored]
        rows += sorted(reached, key=lambda row: (-row.mfu, row.id))
    return "[\n" + ",\n".join(json.dumps(list(row)) for row in rows) + "\n]\n"


def write_records(
    paths: Sequence[Path], results: Sequence[Mapping[str, Any]], known: Mapping[str, Sequence[LeavingOut]]
) -> None:
    """Record the errors of `results`, with and without each group in the fit, and the utilisation reached.

    `known` has, by file, what `left_out` gives for it, where that is known already. The bands of a file with
    wafers come from its logs.
    """
    catalog = default_catalog()
    outside = {
        path.name: outside_of(path, known.get(path.name) or left_out(path, catalog), catalog)
        for path, result in zip(paths, results, strict=True)
        if result["kind"] == "step_time"
    }
    write_record(results, outside)
    step_files = [path for path in public_cases() if path.name in KINDS]
    write_file(Path(bands.__file__).with_name(bands.RUNS_RECORD), reached_record(step_files))
    production = json.dumps(production_record(catalog), indent=2) + "\n"
    write_file(Path(study_answers.__file__).with_name(study_answers.RECORD), production)
