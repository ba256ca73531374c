"""A schedule whose warm-up is one too long or too short holds other micro-batches than it promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfsim.proof.prove import Request, prove_all
from perfsim.strategies import strategy
from perfsim.strategies.schedules import SCHEDULES, StageOrder
from perfsim.testing import PROMISES, BrokenPromise, cases_for


def off_by(order: StageOrder, more: int) -> StageOrder:
    """The order of a rank in which every forward is earlier by `more` forwards than it was."""
    forwards = [slot for slot in order if slot.which == "F"]
    wrong: StageOrder = []
    begun = before = 0
    for slot in order:
        if slot.which == "F":
            before += 1
            continue
        due = min(max(before + more, slot.microbatch + 1), len(forwards))
        wrong += [*forwards[begun:due], slot]
        begun = max(begun, due)
    return wrong


@pytest.mark.parametrize("name", ["1f1b", "zb1p", "zb2p"])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_proof_and_check_strategy_find_a_warm_up_that_is_one_too_short_or_too_long(
    monkeypatch: pytest.MonkeyPatch, name: str, more: int
) -> None:
    right = SCHEDULES[name]
    wrong = replace(right, order=lambda *sizes: [off_by(order, more) for order in right.orders(*sizes)])
    monkeypatch.setitem(SCHEDULES, name, wrong)
    request = Request("gpt3_20b", layout=f"pp=3,schedule={name}", batch=8, orders=1)
    (proof,) = prove_all(request).proofs
    assert {fault.kind for fault in proof.faults} == {"memory"}
    assert "micro-batches, schedule" in str(proof.faults[0])
    assert "stage 0 (gpu0): activations in flight" in str(proof.faults[0])
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
