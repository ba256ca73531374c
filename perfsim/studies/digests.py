"""A digest of everything that affects the answer to a study."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from perfsim.prediction.model_version import model_version
from perfsim.studies.spec import StudySpec

_PROSE = frozenset({"title", "question", "description", "sources", "assumed", "fit", "noun"})
"""Keys that explain a value and do not affect an answer."""
_INPUTS = ("model", "recipe", "convergence", "batch_sizes", "memory_limit", "candidates", "perturbations")


class Digests:
    """Digests of studies; descriptions that several of them share are taken apart once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[BaseModel, str]] = {}

    def of(self, study: StudySpec) -> str:
        """SHA-256 of everything that affects the answer to a study, in 64 hexadecimal digits.

        This covers the resolved descriptions (hardware, calibrations, model, recipe, candidates, batches,
        law) without file names, titles, sources and reasons, and the version of the model.
        """
        inputs = {name: self._part(getattr(study, name)) for name in _INPUTS if name != "candidates"}
        inputs["candidates"] = [self._parts(candidate) for candidate in study.candidates]
        return _digest({"inputs": inputs, "model_version": model_version()})

    def _parts(self, spec: BaseModel) -> dict[str, Any]:
        return {name: self._part(value) for name, value in spec}

    def _part(self, value: Any) -> Any:
        """A description's digest; any other value as it is."""
        if not isinstance(value, BaseModel):
            return value
        known = self._known.get(id(value))
        if known is None:
            digest = _digest(_without_prose(value.model_dump(mode="json")))
            known = self._known[id(value)] = value, digest  # which keeps the id from being used again
        return known[1]


def digest_of(study: StudySpec) -> str:
    """The digest of one study."""
    return Digests().of(study)


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode("utf-8")).hexdigest()


def _without_prose(value: Any) -> Any:
    """A description without its prose."""
    if isinstance(value, Mapping):
        return {key: _without_prose(item) for key, item in value.items() if key not in _PROSE}
    if isinstance(value, list):
        return [_without_prose(item) for item in value]
    return value
