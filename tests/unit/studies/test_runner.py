"""A study from its file to the answer: candidates, batches, refusals, and numbers that agree."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfsim.base.errors import CatalogError, InputError, LimitError, PlanError
from perfsim.base.limits import Limits, limited
from perfsim.catalog import default_catalog
from perfsim.report.study import study_document, study_page
from perfsim.report.table import document_text
from perfsim.studies import runner as runner_module
from perfsim.studies.answers import Answer, StudyResult
from perfsim.studies.batches import Target
from perfsim.studies.loading import changed_study, load_study
from perfsim.studies.runner import run_study
from perfsim.studies.spec import ConvergenceSpec, Point, StudySpec

WAFERS = {"strategy": "weight-streaming", "system": "cs-2", "devices": [1, 2]}
Make = Callable[..., StudySpec]


@pytest.fixture(scope="module")
def spec(study_of: Make) -> StudySpec:
    gpus = {"strategy": "3d", "system": "dgx-a100-80gb", "devices": [8]}
    sampling = {"tasks": 1, "seed": 1}
    return study_of(name="small", candidates=[gpus, WAFERS], batch_sizes=[48, 96], sampling=sampling)


@pytest.fixture(scope="module")
def run(spec: StudySpec) -> StudyResult:
    return run_study(spec)


@pytest.fixture(scope="module")
def quick(spec: StudySpec) -> StudySpec:
    """One batch, one wafer and no sampling: for questions that need no more."""
    wafer = spec.candidates[1].model_copy(update={"devices": (1,)})
    sampling = spec.sampling.model_copy(update={"tasks": 0})
    candidates = (spec.candidates[0], wafer)
    return spec.model_copy(update={"batch_sizes": (48,), "candidates": candidates, "sampling": sampling})


def named(candidates: Sequence[Answer]) -> list[tuple[str, str, int]]:
    return [(candidate.strategy, candidate.system, candidate.num_devices) for candidate in candidates]


def test_a_study_again_gives_the_same_bytes_and_samples(spec: StudySpec, run: StudyResult) -> None:
    assert document_text(study_document(run_study(spec))) == document_text(study_document(run))
    assert list(run.sampling) == [candidate.label for candidate in run.candidates]
    assert all(check.passed and check.tasks_sampled == 1 for check in run.sampling.values())


def test_each_candidate_stands_at_its_best_batch_with_figures_that_agree(run: StudyResult) -> None:
    for candidate in run.candidates:
        assert [point.global_batch_size for point in candidate.batch_curve] == [48, 96]
        best = min(candidate.batch_curve, key=lambda point: point.time_to_accuracy_s)
        assert candidate.global_batch_size == best.global_batch_size
        assert candidate.time_to_accuracy_s == best.time_to_accuracy_s
        assert candidate.step_time_s == best.step_time_s, "the simulated step replaces the screened one"
        tokens = candidate.global_batch_size * run.seq_length
        assert candidate.tokens_per_s * candidate.step_time_s == pytest.approx(tokens, rel=1e-12)
        whole_s = candidate.steps * candidate.step_time_s
        assert whole_s == pytest.approx(candidate.time_to_accuracy_s, rel=1e-12)
        assert candidate.steps * tokens >= run.target_tokens, "no batch needs fewer than D_min"
        assert sum(candidate.breakdown_s.values()) == pytest.approx(candidate.step_time_s, rel=1e-9)
        low, high = candidate.time_to_accuracy_band_s
        assert low < candidate.time_to_accuracy_s < high


def test_a_limit_keeps_what_was_answered(quick: StudySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = quick.candidates
    answer = runner_module.answer_point

    def until_the_second(point: Point, *rest: Any, **more: Any) -> Answer:
        if point.candidate.strategy == second.strategy:
            raise LimitError("stopped after 5 events")
        return answer(point, *rest, **more)

    monkeypatch.setattr(runner_module, "answer_point", until_the_second)
    run = run_study(quick)
    assert run.stopped is not None
    assert [candidate.strategy for candidate in run.candidates] == [first.strategy]
    assert [candidate.reason for candidate in run.infeasible] == ["not answered: stopped after 5 events"]


def test_time_is_looked_at_before_planning(quick: StudySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    with limited(Limits(max_seconds=0.0)), pytest.raises(LimitError, match="0 of 2 candidates answered"):
        run_study(quick)
    clock = iter(range(100))  # one second passes with each look: batch, screening
    monkeypatch.setattr("perfsim.base.limits.time.monotonic", lambda: next(clock))
    several = quick.model_copy(update={"batch_sizes": (48, 96)})
    limits = Limits(max_seconds=1.5, started_s=0.0)
    with limited(limits), pytest.raises(LimitError, match="no layout screened yet on 8 A100"):
        run_study(several)


def test_compare_keeps_named_strategies_and_others_borrow_a_system(quick: StudySpec) -> None:
    result = run_study(quick, ["weight-streaming", "3d"])
    assert [candidate.strategy for candidate in result.candidates] == ["weight-streaming", "3d"]
    assert not result.sampling, "switched off"
    result = run_study(quick, ["data", "weight-streaming"])
    assert named(result.candidates) == [("data", "dgx-a100-80gb", 8), ("weight-streaming", "cs-2", 1)]
    layout = result.candidates[0].layout
    assert (layout["tensor"], layout["pipeline"], layout["data"]) == (1, 1, 8)


def test_a_strategy_without_a_system_or_of_no_name_is_refused_with_what_there_is(quick: StudySpec) -> None:
    gpus = quick.model_copy(update={"candidates": quick.candidates[:1]})
    with pytest.raises(InputError, match="study small has no system for strategy weight-streaming") as caught:
        run_study(gpus, ["weight-streaming"])
    assert caught.value.problems[0].help == "it compares 3d"
    with pytest.raises(InputError, match="did you mean `weight-streaming`"):
        run_study(quick, ["3d", "weight-steaming"])


CS_2 = default_catalog().system("cs-2")


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (0, {"system": CS_2}, "strategy 3d runs on a gpu-cluster; cs-2 is a wafer-cluster"),
        (1, {"devices": (1, 500)}, "at most 192 systems"),
    ],
)
def test_bad_input_is_refused_before_any_answer(
    quick: StudySpec, index: int, change: dict[str, object], message: str
) -> None:
    candidates = list(quick.candidates)
    candidates[index] = candidates[index].model_copy(update=change)
    told: list[str] = []
    with pytest.raises(InputError, match=message):
        run_study(quick.model_copy(update={"candidates": tuple(candidates)}), progress=told.append)
    assert told == []


def test_progress_tells_of_each_machine(quick: StudySpec) -> None:
    told: list[str] = []
    run_study(quick, progress=told.append)
    assert told == [
        "0 of 2 candidates: 3d on 8 A100-80GB (1 DGX)",
        "1 of 2 candidates: weight-streaming on 1 CS-2",
    ]


def test_a_candidate_that_cannot_run_is_reported_and_the_others_answered(quick: StudySpec) -> None:
    """GPUs with too little memory for the model, and no host to offload to, next to a wafer that runs it."""
    gpus, wafer = quick.candidates
    changes = {"device.memory.capacity": 2.5e9, "node.host": None}
    system = gpus.system.with_(name="starved", noun=None, **changes)
    starved = gpus.model_copy(update={"system": system})
    result = run_study(quick.model_copy(update={"candidates": (starved, wafer)}))
    assert named(result.candidates) == [("weight-streaming", "cs-2", 1)]
    assert result.verdict.startswith("1 CS-2 reaches the target after ")
    (unfit,) = result.infeasible
    assert unfit.label == "8 devices of starved, 3d"
    assert unfit.reason.startswith("no plan fits: strategy 3d, 8 devices of starved, 48 sequences a step:")
    assert "closest: " in unfit.reason


def test_a_batch_without_a_plan_is_left_out_and_that_of_the_recipe_is_the_only_one(quick: StudySpec) -> None:
    uneven = quick.model_copy(update={"batch_sizes": (12, 48)})
    (candidate,) = run_study(uneven, ["data"]).candidates
    assert [point.global_batch_size for point in candidate.batch_curve] == [48], "12 do not divide over 8"
    recipe = quick.recipe.model_copy(update={"global_batch_size": 24})
    (candidate,) = run_study(quick.model_copy(update={"recipe": recipe}), ["weight-streaming"]).candidates
    assert [point.global_batch_size for point in candidate.batch_curve] == [24]
    assert candidate.global_batch_size == 24


def with_loss(spec: StudySpec, loss: float, **changes: object) -> StudySpec:
    """The study with a target loss in place of its tokens."""
    recipe = spec.recipe.model_copy(update={"tokens": None, "target_loss": loss})
    return spec.model_copy(update={"recipe": recipe, **changes})


@pytest.mark.parametrize(("batches", "later"), [([1024, 4096], False), ([4096, 16384], True)])
def test_a_larger_batch_is_no_remedy_where_it_takes_longer_to_the_target(
    study_of: Make, batches: list[int], later: bool
) -> None:
    gpus = {"strategy": "3d", "system": "dgx-a100-80gb", "devices": [16]}
    study = study_of(model="gpt3_xl", candidates=[gpus], batch_sizes=batches)
    slow = changed_study(study, {"system.node.nic.bandwidth": "1 Gb/s"}, default_catalog())
    (row,) = run_study(slow).candidates
    assert "a larger batch" in row.why.remedy
    assert ("(which takes longer to the target)" in row.why.remedy) is later


def test_a_target_loss_becomes_tokens_by_its_law_with_their_band(spec: StudySpec) -> None:
    tokens = [Target.of_study(with_loss(spec, loss)).d_min_tokens for loss in (2.5, 2.4)]
    assert 1e9 < tokens[0] < tokens[1] < 1e13
    model = default_catalog().model("cerebras_gpt_13b")
    law = spec.convergence.model_copy(update={"loss_law": "cerebras_gpt"})
    target = Target.of_study(with_loss(spec, 1.575, model=model, convergence=law))
    assert target.d_min_tokens / (1 + target.loss.d_min_error) < 2.57e11 < target.d_min_tokens
    with pytest.raises(PlanError, match="name the loss law of its corpus"):
        Target.of_study(with_loss(spec, 1.575, model=model))


def test_where_no_candidate_has_an_answer_a_lack_of_plans_is_told_first(study_of: Make) -> None:
    gpus = {"system": "dgx-a100-80gb", "devices": [8], "strategy": "3d", "layout": "tp=3,dp=1"}
    candidates = [gpus, {"system": "dgx-a100-80gb", "devices": [8], "strategy": "data"}]
    with pytest.raises(PlanError):
        run_study(study_of(name="large", model="gpt3_175b", candidates=candidates, batch_sizes=[48]))


def test_coefficients_of_the_users_own_stand_in_place_of_a_name(spec: StudySpec) -> None:
    law = {"irreducible": 1.7, "a": 400, "alpha": 0.34, "b": 2000, "beta": 0.36, "corpus": "mine"}
    runs = {"params": [1e9, 30e9], "tokens": [1e10, 1e12], "error": 0.05}
    convergence = ConvergenceSpec.model_validate({"loss_law": law | runs})
    target = Target.of_study(with_loss(spec, 2.3, convergence=convergence))
    assert (target.loss.law.name, target.loss.law.corpus, target.loss.law.error) == ("own", "mine", 0.05)
    assert target.loss.law.loss(target.loss.params, target.d_min_tokens) == pytest.approx(2.3)
    with pytest.raises(ValidationError, match="tokens"):
        ConvergenceSpec.model_validate({"loss_law": law | {"params": [1e9, 30e9]}})


def test_tokens_next_to_a_loss_are_refused_even_inherited(tmp_path: Path) -> None:
    def loaded(recipe: str) -> StudySpec:
        path = tmp_path / "both.yaml"
        path.write_text(f"extends: gpt3_20b\nrecipe: {{extends: {recipe}, target_loss: 2.3}}")
        return load_study(str(path))

    for recipe, words in (
        ("gpt3_pretraining, tokens: 1e11", "tokens"),
        ("gpt3_pretraining, tokens_per_parameter: 20", "tokens_per_parameter"),
        ("gpt3_20b_chinchilla", "tokens"),
    ):
        with pytest.raises(CatalogError, match=f"{words} and target_loss exclude each other"):
            loaded(recipe)
    assert loaded("gpt3_20b_chinchilla, tokens: null").recipe.target_loss == 2.3


# Own fits and ramps.

FIT = {"e_min_tokens": 3e9, "b_crit_tokens": 2e6, "band_factor": 1.3, "batches_tokens": [1e5, 1e6]}


def answer(study_of: Make, tokens: float | None = 2.2e9, **convergence: object) -> StudyResult:
    recipe = default_catalog().recipe("gpt3_pretraining").with_(tokens=tokens)
    batches = [64 * 2**power for power in range(7)]
    fields = {"recipe": recipe, "candidates": [WAFERS], "batch_sizes": batches, "convergence": convergence}
    return run_study(study_of(model="cerebras_gpt_111m", **fields))


def test_a_page_has_a_row_for_each_law_and_says_whether_they_disagree(study_of: Make) -> None:
    result = answer(study_of, law="data_law")
    (section,) = (part for part in study_page(result).sections if part.anchor == "laws")
    assert len(section.table.rows) == len(result.laws) == 4
    assert "recalled" in section.table.shown()[1][-1]
    firsts = {row.first for row in result.laws}
    assert ("All put" if len(firsts) == 1 else "They disagree") in section.lead


def test_a_fit_of_own_runs_gives_the_target_and_a_wider_band_beyond_its_batches(study_of: Make) -> None:
    result = answer(study_of, None, law="fitted", fit={"name": "ours", "kind": "convergence", **FIT})
    assert result.target_tokens == 3e9
    assert result.critical_batch_tokens == 2e6
    assert result.laws[0].law == "fitted"
    assert any("ours" in item.source for item in result.assumptions if item.name == "critical batch")
    low, high = result.critical_batch_band_tokens
    assert high / 2e6 == pytest.approx(2e6 / low) == pytest.approx(1.3)
    for candidate in result.candidates:
        assert candidate.batch_curve[-1].batch_tokens <= 4e6, "at most four times the largest measured batch"

    def widths(least: float, most: float) -> list[float]:
        points = [point for point in result.candidates[0].batch_curve if least < point.batch_tokens < most]
        return [point.time_to_accuracy_band_s[1] / point.time_to_accuracy_s for point in points]

    assert min(widths(2e6, math.inf)) > max(widths(1e5, 5e5))


def test_a_batch_ramp_counts_in_steps_time_draws_curve_and_laws(study_of: Make) -> None:
    # Half of the progress at half the batch: 1.5 times the steps where the critical batch is far away.
    fields = {"law": "constant", "critical_batch_tokens": 1e12}
    flat = answer(study_of, **fields).candidates[0]
    ramped = answer(study_of, **fields, ramp=[{"share": 0.5, "batch": 0.5}])
    row = ramped.candidates[0]
    assert row.steps == pytest.approx(1.5 * flat.steps, rel=1e-3)
    assert flat.time_to_accuracy_s < row.time_to_accuracy_s < 1.5 * flat.time_to_accuracy_s
    assert row.wall_s > flat.wall_s
    assert row.outcome.wall_s.typical == pytest.approx(row.wall_s, rel=1e-6)
    (point,) = [point for point in row.batch_curve if point.global_batch_size == row.global_batch_size]
    assert point.time_to_accuracy_s == pytest.approx(row.time_to_accuracy_s, rel=1e-9)
    assert any("with its batch ramp" in note for note in row.notes)
    (own,) = [law for law in ramped.laws if law.law == "constant"]
    assert own.rows[0].time_s == pytest.approx(row.time_to_accuracy_s, rel=1e-9)


def test_no_fit_and_too_long_a_ramp_are_refused(study_of: Make) -> None:
    with pytest.raises(InputError, match="'fitted' needs fit"):
        answer(study_of, law="fitted")
    fit = {"name": "ours", "b_crit_tokens": 1e6, "band_factor": 2}
    with pytest.raises(InputError, match="fit belongs to law fitted, not to data_law"):
        answer(study_of, law="data_law", fit=fit)
    with pytest.raises(InputError, match="sum to more than 1"):
        answer(study_of, law="data_law", ramp=[{"share": 0.7, "batch": 0.5}, {"share": 0.7, "batch": 0.7}])
