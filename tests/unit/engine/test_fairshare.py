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
def test_flows_on_one_link_share_it_equally() -> None:
    assert max_min_rates([(0,)] * 4, [10.0] * 4, [8.0]).tolist() == [2.0] * 4


def test_a_flow_below_its_share_leaves_the_rest_to_the_others() -> None:
    assert max_min_rates([(0,)] * 3, [1.0, 10.0, 10.0], [9.0]).tolist() == [1.0, 4.0, 4.0]


def test_the_textbook_line_of_links_gives_the_long_flow_the_tightest_share() -> None:
    # Two flows share link 0 (capacity 2), so the long one gets 1; link 1 (capacity 5) leaves 4.
    assert max_min_rates([(0, 1), (0,), (1,)], [9.0] * 3, [2.0, 5.0]).tolist() == [1.0, 1.0, 4.0]


def test_a_link_crossed_twice_is_loaded_twice() -> None:
    assert max_min_rates([(0, 0), (0,)], [9.0, 9.0], [6.0]).tolist() == [2.0, 2.0]


def test_a_weight_counts_as_that_many_flows() -> None:
    assert max_min_rates([(0,), (0,)], [9.0, 9.0], [8.0], weights=[3, 1]).tolist() == [2.0, 2.0]


def test_a_flow_without_links_runs_at_its_cap() -> None:
    assert max_min_rates([()], [3.0], [1.0]).tolist() == [3.0]


def test_caps_that_fill_a_link_exactly_are_granted_exactly() -> None:
    caps = [0.1] * 10  # ten times 0.1 is not 1.0 in floating point
    assert max_min_rates([(0,)] * 10, caps, [math.fsum(caps)]).tolist() == caps


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


def test_contention_elsewhere_does_not_touch_a_flow() -> None:
    transfers = [Transfer((0,), 0.1, start_s=0.7), Transfer((1,), 1.0), Transfer((1,), 1.0, start_s=0.3)]
    assert ends_of(transfers, [1.0, 1.0])[0] == 0.7 + 0.1


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


def test_more_bandwidth_can_make_the_whole_slower() -> None:
    """A faster link 0 lets flow 3 start early and take half of link 2 from flow 0, which flow 2 awaits.

    Slow: flow 1 ends at 4, flow 0 has 1 byte left, shares until 6, and flow 2 takes 6..12.
    Fast: flow 1 ends at 2, flow 0 has 3 bytes left, shares until 8, and flow 2 takes 8..14.
    """
    transfers = [
        Transfer((2,), 5.0),
        Transfer((0,), 2.0),
        Transfer((1,), 6.0, after=(0,)),
        Transfer((0, 2), 4.0, after=(1,)),
    ]
    slow, fast = (max(ends_of(transfers, [link_0, 1.0, 1.0])) for link_0 in (0.5, 1.0))
    assert slow == pytest.approx(12.0, rel=1e-12)
    assert fast == pytest.approx(14.0, rel=1e-12)


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
