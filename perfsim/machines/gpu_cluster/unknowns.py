"""What no published run shows of a GPU: how fast it is with the constants of another one."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfsim.hardware import DeviceSpec
from perfsim.machines.borrowed import is_borrowed, measured_on
from perfsim.machines.machine import Unknown

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
    if device.chip in measured_on(calibration, "device"):
        return
    words = (
        "constants of another generation missed nine in ten published runs by up to "
        f"{100 * math.expm1(BORROWED):.0f} %, which the band allows"
    )
    yield Unknown("calibration-borrowed", BORROWED, words, shared=True)
