"""Which layouts are legal, and how a refusal reads."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from perfsim.base.errors import LayoutError
from perfsim.specs.layout import ParallelLayout
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.strategies.schedules import SCHEDULES
from perfsim.strategies.three_d.legal import refusals_of
from perfsim.testing import toys

ALL = ("tensor", "pipeline", "data")
WHOLE = "so schedule must be 1f1b, not gpipe"


def problems(
    layout: ParallelLayout, job: Job | None = None, name: str = "3d", free: tuple[str, ...] = ALL
) -> list[str]:
    refusals = refusals_of(job or toys.job(), toys.topology(max(8, layout.num_devices)), layout, name, free)
    return [refusal.words for refusal in refusals]


def test_everything_wrong_is_listed_at_once_with_the_nearest_mend() -> None:
    layout = ParallelLayout(tensor=3, pipeline=5, data=3, micro_batch_size=4, zero_stage=4)
    with pytest.raises(LayoutError) as caught:
        strategy("3d").plan(toys.job(32), toys.topology(8), layout)
    assert [problem.message for problem in caught.value.problems] == [
        "tensor 3 × pipeline 5 × data 3 is 45 devices, the question has 8",
        "zero_stage 4 is not available; allowed: 0, 1, 2, 3",
        "num_attention_heads 16 is not a multiple of tensor 3; nearest: 2 or 4",
        "num_query_groups 16 is not a multiple of tensor 3; nearest: 2 or 4",
        "ffn_hidden_size 8192 is not a multiple of tensor 3; nearest: 2 or 4",
        "8 layers do not divide over 5 stages; nearest: 4, or give layers_per_stage=1-2-2-2-1",
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
    ("layout", "changes", "expected"),
    [
        (
            {
                "tensor": 2,
                "pipeline": 4,
                "virtual_pipeline": 2,
                "schedule": "interleaved",
                "micro_batch_size": 16,
            },
            {},
            "interleaved needs micro-batches (2) in multiples of pipeline 4",
        ),
        (
            {"data": 8, "zero_stage": 3, "schedule": "zb1p"},
            {},
            "zero_stage 3 runs whole backwards, schedule zb1p splits them; try 1f1b",
        ),
        (
            {"data": 8, "zero_stage": 3, "schedule": "gpipe"},
            {},
            "zero_stage 3 takes one micro-batch forward and back before the next, " + WHOLE,
        ),
        (
            {"tensor": 4, "data": 2, "sequence_parallel": True},
            {"seq_length": 1022},
            "seq_length 1022 is not a multiple of tensor 4",
        ),
    ],
)
def test_a_rule_that_is_broken_alone_is_named(
    layout: dict[str, Any], changes: dict[str, Any], expected: str
) -> None:
    assert problems(ParallelLayout(**layout), toys.job(32, changes)) == [expected]


def test_stages_that_do_not_divide_are_told_the_uneven_ones_that_are_legal() -> None:
    job = toys.job(32, num_layers=61)
    layout = ParallelLayout(pipeline=16)
    (problem,) = problems(layout, job)
    given = re.search(r"layers_per_stage=([\d-]+)$", problem)
    assert given is not None
    uneven = tuple(map(int, given[1].split("-")))
    assert problems(replace(layout, layers_per_stage=uneven), job) == []


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(tensor=3, data=2),
        ParallelLayout(pipeline=5),
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
        assert refusal.value == getattr(layout, refusal.rule)
        assert refusal.nearest
        for near in refusal.nearest:
            left = refusals_of(toys.job(48), toys.topology(near.num_devices), near, "3d", ALL)
            assert refusal.words not in [other.words for other in left]
