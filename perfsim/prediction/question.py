"""One point: one model on one system with one strategy, planned or with a given layout."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

from perfsim.catalog import Catalog, default_catalog
from perfsim.costs.factory import costs_for
from perfsim.errors import InputError, LayoutError, Problem
from perfsim.hardware import SystemSpec
from perfsim.prediction.cluster import check_device, cluster_named
from perfsim.prediction.evaluation import Evaluation, evaluate
from perfsim.prediction.expansion import expanded
from perfsim.prediction.metrics import metrics
from perfsim.prediction.perturbation import perturbed
from perfsim.prediction.perturbation_spec import parse_perturbations
from perfsim.prediction.planner import best_plan
from perfsim.prediction.reached import above_all_published, fewer_than_published
from perfsim.prediction.remarks import defaults_remark
from perfsim.strategies import Strategy, strategy
from perfsim.strategies.schedules import least_chunks
from perfsim.strategies.streaming.strategy import STREAM_CHUNKS
from perfsim.topology import build_topology
from perfsim.workload import Job, ParallelLayout

SHORT_NAMES = {
    "tp": "tensor",
    "pp": "pipeline",
    "dp": "data",
    "vpp": "virtual_pipeline",
    "mbs": "micro_batch_size",
    "sp": "sequence_parallel",
    "zero": "zero_stage",
}
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
    if point.layout:
        layout = parse_layout(point.layout, point.devices)
        evaluation = evaluate(chosen.plan(job, topology, layout), costs, cluster=cluster)
        unnamed = defaults_remark((name for _, name, _ in _items(point.layout)), evaluation.plan)
    else:
        evaluation, unnamed = best_plan(chosen, job, topology, costs, cluster=cluster), ""
    if point.detail == "chunk" and evaluation.plan.layout.stream_chunks == 1:
        finer = replace(evaluation.plan.layout, stream_chunks=STREAM_CHUNKS)
        evaluation = evaluate(chosen.plan(job, topology, finer), costs, cluster=cluster)
        unnamed = ""
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


def strategy_for(name: str, system: SystemSpec) -> Strategy:
    """The strategy called `name`; InputError where it is unknown or runs on another kind of system."""
    chosen = strategy(name)
    if chosen.system_kind != system.kind:
        kinds = {"gpu-cluster": "GPU clusters", "wafer-cluster": "wafer clusters"}
        where = kinds.get(chosen.system_kind, chosen.system_kind)
        raise InputError(f"strategy {name} runs on {where}; {system.name} is a {system.kind}")
    return chosen


def parse_layout(text: str, devices: int) -> ParallelLayout:
    """`tp=8,pp=4,dp=4,mbs=1` as a layout; long names work too. LayoutError lists all that is wrong.

    A missing `dp` is what the devices leave; `layers_per_stage` is written 11-11-11-11.
    """
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    for item, name, value in _items(text):
        parsed, problem = _parse_value(name, value)
        if problem:
            problems.append(Problem(f"--layout {item!r}: {problem[0]}", help=problem[1]))
        elif name in given:
            problems.append(Problem(f"--layout names {name} twice"))
        else:
            given[name] = parsed
    if problems:
        raise LayoutError(problems)
    layout = ParallelLayout(**given)
    if layout.virtual_pipeline > 1 and "schedule" not in given:
        layout = replace(layout, schedule="interleaved")
    if "virtual_pipeline" not in given:
        layout = replace(layout, virtual_pipeline=least_chunks(layout.schedule))
    if layout.recompute_layers and "recompute" not in given:
        layout = replace(layout, recompute="full")
    if "data" not in given:
        used = layout.tensor * layout.pipeline
        layout = replace(layout, data=max(1, devices // used))
    return layout


def _items(text: str) -> Iterator[tuple[str, str, str]]:
    """Each setting in a layout's text as it stands, its long name, and its value."""
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = item.partition("=")
        yield item, SHORT_NAMES.get(key.strip(), key.strip()), value.strip()


_KINDS: dict[str, Any] = {field.name: field.type for field in fields(ParallelLayout)}


def _parse_value(name: str, value: str) -> tuple[Any, tuple[str, str] | None]:
    """A field's value, or what is wrong with it and the nearest mend."""
    if name not in _KINDS:
        known = [*SHORT_NAMES, *_KINDS]
        nearest = difflib.get_close_matches(name, known, 1)
        help_text = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
        return None, ("unknown name", help_text)
    if name in ("sequence_parallel", "spill"):
        if value.lower() not in ("true", "false", "1", "0"):
            return None, (f"{value!r} is not a truth value", "write true or false")
        return value.lower() in ("true", "1"), None
    if name == "recompute":
        allowed = ("none", "selective", "full")
        return (value, None) if value in allowed else (None, (f"{value!r}", f"allowed: {', '.join(allowed)}"))
    if name in ("schedule", "order"):
        return value, None
    try:
        if name == "layers_per_stage":
            return tuple(int(part) for part in value.split("-")), None
        number = int(value)
    except ValueError:
        return None, (f"{value!r} is not a whole number", "write for example tp=8")
    least = 0 if name in ("zero_stage", "recompute_layers") else 1
    if number < least:
        return None, (f"{number} is less than {least}", f"write {least} or more")
    return number, None
