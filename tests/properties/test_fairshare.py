"""Fair sharing against a slow solver that follows every single flow and keeps no state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from perfsim.engine.calendar import Calendar
from perfsim.engine.fairshare import FairShare, Flow, PathClass, fill_by_loop, fill_by_numpy, fill_one_link

from perfsim.testing.independent import max_min_rates


class Started(NamedTuple):
    """A flow, when it starts, and how long it takes alone."""

    flow: Flow
    start_s: float
    duration_s: float


# Quarters make ties common and near-ties impossible.
quarters = st.integers(1, 24).map(lambda n: n / 4)


@st.composite
def networks(draw: st.DrawFn, most_flows: int = 7) -> tuple[list[float], list[Started]]:
    capacities = draw(st.lists(quarters, min_size=1, max_size=4))
    links = st.integers(0, len(capacities) - 1)
    routes = draw(st.lists(st.lists(links, max_size=4).map(tuple), min_size=1, max_size=3))
    flows = st.builds(Flow, st.sampled_from(routes), quarters, st.integers(1, 3))
    starts = st.integers(0, 12).map(lambda n: n / 4)
    durations = st.one_of(st.just(0.0), quarters)
    started = st.builds(Started, flows, starts, durations)
    return capacities, draw(st.lists(started, min_size=1, max_size=most_flows))


# ------------------------------------------------------------------------------ the slow solver
def slow_rates(routes: Sequence[Sequence[int]], caps: Sequence[float], room: Sequence[float]) -> list[float]:
    """Raise the rates of all flows together until each meets its cap or a full link."""
    rate = [0.0] * len(routes)
    left = list(room)
    growing = set(range(len(routes)))
    while growing:
        crossings = [sum(list(routes[f]).count(link) for f in growing) for link in range(len(room))]
        steps = {("flow", f): caps[f] - rate[f] for f in growing}
        steps |= {("link", link): left[link] / n for link, n in enumerate(crossings) if n}
        step = max(0.0, min(steps.values()))
        for f in growing:
            rate[f] += step
        left = [have - step * n for have, n in zip(left, crossings, strict=True)]
        full = {key for key, value in steps.items() if value <= step + 1e-12}
        growing -= {f for f in growing if ("flow", f) in full}
        growing -= {f for f in growing if any(("link", link) in full for link in routes[f])}
    return rate


def slow_ends(capacities: Sequence[float], started: Sequence[Started]) -> list[float]:
    """End of every flow; each of the `weight` identical ones is followed on its own."""
    owner = [i for i, one in enumerate(started) for _ in range(one.flow.weight)]
    left = [started[i].duration_s * started[i].flow.bytes_per_s for i in owner]
    ends = [0.0] * len(started)
    todo = set(range(len(owner)))
    now = 0.0
    while todo:
        live = sorted(f for f in todo if started[owner[f]].start_s <= now)
        flows = [started[owner[f]].flow for f in live]
        rates = slow_rates([flow.route for flow in flows], [flow.bytes_per_s for flow in flows], capacities)
        events = [left[f] / rate for f, rate in zip(live, rates, strict=True)]
        events += [started[owner[f]].start_s - now for f in todo if started[owner[f]].start_s > now]
        step = min(events)
        for f, rate in zip(live, rates, strict=True):
            left[f] -= rate * step
        now += step
        done = {f for f in live if left[f] <= 1e-12}
        for f in done:
            ends[owner[f]] = now
        todo -= done
    return ends


# ----------------------------------------------------------------------------- what is compared
class Watched(FairShare):
    """Checks the rates of all live flows whenever they were settled, and keeps them."""

    rates: dict[tuple[tuple[int, ...], float], list[tuple[float, float]]]
    """By class: since when at which share of its nominal speed."""

    def _settle(self, path: PathClass, fraction: float, now_s: float) -> None:
        super()._settle(path, fraction, now_s)
        route = tuple(link for link, count in path.links for _ in range(count))
        self.rates = getattr(self, "rates", {})
        self.rates.setdefault((route, path.bytes_per_s), []).append((now_s, path.fraction))

    def served_s(self, flow: Flow, start_s: float, end_s: float) -> float:
        """Seconds at nominal speed that a flow received, from the rates of its class alone."""
        pieces = self.rates[tuple(sorted(flow.route)), flow.bytes_per_s]
        bounds = [*(since for since, _ in pieces[1:]), math.inf]
        return math.fsum(
            fraction * max(0.0, min(until, end_s) - max(since, start_s))
            for (since, fraction), until in zip(pieces, bounds, strict=True)
        )

    def _solve(self) -> None:
        super()._solve()
        load = np.zeros(len(self._capacity))
        for path in self._classes.values():
            assert 0 < path.fraction <= 1.0, "no flow is faster than its nominal speed"
            for link, count in path.links:
                load[link] += path.weight * count * path.fraction * path.bytes_per_s
        assert (load <= np.array(self._capacity) * (1 + 1e-8)).all()


def run(
    capacities: Sequence[float], started: Sequence[Started], grid_s: float = 0.0
) -> tuple[list[float], Watched]:
    env = simpy.Environment()
    share = Watched(Calendar(env), capacities, grid_s=grid_s)
    ends = [-1.0] * len(started)

    def note(i: int) -> None:
        assert ends[i] == -1.0, "a flow ends once"
        ends[i] = share.calendar.now_s

    def begin(i: int, _event: simpy.Event) -> None:
        share.start(started[i].flow, started[i].duration_s, partial(note, i))

    for i, one in enumerate(started):
        env.timeout(one.start_s).callbacks = [partial(begin, i)]
    env.run()
    return ends, share


@given(networks())
@settings(max_examples=200)
def test_rates_equal_those_of_the_slow_solver_and_respect_caps_and_capacities(
    network: tuple[list[float], list[Started]],
) -> None:
    capacities, started = network
    flows = [one.flow for one in started]
    rates = max_min_rates(
        [flow.route for flow in flows],
        [flow.bytes_per_s for flow in flows],
        capacities,
        [flow.weight for flow in flows],
    )
    single = [flow for flow in flows for _ in range(flow.weight)]
    slow = slow_rates([flow.route for flow in single], [flow.bytes_per_s for flow in single], capacities)
    expected = [slow[sum(flow.weight for flow in flows[:i])] for i in range(len(flows))]
    assert rates.tolist() == pytest.approx(expected, rel=1e-9)
    assert all(rate <= flow.bytes_per_s for rate, flow in zip(rates, flows, strict=True))
    for link, capacity in enumerate(capacities):
        load = sum(
            rate * flow.weight * flow.route.count(link) for rate, flow in zip(rates, flows, strict=True)
        )
        assert load <= capacity * (1 + 1e-8)


@given(networks())
@settings(max_examples=200)
def test_every_flow_ends_when_the_slow_solver_says(network: tuple[list[float], list[Started]]) -> None:
    capacities, started = network
    ends, share = run(capacities, started)
    assert ends == pytest.approx(slow_ends(capacities, started), rel=1e-9, abs=1e-9)
    live = [path for path in share._classes.values() if path.weight or path.change or path.new or path.ends]
    assert live == []
    assert share.last_end_s == max(ends)


@given(networks())
@settings(max_examples=200)
def test_every_flow_receives_its_own_bytes_and_no_more(network: tuple[list[float], list[Started]]) -> None:
    """Flow by flow: a stale timer would end one early, and sums over links might not show it."""
    capacities, started = network
    ends, share = run(capacities, started)
    for (flow, start_s, duration_s), end_s in zip(started, ends, strict=True):
        assert share.served_s(flow, start_s, end_s) == pytest.approx(duration_s, rel=1e-9, abs=1e-9)


@given(networks())
@settings(max_examples=100)
def test_without_contention_a_flow_ends_at_its_start_plus_its_duration_to_the_bit(
    network: tuple[list[float], list[Started]],
) -> None:
    capacities, started = network
    started = [
        Started(one.flow, one.start_s / 3, one.duration_s / 7) for one in started
    ]  # thirds and sevenths are on no grid
    enough = [sum(one.flow.weight * len(one.flow.route) * one.flow.bytes_per_s for one in started) + 1.0]
    ends, _ = run(enough * len(capacities), started)
    assert ends == [one.start_s + one.duration_s for one in started]


@given(networks())
@settings(max_examples=100)
def test_on_a_grid_all_ends_stay_on_it_and_are_late_by_less_than_a_step_per_event(
    network: tuple[list[float], list[Started]],
) -> None:
    capacities, started = network
    grid_s = 2.0**-20
    on_grid, _ = run(capacities, started, grid_s=grid_s)
    assert all((end / grid_s).is_integer() for end in on_grid)
    exact, _ = run(capacities, started)
    slack = 100 * len(started) * grid_s
    assert on_grid == pytest.approx(exact, rel=1e-9, abs=slack)


@given(st.integers(0, 2**32 - 1), st.integers(1, 120), st.integers(1, 20))
@settings(max_examples=60)
def test_the_loop_and_numpy_fill_to_the_same_bits(seed: int, classes: int, links: int) -> None:
    rng = np.random.default_rng(seed)
    loads = [
        [
            (int(link), int(rng.integers(1, 9)))
            for link in rng.permutation(links)[: rng.integers(0, min(4, links) + 1)]
        ]
        for _ in range(classes)
    ]
    caps = rng.uniform(0.01, 2.0, classes).tolist()
    capacity = rng.uniform(0.5, 8.0, links).tolist()
    assert fill_by_loop(loads, caps, capacity) == fill_by_numpy(loads, caps, capacity)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 2.0)), min_size=1, max_size=8), st.floats(0.0, 9.0)
)
def test_one_link_fills_to_the_same_bits_as_any_number(
    classes: list[tuple[int, float]], capacity: float
) -> None:
    units = [unit for unit, _ in classes]
    caps = [cap for _, cap in classes]
    loads = [[(0, unit)] for unit in units]
    assert fill_one_link(units, caps, capacity) == fill_by_loop(loads, caps, [capacity])
