"""A schedule whose warm-up is one too long or too short holds others than memory is planned for."""

import pytest

from perfsim.proof.prove import Request, prove_all
from perfsim.strategies import strategy
from perfsim.strategies.schedules import RankOrder, Schedule
from perfsim.testing import PROMISES, BrokenPromise, cases_for


def off_by(order: RankOrder, more: int) -> RankOrder:
    """The order of a rank in which every forward is earlier by `more` forwards than it was."""
    forwards = [slot for slot in order if slot.which == "F"]
    wrong: RankOrder = []
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
def test_a_warm_up_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch, name: str, more: int) -> None:
    """The graph is in another order than the one over which memory is counted."""
    right = Schedule.orders

    def wrong(schedule: Schedule, *sizes: int) -> list[RankOrder]:
        orders = right(schedule, *sizes)
        return [off_by(order, more) for order in orders] if schedule.name == name else orders

    monkeypatch.setattr(Schedule, "orders", wrong)
    monkeypatch.setattr(Schedule, "merged", Schedule.merged.__wrapped__)  # keeps nothing of other schedules
    request = Request("gpt3_20b", layout=f"pp=3,schedule={name}", batch=8, orders=1)
    (proof,) = prove_all(request).proofs
    assert {fault.kind for fault in proof.faults} == {"memory"}
    assert "micro-batches, schedule" in str(proof.faults[0])
    assert "stage 0 (gpu0): activations in flight" in str(proof.faults[0])
    one_node = next(case for case in cases_for(strategy("3d")) if case.name == "one node")
    with pytest.raises(BrokenPromise, match=f"schedule {name} promises"):
        one_node.check(PROMISES["ranks_hold_what_their_schedule_promises"])
