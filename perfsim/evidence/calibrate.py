"""`perfsim calibrate`: fits constants to measurements and writes files of `hardware/calibrations`.

Tables are CSV with a header: `m,n,k,time_us` for GEMMs; `collective,num_gpus,bytes,time_us` for
collectives inside one node, where `bytes` is the whole message, or outputs of nccl-tests. Fits need SciPy,
from the extra `[fit]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from perfsim.base.errors import InputError, Problem
from perfsim.base.files import write_file
from perfsim.base.units import format_quantity
from perfsim.catalog import default_catalog
from perfsim.evidence.collective_fit import fit_collectives
from perfsim.evidence.convergence_fit import fit_convergence
from perfsim.evidence.gemm_fit import fit_gemm, fit_like, is_own
from perfsim.evidence.step_fit import fit_cluster, fit_logs, fit_steps
from perfsim.evidence.tables import rounded
from perfsim.evidence.wafer_fit import fit_wafer
from perfsim.interop.formats import format_of
from perfsim.machines import machine_of
from perfsim.specs.calibration import (
    Calibration,
    CollectiveCalibration,
    GpuCalibration,
    MemoryConstants,
)
from perfsim.specs.hardware import DeviceSpec, LinkSpec

_UNMEASURED = "not in the table of GEMM times; the value of the A100 until it is measured"
_UNMEASURED_CEILING = (
    "no training run is measured: that of long kernels in the table, less as on A100 and H100"
)
SUSTAINED_OVER_BURST = 0.91
"""Ceiling in training over the ceiling of long kernels in a short benchmark: geometric mean of A100 with 80
and with 40 GB and H100."""
_OF_THE_A100 = (
    "memory",
    "kernel_latency_s",
    "sustained_spread",
    "wgrad_factor",
    "attention_fraction",
    "attention_half_length",
    "attention_instruction_fraction",
)
_GEMM_DEVICES = ("gpu",)
"""Kinds of device whose model is fitted to tables of GEMM times."""
_DERIVED = {
    "broadcast": "a pipelined ring, like the all-gather whose lines it takes; not measured",
    "send_recv": "an all-to-all of two ranks sends half of each message: its lines; not measured",
}


def calibrate_gemm(
    table: Path, device: str, out: Path | None = None, *, source: str = "", like: str = ""
) -> str:
    """Fit a device of the catalogue to a table; returns the YAML, or the path of the file.

    `like` names the calibration whose tiles are scaled; the table then has a column `precision`. Raises
    InputError for a bad table, an unknown device, or without SciPy.
    """
    measured = default_catalog().device(device)
    if measured.kind not in _GEMM_DEVICES:
        raise InputError(f"{device} is a {measured.kind}; GEMM tables are of GPUs (wafers: calibrate wafer)")
    if not like:
        return _deliver(gpu_calibration(table, measured, source=source), out)
    base = default_catalog().calibration(like)
    if not isinstance(base, GpuCalibration):
        raise InputError(f"{like} is no calibration of a GPU")
    return _deliver(_calibration_like(table, measured, base, source=source), out)


def calibrate_collectives(
    tables: Sequence[Path], link: str, out: Path | None = None, *, source: str = ""
) -> str:
    """Fit a link of the catalogue to tables; returns the YAML, or the path of the file.

    Raises InputError for a bad table, an unknown link or one between nodes, because tables are measured
    inside one, and without SciPy.
    """
    catalog = default_catalog()
    systems = [catalog.system(name) for name in catalog.names("system")]
    links = [machine_of(system).links(system) for system in systems]
    inside = sorted({inner.name for each in links for inner in each.inside_node})
    if link in {outer.name for each in links for outer in each.between_nodes} - set(inside):
        raise InputError(
            f"{link} joins nodes; tables are of collectives inside one, over {', '.join(inside)}"
        )
    return _deliver(collective_calibration(tables, catalog.link(link), source=source), out)


def calibrate_framework(
    cases: Sequence[Path], device: str | None = None, out: Path | None = None, **options: Any
) -> str:
    """Fit constants of framework, network and devices to whole steps: one YAML file each.

    `out` is a directory; `fit_steps` tells the options. Raises InputError for a bad file, an unknown
    device or constant, or without SciPy.
    """
    return "\n".join(
        _deliver(calibration, None if out is None else out / f"{calibration.name}.yaml")
        for calibration in fit_steps(cases, device, **options)
    )


def calibrate_steps(measured: Sequence[Path], out: Path | None = None, system: str = "") -> tuple[str, str]:
    """Fit one scale to the steps of a cluster: the YAML or the path of the file, and a warning or "".

    `measured` is one YAML file, or with `system`, on which they ran, logs of Megatron-LM. Raises InputError
    for a bad file, fewer than two steps, and for steps that cannot be predicted.
    """
    if not system and (len(measured) > 1 or format_of(measured[0]) == "megatron"):
        raise InputError(
            [Problem("a log does not say on what it ran", str(measured[0]), help="add --system NAME")]
        )
    calibration = fit_logs(measured, system) if system else fit_cluster(measured[0])
    return _deliver(calibration, out), calibration.spread_warning if calibration.is_wide else ""


def calibrate_wafer(cases: Path, device: str, out: Path | None = None, *, source: str = "") -> str:
    """Fit a wafer to training logs; returns the YAML, or the path of the file.

    Raises InputError for a bad file, an unknown device, or without SciPy.
    """
    return _deliver(fit_wafer(cases, device, source=source), out)


def calibrate_convergence(
    files: Sequence[Path], tokens_per_example: float, run_kind: str, out: Path | None = None
) -> list[str]:
    """Fit the critical batch to runs: E_min and B_crit in words, and the YAML or the path of the file."""
    calibration = fit_convergence(files, tokens_per_example, run_kind)
    words = [calibration.description, *calibration.notes]
    return [_deliver(calibration, out), *(words if out is not None else [])]


def gpu_calibration(table: Path, device: DeviceSpec, *, source: str = "") -> GpuCalibration:
    """The device's calibration with a new GEMM model; other constants are kept."""
    present = device.calibration
    constants, record, undetermined = fit_gemm(table, device, source=source)
    assumed = undetermined.assumed_in("gemm")
    if not isinstance(present, GpuCalibration):
        return GpuCalibration(
            name=device.name,
            description=f"Kernels on {device.name}",
            gemm=constants,
            memory=MemoryConstants(fraction=0.87),
            kernel_latency_s=3e-6,
            sustained_fraction=rounded(SUSTAINED_OVER_BURST * constants.burst_fraction),
            sustained_spread=0.02,
            assumed={
                **dict.fromkeys(_OF_THE_A100, _UNMEASURED),
                "sustained_fraction": _UNMEASURED_CEILING,
                **assumed,
            },
            fit={"gemm": record},
        )
    kept = {key: reason for key, reason in present.assumed.items() if not key.startswith("gemm.")}
    words = f"Kernels on {device.name}: matrix products measured, the rest as in {present.name}"
    return present.model_copy(
        update={
            "description": present.description if is_own(device, present) else words,
            "gemm": constants,
            "fit": {**present.fit, "gemm": record},
            "assumed": kept | assumed,
        }
    )


def _calibration_like(
    table: Path, device: DeviceSpec, base: GpuCalibration, *, source: str = ""
) -> GpuCalibration:
    """A calibration with products fitted as factors on the tiles of `base`; other constants are its own."""
    gemm, narrow, records = fit_like(table, device, base, source=source)
    known = device.calibration
    present = known if isinstance(known, GpuCalibration) and is_own(device, known) else base
    kept = {name: why for name, why in present.assumed.items() if not name.startswith("narrow")}
    if "gemm" in records:
        errors = records["gemm"].standard_errors
        kept = {name: why for name, why in kept.items() if not name.startswith("gemm.")}
        kept |= {
            name: f"as in {base.name}, whose tiles the table's own factors scale"
            for name in present.model_copy(update={"gemm": gemm}).constants()
            if name.startswith("gemm.") and not any(f".{name}".endswith(f".{known}") for known in errors)
        }
    return present.model_copy(
        update={
            "gemm": gemm,
            "narrow": narrow,
            "fit": {**(present.fit if present is known else {}), **records},
            "assumed": kept,
        }
    )


def collective_calibration(
    tables: Sequence[Path], link: LinkSpec, *, source: str = ""
) -> CollectiveCalibration:
    """The link's calibration with new lines for the measured operations and those derived from them."""
    present = link.calibration or CollectiveCalibration(
        name=link.name, description=f"Collectives over {link.name} inside one node"
    )
    collectives, records, assumed = fit_collectives(tables, link, source=source)
    derived = [op for op in collectives if f"collectives.{op}" not in records]
    assumed |= {f"collectives.{op}": _DERIVED[op] for op in derived}
    refitted = tuple(f"collectives.{op}" for op in collectives)
    kept = {key: why for key, why in present.assumed.items() if not key.startswith(refitted)}
    return present.model_copy(
        update={
            "collectives": {**present.collectives, **collectives},
            "measured_on_bytes_per_s": link.bandwidth,
            "sources": {**present.sources, "measured_on_bytes_per_s": "as on the link's data sheet"},
            "fit": {**present.fit, **records},
            "assumed": kept | assumed,
        }
    )


def _to_yaml(calibration: Calibration) -> str:
    """The text of a calibration file, with units."""
    content = _with_units(calibration.model_dump(mode="json", exclude_none=True))
    ordered = {key: content[key] for key in ("name", "kind", "description") if content.get(key)}
    ordered |= {key: value for key, value in content.items() if key not in ordered and value not in ("", {})}
    return yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True)


def write_yaml(calibration: Calibration, path: Path) -> None:
    """Write a calibration file."""
    write_file(path, _to_yaml(calibration))


def _deliver(calibration: Calibration, out: Path | None) -> str:
    if out is None:
        return _to_yaml(calibration).rstrip()
    # The catalogue finds a file by its name, so the name inside must agree.
    write_yaml(calibration.model_copy(update={"name": out.stem}), out)
    return f"Calibration: {out}"


class _Dumper(yaml.SafeDumper):
    """Writes small groups of numbers on one line, and no YAML aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=_is_small(data))


def _represent_dict(dumper: yaml.SafeDumper, data: dict[str, Any]) -> yaml.MappingNode:
    numbers = _is_small(list(data.values())) and not all(isinstance(value, str) for value in data.values())
    segment = "latency_base_s" in data
    return dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=numbers or segment)


def _is_small(items: list[Any]) -> bool:
    """Whether all items are numbers, short words or lists of them."""
    return all(
        _is_small(item) if isinstance(item, list) else not isinstance(item, dict) and len(str(item)) < 30
        for item in items
    )


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(dict, _represent_dict)


def _with_units(value: Any, name: str = "") -> Any:
    """The tree with every dimensioned number as a string; the suffix of its name gives the unit."""
    if isinstance(value, dict):
        # The record of a fit holds fractions, under the names of the constants.
        return {key: item if key == "fit" else _with_units(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_units(item, name) for item in value]
    if not isinstance(value, float):
        return value
    if name.endswith("_bytes_per_s"):
        return format_quantity(value, "bytes_per_s", precision=None)
    if name.endswith(("_s", "_s_per_kernel", "_s_per_element")):
        return format_quantity(value, "seconds", precision=None)
    return value
