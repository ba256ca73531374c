"""Which layouts are legal: the space holds each once, and a refusal reads well."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from perfsim.prediction.question import question_of
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.strategies.schedules import JOINED, SCHEDULES
from perfsim.strategies.three_d.division import ENDS, divided
from perfsim.strategies.three_d.legal import refusals_of
from perfsim.strategies.three_d.space import (
    LEAST_POSITIONS,
    RECOMPUTE_EVERY,
    Columns,
    head_layers,
    layout_space,
)
from perfsim.testing import toys

ALL = ("tensor", "pipeline", "data")


def space(job: Job, devices: int = 16, free: tuple[str, ...] = ALL) -> Columns:
    return layout_space(job, toys.topology(devices), free)


def layouts(columns: Columns) -> list[ParallelLayout]:
    return [columns.layout(row) for row in range(len(columns))]


def divisors(count: int) -> list[int]:
    return [number for number in range(1, count + 1) if count % number == 0]


def intervals(layers: int) -> set[int]:
    """Of how many layers one is recomputed, with another number of recomputed layers than any fewer have."""
    redone = [-(-layers // every) for every in range(1, layers + 1)]
    return {
        every for every in RECOMPUTE_EVERY if every <= layers and redone.index(redone[every - 1]) == every - 1
    }


@pytest.mark.parametrize("num_layers", [4, 6])
def test_the_space_is_every_combination_that_keeps_the_rules(num_layers: int) -> None:
    """Tried one by one on 4 devices, with layers that divide and layers that do not."""
    job = toys.job(12, num_layers=num_layers)
    topology = toys.topology(4)
    legal = set()
    for tensor, pipeline, size, zero, name, split, (mode, every) in product(
        divisors(4),
        divisors(4),
        divisors(12),
        (0, 1, 2, 3),
        SCHEDULES,
        (False, True),
        [("none", 1), ("selective", 1), ("full", 1), *(("full", every) for every in RECOMPUTE_EVERY[1:])],
    ):
        if tensor * pipeline > 4 or (split and tensor == 1):
            continue
        data = 4 // tensor // pipeline
        schedule = SCHEDULES[name]
        if (pipeline == 1 and name != "1f1b") or (data == 1 and zero) or schedule.has("joins"):
            continue
        if schedule.has("fills_only") and 12 // data // size < pipeline:
            continue
        most = (num_layers + ENDS) // pipeline
        for chunks in range(2, most + 1) if schedule.chunks is None else (schedule.chunks,):
            if chunks > most:
                continue
            for head in (0, head_layers(job)) if schedule.has("counts_head") and pipeline > 1 else (0,):
                division = divided(name, pipeline, chunks, num_layers, head)
                stages = None if division.even else division.layers
                degrees = (tensor, pipeline, data, chunks, split, zero)
                layout = ParallelLayout(*degrees, name, size, mode, stages, every)
                tried = every in intervals(max(division.layers))
                if tried and not refusals_of(job, topology, layout, "3d", ALL):
                    legal.add(layout)
    listed = layouts(space(job, 4))
    assert len(set(listed)) == len(listed)
    assert set(listed) == legal


@pytest.mark.parametrize(("free", "combinations"), [(ALL, 15), (("tensor",), 1), (("pipeline", "data"), 5)])
@pytest.mark.parametrize("batch", [16, 24])
def test_degrees_without_a_layout_are_counted(batch: int, free: tuple[str, ...], combinations: int) -> None:
    """On 16 devices three degrees have 15 combinations, pipeline and data alone 5."""
    legal = layout_space(toys.job(batch), toys.topology(16), free)
    pairs = {(layout.tensor, layout.pipeline) for layout in layouts(legal)}
    assert legal.indivisible(16, free) == combinations - len(pairs)


FUSED = {"attention": "flash", "dropout": False}
EXPERTS = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 512}


def long_job(seq_length: int, **recipe: Any) -> Job:
    return toys.job(8, FUSED | {"seq_length": seq_length} | recipe)


TRIED: dict[str, tuple[str, Job, int, str, set[Any]]] = {
    "all modes of recompute": ("3d", toys.job(16), 8, "recompute", {"none", "selective", "full"}),
    "modes that make a difference": ("3d", toys.job(16, FUSED), 8, "recompute", {"none", "full"}),
    "the recipe's mode": ("3d", toys.job(16, {"recompute": "selective"}), 8, "recompute", {"selective"}),
    "of one layer": ("data", toys.job(8, num_layers=1), 2, "recompute_every", {1}),
    "of 12 layers": ("data", toys.job(8, num_layers=12), 2, "recompute_every", {1, 2, 3, 4, 6, 12}),
    "of 32 layers": (
        *("data", toys.job(8, num_layers=32), 2, "recompute_every"),
        {1, 2, 3, 4, 6, 8, 12, 16, 32},
    ),
    "no contexts of short sequences": ("3d", long_job(2 * LEAST_POSITIONS), 8, "context", {1}),
    "contexts of long sequences": ("3d", long_job(8 * LEAST_POSITIONS), 8, "context", {1, 2, 4}),
    "contexts of sequences that are fewer than devices": (
        *("3d", toys.job(4, FUSED | {"seq_length": 4 * LEAST_POSITIONS}), 8, "context"),
        {1, 2, 4},
    ),
    "degrees that divide the experts": ("3d", toys.job(16, experts=EXPERTS), 16, "expert", {1, 2, 4, 8}),
    "tensor ranks of experts share positions": (
        *("3d", toys.job(16, {"seq_length": 1023}, experts=EXPERTS), 8, "tensor"),
        {1},
    ),
    "no groups of replicas in one node": ("zero3", toys.job(8), 8, "shard_group", {None}),
    "groups of replicas in several nodes": ("zero3", toys.job(16), 16, "shard_group", {None, 8, 4, 2}),
}


@pytest.mark.parametrize(("name", "job", "devices", "field", "values"), TRIED.values(), ids=TRIED)
def test_only_what_matters_is_tried(name: str, job: Job, devices: int, field: str, values: set[Any]) -> None:
    listed = strategy(name).layouts(job, toys.topology(devices))
    assert {getattr(layout, field) for layout in listed} == values


def test_passes_are_joined_where_rows_travel_and_a_micro_batch_is_not_alone() -> None:
    listed = strategy("3d").layouts(toys.job(16, experts=EXPERTS), toys.topology(8))
    joined = [layout for layout in listed if SCHEDULES[layout.schedule].has("joins")]
    assert {layout.schedule for layout in joined} == set(JOINED.values())
    assert {layout.pipeline for layout in joined} == {1, 2, 4}
    assert all(layout.expert > 1 and layout.zero_stage < 3 for layout in joined)


@pytest.mark.parametrize(("pipeline", "stages"), [(4, (15, 15, 16, 15)), (2, (31, 30)), (1, (61,))])
def test_layers_that_do_not_divide_are_spread_evenly(pipeline: int, stages: tuple[int, ...]) -> None:
    plan = toys.plan("3d", toys.job(64, num_layers=61), ParallelLayout(pipeline=pipeline))
    given = plan.layout.layers_per_stage
    assert given == (stages if len(set(stages)) > 1 else None)
    assert toys.plan("3d", plan.job, replace(plan.layout, layers_per_stage=stages)).memory == plan.memory


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(tensor=3, data=2),
        ParallelLayout(pipeline=16),
        ParallelLayout(data=8, zero_stage=3, schedule="zb1p"),
        ParallelLayout(pipeline=2, data=4, virtual_pipeline=2),
        ParallelLayout(data=4, zero_stage=1, shard_group=3),
    ],
)
def test_a_refusal_carries_the_nearest_layouts_that_keep_its_rule(layout: ParallelLayout) -> None:
    topology = toys.topology(layout.num_devices)
    refused = refusals_of(toys.job(48), topology, layout, "3d", ALL)
    assert refused
    for refusal in refused:
        assert refusal.nearest
        for near in refusal.nearest:
            left = refusals_of(toys.job(48), toys.topology(near.num_devices), near, "3d", ALL)
            assert refusal.words not in [other.words for other in left]


def test_degrees_whose_experts_fit_on_no_group_of_ranks_have_no_layout() -> None:
    # At most 12 ranks share the experts, more than a node and no whole nodes; fewer cannot hold them.
    asked = question_of({"model": "kimi_k2", "system": "mi350x-288gb", "devices": 120, "batch": 1020})
    topology = asked.topology
    columns = layout_space(asked.job, topology, (*ALL, "expert"))
    assert not len(columns) or not np.any((columns.tensor == 1) & (columns.pipeline == 2))
