"""JSON documents: the one place where results become plain values and text; equal results, equal bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

DIGITS = 12
"""Significant digits of floats in a summary: beyond them lies only the order of additions."""
EXACT = 17
"""Digits that reproduce every float."""


def document_text(document: Any) -> str:
    """A document as JSON text with sorted keys and a final newline; what is not finite is null."""
    text = json.dumps(plain(document, EXACT), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def write_document(document: Any, path: Path) -> None:
    """Write a document as UTF-8 JSON."""
    path.write_bytes(document_text(document).encode("utf-8"))


def plain(value: Any, digits: int = DIGITS) -> Any:
    """A value as JSON knows it: dataclasses and mappings as objects, floats rounded, NaN as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain(getattr(value, entry.name), digits) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [plain(item, digits) for item in items]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        return plain(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
