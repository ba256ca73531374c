"""Calibrations for devices and links that name none: that of the nearest one with a calibration of its own.

Of its kind, a device is nearest by generation, which its narrowest precision tells (16, 8 or 4 bits), then by
peak and memory bandwidth; a link by bandwidth. Distances are in logarithms. What is borrowed is recorded as
an assumption, so that answers carry a caveat. Rates of collectives inside a node are scaled by the links'.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from perfsim.base.errors import CatalogError
from perfsim.specs.calibration import CollectiveCalibration, ProtocolSegment
from perfsim.specs.hardware import DeviceSpec, GpuClusterSpec, LinkSpec, NodeSpec
from perfsim.specs.precisions import PRECISIONS

if TYPE_CHECKING:
    from perfsim.catalog.reader import Shelf


SpecT = TypeVar("SpecT", bound=BaseModel)


def calibrated(spec: SpecT, shelf: Shelf) -> SpecT:
    """A device, or the links of a node of GPUs, with the nearest calibration where they name none."""
    if isinstance(spec, DeviceSpec) and spec.calibration is None:
        return spec.model_copy(update=_of_device(spec, shelf))
    if isinstance(spec, GpuClusterSpec) and None in _calibrations(spec.node):
        return spec.model_copy(update={"node": _of_node(spec.node, shelf)})
    return spec


def _calibrations(node: NodeSpec) -> tuple[CollectiveCalibration | None, ...]:
    return node.scale_up.calibration, node.nic.calibration


def _of_device(device: DeviceSpec, shelf: Shelf) -> dict[str, object]:
    known = [other for other in _measured(shelf, "device", DeviceSpec) if other.kind == device.kind]
    if not known:
        return {}
    nearest = min(known, key=lambda other: (*_unlikeness(device, other), other.name))
    name = "" if nearest.calibration is None else nearest.calibration.name
    reason = f"it names none: {name}, that of the nearest {device.kind} with one ({nearest.name})"
    return {"calibration": nearest.calibration, "assumed": {**device.assumed, "calibration": reason}}


def _unlikeness(device: DeviceSpec, other: DeviceSpec) -> tuple[float, float]:
    """Generations apart, then the distance of the data sheets."""
    (bits, peak, bandwidth), (other_bits, other_peak, other_bandwidth) = map(_figures, (device, other))
    apart = math.hypot(math.log(peak / other_peak), math.log(bandwidth / other_bandwidth))
    return abs(math.log2(bits / other_bits)), apart


def _figures(device: DeviceSpec) -> tuple[float, float, float]:
    """Bits of the narrowest numbers that it multiplies, its peak in 16 bits or its highest, its bandwidth."""
    whole_bits = [2.0 ** round(math.log2(8 * PRECISIONS[name].bytes)) for name in device.peak]
    sixteen = [device.peak[name] for name in ("bf16", "fp16") if name in device.peak]
    return min(whole_bits), max(sixteen or device.peak.values()), device.memory.bandwidth


def _of_node(node: NodeSpec, shelf: Shelf) -> NodeSpec:
    links = [link for link in _measured(shelf, "link", LinkSpec) if link.calibration is not None]
    inside = [link for link in links if link.calibration and link.calibration.collectives]
    across = [link for link in links if link.calibration and link.calibration.network]
    port = node.scale_up.bandwidth * node.lanes(node.devices)
    return node.model_copy(
        update={
            "scale_up": _of_link(node.scale_up, inside, port),
            "nic": _of_link(node.nic, across, node.nic.bandwidth),
        }
    )


def _of_link(link: LinkSpec, known: list[LinkSpec], bytes_per_s: float) -> LinkSpec:
    """The link with the calibration of the nearest one; `bytes_per_s` is all that a device can send."""
    if link.calibration is not None or not known:
        return link
    nearest = min(known, key=lambda other: (abs(math.log(bytes_per_s / other.bandwidth)), other.name))
    reason = f"it names none: that of the link of nearest bandwidth with one ({nearest.name}), scaled by it"
    calibration = _scaled(nearest.calibration, bytes_per_s / nearest.bandwidth)
    update = {"calibration": calibration, "assumed": {**link.assumed, "calibration": reason}}
    return link.model_copy(update=update)


def _scaled(calibration: CollectiveCalibration | None, factor: float) -> CollectiveCalibration | None:
    """A calibration with all rates inside a node multiplied."""
    if calibration is None:
        return None
    collectives = {
        op: tuple(_faster(segment, factor) for segment in segments)
        for op, segments in calibration.collectives.items()
    }
    return calibration.model_copy(update={"collectives": collectives})


def _faster(segment: ProtocolSegment, factor: float) -> ProtocolSegment:
    local = segment.local_bytes_per_s
    return segment.model_copy(
        update={
            "bandwidth_bytes_per_s": segment.bandwidth_bytes_per_s * factor,
            "local_bytes_per_s": None if local is None else local * factor,
        }
    )


def _measured(shelf: Shelf, kind: str, cls: type[SpecT]) -> Iterator[SpecT]:
    """Every description of the catalogue whose file names a calibration that is not marked as borrowed."""
    from perfsim.catalog.reader import read_mapping

    for name in shelf.names(kind):
        try:
            values = read_mapping(shelf.find(kind, name), kind, shelf).data
            owns = values.get("calibration") and "calibration" not in (values.get("assumed") or {})
            spec = shelf.load(kind, name) if owns else None
        except CatalogError:
            continue  # a broken file is reported where it is asked for
        if isinstance(spec, cls):
            yield spec
