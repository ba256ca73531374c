"""Bars of a step: what they carry, and how many tasks become few bars."""

from __future__ import annotations

import pytest

import perfsim as ps
from perfsim.prediction.run import Evaluation
from perfsim.studies.timeline import TimelineBar, devices_of, grouped, timeline


@pytest.fixture(scope="module")
def run() -> Evaluation:
    layout = "tp=2,pp=2,dp=2,mbs=1,sp=true,zero=1"
    return ps.predict(
        model="gpt3_xl", system="dgx-a100-80gb", devices=8, strategy="3d", layout=layout, batch=16
    ).run


def _busy_s(bars: list[TimelineBar] | tuple[TimelineBar, ...]) -> dict[tuple[str, str], float]:
    busy: dict[tuple[str, str], float] = {}
    for bar in bars:
        key = bar.lane, bar.category
        busy[key] = busy.get(key, 0.0) + bar.end_s - bar.start_s
    return busy


def test_bars_have_the_tasks_flops_and_bytes_of_the_graph(run: Evaluation) -> None:
    bars = timeline(run)
    graph = run.trace.graph
    works = [graph.works[number] for number in graph.work]
    assert sum(bar.flop for bar in bars) == pytest.approx(sum(work.flop for work in works))
    lasting = run.trace.end_s > run.trace.start_s
    assert sum(bar.tasks for bar in bars) == lasting.sum()
    sent = sum(work.comm_bytes for work in works if work.kind.is_communication)
    assert sum(bar.n_bytes for bar in bars if "communication" in bar.category) == pytest.approx(sent)


def test_a_bar_names_its_layers(run: Evaluation) -> None:
    layers = {bar.layers for bar in timeline(run) if bar.layers}
    assert {low for low, _ in layers} <= set(range(24))
    assert max(high for _, high in layers) == 23


def test_joined_bars_keep_the_whole_step_and_the_busy_time_of_every_lane(run: Evaluation) -> None:
    bars = timeline(run)
    few = grouped(bars, len(bars) // 3)
    assert len(few) <= len(bars) // 3
    assert max(bar.end_s for bar in few) == pytest.approx(max(bar.end_s for bar in bars), rel=0.01)
    busy = _busy_s(bars)
    assert _busy_s(few) == pytest.approx(busy)
    assert sum(bar.tasks for bar in few) == sum(bar.tasks for bar in bars)
    assert sum(bar.flop for bar in few) == pytest.approx(sum(bar.flop for bar in bars))


def test_bars_that_cannot_be_few_enough_are_cut_at_the_end(run: Evaluation) -> None:
    bars = timeline(run)
    assert grouped(bars, 5) == bars[:5]


def test_some_devices_stand_for_all_the_first_and_the_last_among_them(run: Evaluation) -> None:
    devices = devices_of(run.trace.graph)
    assert len(devices) == 2
    lanes = {bar.lane for bar in timeline(run, most_devices=1)}
    assert f"{devices[0]}/compute" in lanes
    assert not any(lane.startswith(f"{devices[1]}/") for lane in lanes)
