"""`perfsim.predict`: one optimizer step of one model on one machine."""

from __future__ import annotations

from perfsim.api.naming import Named, about, cluster_of, described, recipe_for, system_of
from perfsim.calibration import ClusterCalibration
from perfsim.catalog import Catalog, default_catalog
from perfsim.errors import within_floats
from perfsim.hardware import SystemSpec
from perfsim.prediction.perturbation_spec import PerturbationSpec, parse_perturbations
from perfsim.prediction.predict import predict as predict_question
from perfsim.prediction.prediction import Prediction
from perfsim.prediction.question import MEMORY_LIMIT, Detail, Question
from perfsim.strategies import Strategy
from perfsim.workload import Layout, TrainingRecipe, TransformerConfig


@within_floats
def predict(
    *,
    model: Named | TransformerConfig,
    system: Named | SystemSpec,
    devices: int,
    strategy: str | Strategy | None = None,
    layout: str | Layout | None = None,
    batch: int | None = None,
    recipe: Named | TrainingRecipe | None = None,
    memory_limit: float = MEMORY_LIMIT,
    cluster: Named | ClusterCalibration | None = None,
    perturb: str | PerturbationSpec | None = None,
    detail: Detail = "layer",
    expand: str = "",
    catalog: Catalog | None = None,
) -> Prediction:
    """Predict one step.

    Model, system and recipe are names of the catalogue, paths of YAML files or objects. Without `strategy`
    the system's own is taken, without `layout` (`tp=8,pp=4,dp=8,mbs=1`) the planner chooses, without
    `batch` (sequences over all devices) the recipe's or 8 a device, without `recipe` that of the model's age
    (`llm_2021`, or `llm_2024` for models published since July 2023). The planner leaves out layouts above
    `memory_limit`, a share of a GPU's memory, unless nothing else fits. `cluster` scales step times by the
    user's own measurements, `perturb` disturbs the step (`straggler=1.3@rank5`), `detail` is how finely
    weights stream, `expand` writes collectives as steps (`data.all_reduce=tree`).

    Raises InputError for what cannot be asked and PlanError where no plan fits, both with all reasons.
    """
    question = question_of(
        model=model,
        system=system,
        devices=devices,
        strategy=strategy,
        layout=layout,
        batch=batch,
        recipe=recipe,
        memory_limit=memory_limit,
        cluster=cluster,
        perturb=perturb,
        detail=detail,
        expand=expand,
        catalog=catalog,
    )
    return predict_question(question)


def question_of(
    *,
    model: Named | TransformerConfig,
    system: Named | SystemSpec,
    devices: int,
    strategy: str | Strategy | None = None,
    layout: str | Layout | None = None,
    batch: int | None = None,
    recipe: Named | TrainingRecipe | None = None,
    memory_limit: float = MEMORY_LIMIT,
    cluster: Named | ClusterCalibration | None = None,
    perturb: str | PerturbationSpec | None = None,
    detail: Detail = "layer",
    expand: str = "",
    catalog: Catalog | None = None,
) -> Question:
    """The question that `predict` answers, checked. Raises InputError for what cannot be asked."""
    catalog, perturb = catalog or default_catalog(), perturb or None
    trained = described(model, "model", catalog)
    question = Question(
        model=trained,
        recipe=recipe_for(recipe, trained, catalog),
        system=system_of(system, catalog),
        devices=devices,
        strategy="" if strategy is None else strategy,
        layout=None if layout == "" else layout,
        batch=batch,
        memory_limit=memory_limit,
        cluster=cluster_of(cluster, catalog),
        perturbations=parse_perturbations(perturb) if isinstance(perturb, str) else perturb,
        detail=detail,
        expand=expand,
    )
    with about(system):
        question.check()
    return question
