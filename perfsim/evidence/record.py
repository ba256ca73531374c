"""The records that the package quotes, written by `perfsim validate --record` in a checkout.

They hold the errors of each family of public cases with and without the family in the fit, the utilisation
that the public runs reached, and the rates of production runs next to their predicted healthy steps.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfsim.base.files import write_file
from perfsim.catalog import default_catalog
from perfsim.evidence.cases import CaseRows, StepCase, published_cases
from perfsim.evidence.left_out import ALL, FEWEST_FAMILIES, LeavingOut
from perfsim.evidence.production import production_record
from perfsim.evidence.score import Scored
from perfsim.prediction import bands
from perfsim.prediction.bands import BandWidths, Reached, alone, recorded_errors
from perfsim.prediction.question import Question
from perfsim.prediction.risk import degrees_of, settings_of
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies.three_d.data import SHARDED
from perfsim.studies import answers as study_answers
from perfsim.work.counts import model_flop_per_step, parameters

KINDS = {
    "gpu.yaml": ("gpu-cluster", "3d"),
    "modern.yaml": ("gpu-cluster", "3d"),
    "weight_streaming.yaml": ("wafer-cluster", "weight-streaming"),
}
"""Files of public cases, with the kind of system and the strategy to which their errors apply.

Those on Ethernet (`gpu_roce.yaml`) only judge: no constant is fitted to them and no band comes from them.
"""
_DIGITS = 4
_Figures = Mapping[str, Any]


def record_of(
    results: Iterable[Mapping[str, Any]], outside: Mapping[str, LeavingOut] | None = None
) -> list[dict[str, Any]]:
    """The record of the results of `perfsim validate`, over the cases that can be predicted."""
    # `outside` has, by file, its runs as predicted when they are left out of the fit; their scores and bands
    # are only in the entry of a file that is in it.
    results = [result for result in results if result["file"] in KINDS]
    entries: list[dict[str, Any]] = []
    for result in results:
        kind, strategy = KINDS[result["file"]]
        leaving = (outside or {}).get(result["file"])
        runs = () if leaving is None else leaving.whole or leaving.runs
        held_out = {**Scored.of_families(runs), ALL: Scored.scores(runs)} if runs else {}
        # The traits of all families on a kind of system: those on record, and in their place the new ones.
        past = [entry for entry in recorded_errors() if entry["system_kind"] == kind]
        traits = {family["family"]: family for entry in past for family in entry["families"]}
        for other in results:
            traits |= other["families_traits"] if KINDS[other["file"]][0] == kind else {}
        families = [
            {
                "family": family,
                **_figures(figures, result["families_baseline"][family], held_out.get(family)),
                **result["families_traits"][family],
                "hidden_communication": round(figures["hidden_communication"], _DIGITS),
                "alone": alone(family, traits),
            }
            for family, figures in result["families"].items()
            if figures["n"] and family in result["families_traits"]
        ]
        entry = {
            "system_kind": kind,
            "strategy": strategy,
            "family": f"studies/validation/{result['file']}",
            **_figures(result["summary_predicted"], result["baseline"], held_out.get(ALL)),
            "asked_median_ape": round(result["summary_asked"]["median_ape"], _DIGITS),
            "families": families,
        }
        if leaving is not None:
            # A file of too few families takes the growth of its bands from one before it, or from the record.
            enough = (
                BandWidths(**known["band"])
                for known in (*entries, *recorded_errors())
                if "band" in known and len(known["families"]) >= FEWEST_FAMILIES
            )
            others = next(enough, None)
            entry["band"] = leaving.widths(others).as_dict()
            # For each group left out its constants, and the widths that the others give.
            entry["left_out"] = [
                {
                    "group": row.family,
                    "calibration": row.calibration,
                    "constants": row.constants,
                    "band": leaving.widths(others, without=row.family).as_dict(),
                }
                for row in leaving.groups
            ]
        entries.append(entry)
    return entries


def _figures(summary: _Figures, baseline: _Figures, outside: _Figures | None) -> dict[str, Any]:
    figures = {"n": summary["n"]}
    figures |= {name: round(summary[name], _DIGITS) for name in ("median_ape", "p90_ape")}
    if outside is not None:
        figures |= {f"held_out_{name}": round(outside[name], _DIGITS) for name in ("median_ape", "p90_ape")}
    return figures | {"baseline_median_ape": round(baseline["median_ape"], _DIGITS)}


def _reached(case: StepCase, question: Question) -> Reached:
    job = question.job
    device = question.system.device
    count = question.devices
    layout = case.parallel
    sharded = case.strategy == "zero3" or layout.zero_stage == SHARDED
    given = question.given_layout
    if sharded and isinstance(given, ParallelLayout):
        given = replace(given, zero_stage=SHARDED)
    peak = count * device.peak_flop_per_s(job.recipe.precision)
    return Reached(
        id=case.id,
        device=device.name,
        attention=case.training.attention,
        num_devices=count,
        mfu=round(model_flop_per_step(job) / (case.measured.step_time_s * peak), _DIGITS),
        batch_tokens=job.global_batch_size * job.seq_length,
        kind=question.system.kind,
        constants=device.constants,
        precision=job.recipe.precision,
        parameters=float(parameters(job.model).total),
        sharded=sharded,
        tensor=layout.tensor,
        data=count // (layout.tensor * layout.pipeline * layout.context_parallel),
        micro_batch_tokens=(case.training.micro_batch_size or 0) * job.seq_length,
        framework="" if job.runtime.framework is None else job.runtime.framework.name,
        generation=device.generation,
        experts=job.model.experts is not None,
        settings=settings_of(given) if isinstance(given, ParallelLayout) else (),
        degrees=degrees_of(given) if isinstance(given, ParallelLayout) else (),
    )


def write_records(results: Sequence[Mapping[str, Any]], left_out: Mapping[str, Sequence[LeavingOut]]) -> None:
    """Record the errors of `results`, with and without each group in the fit, and the utilisation reached."""
    catalog = default_catalog()
    # `left_out` has, by file, what `LeavingOut.by_kind` gives for it. The bands of a file with wafers come
    # from its logs. Entries for other files are kept.
    outside = {name: parts[-1] for name, parts in left_out.items() if parts}
    entries = {entry["family"]: entry for entry in (*recorded_errors(), *record_of(results, outside))}
    by_prediction = Path(bands.__file__)
    errors = json.dumps([entries[name] for name in sorted(entries)], indent=2)
    write_file(by_prediction.with_name(bands.ERRORS_RECORD), errors + "\n")
    production = json.dumps(production_record(catalog), indent=2)
    write_file(Path(study_answers.__file__).with_name(study_answers.RECORD), production + "\n")
    rows: list[Reached] = []
    for path in (path for path in published_cases() if path.name in KINDS):
        scored = [case for case in CaseRows.read(path, StepCase, catalog).cases if case.scored]
        reached = [_reached(case, case.question(catalog)) for case in scored]
        rows += sorted(reached, key=lambda row: (-row.mfu, row.id))
    runs = ",\n".join(json.dumps(list(row)) for row in rows)
    write_file(by_prediction.with_name(bands.RUNS_RECORD), f"[\n{runs}\n]\n")
