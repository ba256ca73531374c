"""Calibrations that were measured on another device or link than the one that names them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfsim.calibration import Calibration


def measured_on(calibration: Calibration, option: str) -> list[str]:
    """Names of the devices or links (`option`) in the commands of a calibration's fits."""
    commands = " ".join(record.command for record in calibration.fit.values())
    return re.findall(rf"--{option} (\S+)", commands)


def is_borrowed(name: str, assumed: Iterable[str], calibration: Calibration | None, option: str) -> bool:
    """Whether a device's or link's constants were measured on another one.

    Its description says so (`assumed: {calibration: ...}`), or the command of a fit names another one and
    `name` is not a variant of the calibration's name, as a100-sxm4-40gb is of a100-sxm4.
    """
    if calibration is None:
        return False
    measured = measured_on(calibration, option)
    own = not measured or name in measured or name.startswith(calibration.name)
    return "calibration" in assumed or not own
