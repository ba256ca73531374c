"""JSON documents: the one place where results become plain values and text; equal results, equal bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_PLAIN = (str, int, bool, type(None))


def document_text(document: Any) -> str:
    """A document as JSON text with sorted keys and a final newline; what is not finite is null."""
    text = json.dumps(plain(document), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def plain(value: Any) -> Any:
    """A value as JSON knows it: dataclasses and mappings as objects, floats with every digit, NaN as null."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [plain(item) for item in items]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        return plain(value.tolist())
    return value if isinstance(value, (int, str)) else str(value)
