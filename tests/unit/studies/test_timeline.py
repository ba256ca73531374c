"""Bars of a step: what they carry, and how many tasks become few bars."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

import perfsim as ps
from perfsim.prediction.run import Evaluation
from perfsim.studies import timeline as timeline_module
from perfsim.studies.timeline import TimelineBar, grouped, timeline

GPUS: dict[str, Any] = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 8, "batch": 16}
LAYOUT = {"layout": "tp=2,pp=2,dp=2,mbs=1,sp=true,zero=1,recompute=full"}
WAFERS: dict[str, Any] = {"model": "gpt3_xl", "system": "cs-2", "devices": 2, "batch": 64}


@pytest.fixture(scope="module")
def gpus() -> Evaluation:
    return ps.predict(**GPUS, **LAYOUT).run


def _busy_s(bars: Iterable[TimelineBar]) -> dict[tuple[str, str], float]:
    busy = defaultdict[tuple[str, str], float](float)
    for bar in bars:
        busy[bar.lane, bar.category] += bar.end_s - bar.start_s
    return busy


def test_bars_have_the_layers_tasks_flops_and_bytes_of_the_graph(gpus: Evaluation) -> None:
    bars = timeline(gpus)
    graph = gpus.trace.graph
    works = [graph.works[number] for number in graph.work]
    assert sum(bar.flop for bar in bars) == pytest.approx(sum(work.flop for work in works))
    lasting = gpus.trace.end_s > gpus.trace.start_s
    assert sum(bar.tasks for bar in bars) == lasting.sum()
    sent = sum(work.comm_bytes for work in works if work.kind.is_communication)
    assert sum(bar.n_bytes for bar in bars if "communication" in bar.category) == pytest.approx(sent)
    layers = {bar.layers for bar in bars if bar.layers}
    assert {low for low, _ in layers} <= set(range(24))
    assert max(high for _, high in layers) == 23


def test_joined_bars_keep_the_step_and_busy_times_down_to_one_a_kind_and_lane(gpus: Evaluation) -> None:
    bars = timeline(gpus)
    few = grouped(bars, len(bars) // 3)
    assert len(few) <= len(bars) // 3
    assert max(bar.end_s for bar in few) == pytest.approx(max(bar.end_s for bar in bars), rel=0.01)
    assert _busy_s(few) == pytest.approx(_busy_s(bars))
    assert sum(bar.tasks for bar in few) == sum(bar.tasks for bar in bars)
    assert sum(bar.flop for bar in few) == pytest.approx(sum(bar.flop for bar in bars))
    assert len(grouped(bars, 5)) == len(_busy_s(bars))


def test_some_devices_stand_for_all_with_both_ends(gpus: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {bar.lane for bar in timeline(gpus) if bar.lane.endswith("/compute")}
    monkeypatch.setattr(timeline_module, "MOST_DEVICES", 1)
    assert {bar.lane for bar in timeline(gpus) if bar.lane.endswith("/compute")} == {min(both)} < both


@pytest.mark.parametrize("question", [GPUS | LAYOUT, WAFERS], ids=["GPUs", "wafers"])
def test_bars_lie_in_the_step_in_order_and_mfu_is_of_the_peak(question: dict[str, Any]) -> None:
    run = ps.predict(**question).run
    bars = timeline(run)
    assert bars
    assert [bar.start_s for bar in bars] == sorted(bar.start_s for bar in bars)
    assert all(0 <= bar.start_s < bar.end_s <= run.step_time_s * (1 + 1e-9) for bar in bars)
    assert run.mfu * run.step_time_s * run.peak_flop_per_s == pytest.approx(run.model_flop)


def test_bars_of_one_lane_do_not_overlap_and_keep_its_busy_time(gpus: Evaluation) -> None:
    bars = timeline(gpus)
    for lane in {bar.lane for bar in bars if bar.lane.endswith("/compute")}:
        mine = [bar for bar in bars if bar.lane == lane]
        for before, after in pairwise(mine):
            assert before.end_s <= after.start_s + 1e-9
        seconds = gpus.trace.device_breakdowns()[lane.split("/", 1)[0]]
        busy = sum(bar.end_s - bar.start_s for bar in mine)
        work = sum(seconds.get(category, 0.0) for category in {bar.category for bar in mine})
        assert busy == pytest.approx(work, rel=1e-6)
