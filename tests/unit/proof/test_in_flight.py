"""A schedule whose warm-up is one too long or too short holds other micro-batches than it promises."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from perfsim.proof.promises import held_unlike_promised
from perfsim.proof.prove import Request, prove_all
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import strategy
from perfsim.strategies.schedules import SCHEDULES, Pass, Slot, StageOrder, least_chunks
from perfsim.testing import PROMISES, BrokenPromise, cases_for

SPLIT = {"zb1p": 1, "zb2p": 2}


def one_f_one_b(stage: int, warm_up: int, microbatches: int) -> StageOrder:
    warm_up = min(max(warm_up, 0), microbatches)
    order = [Slot("F", stage, 0, number) for number in range(warm_up)]
    for number in range(microbatches):
        order += [Slot("F", stage, 0, number + warm_up)] if number + warm_up < microbatches else []
        order.append(Slot("B", stage, 0, number))
    return order


def zero_bubble(stage: int, warm_up: int, delay: int, microbatches: int) -> StageOrder:
    order = [Slot("F", stage, 0, number) for number in range(min(max(warm_up, 0), microbatches))]
    warm_up = len(order)
    for number in range(microbatches + delay):
        passes: list[tuple[Pass, int]] = [("F", number + warm_up), ("B", number), ("W", number - delay)]
        order += [Slot(which, stage, 0, index) for which, index in passes if 0 <= index < microbatches]
    return order


def off_by(name: str, more: int, pipeline: int, microbatches: int) -> list[StageOrder]:
    """The schedule with a warm-up that is longer by `more` micro-batches."""
    if name not in SPLIT:
        return [one_f_one_b(i, pipeline - i - 1 + more, microbatches) for i in range(pipeline)]
    ahead = SPLIT[name]
    return [
        zero_bubble(i, ahead * (pipeline - i - 1) + more, ahead * i, microbatches) for i in range(pipeline)
    ]


@pytest.fixture(params=["1f1b", "zb1p", "zb2p"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def change_warm_up(monkeypatch: pytest.MonkeyPatch, name: str, more: int) -> None:
    wrong = replace(SCHEDULES[name], order=lambda p, _, m: off_by(name, more, p, m))
    monkeypatch.setitem(SCHEDULES, name, wrong)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_proof_finds_a_warm_up_that_is_one_too_short_or_too_long(
    monkeypatch: pytest.MonkeyPatch, name: str, more: int
) -> None:
    change_warm_up(monkeypatch, name, more)
    request = Request("gpt3_20b", layout=f"pp=3,schedule={name}", batch=8, orders=1)
    (proof,) = prove_all(request).proofs
    assert {fault.kind for fault in proof.faults} == {"memory"}
    assert "micro-batches, schedule" in str(proof.faults[0])
    assert "stage 0 (gpu0): activations in flight" in str(proof.faults[0])


@pytest.mark.parametrize("more", [-1, 1])
def test_check_strategy_finds_it_too(monkeypatch: pytest.MonkeyPatch, name: str, more: int) -> None:
    change_warm_up(monkeypatch, name, more)
    one_node = next(case for case in cases_for(strategy("3d")) if case.name == "one node")
    with pytest.raises(BrokenPromise, match=f"schedule {name} promises"):
        one_node.check(PROMISES["ranks_hold_what_their_schedule_promises"])


def test_a_schedule_of_another_name_is_held_to_its_own_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a package registers it: GPipe's order that promises the memory of 1F1B."""
    eager = replace(SCHEDULES["gpipe"], name="eager", in_flight=SCHEDULES["1f1b"].in_flight)
    monkeypatch.setitem(SCHEDULES, "eager", eager)
    (proof,) = prove_all(Request("gpt3_20b", layout="pp=2,schedule=eager", batch=4, orders=0)).proofs
    held = "activations in flight: at its peak it holds 4 micro-batches, schedule eager promises"
    assert [str(fault) for fault in proof.faults] == [
        f"stage 0 (gpu0): {held} 2",
        f"stage 1 (gpu1): {held} 1",
    ]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_schedule_holds_what_it_promises(toys: ModuleType, name: str, recompute: str) -> None:
    layout = ParallelLayout(
        tensor=2,
        pipeline=4,
        schedule=name,
        virtual_pipeline=2 if name == "interleaved" else least_chunks(name),
        recompute=recompute,  # type: ignore[arg-type]
    )
    plan = toys.plan("3d", toys.job(12, num_layers=16), layout)
    assert list(held_unlike_promised(toys.graph_of(plan), plan)) == []
