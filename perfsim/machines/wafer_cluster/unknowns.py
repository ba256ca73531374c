"""What published logs of wafers do not show: newer software, and more systems."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfsim.calibration import WaferCalibration
from perfsim.costs.wafer import PEAK, growth_per_release, nearest_release, place_of
from perfsim.machines.machine import Unknown

LEAST_EFFICIENCY = 0.91
"""Least efficiency of `SYSTEMS` systems [Cerebras-GPT, arXiv 2304.03208: linear within 9 % for all sizes]."""
SYSTEMS = 16


def of_release(wanted: str, calibration: WaferCalibration) -> Iterator[Unknown]:
    """The efficiency of a software release without a log, which has that of the nearest measured one.

    assumed: each release between may have changed the efficiency, either way, by as much as the releases of
    published logs did in the mean; no efficiency exceeds 1. All of a step counts as arithmetic.
    """
    used = nearest_release(wanted, calibration)
    if PEAK in (wanted, used) or wanted == used:
        return
    between, growth = abs(place_of(wanted) - place_of(used)), growth_per_release(calibration)
    width = min(between * abs(growth), -math.log(calibration.efficiency[used]))
    if width:
        words = (
            f"published releases differ in efficiency by {_percent(abs(growth))} each, so the band allows "
            f"{_percent(width)} for {between} of them"
        )
        yield Unknown("release-borrowed", width, words, shared=True)


def of_systems(count: int) -> Iterator[Unknown]:
    """The loss of many systems, of which this model predicts next to none.

    assumed: it grows with the logarithm of their number, as the levels of the tree do, up to the least
    efficiency that is published: log(count) / log(16) log(1 / 0.91). A spread of speeds of single systems
    that explains 0.91 at 16 grows more slowly (`perfsim.validation.scaling`).
    """
    if count > 1:
        width = -math.log(LEAST_EFFICIENCY) * math.log(count) / math.log(SYSTEMS)
        words = (
            f"published scaling is linear within {100 * (1 - LEAST_EFFICIENCY):.0f} % up to {SYSTEMS} "
            f"systems, so the band allows {_percent(width)} on {count:,}"
        )
        yield Unknown("devices-outside", width, words)


def _percent(width: float) -> str:
    return f"{100 * math.expm1(width):.0f} %"
