"""Fair sharing against a slow solver that follows every single flow and keeps no state."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsim.base.limits import Engine, Limits, limited
from perfsim.engine import Flow, simulate
from perfsim.testing import toys
from perfsim.work import GraphBuilder, RankGroup


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
    latency = st.sampled_from([0.0, 0.25, 0.5, 1.0])
    late = st.sampled_from([0.0, 0.25, 1.5])
    flows = st.builds(Flow, st.sampled_from(routes), quarters, latency, late)
    starts = st.integers(0, 12).map(lambda n: n / 4)
    durations = st.one_of(st.just(0.0), quarters)
    started = st.builds(Started, flows, starts, durations)
    return capacities, draw(st.lists(started, min_size=1, max_size=most_flows))


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
    """End of every flow, whose bytes begin after its latency."""
    left = [(1 - one.flow.latency) * one.duration_s * one.flow.bytes_per_s for one in started]
    for place, one in enumerate(started):
        late_s = one.flow.latency * one.duration_s + one.flow.late_s
        started[place] = one._replace(start_s=one.start_s + late_s)
    ends = [0.0] * len(started)
    todo = set(range(len(started)))
    now = 0.0
    while todo:
        live = sorted(f for f in todo if started[f].start_s <= now)
        flows = [started[f].flow for f in live]
        rates = slow_rates([flow.route for flow in flows], [flow.bytes_per_s for flow in flows], capacities)
        events = [left[f] / rate for f, rate in zip(live, rates, strict=True)]
        events += [started[f].start_s - now for f in todo if started[f].start_s > now]
        step = min(events)
        for f, rate in zip(live, rates, strict=True):
            left[f] -= rate * step
        now += step
        done = {f for f in live if left[f] <= 1e-12}
        for f in done:
            ends[f] = now
        todo -= done
    return ends


def run(engine: Engine, capacities: Sequence[float], started: Sequence[Started]) -> list[float]:
    """When each flow ends; it begins after a task that takes until its start."""
    builder = GraphBuilder()
    seconds = []
    flows = {}
    for number, (flow, start_s, duration_s) in enumerate(started):
        wait = builder.task(toys.compute(f"wait{number}"), f"s{number}").tensor
        builder.task(toys.transfer(f"flow{number}", RankGroup(0, 1, 2)), f"s{number}", [wait])
        flows[2 * number + 1] = flow
        seconds += [start_s, duration_s]
    with limited(Limits(engine=engine)):
        trace = simulate(builder.build(), np.array(seconds), flows, np.array(capacities))
    return trace.end_s[1::2].tolist()


@pytest.mark.parametrize("engine", ["simpy", "fast"])
@given(networks())
@settings(max_examples=150)
def test_flows_end_as_a_slow_solver_says(engine: Engine, network: tuple[list[float], list[Started]]) -> None:
    capacities, started = network
    ends = run(engine, capacities, started)
    assert ends == pytest.approx(slow_ends(capacities, started), rel=1e-9, abs=1e-9)


@given(networks())
@settings(max_examples=100)
def test_without_contention_a_flow_takes_its_duration(network: tuple[list[float], list[Started]]) -> None:
    capacities, started = network
    started = [Started(one.flow, one.start_s / 3, one.duration_s / 7) for one in started]
    enough = [sum(len(one.flow.route) * one.flow.bytes_per_s for one in started) + 1.0]
    ends = run("simpy", enough * len(capacities), started)
    assert ends == [one.start_s + (one.duration_s + one.flow.late_s) for one in started]
