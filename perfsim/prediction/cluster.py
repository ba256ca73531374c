"""A user's own scale of a cluster where it is used: found, checked against the machine, and named.

`perfsim.fitting.cluster_fit` makes it.
"""

from __future__ import annotations

from perfsim.calibration import ClusterCalibration
from perfsim.catalog import Catalog
from perfsim.errors import InputError, Problem
from perfsim.hardware import SystemSpec

WIDE_SPREAD = 0.10
"""Cases further apart than this after scaling are not one cluster's factor, and that is said."""


def wide(calibration: ClusterCalibration) -> bool:
    """Whether one factor does not describe the cases."""
    return calibration.spread > WIDE_SPREAD


def spread_warning(calibration: ClusterCalibration) -> str:
    """What to think of cases that lie far apart."""
    worst = max(calibration.cases, key=lambda case: abs(case.residual))
    return (
        f"after scaling the cases are still {100 * calibration.spread:.1f} % apart (case {worst.id} is "
        f"{100 * worst.residual:+.1f} % off): one factor does not describe this cluster"
    )


def cluster_named(name_or_path: str, catalog: Catalog) -> ClusterCalibration:
    """A cluster's calibration by name or path. Raises InputError for a calibration of another kind."""
    found = catalog.calibration(name_or_path)
    if not isinstance(found, ClusterCalibration):
        help_text = "make one with: perfsim calibrate steps MEASURED.yaml --out FILE"
        raise InputError([Problem(f"calibration {found.name} is not of kind cluster", help=help_text)])
    return found


def check_device(calibration: ClusterCalibration | None, system: SystemSpec) -> None:
    """Raises InputError where a scale was measured on another device than the system's."""
    if calibration is not None and calibration.device != system.device.name:
        message = (
            f"cluster calibration {calibration.name} was measured on {calibration.device}; "
            f"{system.name} is built of {system.device.name}"
        )
        raise InputError([Problem(message, help="measure steps on this machine, or leave the scale out")])


def cluster_note(calibration: ClusterCalibration) -> str:
    """What every answer says that rests on the scale."""
    note = (
        f"step times multiplied by {calibration.scale:g}: cluster calibration {calibration.name}, "
        f"{len(calibration.cases)} measured steps, {100 * calibration.spread:.1f} % apart after scaling"
    )
    return note + (" (more than one factor can describe)" if wide(calibration) else "")
