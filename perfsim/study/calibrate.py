"""Constants from measurements: `perfsim calibrate` turns tables into files of `hardware/calibrations`.

Tables are CSV with a header: `m,n,k,time_us` for GEMMs; `collective,num_gpus,bytes,time_us` for
collectives inside one node, where `bytes` is the whole message. The optimizers are SciPy's, which
the extra `[fit]` installs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from perfsim.calibration import Calibration
from perfsim.study.collective_fit import fit_collectives
from perfsim.study.gemm_fit import GemmTable, absolute_errors, fit_gemm
from perfsim.units import format_quantity

__all__ = ["GemmTable", "absolute_errors", "fit_collectives", "fit_gemm", "to_yaml", "write_yaml"]


def to_yaml(calibration: Calibration) -> str:
    """The text of a calibration file: quantities with their units, one group after the other."""
    content = _with_units(calibration.model_dump(mode="json", exclude_none=True))
    ordered = {key: content[key] for key in ("name", "kind", "description") if content.get(key)}
    ordered |= {key: value for key, value in content.items() if key not in ordered and value not in ("", {})}
    return yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)


def write_yaml(calibration: Calibration, path: Path) -> None:
    """Write a calibration file, whole or not at all."""
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(to_yaml(calibration), encoding="utf-8")
    partial.replace(path)


class _Dumper(yaml.SafeDumper):
    """Short lists on one line; nothing is written as a reference to something above."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        scalars = all(not isinstance(item, dict | list) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=scalars)


def _with_units(value: Any, name: str = "") -> Any:
    """The same tree with every dimensioned number as a string; its name's ending tells its unit."""
    if isinstance(value, dict):
        return {key: _with_units(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_units(item, name) for item in value]
    if not isinstance(value, float):
        return value
    if name.endswith("_bytes_per_s"):
        return format_quantity(value, "bytes_per_s", precision=None)
    if name.endswith(("_s", "_s_per_kernel")):
        return format_quantity(value, "seconds", precision=None)
    return value
