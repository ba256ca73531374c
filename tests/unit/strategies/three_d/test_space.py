"""The space of layouts: exactly the legal ones, each once."""

from __future__ import annotations

from itertools import product

import pytest

from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies.schedules import SCHEDULES
from perfsim.strategies.three_d.division import divided
from perfsim.strategies.three_d.legal import refusals_of
from perfsim.strategies.three_d.space import (
    MODES,
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
        [*((mode, 1) for mode in MODES), *(("full", every) for every in RECOMPUTE_EVERY[1:])],
    ):
        if tensor * pipeline > 4 or every not in intervals(num_layers // pipeline) or (split and tensor == 1):
            continue
        data = 4 // tensor // pipeline
        schedule = SCHEDULES[name]
        if (pipeline == 1 and name != "1f1b") or (data == 1 and zero):
            continue
        if schedule.has("fills_only") and 12 // data // size < pipeline:
            continue
        most = num_layers // pipeline
        for chunks in range(2, most + 1) if schedule.chunks is None else (schedule.chunks,):
            if chunks > most:
                continue
            for head in (0, head_layers(job)) if schedule.has("counts_head") and pipeline > 1 else (0,):
                division = divided(name, pipeline, chunks, num_layers, head)
                layout = ParallelLayout(
                    tensor,
                    pipeline,
                    data,
                    chunks,
                    split,
                    zero,
                    name,
                    size,
                    mode,
                    None if division.even else division.layers,
                    every,
                )
                if not refusals_of(job, topology, layout, "3d", ALL):
                    legal.add(layout)
    listed = layouts(space(job, 4))
    assert len(set(listed)) == len(listed)
    assert set(listed) == legal


@pytest.mark.parametrize(("free", "combinations"), [(ALL, 15), (("tensor",), 1), (("pipeline", "data"), 5)])
@pytest.mark.parametrize("batch", [16, 24])
def test_combinations_of_degrees_without_a_layout_are_counted(
    batch: int, free: tuple[str, ...], combinations: int
) -> None:
    """On 16 devices three degrees have 15 combinations, pipeline and data alone 5."""
    legal = layout_space(toys.job(batch), toys.topology(16), free)
    pairs = {(layout.tensor, layout.pipeline) for layout in layouts(legal)}
    assert legal.indivisible(16, free) == combinations - len(pairs)


def test_layers_that_do_not_divide_are_spread_with_fewer_on_the_last_stage() -> None:
    assert divided("1f1b", 3, 1, 8).layers == (3, 3, 2)
    assert divided("1f1b", 4, 1, 9).layers == (2, 2, 3, 2)
    assert divided("interleaved", 2, 3, 8).layers == (1, 1, 1, 2, 2, 1)


@pytest.mark.parametrize(
    ("num_layers", "every"), [(1, [1]), (12, [1, 2, 3, 4, 6, 12]), (32, [1, 2, 3, 4, 6, 8, 12, 16, 32])]
)
def test_intervals_of_recompute_each_leave_another_number_of_layers(
    num_layers: int, every: list[int]
) -> None:
    space = layout_space(toys.job(8, num_layers=num_layers), toys.topology(2), ("data",))
    assert sorted(set(space.recompute_every.tolist())) == every


@pytest.mark.parametrize(
    ("recipe", "modes"),
    [
        ({}, {"none", "selective", "full"}),
        ({"attention": "flash"}, {"none", "full"}),
        ({"recompute": "selective"}, {"selective"}),
    ],
)
def test_recompute_modes_are_the_recipes_or_all_that_make_a_difference(
    recipe: dict[str, object], modes: set[str]
) -> None:
    listed = layouts(space(toys.job(16, recipe), 8))
    assert {layout.recompute for layout in listed} == modes
