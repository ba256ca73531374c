"""Choosing a layout: all are screened by the closed form, those that could be fastest are simulated."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from perfsim.base.errors import LayoutError, PlanError
from perfsim.network import Topology
from perfsim.prediction import planner
from perfsim.prediction.planner import MOST_LISTED, Search, best_plan, confirmed, plan_of, refusal_of
from perfsim.prediction.question import Question, question_of
from perfsim.specs.layout import text_of
from perfsim.specs.recipe import Job
from perfsim.strategies import Plan, strategy


@pytest.fixture
def topology(toys: ModuleType) -> Topology:
    return toys.topology(16)


def on_toys(toys: ModuleType, name: str, job: Job, topology: Topology) -> Question:
    """A question whose costs are simple."""
    return toys.question(strategy(name), job, topology, toys.ToyCosts(topology.system))


def question(
    model: str, devices: int, batch: int, system: str = "dgx-a100-80gb", name: str = "3d"
) -> Question:
    given = {"model": model, "devices": devices, "batch": batch, "system": system, "strategy": name}
    return question_of({**given, "recipe": "gpt3_pretraining", "runs_on": "any", "rank": "fastest"})


MANY = "mbs=1,schedule=interleaved,zero=1,sp=true"


@pytest.mark.parametrize(
    ("model", "devices", "batch", "layout", "slower"),
    [
        ("llama_7b", 8, 6, "tp=4,dp=2,mbs=3,zero=3,sp=true,recompute=full,recompute_every=11", 1.001),
        pytest.param("gpt3_175b", 512, 192, f"tp=8,pp=8,dp=8,vpp=12,{MANY}", 1.001, marks=pytest.mark.slow),
        ("gpt3_20b", 256, 64, f"tp=4,pp=4,dp=16,vpp=11,{MANY}", 1.001),
        ("gpt3_6p7b", 1024, 512, "tp=4,dp=256,mbs=2,zero=1,sp=true", 1.005),
    ],
)
def test_the_planner_finds_layouts_as_fast_as_those_found_by_hand(
    model: str, devices: int, batch: int, layout: str, slower: float
) -> None:
    """Estimates of ZeRO 2 with interleaving are too low for the last, and 60 of them come before the best."""
    free = question(model, devices, batch, "dgx-a100-40gb" if model == "llama_7b" else "dgx-a100-80gb")
    by_hand = best_plan(replace(free, layout=layout))
    assert best_plan(free).step_time_s <= by_hand.step_time_s * slower


@pytest.mark.parametrize(
    ("model", "devices", "batch", "system"),
    [
        ("llama_13b", 16, 32, "dgx-a100-80gb"),
        ("llama2_70b", 64, 192, "dgx-h100"),
        ("gpt3_13b", 16, 32, "dgx-a100-80gb"),
    ],
)
def test_3d_is_never_slower_than_what_it_contains(model: str, devices: int, batch: int, system: str) -> None:
    whole = best_plan(question(model, devices, batch, system)).step_time_s
    for name in ("data", "tensor", "pipeline", "zero3"):
        try:
            part = best_plan(question(model, devices, batch, system, name)).step_time_s
        except PlanError:
            continue
        assert whole <= part * (1 + 1e-9), name


def test_screening_ranks_what_fits_by_time_then_by_memory(toys: ModuleType, topology: Topology) -> None:
    searched = Search(on_toys(toys, "3d", toys.job(64), topology))
    searched.ratio[:] = 1.0  # as if all were published
    screening = searched.screening
    every = list(strategy("3d").layouts(toys.job(64), topology))
    assert screening.feasible == screening.screened == len(every)
    estimates = searched.estimate_s[searched.order[:MOST_LISTED]]
    assert (np.diff(estimates) >= -1e-11).all()
    assert len({searched.plan(index).layout for index in searched.order[:5].tolist()}) == 5
    equal = np.diff(np.round(estimates, 12)) == 0
    assert equal.any(), "on one pipeline rank ZeRO 0 and 1 differ, but a schedule's order does not"
    assert (np.diff(screening.memory_share[searched.order[:MOST_LISTED]])[equal] >= 0).all()
    times = [run.step_time_s for run in confirmed(searched)]
    assert times == sorted(times, reverse=True)
    *_, fastest = confirmed(searched)
    assert estimates[0] <= fastest.step_time_s * 1.02
    assert fastest.tokens_per_s == pytest.approx(64 * 1024 / fastest.step_time_s)
    assert fastest.peak_flop_per_s == 16 * 312e12
    # Layouts that do not fit are counted and left out.
    small = toys.topology(16, toys.gpu_cluster(capacity=8 * toys.GIB))
    fewer = Search(on_toys(toys, "3d", toys.job(64), small))
    refused = fewer.screening.screened - fewer.screening.feasible
    assert 0 < refused < fewer.screening.screened
    assert fewer.screening.refused == {"memory": refused}
    first = map(fewer.plan, fewer.order[:20].tolist())
    assert all(plan.peak_memory_bytes <= 0.94 * 8 * toys.GIB for plan in first)


@pytest.mark.parametrize(
    ("error", "most_tried"), [(planner.ESTIMATE_ERROR, 1), (0.9, planner.MOST_CONFIRMED)]
)
def test_layouts_are_tried_until_the_rest_cannot_be_faster_given_the_error_of_the_estimate(
    toys: ModuleType, topology: Topology, monkeypatch: pytest.MonkeyPatch, error: float, most_tried: int
) -> None:
    tried: list[Plan] = []
    monkeypatch.setattr(planner, "ESTIMATE_ERROR", error)
    written = Plan.graph
    monkeypatch.setattr(Plan, "graph", lambda plan: tried.append(plan) or written(plan))
    list(confirmed(Search(on_toys(toys, "3d", toys.job(64), topology))))
    assert len(tried) == most_tried


def test_a_layout_above_the_memory_limit_is_the_last_resort(toys: ModuleType, topology: Topology) -> None:
    """The fastest layout of an open search uses 97 % of the memory."""
    job = toys.job(64)
    fastest = best_plan(on_toys(toys, "tensor", job, topology)).plan
    small = toys.topology(16, toys.gpu_cluster(capacity=fastest.peak_memory_bytes / 0.97))
    tight = on_toys(toys, "tensor", job, small)
    chosen = best_plan(tight).plan
    assert chosen.layout != fastest.layout
    assert chosen.memory_share <= 0.94
    (note,) = (note for note in chosen.notes if note.startswith("above the memory limit of 94%"))
    assert text_of(fastest.layout) in note
    assert len(Search(tight).order) < len(Search(tight).ranked)
    chosen = best_plan(replace(tight, memory_limit=0.01)).plan
    assert "without offload no plan is under 1% of memory" in chosen.notes


def test_memory_that_is_laid_out_in_advance_has_no_limit(toys: ModuleType) -> None:
    """A wafer's memory does not fragment."""
    job = toys.job(64)
    wafers = toys.topology(1, toys.wafer_cluster())
    streamed = toys.question(strategy("weight-streaming"), job, wafers)
    assert streamed.memory_limit < 1.0
    assert streamed.allowed_share == 1.0
    assert toys.question(strategy("3d"), job, toys.topology(8)).allowed_share == streamed.memory_limit


def test_without_any_legal_layout_the_reason_is_the_division(toys: ModuleType, topology: Topology) -> None:
    no_layout = r"no layout is legal \(batch 7, 8 layers, .* no degrees divide"
    with pytest.raises(PlanError, match=no_layout) as caught:
        Search(on_toys(toys, "data", toys.job(7), topology))
    assert "16 devices of toy-gpus" in str(caught.value)
    assert "nearest that divides: 16 devices of toy-gpus, 16 sequences a step" in caught.value.reasons
    assert "--runs-on any" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_without_a_plan_that_fits_the_closest_is_shown_with_its_way_out(toys: ModuleType) -> None:
    tiny = toys.topology(4, toys.gpu_cluster(capacity=2.3 * toys.GIB))
    job = toys.job(4)
    with pytest.raises(PlanError) as caught:
        Search(on_toys(toys, "3d", job, tiny))
    head, closest = caught.value.reasons
    listed = list(strategy("3d").layouts(job, tiny))
    assert f"{len(listed):,} layouts tried, {len(listed):,} over memory" in head
    plans = (strategy("3d").plan(job, tiny, layout, check_memory=False) for layout in listed)
    least = min(plan.peak_memory_bytes for plan in plans)
    assert f"{least / toys.GIB:.1f} GiB" in closest
    assert "try " in closest or "no change" in closest


def test_a_layout_that_overfills_its_host_is_told_to_be_over_memory() -> None:
    asked = {"model": "gpt3_20b", "system": "gb200-nvl72", "devices": 72, "batch": 288}
    with pytest.raises(LayoutError) as refused:
        plan_of(question_of({**asked, "layout": "ep=16,cp=4,offload_optimizer=cpu"}))
    assert "but over memory: --layout dp=18,cp=4,offload" in refused.value.problems[-1].help


def test_a_refused_layout_comes_with_the_nearest_legal_ones_as_text() -> None:
    def given(layout: str, *, must_fit: bool = True) -> Question:
        return replace(question("gpt3_20b", 64, 512), layout=layout, must_fit=must_fit)

    with pytest.raises(LayoutError) as refused:
        plan_of(given("tp=3"))
    help_text = refused.value.problems[-1].help
    assert help_text == "nearest that is legal, but over memory: --layout tp=2,dp=32 or --layout tp=4,dp=16"
    for layout in ("tp=2,dp=32", "tp=4,dp=16"):
        plan_of(given(layout, must_fit=False))
    with pytest.raises(PlanError, match="GiB"):
        plan_of(given("tp=1,dp=64"))
    assert plan_of(given("tp=1,dp=64", must_fit=False)).layout.data == 64
    assert refusal_of(given("tp=1,dp=64")) is None, "legal, if memory were larger"
