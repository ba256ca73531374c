"""JSON documents: the one place where results become plain values and text; equal results, equal bytes."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import to_jsonable_python


def document_text(document: Any) -> str:
    """A document as JSON text with sorted keys and a final newline; what is not finite is null."""
    text = json.dumps(plain(document), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def plain(value: Any) -> Any:
    """A value as JSON knows it: dataclasses and mappings as objects, floats with every digit, NaN as null."""
    return to_jsonable_python(value, inf_nan_mode="null", fallback=_known)


def _known(value: Any) -> Any:
    """NumPy's arrays and numbers, and mappings that cannot be changed, as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else dict(value)
