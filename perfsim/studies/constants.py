"""Fitted constants as inputs of an answer: each value, its standard error, and the fit it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfsim.calibration import Calibration, FitRecord
from perfsim.catalog import Catalog
from perfsim.studies.result import Assumption
from perfsim.units import format_quantity

_NOT_CONSTANTS = frozenset(
    {"name", "description", "sources", "assumed", "fit", "kind", "device", "cases", "peak_profile"}
)
DIGITS = 4


def constants_of(calibration: Calibration, catalog: Catalog) -> list[Assumption]:
    """One entry a fit with all its constants, and one for each constant from a source or an assumption."""
    topic = f"calibration {calibration.name}"
    fitted: dict[str, list[str]] = {group: [] for group in calibration.fit}
    found = []
    for path, value in leaves(calibration.model_dump(exclude=set(_NOT_CONSTANTS))):
        group = _covering(path, calibration.fit)
        if group:
            errors, name = calibration.fit[group].standard_errors, path.removeprefix(group).lstrip(".")
            error = errors.get(path, errors.get(name))
            text = _text(path, value)
            fitted[group].append(_with_error(f"{name} {text}" if name else text, error))
            continue
        source, assumed = _covering(path, calibration.sources), _covering(path, calibration.assumed)
        if source or assumed:
            basis = f"assumed: {calibration.assumed[assumed]}" if assumed else ""
            basis = basis or _source(calibration.sources[source], catalog)
            kind = "assumption" if assumed else "datasheet"
            found.append(Assumption(topic, path, _text(path, value), basis, kind))
    return [
        *(
            Assumption(
                topic, group, _group_text(values, calibration.fit[group]), _basis(record, catalog), "fit"
            )
            for group, values in fitted.items()
            for record in (calibration.fit[group],)
        ),
        *found,
    ]


def leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every constant of a calibration by its dotted path; a list is one constant."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif data is not None and data != ():
        yield path, data


def _covering(path: str, groups: Mapping[str, Any]) -> str:
    """The longest of the groups that a path lies in; empty where none holds it."""
    holding = [group for group in groups if path == group or path.startswith(f"{group}.")]
    return max(holding, key=len, default="")


def _text(path: str, value: Any) -> str:
    """A constant with its unit; of a list of records each record in brackets."""
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(path, each) for each in value)
    if isinstance(value, Mapping):
        inside = (f"{name} {_text(name, each)}" for name, each in value.items() if each is not None)
        return f"[{'; '.join(inside)}]"
    if isinstance(value, float) and path.endswith("_bytes_per_s"):
        return format_quantity(value, "bytes_per_s", DIGITS)
    if isinstance(value, float) and (path.endswith("_s") or "_s_per_" in path):
        return format_quantity(value, "seconds", DIGITS)
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def _with_error(text: str, error: float | None) -> str:
    return text if error is None else f"{text} (standard error {100 * error:.1f} %)"


def _group_text(values: list[str], record: FitRecord) -> str:
    median, p90 = 100 * record.median_ape, 100 * record.p90_ape
    residual = f"median error {median:.1f} %, p90 {p90:.1f} %, {record.points} points"
    errors = [100 * error for error in record.standard_errors.values()]
    spread = (
        f", standard errors {min(errors):.1f} to {max(errors):.1f} %" if len(values) > 1 and errors else ""
    )
    unknown = spread if errors else ", no standard errors"
    return f"{', '.join(values)}; {residual}{unknown}" if values else residual


def _basis(record: FitRecord, catalog: Catalog) -> str:
    return f"{_source(record.table, catalog)}; {record.command}"


def _source(source_id: str, catalog: Catalog) -> str:
    """A registered source in words; the id itself where it is a user's own file."""
    known = catalog.sources().get(source_id)
    return str(known) if known else source_id
