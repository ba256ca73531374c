"""Calibrations measured on another device or link than the one that names them, and their error on a GPU."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from perfsim.machines.machine import Unknown
from perfsim.specs.calibration import Calibration, GpuCalibration
from perfsim.specs.hardware import DeviceSpec


def _measured_on(calibration: Calibration, option: str) -> list[str]:
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
    measured = _measured_on(calibration, option)
    own = not measured or name in measured or name.startswith(calibration.name)
    if isinstance(calibration, GpuCalibration) and calibration.chip:
        own = own or "sustained_fraction" in calibration.fit
    return "calibration" in assumed or not own


BORROWED = 0.36
"""Error in log time of constants that were fitted to another generation, from public runs on GPUs.

It is the 90th percentile of four runs on H100 predicted with the constants of the A100; that of 29 runs on
A100 with those of the H100 is 0.30.
"""


def of_device(device: DeviceSpec) -> Iterator[Unknown]:
    """The constants of another chip. A device names in `chip` one that has the same with another memory."""
    calibration = device.calibration
    if calibration is None or not is_borrowed(device.name, device.assumed, calibration, "device"):
        return
    if device.chip in _measured_on(calibration, "device"):
        return
    words = (
        "constants of another generation missed nine in ten published runs by up to "
        f"{100 * math.expm1(BORROWED):.0f} %, which the band allows"
    )
    yield Unknown("calibration-borrowed", BORROWED, words, shared=True)
