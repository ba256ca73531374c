"""The machine-readable answer: one JSON document, byte-identical for the same result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from perfsim.prediction.documents import document_of
from perfsim.study.result import CandidateResult, StudyResult

DIGITS = 12
"""Significant digits of every float: beyond them lies only the order of additions."""

_OF_CANDIDATE = (
    "steps",
    "time_to_accuracy_s",
    "time_to_accuracy_band_s",
    "memory",
    "batch_curve",
    "notes",
    "batch_at_edge",
    "whole_run",
)
"""What a candidate adds to a prediction; its timeline is the trace file's."""


def summary_dict(result: StudyResult, *, report: str = "index.html") -> dict[str, Any]:
    """The document of `perfsim study --json`.

    Every quantity is SI and its key names the unit. `report` is where the page stands, as the
    caller wants it written. Floats carry 12 significant digits; what is not finite is null.
    """
    document = {name: plain(value) for name, value in _items(result) if name != "candidates"}
    document["candidates"] = [_candidate(candidate) for candidate in result.candidates]
    document["report"] = report
    return document


def summary_text(document: Mapping[str, Any]) -> str:
    """A document as JSON text with sorted keys and a final newline."""
    return json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_summary(result: StudyResult, path: Path, *, report: str = "index.html") -> Path:
    """Write `summary_dict` as UTF-8 JSON; the same result gives the same bytes."""
    path.write_bytes(summary_text(summary_dict(result, report=report)).encode("utf-8"))
    return path


def _candidate(candidate: CandidateResult) -> dict[str, Any]:
    document: dict[str, Any] = plain(document_of(candidate))
    document |= {name: plain(getattr(candidate, name)) for name in _OF_CANDIDATE}
    document["label"] = candidate.label
    document["tokens_per_s_per_device"] = plain(candidate.tokens_per_s / max(candidate.num_devices, 1))
    document["memory_capacity_bytes"] = plain(candidate.memory_capacity_bytes)
    return document


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(entry.name, getattr(value, entry.name)) for entry in fields(value)]


def plain(value: Any) -> Any:
    """A value as JSON knows it: dataclasses and mappings as objects, floats rounded, NaN as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(item) for name, item in _items(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [plain(item) for item in items]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
