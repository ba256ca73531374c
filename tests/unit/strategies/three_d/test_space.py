"""Which layouts are legal: the space holds each once, and a refusal reads well."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from perfsim.base.errors import LayoutError
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.strategies.schedules import SCHEDULES
from perfsim.strategies.three_d.division import ENDS, divided
from perfsim.strategies.three_d.legal import refusals_of
from perfsim.strategies.three_d.space import (
    LEAST_POSITIONS,
    LONG_SEQUENCE,
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
        most = (num_layers + ENDS) // pipeline
        for chunks in range(2, most + 1) if schedule.chunks is None else (schedule.chunks,):
            if chunks > most:
                continue
            for head in (0, head_layers(job)) if schedule.has("counts_head") and pipeline > 1 else (0,):
                division = divided(name, pipeline, chunks, num_layers, head)
                stages = None if division.even else division.layers
                degrees = (tensor, pipeline, data, chunks, split, zero)
                layout = ParallelLayout(*degrees, name, size, mode, stages, every)
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
    "no contexts of short sequences": ("3d", long_job(LONG_SEQUENCE // 2), 8, "context", {1}),
    "contexts of sequences that are fewer than devices": (
        *("3d", toys.job(4, FUSED | {"seq_length": 4 * LEAST_POSITIONS}), 8, "context"),
        {1, 2, 4},
    ),
    "contexts of long sequences": (
        *("3d", long_job(LONG_SEQUENCE), 8, "context"),
        {size for size in (1, 2, 4, 8) if LONG_SEQUENCE // size >= LEAST_POSITIONS},
    ),
    "degrees that divide the experts": ("3d", toys.job(16, experts=EXPERTS), 16, "expert", {1, 2, 4, 8}),
    "no groups of replicas in one node": ("zero3", toys.job(8), 8, "shard_group", {None}),
    "groups of replicas in several nodes": ("zero3", toys.job(16), 16, "shard_group", {None, 8, 4, 2}),
}


@pytest.mark.parametrize(("name", "job", "devices", "field", "values"), TRIED.values(), ids=TRIED)
def test_the_planner_tries_what_makes_a_difference(
    name: str, job: Job, devices: int, field: str, values: set[Any]
) -> None:
    listed = strategy(name).layouts(job, toys.topology(devices))
    assert {getattr(layout, field) for layout in listed} == values


# --------------------------------------------------------------------------------------- refusals
FSDP = {"data": 32, "zero_stage": 3}
MIXTURE = toys.job(8, FUSED | {"routing": "balanced"}, experts=EXPERTS)
WHOLE = "so schedule must be 1f1b, not gpipe"


def problems(
    layout: ParallelLayout, job: Job | None = None, name: str = "3d", free: tuple[str, ...] = ALL
) -> list[str]:
    refusals = refusals_of(job or toys.job(), toys.topology(max(8, layout.num_devices)), layout, name, free)
    return [refusal.words for refusal in refusals]


def test_everything_wrong_is_listed_at_once_with_the_nearest_mend() -> None:
    layout = ParallelLayout(tensor=3, pipeline=11, data=3, micro_batch_size=4, zero_stage=4)
    with pytest.raises(LayoutError) as caught:
        strategy("3d").plan(toys.job(32), toys.topology(8), layout)
    assert [problem.message for problem in caught.value.problems] == [
        "tensor 3 × pipeline 11 × data 3 is 99 devices, the question has 8",
        "zero_stage 4 is not available; allowed: 0, 1, 2, 3",
        "num_attention_heads 16 is not a multiple of tensor 3; nearest: 2 or 4",
        "num_query_groups 16 is not a multiple of tensor 3; nearest: 2 or 4",
        "ffn_hidden_size 8192 is not a multiple of tensor 3; nearest: 2 or 4",
        "8 layers cannot fill 11 stages",
        "global_batch_size 32 is not a multiple of data 3 × micro_batch_size 4; nearest: 36",
    ]
    assert caught.value.exit_code == 2


ENTRIES = "layers_per_stage has 0 entries for 2 stages"
KNOWN = ", ".join(sorted(SCHEDULES))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({}, []),
        ({"schedule": "dual"}, [f"schedule 'dual' is not available; allowed: {KNOWN}"]),
        ({"schedule": "zbv"}, ["schedule zbv needs virtual_pipeline 2, not 1"]),
        (
            {"schedule": "zb1p", "virtual_pipeline": 2},
            ["virtual_pipeline 2 needs schedule interleaved, not zb1p"],
        ),
        ({"virtual_pipeline": 2}, ["virtual_pipeline 2 needs schedule interleaved, not 1f1b"]),
        ({"layers_per_stage": (8,)}, ["layers_per_stage has 1 entries for 2 stages"]),
        ({"layers_per_stage": (4, 5)}, ["layers_per_stage adds up to 9, the model has 8 layers"]),
        ({"layers_per_stage": (9, -1)}, ["layers_per_stage has a negative entry"]),
        ({"layers_per_stage": ()}, [ENTRIES, "layers_per_stage adds up to 0, the model has 8 layers"]),
    ],
)
def test_a_stage_problem_is_named(layout: dict[str, Any], expected: list[str]) -> None:
    assert problems(ParallelLayout(pipeline=2, data=4, **layout)) == expected


@pytest.mark.parametrize("name", ["data", "tensor", "pipeline"])
def test_a_plain_strategy_holds_the_other_degrees_at_1(name: str) -> None:
    refused = problems(ParallelLayout(tensor=2, pipeline=2, data=2), name=name, free=(name,))
    others = [degree for degree in ALL if degree != name]
    assert refused == [f"strategy {name} holds {degree} at 1, the layout has {degree} 2" for degree in others]


@pytest.mark.parametrize(
    ("layout", "job", "expected"),
    [
        (
            {
                "tensor": 2,
                "pipeline": 4,
                "virtual_pipeline": 2,
                "schedule": "interleaved",
                "micro_batch_size": 16,
            },
            toys.job(32),
            "interleaved needs micro-batches (2) in multiples of pipeline 4",
        ),
        (
            {"data": 8, "zero_stage": 3, "schedule": "gpipe"},
            toys.job(32),
            "zero_stage 3 takes one micro-batch forward and back before the next, " + WHOLE,
        ),
        (
            {"tensor": 4, "data": 2, "sequence_parallel": True},
            toys.job(32, {"seq_length": 1022}),
            "seq_length 1022 is not a multiple of tensor 4",
        ),
        ({"context": 3}, long_job(4096), "seq_length 4096 is not a multiple of 6"),
        ({"context": 4}, long_job(4096, attention="standard"), "needs fused attention"),
        ({"context": 4, "recompute": "selective"}, long_job(4096), "take recompute none or full"),
        ({"context": 4}, long_job(4096, lm_head_positions=8), "lm_head_positions leaves some out"),
        (
            {"context": 8, "context_exchange": "all_to_all", "tensor": 4},
            long_job(4096),
            "num_attention_heads 16 is not a multiple of tensor 4 × context 8",
        ),
        ({"data": 8, "expert": 3}, MIXTURE, "do not divide over expert 3; nearest: 2 or 4"),
        ({"data": 4, "expert": 8}, MIXTURE, "must divide the 4 ranks"),
        ({"tensor": 2, "data": 4, "expert": 2}, MIXTURE, "needs sequence_parallel"),
        ({**FSDP, "shard_group": 5}, toys.job(32), "shard_group 5 must divide the 32 ranks"),
        ({**FSDP, "shard_group": 1}, toys.job(32), "in groups of 2 or more; nearest: 2"),
        ({"data": 32, "shard_group": 8}, toys.job(32), "zero_stage is 0"),
    ],
)
def test_a_rule_that_is_broken_alone_is_named(layout: dict[str, Any], job: Job, expected: str) -> None:
    with pytest.raises(LayoutError) as caught:
        toys.plan("3d", job, ParallelLayout(**layout))
    broken = [f"{problem.message}; {problem.help}" for problem in caught.value.problems]
    assert expected in broken[0]
    assert len(broken) == (2 if layout.get("expert") == 3 or layout.get("context") == 8 else 1), "sizes alike"


@pytest.mark.parametrize(("pipeline", "stages"), [(4, (15, 15, 16, 15)), (2, (31, 30)), (1, (61,))])
def test_layers_that_do_not_divide_are_given_to_stages_as_evenly_as_can_be(
    pipeline: int, stages: tuple[int, ...]
) -> None:
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
