"""A pipeline schedule as a newcomer adds it: a function and one entry in `SCHEDULES`."""

import pytest

import perfsim as ps
from perfsim.base.errors import GraphError
from perfsim.strategies.schedules import SCHEDULES, RankOrder, Schedule, Slot


def order(rank: int, pipeline: int, _: int, microbatches: int) -> RankOrder:
    """1F1B with one more forward in the warm-up of every rank."""
    warm_up = min(pipeline - rank, microbatches)
    slots = [Slot("F", rank, 0, number) for number in range(warm_up)]
    for number in range(microbatches - warm_up):
        slots += [Slot("B", rank, 0, number), Slot("F", rank, 0, number + warm_up)]
    return slots + [Slot("B", rank, 0, number) for number in range(microbatches - warm_up, microbatches)]


def test_a_new_schedule_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Schedule("eager", order, SCHEDULES["1f1b"].bubble, chunks=1)
    monkeypatch.setitem(SCHEDULES, "eager", new)
    asked = {"model": "gpt3_13b", "system": "dgx-a100-80gb", "devices": 32, "batch": 64}
    prediction = ps.predict(**asked, layout="tp=4,pp=4,dp=2,mbs=1,schedule=eager,recompute=selective")
    assert prediction.layout["schedule"] == "eager"
    assert prediction.breakdown_s["bubble"] > 0


def test_an_order_that_breaks_what_every_schedule_promises_is_refused() -> None:
    """Passes that are missing, doubled or of no chunk, and gradients that are whole too early."""
    whole = SCHEDULES["gpipe"].order(0, 2, 1, 4)
    astray = [slot._replace(chunk=1) for slot in whole]
    for broken in (whole[:-1], [*whole, whole[0]], astray, whole[:4] + whole[:3:-1], []):
        row = Schedule("mine", lambda *_, broken=broken: broken, 0.0, chunks=1)
        with pytest.raises(GraphError, match=r"schedule mine, rank 0 of 2: each pass of each chunk must run"):
            row.orders(2, 1, 4)
