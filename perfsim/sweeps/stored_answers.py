"""Results of points from their stored answers; what many points share is in memory once."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, TypeVar

from perfsim.convergence.time_to_accuracy import time_to_accuracy
from perfsim.convergence.wall_clock import RunPart
from perfsim.prediction.documents import prediction_from
from perfsim.studies.batches import Target
from perfsim.studies.runner import target_of
from perfsim.studies.spec import StudySpec
from perfsim.sweeps.grid import SweepPoint
from perfsim.sweeps.points import Answer, PointResult

Shared = TypeVar("Shared", bound=Hashable)


class StoredAnswers:
    """Reads answers of one sweep."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}
        self._targets: dict[tuple[int, ...], Target] = {}

    def result(self, point: SweepPoint, text: str) -> PointResult:
        """The result of a point from the JSON text that was stored for it."""
        document = self._slim(json.loads(text))
        if "reasons" in document:
            return PointResult(point, None, self._shared(tuple(document["reasons"])))
        target = self._target(point.study)
        time_s = time_to_accuracy(
            document["batch_tokens"],
            document["step_time_s"],
            target.d_min_tokens,
            target.critical,
            document["step_time_error"],
            d_min_error=target.d_min_error,
            unshared_error=document["unshared_error"],
            examples_error=target.examples_error(document["batch_tokens"]),
        )
        prediction = prediction_from(document, point.study.model.name)
        prediction = replace(prediction, caveats=self._shared(prediction.caveats))
        whole_run = tuple(RunPart(**part) for part in document["whole_run"])
        return PointResult(point, Answer(prediction, time_s, whole_run))

    def _target(self, study: StudySpec) -> Target:
        """The target of a study; the points keep their descriptions alive, so ids stand for them."""
        key = id(study.model), id(study.recipe), id(study.convergence)
        if key not in self._targets:
            self._targets[key] = target_of(study)
        return self._targets[key]

    def _shared(self, value: Shared) -> Shared:
        """The first value that is equal to this one."""
        known: Shared = self._known.setdefault(value, value)
        return known

    def _slim(self, value: Any) -> Any:
        """The value with equal texts in memory once."""
        if type(value) is str:
            return self._shared(value)
        if type(value) is dict:
            return {self._shared(name): self._slim(item) for name, item in value.items()}
        return [self._slim(item) for item in value] if type(value) is list else value
