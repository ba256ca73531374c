"""A short fingerprint of the inputs of an answer: equal inputs, equal digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from perfsim.spec import Spec

LENGTH = 12
"""Hexadecimal digits that are shown; two of a billion different inputs agree by chance once in 500 times."""


def inputs_digest(specs: Iterable[Spec | str]) -> str:
    """The first digits of the SHA-256 of descriptions with all their values, and of texts beside them."""
    content = hashlib.sha256()
    for spec in specs:
        content.update((spec if isinstance(spec, str) else spec.model_dump_json()).encode())
        content.update(b"\0")
    return content.hexdigest()[:LENGTH]
