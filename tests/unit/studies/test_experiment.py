"""The run that tells two layouts apart: which two, and on how few devices."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perfsim.catalog import Catalog
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import Question
from perfsim.studies.shortlist import fewest_replicas, plan_layouts, rival


@pytest.fixture(scope="module")
def asked() -> Callable[..., Question]:
    catalog = Catalog()

    def ask(layout: str | None = None, model: str = "gpt3_6p7b", **more: Any) -> Question:
        settings = {"system": catalog.systems["dgx-a100-80gb"], "devices": 16, "strategy": "3d", "batch": 32}
        return Question(
            model=catalog.models[model],
            recipe=catalog.recipes["gpt3_pretraining"],
            layout=layout,
            **(settings | more),
        )

    return ask


def with_settings(*settings: tuple[int, int, int, int]) -> list[Any]:
    names = ("tensor", "pipeline", "data", "zero_stage")
    return [SimpleNamespace(layout=SimpleNamespace(**dict(zip(names, own, strict=True)))) for own in settings]


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ([(8, 1, 2, 1), (8, 1, 2, 2), (4, 2, 2, 1), (4, 1, 4, 1)], 2),
        ([(8, 1, 2, 3), (4, 1, 4, 3), (8, 1, 2, 1)], 2),
        ([(8, 1, 2, 0), (8, 1, 2, 1)], 1),
        ([(8, 1, 2, 1)], None),
    ],
)
def test_the_rival_is_sharded_otherwise_else_of_other_degrees_else_the_second(
    settings: list[tuple[int, int, int, int]], place: int | None
) -> None:
    assert rival(with_settings(*settings)) == place


def test_a_trial_has_as_few_replicas_as_fit_each_with_the_same_work(asked: Callable[..., Question]) -> None:
    question = asked("tp=4,dp=4,mbs=2,zero=1,sp=true")
    plan = plan_of(question)
    smaller = fewest_replicas(question, plan)
    assert (smaller.layout.data, smaller.layout.num_devices) == (1, 4)
    assert smaller.job.global_batch_size == 8
    assert smaller.num_microbatches == plan.num_microbatches


def test_replicas_that_share_the_optimizer_stay_where_one_alone_does_not_fit(
    asked: Callable[..., Question],
) -> None:
    question = asked("tp=4,pp=1,dp=4,mbs=1,zero=1,sp=true", model="gpt3_13b")
    smaller = fewest_replicas(question, plan_of(question))
    assert 1 <= smaller.layout.data <= 4
    assert smaller.memory_share <= 1
    tight = asked("tp=2,dp=8,mbs=1,zero=1,sp=true", model="gpt3_13b")
    assert fewest_replicas(tight, plan_of(tight)).layout.data > 1


def test_under_zero_3_all_replicas_take_part(asked: Callable[..., Question]) -> None:
    question = asked("dp=16,mbs=2,zero=3")
    plan = plan_of(question)
    assert fewest_replicas(question, plan) is plan


def test_wafers_are_tried_on_one_of_them(asked: Callable[..., Question]) -> None:
    system = Catalog().systems["cs-2"]
    question = asked("mbs=1", system=system, devices=4, strategy="")
    assert fewest_replicas(question, plan_of(question)).layout.num_devices == 1


def test_a_shortlist_of_several_names_its_experiment(asked: Callable[..., Question]) -> None:
    planned = plan_layouts(asked(devices=8, batch=16), shown=3)
    experiment = planned.experiment
    assert experiment is not None
    first, second = experiment.trials
    assert first.entry == 1 < second.entry <= len(planned.shortlist)
    assert experiment.ratio == planned.shortlist[second.entry - 1].ratio
    assert first.devices <= 8
    assert plan_layouts(asked(), shown=1).experiment is None
