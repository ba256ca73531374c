"""Fair sharing in cases small enough to be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import pytest
import simpy

from perfsim.base.errors import GraphError
from perfsim.engine.calendar import Calendar
from perfsim.engine.fairshare import FairShare, Flow
from perfsim.testing.independent import max_min_rates


class Transfer(NamedTuple):
    """Bytes over a route, once the transfers in `after` are done and `start_s` has come."""

    route: tuple[int, ...]
    n_bytes: float
    after: tuple[int, ...] = ()
    start_s: float = 0.0
    bytes_per_s: float = 1.0
    weight: int = 1


def ends_of(transfers: Sequence[Transfer], capacities: Sequence[float]) -> list[float]:
    env = simpy.Environment()
    share = FairShare(Calendar(env), capacities)
    ends = [math.nan] * len(transfers)
    waiting = [len(one.after) for one in transfers]

    def begin(i: int, _event: simpy.Event | None = None) -> None:
        one = transfers[i]
        share.start(
            Flow(one.route, one.bytes_per_s, one.weight), one.n_bytes / one.bytes_per_s, partial(done, i)
        )

    def done(i: int) -> None:
        ends[i] = share.calendar.now_s
        for j, other in enumerate(transfers):
            waiting[j] -= i in other.after
            if i in other.after and not waiting[j]:
                begin(j)

    for i, one in enumerate(transfers):
        if not one.after:
            env.timeout(one.start_s).callbacks = [partial(begin, i)]
    env.run()
    return ends


# ---------------------------------------------------------------------------------------- rates


def test_the_textbook_line_of_links_gives_the_long_flow_the_tightest_share() -> None:
    # Two flows share link 0 (capacity 2), so the long one gets 1; link 1 (capacity 5) leaves 4.
    assert max_min_rates([(0, 1), (0,), (1,)], [9.0] * 3, [2.0, 5.0]).tolist() == [1.0, 1.0, 4.0]


# ----------------------------------------------------------------------------------- over time
def test_two_equal_flows_take_twice_as_long_together() -> None:
    assert ends_of([Transfer((0,), 3.0), Transfer((0,), 3.0)], [1.0]) == [6.0, 6.0]


def test_a_late_flow_slows_the_first_and_the_first_leaves_it_the_rest() -> None:
    # 0..2 alone: 2 of 4 bytes; 2..6 halves: both move 2; then the second has 2 left, alone.
    assert ends_of([Transfer((0,), 4.0), Transfer((0,), 4.0, start_s=2.0)], [1.0]) == [6.0, 8.0]


def test_a_timer_armed_at_a_rate_that_came_back_does_not_end_a_flow_early() -> None:
    # Flow 0 runs at 1/2, at 1/3 while flow 2 moves its byte (2..5), and at 1/2 again: of 10 bytes
    # 8 are left at 5, so it ends at 21. The timer armed at the first 1/2 says 20.
    transfers = [Transfer((0,), 10.0), Transfer((0,), 11.0), Transfer((0,), 1.0, start_s=2.0)]
    ends = ends_of(transfers, [1.0])
    assert ends == pytest.approx([21.0, 22.0, 5.0], rel=1e-12)


def test_a_timer_armed_at_full_speed_does_not_end_a_flow_that_was_slowed_meanwhile() -> None:
    ends = ends_of([Transfer((0,), 10.0), Transfer((0,), 1.0, start_s=1.0)], [1.0])
    assert ends == pytest.approx([11.0, 3.0], rel=1e-12)


def test_a_flow_of_no_bytes_ends_when_it_starts_even_on_a_full_link() -> None:
    transfers = [Transfer((0,), 2.0), Transfer((0,), 2.0), Transfer((0,), 0.0, start_s=1.0)]
    assert ends_of(transfers, [1.0]) == [4.0, 4.0, 1.0]


def test_a_chain_of_flows_on_a_shared_link_starts_each_when_the_last_is_done() -> None:
    transfers = [Transfer((0,), 1.0), Transfer((0,), 1.0, after=(0,)), Transfer((0,), 3.0)]
    assert ends_of(transfers, [1.0]) == pytest.approx([2.0, 4.0, 5.0], rel=1e-12)


def test_a_folded_flow_loads_links_like_the_flows_that_it_stands_for() -> None:
    folded = ends_of([Transfer((0,), 3.0, weight=4), Transfer((0,), 9.0)], [2.0])
    full = ends_of([Transfer((0,), 3.0)] * 4 + [Transfer((0,), 9.0)], [2.0])
    assert folded == [full[0], full[4]]


def test_all_that_happens_at_one_instant_is_solved_once() -> None:
    env = simpy.Environment()
    share = FairShare(Calendar(env), [1.0, 9.0])
    for i in range(50):
        flow = Flow((0, 1)[: 1 + i % 2], 1.0)  # two classes, both slowed by link 0
        env.timeout(2.0).callbacks = [lambda _event, flow=flow: share.start(flow, 1.0, lambda: None)]
    env.run()
    assert share.solves == 2
    assert share.last_end_s == pytest.approx(52.0, rel=1e-12)


# ------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("flow", "duration_s", "message"),
    [
        (Flow((0,), 1.0), -1.0, "cannot take -1.0 s"),
        (Flow((0,), 1.0), math.nan, "cannot take nan s"),
        (Flow((3,), 1.0), 1.0, "crosses link 3; there are 1 links"),
        (Flow((0,), 0.0), 1.0, "cannot run at 0.0 bytes/s"),
        (Flow((0,), 1.0, 0), 1.0, "cannot stand for 0 flows"),
    ],
)
def test_a_flow_that_makes_no_sense_is_refused(flow: Flow, duration_s: float, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        FairShare(Calendar(simpy.Environment()), [1.0]).start(flow, duration_s, lambda: None)
