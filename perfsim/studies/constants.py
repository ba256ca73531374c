"""Calibration constants as inputs of an answer: value, standard error, and the fit or source."""

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
    """One entry per fit with all its constants, and one per constant that has a source or an assumption."""
    topic = f"calibration {calibration.name}"
    fitted: dict[str, list[str]] = {group: [] for group in calibration.fit}
    from_sources = []
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
            from_sources.append(Assumption(topic, path, _text(path, value), basis, kind))
    return [
        *(
            Assumption(topic, group, _group_text(fitted[group], record), _basis(record, catalog), "fit")
            for group, record in calibration.fit.items()
        ),
        *from_sources,
    ]


def leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every constant of a calibration with its dotted path; a list counts as one constant."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif data is not None and data != ():
        yield path, data


def _covering(path: str, groups: Mapping[str, Any]) -> str:
    """The innermost of the groups that contain a path; empty if none does."""
    holding = [group for group in groups if path == group or path.startswith(f"{group}.")]
    return max(holding, key=len, default="")


def _text(path: str, value: Any) -> str:
    """A constant with its unit; each record of a list stands in brackets."""
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(path, item) for item in value)
    if isinstance(value, Mapping):
        inside = (f"{name} {_text(name, item)}" for name, item in value.items() if item is not None)
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
    """The citation of a registered source; for a user's own file its name."""
    return str(catalog.sources().get(source_id) or source_id)
