"""A study as it is written in YAML: a model, a recipe, and the machines to compare."""

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
    """What `perfsim calibrate steps` made of steps measured on this machine; scales its step times."""
    wall_clock: WallClockSpec | None = None
    """What the run waits for besides its steps; None: time to accuracy is that of the steps alone."""


class ConvergenceSpec(Spec):
    """How batch size turns into steps."""

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
    """What disturbs every candidate's step at its best batch and layout, which are chosen without."""
    resilience: ResilienceSpec | None = None
    """Asks for step times against the severity of one straggler."""


def with_verify(spec: StudySpec, mode: str | None) -> StudySpec:
    """The study with this mode of sampling; as it is where there is none."""
    if mode is None:
        return spec
    given = {"mode": mode, "tasks": spec.sampling.tasks or SamplingSpec().tasks}
    return spec.model_copy(update={"sampling": spec.sampling.model_copy(update=given)})
