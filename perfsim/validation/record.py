"""Writes all records of `perfsim validate --record` into the package; for a checkout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsim.catalog import Catalog, default_catalog
from perfsim.files import write_file
from perfsim.prediction import reached
from perfsim.prediction.likeness import SHARDED
from perfsim.prediction.reached import Reached
from perfsim.published.cases import StepCase, case_job, case_system
from perfsim.published.plans import public_cases
from perfsim.published.production import healthy_tokens_per_s, production_runs
from perfsim.published.rows import step_cases
from perfsim.studies import production
from perfsim.transformer import model_flop_per_step, parameters
from perfsim.validation.held_out import held_out
from perfsim.validation.leave_out import LeftOut
from perfsim.validation.record_accuracy import KINDS, write_record

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


def write_production() -> Path:
    """Write the record into the package; for a checkout, after a change of predictions."""
    path = Path(production.__file__).with_name(production.RECORD)
    write_file(path, json.dumps(production_record(default_catalog()), indent=2) + "\n")
    return path


def reached_of(cases: Iterable[StepCase], catalog: Catalog) -> list[Reached]:
    """The scored runs of a file, best first."""
    rows = []
    for case in cases:
        if not case.scored:
            continue
        job, device = case_job(case, catalog), case_system(case, catalog).device
        peak = case.system.num_devices * device.peak_flop_per_s(job.recipe.precision)
        mfu = model_flop_per_step(job) / (case.measured.step_time_s * peak)
        count, layout = case.system.num_devices, case.parallel
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


def step_files() -> list[Path]:
    """The public files with step times."""
    return [path for path in public_cases() if path.name in KINDS]


def record_text(paths: Iterable[Path]) -> str:
    """The text of the record over all files with step times."""
    catalog = default_catalog()
    rows = [row for path in paths for row in reached_of(step_cases(path, catalog), catalog)]
    return "[\n" + ",\n".join(json.dumps(list(row)) for row in rows) + "\n]\n"


def write_reached() -> Path:
    """Write the record of the public runs into the package; for a checkout, after a change of cases."""
    path = Path(reached.__file__).with_name(reached.RECORD)
    write_file(path, record_text(step_files()))
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
    write_reached()
    write_production()
