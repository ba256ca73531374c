"""A pipeline schedule as a newcomer adds it: a function and one entry in `SCHEDULES`."""

import pytest

import perfsim as ps
from perfsim.strategies.schedules import SCHEDULES, Schedule, Slot, StageOrder


def order(rank: int, pipeline: int, _: int, microbatches: int) -> StageOrder:
    """1F1B with one more forward in the warm-up of every rank."""
    warm_up = min(pipeline - rank, microbatches)
    slots = [Slot("F", rank, 0, number) for number in range(warm_up)]
    for number in range(microbatches - warm_up):
        slots += [Slot("B", rank, 0, number), Slot("F", rank, 0, number + warm_up)]
    return slots + [Slot("B", rank, 0, number) for number in range(microbatches - warm_up, microbatches)]


def test_a_new_schedule_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Schedule("eager", order, SCHEDULES["1f1b"].bubble, chunks=1)
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
