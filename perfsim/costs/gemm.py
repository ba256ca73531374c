"""The time of a matrix product on a GPU: tiles, waves, memory and the power limit.

The library cuts the m x n result into tiles a x b (and k into s slices), and the device works on
`compute_units` of them at a time:

    waves   = ceil(batch ceil(m/a) ceil(n/b) s / compute_units)
    compute = waves 2ab (ceil(k/s) + overhead_k) / (efficiency peak / compute_units)
              + [s > 1] (split_latency + split_traffic 8 m n s batch / bandwidth)
    memory  = element_bytes batch (mk + kn + mn) / (memory_fraction bandwidth)
    seconds = launch + (compute^p + memory^p)^(1/p)

A partly filled last wave costs as much as a full one (wave quantisation). The library picks tile and split
by a heuristic, not the fastest: the argmin of the same expression with the `choice_` constants.
The power limit keeps the achieved fraction of peak e under a ceiling c: seconds (1 + (e/c)^q)^(1/q).
In a short benchmark the ceiling falls with the length of the kernel; in training
(`sustained=True`) it is `sustained_fraction`. Tiles and waves: NVIDIA, "Matrix Multiplication
Background User's Guide"; the constants are fitted, see `perfsim.fitting.calibrate`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfsim.base.arrays import Floats
from perfsim.base.errors import InputError
from perfsim.specs.calibration import GemmConstants, GpuCalibration, NarrowGemmConstants
from perfsim.specs.hardware import DeviceSpec
from perfsim.specs.precisions import PRECISIONS, Precision
from perfsim.work.kernels import HALF

_PARTIAL_SUM_BYTES = 8.0
"""Bytes of one fp32 partial sum, written and read."""
_CHUNK = 4096
"""Shapes priced at once, so that an array of candidates times shapes stays in cache."""


class _Candidates(NamedTuple):
    """All candidates (tile orientation, split); arrays of shape (candidates, 1)."""

    tile_index: NDArray[np.intp]
    rows: Floats
    columns: Floats
    split: Floats


class Geometry(NamedTuple):
    """Quantities of shapes that do not depend on fitted constants; (candidates, shapes) arrays."""

    tile_wave_flop: Floats
    """FLOP of one compute unit per unit of k over all waves: waves 2ab."""
    k_per_slice: Floats
    partial_sum_bytes: Floats
    """0 where k is not split."""
    is_split: Floats
    flop: Floats
    n_bytes: Floats


@dataclass(frozen=True)
class GemmModel:
    """Seconds of C[m, n] = A[m, k] B[k, n] on one device.

    `peak_flop_per_s` and `memory_bytes_per_s` are the datasheet's; `sustained_fraction` is the ceiling that
    `sustained=True` applies. A number of A and B takes `element_bytes`, one of C `result_bytes`.
    """

    constants: GemmConstants
    peak_flop_per_s: float
    memory_bytes_per_s: float
    compute_units: int
    sustained_fraction: float = 1.0
    element_bytes: float = HALF
    result_bytes: float | None = None
    """None: as an operand."""

    @overload
    def time_s(self, m: float, n: float, k: float, batch: float = 1, *, sustained: bool = False) -> float: ...
    @overload
    def time_s(
        self, m: ArrayLike, n: ArrayLike, k: ArrayLike, batch: ArrayLike = 1, *, sustained: bool = False
    ) -> Floats: ...
    def time_s(
        self, m: ArrayLike, n: ArrayLike, k: ArrayLike, batch: ArrayLike = 1, *, sustained: bool = False
    ) -> float | Floats:
        """Seconds, broadcast over the arguments; a float for four scalars.

        Never less than launch, FLOP over peak, or bytes over bandwidth. InputError for a size not above 0.
        """
        sizes = np.broadcast_arrays(*(np.asarray(size, dtype=float) for size in (m, n, k, batch)))
        if any(not bool(np.all(size > 0)) for size in sizes):
            raise InputError("a GEMM needs positive m, n, k and batch")
        flat = [size.ravel() for size in sizes]
        seconds = np.empty(flat[0].shape)
        for start in range(0, seconds.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            seconds[part] = self.price(self.geometry(*(size[part] for size in flat)), sustained=sustained)
        return float(seconds[0]) if sizes[0].ndim == 0 else seconds.reshape(sizes[0].shape)

    def geometry(self, m: Floats, n: Floats, k: Floats, batch: Floats) -> Geometry:
        """Tiles and waves of flat arrays of shapes."""
        candidates = self._candidates
        k_step = self.constants.k_step
        result_bytes = self.element_bytes if self.result_bytes is None else self.result_bytes
        tiles = np.ceil(m / candidates.rows) * np.ceil(n / candidates.columns) * candidates.split * batch
        waves = np.ceil(tiles / self.compute_units)
        is_split = np.asarray(candidates.split > 1, dtype=float)
        return Geometry(
            tile_wave_flop=2 * waves * candidates.rows * candidates.columns,
            k_per_slice=np.ceil(k / candidates.split / k_step) * k_step,
            partial_sum_bytes=_PARTIAL_SUM_BYTES * is_split * candidates.split * m * n * batch,
            is_split=is_split,
            flop=2 * batch * m * n * k,
            n_bytes=batch * (self.element_bytes * (m * k + k * n) + result_bytes * m * n),
        )

    def price(
        self, geometry: Geometry, *, sustained: bool = False, chosen: NDArray[np.intp] | None = None
    ) -> Floats:
        """Seconds of shapes from their geometry, which a fit computes once; `chosen` is from `choice`."""
        candidate = self.choice(geometry) if chosen is None else chosen

        def pick(values: Floats) -> Floats:
            return np.asarray(np.take_along_axis(values, candidate, axis=0)[0])

        latency = geometry.is_split[candidate[0], 0] * self.constants.split_latency_s
        summing = pick(geometry.partial_sum_bytes) / self.memory_bytes_per_s
        columns = pick(geometry.k_per_slice) + self._by_candidate("overhead_k")[candidate[0], 0]
        ideal = pick(geometry.tile_wave_flop) * columns / self._unit_peak
        actual = ideal / self._by_candidate("efficiency")[candidate[0], 0]
        compute = actual + (self.constants.split_traffic * summing + latency)
        memory = geometry.n_bytes / (self.constants.memory_fraction * self.memory_bytes_per_s)
        p = self.constants.overlap_sharpness
        longest = np.maximum(compute, memory)
        busy = longest * (1 + (np.minimum(compute, memory) / longest) ** p) ** (1 / p)
        seconds = self.constants.launch_s + busy
        # The power limit keeps the achieved fraction of peak under a ceiling.
        fraction = geometry.flop / (seconds * self.peak_flop_per_s)
        age = seconds / self.constants.burst_s
        ceiling = 1 - (1 - self.constants.burst_fraction) * age / (1 + age)
        if sustained:
            ceiling = np.minimum(ceiling, self.sustained_fraction)
        q = self.constants.power_sharpness
        limited = seconds * (1 + (fraction / ceiling) ** q) ** (1 / q)
        return np.asarray(np.maximum(limited, geometry.flop / self.peak_flop_per_s))

    @cached_property
    def _candidates(self) -> _Candidates:
        """Both orientations of each tile with each split."""
        table = [
            (index, a, b, s)
            for index, tile in enumerate(self.constants.tiles)
            for a, b in dict.fromkeys((tile.shape, tile.shape[::-1]))
            for s in self.constants.split_k
        ]
        columns = np.array(table, dtype=float).T[:, :, None]
        return _Candidates(columns[0].astype(np.intp), columns[1], columns[2], columns[3])

    def choice(self, geometry: Geometry) -> NDArray[np.intp]:
        """Index of the candidate that the library picks for each shape; shape (1, shapes)."""
        latency = geometry.is_split * self.constants.split_latency_s
        summing = geometry.partial_sum_bytes / self.memory_bytes_per_s
        columns = geometry.k_per_slice + self._by_candidate("overhead_k")
        estimate = geometry.tile_wave_flop * columns / self._unit_peak
        estimate /= self._by_candidate("choice_efficiency")
        estimate += self.constants.choice_split_traffic * summing + latency
        return np.asarray(np.argmin(estimate, axis=0)[None, :])

    @property
    def _unit_peak(self) -> float:
        return self.peak_flop_per_s / self.compute_units

    def _by_candidate(self, name: str) -> Floats:
        values = [float(getattr(tile, name)) for tile in self.constants.tiles]
        return np.array(values)[self._candidates.tile_index]

    def narrow(self, gpu: GpuCalibration, device: DeviceSpec, precision: Precision) -> GemmModel:
        """The model of narrow products; without a table they have the fractions of peak of this one."""
        table = measured_products(gpu, precision)
        slowest = self.sustained_fraction / gpu.sustained_fraction
        ceiling = (gpu.narrow_sustained_fraction or 1.0) * slowest
        return replace(
            self,
            constants=self.constants if table is None else narrow_constants(self.constants, table),
            peak_flop_per_s=device.peak_flop_per_s(precision),
            sustained_fraction=min(1.0, ceiling),
            element_bytes=PRECISIONS[precision].bytes,
            result_bytes=self.element_bytes,
        )


def measured_products(gpu: GpuCalibration, precision: Precision) -> NarrowGemmConstants | None:
    """A device's table of products in a narrow precision, or in the nearest one; None: it has none."""
    tables = (gpu.narrow.get(name) for name in (precision, *PRECISIONS[precision].stand_ins))
    return next((table for table in tables if table is not None), None)


def narrow_constants(gemm: GemmConstants, narrow: NarrowGemmConstants) -> GemmConstants:
    """The library's constants for narrow operands."""
    tiles = []
    for tile in gemm.tiles:
        efficiency = min(1.0, tile.efficiency * narrow.efficiency)
        changed = {"efficiency": efficiency, "overhead_k": tile.overhead_k * narrow.overhead}
        tiles.append(tile.model_copy(update=changed))
    shared = {"memory_fraction": narrow.memory_fraction, "burst_fraction": narrow.burst_fraction}
    return gemm.model_copy(update={"tiles": tuple(tiles), **shared})
