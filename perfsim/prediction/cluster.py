"""A user's calibration of a cluster: looked up, checked against the machine, and noted in answers.

`perfsim.fitting.cluster_fit` fits it.
"""

from __future__ import annotations

from perfsim.calibration import ClusterCalibration
from perfsim.catalog import Catalog
from perfsim.errors import InputError, Problem
from perfsim.hardware import SystemSpec

WIDE_SPREAD = 0.10
"""Spread of the cases after scaling above which a single factor does not describe the cluster."""


def wide(calibration: ClusterCalibration) -> bool:
    """Whether the cases are too far apart for a single factor."""
    return calibration.spread > WIDE_SPREAD


def spread_warning(calibration: ClusterCalibration) -> str:
    """The warning about cases that are too far apart."""
    worst = max(calibration.cases, key=lambda case: abs(case.residual))
    return (
        f"after scaling the cases are still {100 * calibration.spread:.1f} % apart (case {worst.id} is "
        f"{100 * worst.residual:+.1f} % off): one factor does not describe this cluster"
    )


def cluster_named(name_or_path: str, catalog: Catalog) -> ClusterCalibration:
    """A cluster's calibration by name or path. Raises InputError for a calibration of another kind."""
    calibration = catalog.calibration(name_or_path)
    if not isinstance(calibration, ClusterCalibration):
        help_text = "make one with: perfsim calibrate steps MEASURED.yaml --out FILE"
        raise InputError([Problem(f"calibration {calibration.name} is not of kind cluster", help=help_text)])
    return calibration


def scale_of(calibration: ClusterCalibration | None) -> float:
    """The factor by which step times are multiplied; 1 without a calibration."""
    return 1.0 if calibration is None else calibration.scale


def check_device(calibration: ClusterCalibration | None, system: SystemSpec) -> None:
    """Raises InputError for a calibration that was measured on another device than the system's."""
    if calibration is not None and calibration.device != system.device.name:
        message = (
            f"cluster calibration {calibration.name} was measured on {calibration.device}; "
            f"{system.name} is built of {system.device.name}"
        )
        raise InputError([Problem(message, help="measure steps on this machine, or omit the calibration")])


def cluster_note(calibration: ClusterCalibration) -> str:
    """The note of every answer that uses the calibration."""
    note = (
        f"step times multiplied by {calibration.scale:g}: cluster calibration {calibration.name}, "
        f"{len(calibration.cases)} measured steps, {100 * calibration.spread:.1f} % apart after scaling"
    )
    return note + (" (too far apart for a single factor)" if wide(calibration) else "")
