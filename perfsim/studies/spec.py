"""The YAML form of a study: a model, a recipe, and the machines to compare."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny

from perfsim.calibration import ClusterCalibration
from perfsim.hardware import Devices, SystemSpec
from perfsim.prediction.perturbation_spec import PerturbationSpec, ResilienceSpec
from perfsim.prediction.verification_spec import SamplingSpec
from perfsim.sizes import MOST_CHOICES
from perfsim.spec import CatalogSpec, Spec
from perfsim.wall_clock import WallClockSpec
from perfsim.workload import Sequences, TrainingRecipe, TransformerConfig


class CandidateSpec(Spec):
    """A strategy on a system, at one or several device counts."""

    strategy: str
    system: SerializeAsAny[SystemSpec]
    devices: Annotated[tuple[Devices, ...], Field(min_length=1, max_length=MOST_CHOICES)]
    cluster_calibration: ClusterCalibration | None = None
    """The result of `perfsim calibrate steps` for this machine; scales its step times."""
    wall_clock: WallClockSpec | None = None
    """Queue, compilation, checkpoints and failures of the whole run; None: only the steps are counted."""


class ConvergenceSpec(Spec):
    """How the number of steps depends on the batch size."""

    law: str = "data_law"
    critical_batch_tokens: Annotated[float, Field(gt=0)] | None = None
    """For law `constant`."""
    band_factor: Annotated[float, Field(ge=1)] | None = None
    loss_scale: str = ""


class StudySpec(CatalogSpec):
    """A question: which machine reaches the target first."""

    title: str
    question: str
    model: TransformerConfig
    recipe: TrainingRecipe
    candidates: Annotated[tuple[CandidateSpec, ...], Field(min_length=1, max_length=MOST_CHOICES)]
    batch_sizes: (
        Annotated[tuple[Sequences, ...], Field(min_length=1, max_length=MOST_CHOICES)] | Literal["auto"]
    ) = "auto"
    """Global batches to try, in sequences; auto: a grid around the critical batch."""
    convergence: ConvergenceSpec = ConvergenceSpec()
    sampling: SamplingSpec = SamplingSpec()
    perturbations: PerturbationSpec | None = None
    """Applied to every candidate's step after its batch and layout are chosen without them."""
    resilience: ResilienceSpec | None = None
    """Asks for step time as a function of the severity of one straggler."""


def with_verify(spec: StudySpec, mode: str | None) -> StudySpec:
    """The study with this mode of sampling; None keeps the study's own."""
    if mode is None:
        return spec
    given = {"mode": mode, "tasks": spec.sampling.tasks or SamplingSpec().tasks}
    return spec.model_copy(update={"sampling": spec.sampling.model_copy(update=given)})
