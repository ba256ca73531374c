"""Results of points from their stored answers; what many points share is in memory once."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from perfsim.convergence.time_to_accuracy import TimeToAccuracy, time_to_accuracy
from perfsim.convergence.wall_clock import RunPart
from perfsim.prediction.prediction import Document, Prediction, document_of, prediction_from
from perfsim.studies.axes import BATCH_PATHS, VARIANT
from perfsim.studies.batches import Target
from perfsim.studies.grid import SweepPoint
from perfsim.studies.result import Production, production_of
from perfsim.studies.runner import target_of
from perfsim.studies.spec import StudySpec

# A point of a sweep with its answer, or with the reasons why no plan is feasible.

Circumstances = tuple[tuple[str, str], ...]
"""Settings other than the batch, each value as text."""

OVER_MESH = "weights over the mesh"


@dataclass(frozen=True)
class Answer:
    """The answer of a point: the step at its best batch, and the time to the target."""

    prediction: Prediction
    target_time: TimeToAccuracy
    whole_run: tuple[RunPart, ...] = ()

    def document(self) -> Document:
        """The answer under the names of the JSON interface; also the stored form."""
        return {
            **document_of(self.prediction),
            "batch_tokens": self.target_time.batch_tokens,
            "steps": self.target_time.steps,
            "step_time_error": self.target_time.step_time_error,
            "unshared_error": self.target_time.unshared_error,
            "time_to_accuracy_s": self.target_time.time_s,
            "time_to_accuracy_band_s": list(self.target_time.band_s),
            "whole_run": [asdict(part) for part in self.whole_run],
        }


@dataclass(frozen=True)
class PointResult:
    """A point with its answer, or with the reasons why it has no feasible plan."""

    point: SweepPoint
    answer: Answer | None
    reasons: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether it has a plan."""
        return self.answer is not None

    @property
    def prediction(self) -> Prediction:
        """The step at the best batch; ValueError for a point without a feasible plan."""
        return self._feasible_answer().prediction

    @property
    def target_time(self) -> TimeToAccuracy:
        """The time to the target; ValueError for a point without a feasible plan."""
        return self._feasible_answer().target_time

    @property
    def production(self) -> Production | None:
        """The production ratio of its candidate."""
        return production_of(self.point.study, self.point.candidate)

    @property
    def wall_s(self) -> float | None:
        """Time on the wall: the whole run, else steps at the rate of production; None for healthy steps."""
        answer = self._feasible_answer()
        if answer.whole_run:
            return answer.whole_run[-1].typical_s
        return None if self.production is None else self.production.time_s(answer.target_time.time_s)

    def _feasible_answer(self) -> Answer:
        if self.answer is None:
            raise ValueError(f"{self.point.label} has no feasible plan")
        return self.answer

    @property
    def strategy(self) -> str:
        return self.point.candidate.strategy

    @property
    def system(self) -> str:
        return self.point.candidate.system.name

    @property
    def num_devices(self) -> int:
        return self.point.num_devices

    @property
    def devices_noun(self) -> str:
        """Several of its devices, such as `A100-80GB`."""
        return self.point.candidate.system.devices_noun

    @property
    def machine(self) -> str:
        """Its devices in words: `128 A100-80GB (16 DGX)`."""
        return self.point.candidate.system.machine(self.num_devices)

    @property
    def variant(self) -> str:
        """The name of its variant; empty if the sweep has none."""
        return str(self.settings.get(VARIANT, ""))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The variant, a fixed layout, and the grid's values except strategy, system and devices."""
        return self.point.settings

    @property
    def circumstances(self) -> Circumstances:
        """The settings except the batch, which the trainer chooses."""
        return tuple(
            (path, setting_text(value)) for path, value in self.settings.items() if path not in BATCH_PATHS
        )

    @property
    def batch_text(self) -> str:
        """The global batch; without a plan the one the grid asked for, empty if it varies none."""
        if self.feasible:
            return setting_text(self.prediction.global_batch_size)
        return next((setting_text(self.settings[path]) for path in BATCH_PATHS if path in self.settings), "")

    @property
    def parts_s(self) -> dict[str, float]:
        """Seconds of a step by cause; moving weights over a wafer's mesh is separate from computing."""
        why = self.prediction.why
        parts = dict(why.parts_s)
        fixed_s = why.fixed_s
        if not fixed_s:
            return parts
        return {"compute": parts.pop("compute") - fixed_s, OVER_MESH: fixed_s, **parts}

    def as_dict(self) -> dict[str, Any]:
        """Under the names of the JSON interface; without a feasible plan `reasons` replace metrics."""
        return {
            "strategy": self.strategy,
            "system": self.system,
            "num_devices": self.num_devices,
            "settings": dict(self.settings),
            "feasible": self.feasible,
            **self._answer_document(),
        }

    def _answer_document(self) -> dict[str, Any]:
        if self.answer is None:
            return {"reasons": list(self.reasons)}
        production = self.production
        time = self.answer.target_time
        return {
            **self.answer.document(),
            "wall_s": self.wall_s,
            "production": None if production is None else asdict(production),
            "production_time_s": None if production is None else production.time_s(time.time_s),
            "production_band_s": None if production is None else production.band_s(time.time_s, time.band_s),
        }


def setting_text(value: Any) -> str:
    """A value of a grid as text."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def setting_name(path: str) -> str:
    """The last part of a path in words: `batch`, `software release`."""
    return path.rpartition(".")[2].removeprefix("global_").removesuffix("_size").replace("_", " ")


def settings_text(settings: Circumstances) -> str:
    """`software release r1.7`: each setting by its name, a variant by its name alone."""
    return ", ".join(
        value if path == VARIANT else f"{setting_name(path)} {value}" for path, value in settings
    )


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
