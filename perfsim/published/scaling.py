"""Published ratios of training speeds between models and numbers of wafer-scale systems."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SerializeAsAny

from perfsim.catalog import Catalog, data_root, parse_file
from perfsim.hardware import Devices, SystemSpec
from perfsim.prediction.evaluation import Evaluation, evaluate
from perfsim.prediction.planner import best_plan, plan_of
from perfsim.prediction.question import Question
from perfsim.sizes import MOST_CASES
from perfsim.spec import Spec
from perfsim.units import number
from perfsim.workload import Layout, Sequences, TrainingRecipe, TransformerConfig

STRATEGY = "weight-streaming"
Positive = Annotated[float, *number(1e-6, 1e6)]


class RatioRun(Spec):
    """One run, with its speed as a ratio to that of the first run of the file."""

    name: str
    model: TransformerConfig
    systems: Devices
    global_batch_size: Sequences
    ratio: Positive
    """Tokens a second and system over those of the first run."""
    assumed: dict[str, str] = Field(default_factory=dict)
    """By field, the reason for a value on which sources differ."""


class Efficiency(Spec):
    """Throughput of many systems over as many times that of fewer."""

    name: str
    fewer: Devices
    systems: Devices
    efficiency: Positive
    least: bool = False
    """Whether only a lower bound is published."""
    source: str


class ScalingFile(Spec):
    """A file of published ratios, all of one machine and recipe."""

    schema_version: Annotated[int, *number(1, 1000)] = Field(alias="schema")
    recipe: TrainingRecipe
    system: SerializeAsAny[SystemSpec]
    source: str
    runs: Annotated[tuple[RatioRun, ...], Field(min_length=2, max_length=MOST_CASES)]
    efficiencies: Annotated[tuple[Efficiency, ...], Field(max_length=MOST_CASES)] = ()

    def step(
        self,
        run: RatioRun,
        *,
        systems: int | None = None,
        system: SystemSpec | None = None,
        layout: Layout | None = None,
    ) -> Evaluation:
        """A run's predicted step: on other systems, with the batch of each, or with a given layout.

        Raises as plans and simulations do.
        """
        count = systems or run.systems
        question = Question(
            model=run.model,
            recipe=self.recipe,
            system=system or self.system,
            devices=count,
            strategy=STRATEGY,
            batch=run.global_batch_size // run.systems * count,
            layout=layout,
        )
        return best_plan(question) if layout is None else evaluate(plan_of(question), question.costs)


def published_scaling(catalog: Catalog) -> ScalingFile:
    """The published ratios that come with perfsim."""
    path = data_root() / "studies" / "production" / "cerebras_gpt.yaml"
    return parse_file(path, ScalingFile, catalog)
