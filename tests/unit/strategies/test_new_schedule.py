"""A pipeline schedule as a newcomer adds it: two functions and one entry in `SCHEDULES`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import perfsim as ps
from perfsim.strategies.schedules import SCHEDULES, Held, Numbers, Schedule, Slot, StageOrder


def order(pipeline: int, _: int, microbatches: int) -> list[StageOrder]:
    """1F1B with one more forward in the warm-up of every stage."""
    return [_stage_order(stage, pipeline, microbatches) for stage in range(pipeline)]


def _stage_order(stage: int, pipeline: int, microbatches: int) -> StageOrder:
    warm_up = min(pipeline - stage, microbatches)
    slots = [Slot("F", stage, 0, number) for number in range(warm_up)]
    for number in range(microbatches - warm_up):
        slots += [Slot("B", stage, 0, number), Slot("F", stage, 0, number + warm_up)]
    slots += [Slot("B", stage, 0, number) for number in range(microbatches - warm_up, microbatches)]
    return slots


def in_flight(stage: Numbers, pipeline: Numbers, _: Numbers, microbatches: Numbers) -> tuple[Held, ...]:
    """On stage i p - i micro-batches."""
    return (Held(np.minimum(pipeline - stage, microbatches)),)


def test_a_new_schedule_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Schedule("eager", order, in_flight, SCHEDULES["1f1b"].bubble, chunks=1)
    monkeypatch.setitem(SCHEDULES, "eager", new)
    prediction = ps.predict(
        model="gpt3_13b",
        system="dgx-a100-80gb",
        devices=32,
        batch=64,
        layout="tp=4,pp=4,dp=2,mbs=1,schedule=eager,recompute=selective",
    )
    assert prediction.layout["schedule"] == "eager"
    assert prediction.breakdown_s["bubble"] > 0


def test_every_schedule_of_the_table_travels_to_another_process() -> None:
    for known in SCHEDULES.values():
        assert pickle.loads(pickle.dumps(known)) is known  # noqa: S301
