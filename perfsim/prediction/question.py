"""One point: one model on one system with one strategy, planned or with a given layout."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from perfsim.catalog import Catalog, default_catalog
from perfsim.machines import build_topology, costs_for, machine_of, strategy_for
from perfsim.machines.layout_text import settings
from perfsim.prediction.cluster import check_device, cluster_named
from perfsim.prediction.evaluation import Evaluation, evaluate
from perfsim.prediction.expansion import expanded
from perfsim.prediction.metrics import metrics
from perfsim.prediction.perturbation import perturbed
from perfsim.prediction.perturbation_spec import parse_perturbations
from perfsim.prediction.planner import best_plan
from perfsim.prediction.reached import above_all_published, fewer_than_published
from perfsim.prediction.remarks import defaults_remark
from perfsim.workload import Job, Layout

Detail = Literal["layer", "chunk"]
DEFAULT_BATCH_PER_DEVICE = 8
"""Sequences a device and step where the question gives no batch."""


class Point(NamedTuple):
    """A question as the command line asks it."""

    model: str
    system: str
    devices: int
    strategy: str
    layout: str = ""
    batch: int | None = None
    recipe: str = "gpt3_pretraining"
    cluster: str = ""
    """Name or path of a cluster's calibration; its scale multiplies the step time."""
    detail: Detail = "layer"
    """How finely a wafer cluster streams: a layer as a whole, or in chunks."""
    perturb: str = ""
    """What disturbs the step, as `parse_perturbations` reads it."""
    expand: str = ""
    """Collectives to write as steps, as `parse_expansion` reads it."""


def answer_point(point: Point, catalog: Catalog | None = None) -> tuple[dict[str, Any], Evaluation]:
    """The metrics of a point, and the run behind them."""
    catalog = catalog or default_catalog()
    system = catalog.system(point.system)
    chosen = strategy_for(point.strategy, system)
    recipe = catalog.recipe(point.recipe)
    batch = point.batch or recipe.batch_over(point.devices) or DEFAULT_BATCH_PER_DEVICE * point.devices
    job = Job(catalog.model(point.model), recipe, batch)
    cluster = cluster_named(point.cluster, catalog) if point.cluster else None
    disturbed = parse_perturbations(point.perturb) if point.perturb else None
    check_device(cluster, system)
    topology = build_topology(system, point.devices)
    costs = costs_for(topology, recipe)
    layout: Layout
    if point.layout:
        layout = machine_of(system).parse_layout(point.layout, point.devices)
        evaluation = evaluate(chosen.plan(job, topology, layout), costs, cluster=cluster)
        unnamed = defaults_remark((name for _, name, _ in settings(point.layout)), evaluation.plan)
    else:
        evaluation, unnamed = best_plan(chosen, job, topology, costs, cluster=cluster), ""
    if point.detail == "chunk":
        finer = machine_of(system).in_chunks(evaluation.plan.layout)
        if finer != evaluation.plan.layout:
            evaluation, unnamed = evaluate(chosen.plan(job, topology, finer), costs, cluster=cluster), ""
    if point.expand:
        evaluation = expanded(evaluation, point.expand)
    if disturbed is not None:
        evaluation = perturbed(evaluation, disturbed)
    answer = metrics(evaluation)
    remarks = (
        _batch_remark(point, recipe.batch_over(point.devices)),
        unnamed,
        fewer_than_published(evaluation.plan, answer["why"]["fixed_s"]),
        above_all_published(evaluation.plan, evaluation.mfu),
    )
    notes = [*evaluation.plan.notes, *filter(None, remarks)]
    fullest = max((use for use in evaluation.plan.memory if use.on_device), key=lambda use: use.total_bytes)
    known = {"model": job.model.name, "memory_capacity_bytes": fullest.capacity_bytes}
    return {**known, **answer, "notes": notes}, evaluation


def _batch_remark(point: Point, of_recipe: int | None) -> str:
    """Where the batch comes from if the question gave none; empty where it did."""
    if point.batch is not None:
        return ""
    if of_recipe is not None:
        return f"no batch was given: the recipe's {of_recipe:,} sequences were taken"
    batch = DEFAULT_BATCH_PER_DEVICE * point.devices
    return (
        f"no batch was given: {DEFAULT_BATCH_PER_DEVICE} sequences a device were taken, {batch:,} in all; "
        "another batch is another step (--batch, --batch-per-device)"
    )
