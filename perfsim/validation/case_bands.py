"""The 90 % band of a published run, from a record that knows nothing of the run's own family.

Runs of a family on record are predicted again with the constants that were fitted without it, and their band
has the width that the errors of the other families give. All other runs, as those of a user's file, have
their usual prediction and the width of the whole record. Nothing is fitted here.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfsim.calibration import WaferCalibration
from perfsim.catalog import Catalog
from perfsim.errors import PerfsimError
from perfsim.fitting.step_fit import predict_with, recorded_constants
from perfsim.fitting.wafer_fit import release_of
from perfsim.prediction.accuracy import accuracy_of, left_out_of, recorded
from perfsim.prediction.evaluation import Evaluation
from perfsim.published.cases import StepCase, case_system
from perfsim.published.placed_cases import place_case
from perfsim.published.plans import predict_s

WAFER = "wse-2"
"""The wafer whose constants are fitted to the public logs."""


@dataclass(frozen=True)
class CaseBand:
    """The band of a case; `left_out_s` is its centre where the family is on record."""

    low_s: float
    high_s: float
    left_out_s: float | None = None
    """Step time predicted with constants that were fitted without the family or the release."""
    unlikeness: float = 0.0
    """Points of unlikeness to the most similar of the families that may be used."""

    def holds(self, measured_s: float) -> bool:
        """Whether a measured time lies in the band."""
        return self.low_s <= measured_s <= self.high_s


def groups_of(case: StepCase, catalog: Catalog) -> tuple[str, ...]:
    """What may be left out with a case: its family or a part of it; of a wafer the logs of its release."""
    calibration = case_system(case, catalog).device.calibration
    if isinstance(calibration, WaferCalibration) and case.system.software_release:
        return (release_of(case, calibration),)
    return (f"{case.family}, {case.setting}", case.family)


def case_band(case: StepCase, run: Evaluation, catalog: Catalog) -> CaseBand | None:
    """The band of a predicted case; None where its group cannot be left out of it."""
    plan = run.plan
    try:
        group = _group_on_record(case, plan.system.kind, catalog)
        left_out_s = _left_out_s(case, plan.system.kind, group, catalog) if group else None
    except PerfsimError:
        return None
    accuracy = accuracy_of(plan, run.hidden_communication_fraction, without=group if left_out_s else "")
    centre_s = run.step_time_s if left_out_s is None else left_out_s
    factor = 1.0 + accuracy.step_time_error
    return CaseBand(centre_s / factor, centre_s * factor, left_out_s, accuracy.unlikeness)


def _group_on_record(case: StepCase, kind: str, catalog: Catalog) -> str:
    """The group of a case whose family is on record; empty otherwise."""
    families = {family["family"] for entry in recorded() for family in entry["families"]}
    if case.family not in families:
        return ""
    groups = groups_of(case, catalog)
    return next((group for group in groups if left_out_of(kind, group) is not None), "")


def _left_out_s(case: StepCase, kind: str, group: str, catalog: Catalog) -> float | None:
    """Step time with the constants fitted without a group; None where they are those of another fit.

    On GPUs that of the critical path, without contention, as in the fit.
    """
    record = left_out_of(kind, group)
    calibration = case_system(case, catalog).device.calibration
    if record is None or calibration is None:
        return None
    constants = record["constants"]
    if isinstance(calibration, WaferCalibration):
        if calibration.name != record["calibration"]:
            return None
        efficiency = {**calibration.efficiency, group: constants["efficiency"]}
        return predict_s(case, catalog, calibration.model_copy(update={"efficiency": efficiency}))
    placed = place_case(case, catalog)
    if not set(recorded_constants(placed)) <= set(constants):
        return None
    return predict_with(placed, constants)
