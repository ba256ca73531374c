"""Common traits of a family of published runs, recorded with their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfsim.catalog import Catalog
from perfsim.errors import PerfsimError
from perfsim.prediction.likeness import SHARDED, Traits
from perfsim.published.cases import StepCase, case_job, case_system
from perfsim.transformer import parameters


def traits_of_case(case: StepCase, catalog: Catalog) -> Traits:
    """The traits of a published run. Raises InputError for a device that is not in the catalogue."""
    device = case_system(case, catalog).device
    return Traits(
        constants=device.calibration.name if device.calibration else device.name,
        sharded=case.strategy == "zero3" or case.parallel.zero_stage == SHARDED,
        tensor=case.parallel.tensor > 1,
        pipeline=case.parallel.pipeline > 1,
        parameters=float(parameters(case_job(case, catalog).model).total),
        num_devices=case.system.num_devices,
    )


def family_traits(cases: Sequence[StepCase], catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Traits of the scored runs of each family: values that occur, and ranges."""
    by_family: dict[str, list[Traits]] = {}
    for case in cases:
        try:
            if case.scored:
                traits = traits_of_case(case, catalog)
                by_family.setdefault(case.family, []).append(traits)
        except PerfsimError:
            continue
    return {family: _together(runs) for family, runs in by_family.items()}


def _together(runs: Sequence[Traits]) -> dict[str, Any]:
    return {
        "constants": sorted({run.constants for run in runs}),
        "sharded": sorted({run.sharded for run in runs}),
        "tensor": sorted({run.tensor for run in runs}),
        "pipeline": sorted({run.pipeline for run in runs}),
        "parameters": [min(run.parameters for run in runs), max(run.parameters for run in runs)],
        "num_devices": [min(run.num_devices for run in runs), max(run.num_devices for run in runs)],
    }
