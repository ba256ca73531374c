"""Writes the record of errors that studies state (`perfsim validate --record`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsim.base.files import write_file
from perfsim.catalog import Catalog, default_catalog
from perfsim.evidence.bands import FEWEST_FAMILIES, LeftOutRun, fitted_widths
from perfsim.evidence.cases import StepCase, case_job, case_system, step_cases
from perfsim.evidence.left_out import ALL, HeldOut, LeftOut, held_out
from perfsim.evidence.plans import public_cases
from perfsim.evidence.production import healthy_tokens_per_s, production_runs
from perfsim.prediction import bands
from perfsim.prediction.bands import SHARDED, UNKNOWN, BandWidths, Reached, alone, recorded_errors
from perfsim.studies import answers as study_answers
from perfsim.work.counts import model_flop_per_step, parameters

KINDS = {
    "gpu.yaml": ("gpu-cluster", "3d"),
    "modern.yaml": ("gpu-cluster", "3d"),
    "weight_streaming.yaml": ("wafer-cluster", "weight-streaming"),
}
"""Files of public cases, with the kind of system and the strategy to which their errors apply."""


HeldOutOfFiles = Mapping[str, HeldOut]
"""By file, its runs as predicted when they are left out of the fit."""


def record_of(
    results: Iterable[Mapping[str, Any]], held_out: HeldOutOfFiles | None = None
) -> list[dict[str, Any]]:
    """The record of the results of `perfsim validate`, over the cases that can be predicted.

    Without `held_out`, whose figures take minutes, the recorded ones are kept, with the bands they give. A
    file of too few families takes the growth of its bands from a file before it, or from the record.
    """
    entries: list[dict[str, Any]] = []
    results = list(results)
    widths = _widths_of_many(recorded_errors())
    for result in results:
        if result["file"] not in KINDS:
            continue
        kind, strategy = KINDS[result["file"]]
        traits = _traits_of_kind(kind, results)
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
                        "hidden_communication": round(figures["hidden_communication"], 4),
                        "alone": alone(family, traits),
                    }
                    for family, figures in result["families"].items()
                    if figures["n"] and family in result["families_traits"]
                ],
                **_bands(result["file"], kind, widths, held_out),
            }
        )
        widths = _widths_of_many(entries) or widths
    return entries


def _traits_of_kind(kind: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The traits of all families on a kind of system: those on record, and in their place the new ones."""
    traits = {
        family["family"]: family
        for entry in recorded_errors()
        if entry["system_kind"] == kind
        for family in entry["families"]
    }
    for result in results:
        if KINDS.get(result["file"], ("", ""))[0] == kind:
            traits |= result["families_traits"]
    return traits


def _widths_of_many(entries: Iterable[Mapping[str, Any]]) -> BandWidths | None:
    """The widths of the first entry whose families are enough to show them all."""
    return next(
        (BandWidths(**entry["band"]) for entry in entries if len(entry["families"]) >= FEWEST_FAMILIES), None
    )


def _bands(
    file: str, kind: str, widths: BandWidths | None, held_out: HeldOutOfFiles | None
) -> dict[str, Any]:
    """The widths of bands, and for each group left out its constants and the widths that the others give."""
    if held_out is None or file not in held_out:
        alike = [entry for entry in recorded_errors() if entry["system_kind"] == kind]
        own = [entry for entry in alike if str(entry["family"]).endswith(f"/{file}")]
        known = next(iter([*own, *alike]), None)
        return (
            {"band": UNKNOWN.as_dict(), "left_out": []}
            if known is None
            else {name: known[name] for name in ("band", "left_out")}
        )
    out = held_out[file]

    def without(group: str) -> list[LeftOutRun]:
        return [run for run in out.runs if run.group != group]

    return {
        "band": fitted_widths(out.runs, widths).as_dict(),
        "left_out": [
            {"group": group, **constants, "band": fitted_widths(without(group), widths).as_dict()}
            for group, constants in out.constants.items()
        ],
    }


def _outside(file: str, family: str, held_out: HeldOutOfFiles | None) -> Mapping[str, Any]:
    """Score of held-out runs: the new one, else the recorded one, else an error of 1."""
    if held_out is not None and file in held_out:
        return held_out[file].scores[family]
    entries = [entry for entry in recorded_errors() if str(entry["family"]).endswith(f"/{file}")]
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
    path = Path(bands.__file__).with_name(bands.ERRORS_RECORD)
    entries = {entry["family"]: entry for entry in (*recorded_errors(), *record_of(results, held_out))}
    write_file(path, json.dumps([entries[family] for family in sorted(entries)], indent=2) + "\n")
    return path


# Writes all records of `perfsim validate --record` into the package; for a checkout.

DIGITS = 4


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
                "ratio": round(run.tokens_per_s_per_device / healthy, DIGITS),
            }
        )
    return rows


def _write_production() -> Path:
    """Write the record into the package; for a checkout, after a change of predictions."""
    path = Path(study_answers.__file__).with_name(study_answers.RECORD)
    write_file(path, json.dumps(production_record(default_catalog()), indent=2) + "\n")
    return path


def _reached_of(cases: Iterable[StepCase], catalog: Catalog) -> list[Reached]:
    """The scored runs of a file, best first."""
    rows = []
    for case in cases:
        if not case.scored:
            continue
        job = case_job(case, catalog)
        device = case_system(case, catalog).device
        peak = case.system.num_devices * device.peak_flop_per_s(job.recipe.precision)
        mfu = model_flop_per_step(job) / (case.measured.step_time_s * peak)
        count = case.system.num_devices
        layout = case.parallel
        rows.append(
            Reached(
                id=case.id,
                device=device.name,
                attention=case.training.attention,
                num_devices=count,
                mfu=round(mfu, 4),
                sequences=round(job.global_batch_size / count, 2),
                kind=case_system(case, catalog).kind,
                constants=device.constants,
                precision=job.recipe.precision,
                parameters=float(parameters(job.model).total),
                sharded=case.strategy == "zero3" or layout.zero_stage == SHARDED,
                tensor=layout.tensor,
                data=count // (layout.tensor * layout.pipeline * layout.context_parallel),
                micro_batch_tokens=(case.training.micro_batch_size or 0) * job.seq_length,
            )
        )
    return sorted(rows, key=lambda row: (-row.mfu, row.id))


def _step_files() -> list[Path]:
    """The public files with step times."""
    return [path for path in public_cases() if path.name in KINDS]


def record_text(paths: Iterable[Path]) -> str:
    """The text of the record over all files with step times."""
    catalog = default_catalog()
    rows = [row for path in paths for row in _reached_of(step_cases(path, catalog), catalog)]
    return "[\n" + ",\n".join(json.dumps(list(row)) for row in rows) + "\n]\n"


def _write_reached() -> Path:
    """Write the record of the public runs into the package; for a checkout, after a change of cases."""
    path = Path(bands.__file__).with_name(bands.RUNS_RECORD)
    write_file(path, record_text(_step_files()))
    return path


def write_records(
    paths: Sequence[Path],
    results: Sequence[Mapping[str, Any]],
    left_out: Mapping[str, Sequence[LeftOut]],
) -> None:
    """Record the errors of `results`, with and without held-out families, and the utilisation reached.

    `left_out` has, by file, the rows of `leave_out` that are known already.
    """
    scores = {
        path.name: held_out(path, left_out.get(path.name, ()))
        for path, result in zip(paths, results, strict=True)
        if result["kind"] == "step_time"
    }
    write_record(results, scores)
    _write_reached()
    _write_production()
