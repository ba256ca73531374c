"""Calibrations that were measured on another device or link than the one that names them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfsim.calibration import Calibration, GpuCalibration


def measured_on(calibration: Calibration, option: str) -> list[str]:
    """Names of the devices or links (`option`) in the commands of a calibration's fits."""
    commands = " ".join(record.command for record in calibration.fit.values())
    return re.findall(rf"--{option} (\S+)", commands)


def is_borrowed(name: str, assumed: Iterable[str], calibration: Calibration | None, option: str) -> bool:
    """Whether a device's or link's constants were measured on another one.

    Its description says so (`assumed: {calibration: ...}`), or the command of a fit names another one and
    `name` is not a variant of the calibration's name, as a100-sxm4-40gb is of a100-sxm4. A calibration of a
    chip that another one has measured is its device's own where whole steps gave it a ceiling.
    """
    if calibration is None:
        return False
    measured = measured_on(calibration, option)
    own = not measured or name in measured or name.startswith(calibration.name)
    if isinstance(calibration, GpuCalibration) and calibration.chip:
        own = own or "sustained_fraction" in calibration.fit
    return "calibration" in assumed or not own
