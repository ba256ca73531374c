"""A shortlist: every layout that the model cannot tell apart from the fastest, and why the others fell."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from perfsim.base.errors import InputError, LimitError, MemoryCapacityError, PerfsimError, PlanError
from perfsim.base.limits import Limits, limited
from perfsim.prediction.planner import best_plan, plan_of
from perfsim.prediction.question import Question, question_of
from perfsim.report.plan import plan_lines
from perfsim.studies.shortlist import Experiment, Planned, Trial, plan_layouts


def about(model: str = "gpt3_xl", **asked: Any) -> Question:
    """A question about 8 GPUs."""
    usual = {"system": "dgx-a100-80gb", "devices": 8, "strategy": "3d", "batch": 16}
    return question_of({"model": model, "recipe": "gpt3_pretraining", **usual, **asked})


@pytest.fixture(scope="module")
def planned() -> Planned:
    return plan_layouts(about("gpt3_6p7b"), shown=4)


def test_layouts_for_a_day_say_what_was_chosen_for_it() -> None:
    (entry,) = plan_layouts(about(as_of="2023-06"), shown=1).shortlist
    (said,) = [caveat.text for caveat in entry.caveats if caveat.code == "as-of"]
    assert said.startswith("as of 2023-06: ")


def test_the_planners_pick_is_first_of_a_sorted_shortlist(planned: Planned) -> None:
    picked = best_plan(about("gpt3_6p7b"))
    assert planned.best.plan.layout == picked.plan.layout
    assert planned.best.step_time_s == picked.step_time_s
    times = [entry.step_time_s for entry in planned.shortlist]
    assert times == sorted(times)
    assert 1 < len(times) <= 4


def test_a_layout_that_is_faster_than_its_estimate_is_first() -> None:
    """Stages of 30 replicas that lie across nodes take less than their path."""
    asked = {"model": "cerebras_gpt_256m", "system": "mi355x-288gb", "devices": 120, "batch": 60}
    first, *others = (entry.ratio for entry in plan_layouts(question_of(asked, None, "plan")).shortlist)
    assert first == 1.0 <= min(others)


@pytest.mark.parametrize(
    ("ratio", "said"), [(1.0, "is no slower"), (0.99, "is no slower"), (1.01, "beats 2")]
)
def test_a_head_beats_only_what_is_slower(planned: Planned, ratio: float, said: str) -> None:
    first, second, *_ = planned.shortlist
    lines = plan_lines(replace(planned, shortlist=(first, replace(second, ratio=ratio))))
    assert [words for words in ("is no slower", "beats 2") if words in " ".join(lines)] == [said]


def test_every_part_of_a_plan_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr(Limits, "in_time", lambda _, done: noted.append(done()))
    plan_layouts(about(), shown=1)
    for part in ("tried", "priced", "followed", "written", "critical path", "simulated", "ended"):
        assert any(part in done for done in noted), part


def test_a_limit_ends_what_stands_next_to_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfsim.studies.shortlist.best_plan", Mock(side_effect=LimitError("over")))
    with pytest.raises(LimitError):
        plan_layouts(about(devices=24, batch=25), shown=1)


def test_time_that_is_over_ends_the_search_for_what_would_fit() -> None:
    lacking = about("gpt3_175b", layout="dp=8")
    with pytest.raises(MemoryCapacityError) as caught:
        plan_of(lacking)
    with limited(Limits(max_seconds=0.0)), pytest.raises(LimitError):
        str(caught.value)


def test_every_layout_is_within_or_refused_and_counted(planned: Planned) -> None:
    layouts = sum(count for reason, count in planned.refused.items() if reason != "divisibility")
    searched = planned.search
    assert planned.within + layouts == searched.screening.screened + searched.unproven
    assert planned.refused["unproven"] == searched.unproven > 0
    assert planned.refused["dominated"] > 0
    assert planned.within >= len(planned.shortlist)
    # Four sequences have no eight replicas; every other combination of degrees over 8 devices has a layout.
    assert plan_layouts(about(), shown=1).refused["divisibility"] == 0
    assert plan_layouts(about(batch=4), shown=1).refused["divisibility"] == 1
    assert plan_layouts(replace(about(), strategy="data"), shown=1).refused["divisibility"] == 0


def test_what_needs_a_target_or_fits_nowhere_has_no_shortlist() -> None:
    with pytest.raises(InputError, match="neither tokens nor target_loss"):
        plan_layouts(about(), "time-to-accuracy")
    with pytest.raises(PlanError, match="no plan fits"):
        plan_layouts(about("gpt3_175b", system="mi300x-192gb"))


def test_caveats_stand_on_every_entry_with_the_default_batch_among_them() -> None:
    for batch in (None, 16):
        for entry in plan_layouts(about(batch=batch), shown=2).shortlist:
            assert ("batch-default" in {caveat.code for caveat in entry.caveats}) == (not batch)


# The run that tells two layouts apart: which two, and on how few devices.


PAIR = {"model": "gpt3_6p7b", "devices": 16, "batch": 32}


def with_settings(*settings: tuple[int, int, int, int]) -> list[Any]:
    names = ("tensor", "pipeline", "data", "zero_stage")
    return [SimpleNamespace(layout=SimpleNamespace(**dict(zip(names, row, strict=True)))) for row in settings]


@pytest.mark.parametrize(
    ("settings", "rival"),
    [
        ([(8, 1, 2, 1), (8, 1, 2, 2), (4, 2, 2, 1), (4, 1, 4, 1)], 2),
        ([(8, 1, 2, 3), (4, 1, 4, 3), (8, 1, 2, 1)], 2),
        ([(8, 1, 2, 0), (8, 1, 2, 1)], 1),
        ([(8, 1, 2, 1)], None),
    ],
)
def test_the_rival_is_sharded_otherwise_else_of_other_degrees_else_the_second(
    settings: list[tuple[int, int, int, int]], rival: int | None
) -> None:
    assert Experiment.rival(with_settings(*settings)) == rival


def test_a_trial_has_as_few_replicas_as_fit_each_with_the_same_work_and_one_wafer() -> None:
    question = about(**PAIR, layout="tp=4,dp=4,mbs=2,zero=1,sp=true")
    plan = plan_of(question)
    smaller = Trial.fewest_replicas(question, plan)
    assert (smaller.layout.data, smaller.layout.num_devices) == (1, 4)
    assert smaller.job.global_batch_size == 8
    assert smaller.num_microbatches == plan.num_microbatches
    question = about(**PAIR | {"devices": 4}, layout="mbs=1", system="cs-2", strategy="")
    assert Trial.fewest_replicas(question, plan_of(question)).layout.num_devices == 1


def test_replicas_that_shard_stay_where_one_alone_does_not_fit() -> None:
    question = about(**PAIR | {"model": "gpt3_13b"}, layout="tp=4,pp=1,dp=4,mbs=1,zero=1,sp=true")
    smaller = Trial.fewest_replicas(question, plan_of(question))
    assert 1 <= smaller.layout.data <= 4
    assert smaller.memory_share <= 1
    tight = about(**PAIR | {"model": "gpt3_13b"}, layout="tp=2,dp=8,mbs=1,zero=1,sp=true")
    assert Trial.fewest_replicas(tight, plan_of(tight)).layout.data > 1
    question = about(**PAIR, layout="dp=16,mbs=2,zero=3")
    plan = plan_of(question)
    assert Trial.fewest_replicas(question, plan) is plan


def test_a_shortlist_of_several_names_its_experiment(planned: Planned) -> None:
    experiment = planned.experiment
    first, second = experiment.trials
    assert first.entry == 1 < second.entry <= len(planned.shortlist)
    assert experiment.ratio == planned.shortlist[second.entry - 1].ratio
    assert first.devices <= 8
    assert plan_layouts(about(**PAIR), shown=1).experiment is None


@pytest.mark.parametrize(
    ("system", "cap", "most"),
    [("dgx-a100-80gb", "30 kW", 48), ("cs-2", "0.06 MW", 2), ("gb200-nvl72", "53.4 kW", 32)],
)
def test_above_the_power_cap_the_most_devices_are_named(system: str, cap: str, most: int) -> None:
    asked = replace(about(system=system, devices=64, strategy="", batch=None), power_cap=cap)
    with pytest.raises(PlanError, match=f"above the power cap of .*\n.*--devices {most}$"):
        plan_layouts(asked)
    fits = plan_layouts(replace(asked, devices=most), shown=1)
    assert any("All nodes draw" in line for line in plan_lines(fits))
    for wrong, said in (("1 W", "one node draws more"), ("500", "has no unit")):
        with pytest.raises(PerfsimError, match=said):
            plan_layouts(replace(asked, power_cap=wrong))
    fixed = replace(about("gpt3_175b", devices=1024, batch=1536), power_cap="500 kW")
    with pytest.raises(PlanError, match=r"at most 816 .* fit; with a plan: --devices 768"):
        plan_layouts(fixed)
    unknown = asked.system.model_copy(update={"power": None})
    with pytest.raises(InputError, match="not known"):
        plan_layouts(replace(asked, system=unknown))


@pytest.mark.parametrize(("length", "said"), [(1_048_576, True), (8_192, False)])
def test_a_layout_much_faster_than_all_proven_ones_stands_in_the_head(length: int, said: bool) -> None:
    asked = {"model": "llama31_8b", "system": "dgx-h100", "devices": 64, "batch": 2**22 // length}
    lengths = {"recipe.seq_length": length, "model.max_position_embeddings": length}
    planned = plan_layouts(question_of({**asked, **lengths}, asker="plan"), shown=1)
    head = " ".join(plan_lines(planned)).partition("memory left")[0]
    assert ("unlike any published run takes" in head) is said
