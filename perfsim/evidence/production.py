"""Published production runs: the rate that each reported, and the rate of its predicted healthy steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, SerializeAsAny

from perfsim.base.sizes import MOST_CASES
from perfsim.base.spec import Spec
from perfsim.base.units import number
from perfsim.catalog import Catalog, data_root, parse_file
from perfsim.prediction.planner import best_plan
from perfsim.prediction.question import Question
from perfsim.specs.hardware import Devices, SystemSpec
from perfsim.specs.model import TransformerConfig
from perfsim.specs.recipe import Sequences, TrainingRecipe

STRATEGY = "3d"


class ProductionRun(Spec):
    """One production run on GPUs, with the layout that it used as far as that is published."""

    name: str
    model: TransformerConfig
    recipe: TrainingRecipe
    system: SerializeAsAny[SystemSpec]
    devices: Devices
    layout: str
    global_batch_size: Sequences
    tokens_per_s_per_device: Annotated[float, *number(1e-6, 1e12)]
    """As published."""
    source: str
    assumed: dict[str, str] = Field(default_factory=dict)
    """By field, the reason for a value that is not published."""


class ProductionFile(Spec):
    """A file of production runs."""

    schema_version: Annotated[int, *number(1, 1000)] = Field(alias="schema")
    runs: Annotated[tuple[ProductionRun, ...], Field(min_length=1, max_length=MOST_CASES)]


def production_runs(catalog: Catalog) -> tuple[ProductionRun, ...]:
    """The production runs that come with perfsim."""
    path: Path = data_root() / "studies" / "production" / "runs.yaml"
    return parse_file(path, ProductionFile, catalog).runs


def healthy_tokens_per_s(run: ProductionRun) -> float:
    """Predicted tokens/s per device of the run's healthy steps. Raises as plans and simulations do.

    The run is known to fit in memory, so the memory model cannot refuse it.
    """
    question = Question(
        model=run.model,
        recipe=run.recipe,
        system=run.system,
        devices=run.devices,
        strategy=STRATEGY,
        batch=run.global_batch_size,
        layout=run.layout,
        must_fit=False,
    )
    return best_plan(question.check()).tokens_per_s / run.devices
