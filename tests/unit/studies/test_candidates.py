"""Candidates with a fixed layout, strategies side by side, and failures that stay with their candidate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from perfsim.api.answers import study
from perfsim.api.tools import diff, why
from perfsim.base.errors import CatalogError, InputError, LayoutError, PerfsimError, Problem
from perfsim.catalog import data_root, default_catalog
from perfsim.cli import main
from perfsim.report import text
from perfsim.report.study import study_document, study_lines, study_page
from perfsim.specs.layout import ParallelLayout
from perfsim.studies import runner as runner_module
from perfsim.studies.answers import COVERED_ONCE, Answer, Production, StudyResult
from perfsim.studies.axes import load_sweep
from perfsim.studies.batches import Target
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.studies.spec import CandidateSpec, Point, StudySpec

HEAD = """\
name: layouts
title: Layouts
question: Which is first?
model: gpt3_xl
recipe: gpt3_20b_chinchilla
batch_sizes: [32]
sampling: {mode: "off"}
candidates:
"""
GPUS = "strategy: 3d, system: dgx-a100-80gb, devices: [8]"
WAFER = "strategy: weight-streaming, system: cs-2, devices: [1]"


def written(folder: Path, *candidates: str, batches: str = "[32]", more: str = "") -> str:
    path = folder / "small.yaml"
    rows = "".join(f"  - {{{row}}}\n" for row in candidates)
    path.write_text(f"{HEAD.replace('[32]', batches)}{rows}{more}\n", encoding="utf-8")
    return str(path)


def loaded(folder: Path, *candidates: str, batches: str = "[32]", more: str = "") -> StudySpec:
    return load_study(written(folder, *candidates, batches=batches, more=more))


# ------------------------------------------------------------------------------------- fixed layouts
AS_FIELDS = "{tensor: 2, pipeline: 2, micro_batch_size: 2, sequence_parallel: true}"


@pytest.mark.parametrize("layout", ['"tp=2,pp=2,dp=2,mbs=2,sp=true"', AS_FIELDS])
def test_a_candidate_runs_with_the_layout_that_it_says(tmp_path: Path, layout: str) -> None:
    (candidate,) = run_study(loaded(tmp_path, f"{GPUS}, layout: {layout}")).candidates
    degrees = ("tensor", "pipeline", "data", "micro_batch_size", "sequence_parallel", "zero_stage")
    assert [candidate.layout[name] for name in degrees] == [2, 2, 2, 2, True, 0]
    assert any(
        caveat.text.startswith("left at defaults by the layout: zero_stage 0") for caveat in candidate.caveats
    )


def test_several_layouts_of_one_machine_are_told_apart_everywhere(tmp_path: Path) -> None:
    layouts = ("tp=8,mbs=1", "tp=2,pp=4,mbs=1", "tp=2,pp=4,mbs=1")
    sampling = loaded(tmp_path, *(f'{GPUS}, layout: "{layout}"' for layout in layouts))
    spec = sampling.model_copy(
        update={"sampling": sampling.sampling.model_copy(update={"mode": "sample", "tasks": 1})}
    )
    answer = study(spec)
    labels = [candidate.label for candidate in answer.candidates]
    assert labels[:2] == ["8 A100-80GB (1 DGX), 3d, tp=8 mbs=1", "8 A100-80GB (1 DGX), 3d, tp=2 pp=4 mbs=1"]
    assert labels[2] == f"{labels[1]}, candidate 2 of this name"
    document = answer.document()
    assert set(document["ratio_bands"]) == set(document["sampling"]) == set(labels)
    assert [candidate["label"] for candidate in document["candidates"]] == labels
    assert answer.ratio(labels[1], labels[0]).ratio > 0
    answer.save(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("trace_*"))) == 3


def test_runtimes_of_one_machine_are_told_apart_in_a_study_and_in_a_sweep(tmp_path: Path) -> None:
    other = f"{GPUS}, runtime: {{extends: megatron_2021, name: fused, attention: flash}}"
    path = written(tmp_path, GPUS, other, more="runtime: megatron_2021")
    plain, fused = study(path).candidates
    assert fused.label == f"{plain.label}, fused"
    assert fused.step_time_s < plain.step_time_s
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        "title: t\nstudy: small.yaml\ngrid: {runtime.overlap_tensor: [false, true]}\n", encoding="utf-8"
    )
    points = load_sweep(str(grid)).points
    assert [tuple(point.settings.items()) for point in points] == [
        (("runtime", name), ("runtime.overlap_tensor", overlaps))
        for name in ("megatron_2021", "fused")
        for overlaps in (False, True)
    ]
    runtimes = [(point.runtime.attention, point.runtime.overlap_tensor) for point in points]
    assert runtimes == [
        (attention, overlaps) for attention in ("standard", "flash") for overlaps in (False, True)
    ]


def test_batches_are_those_that_a_layout_can_run_and_others_are_left_out_with_the_reason(
    tmp_path: Path,
) -> None:
    spec = loaded(tmp_path, f'{GPUS}, layout: "dp=8,mbs=4"', batches="[24, 32, 48, 64]")
    (candidate,) = run_study(spec).candidates
    assert [point.global_batch_size for point in candidate.batch_curve] == [32, 64]
    assert all(point.layout["micro_batch_size"] == 4 for point in candidate.batch_curve)
    (note,) = [note for note in candidate.notes if "left out" in note]
    assert note.startswith("batches that the layout cannot run are left out: 24, 48 sequences (")
    spec = loaded(tmp_path, f'{GPUS}, layout: "dp=8,mbs=5,zero=3,recompute=full"', batches="auto")
    (candidate,) = run_study(spec).candidates
    assert len(candidate.batch_curve) > 4
    assert all(point.global_batch_size % 40 == 0 for point in candidate.batch_curve)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ('layout: "tp=8,qp=4"', ["layout 'qp=4': unknown name", "known: tp, pp, dp"]),
        ('layout: "tp=x"', ["layout 'tp=x': 'x' is not a whole number", "tp=8"]),
        ('layout: "recompute=some"', ["allowed: none, selective, mlp, full"]),
        ('layout: "schedule=zb2"', ["unknown schedule 'zb2'", "known: 1f1b"]),
        ("layout: {tensr: 8}", ["'tensr=8': unknown name", "did you mean `tensor`"]),
        ("layout: 8", ["8 is a number, a text is expected"]),
        ("layout: tp=8,pp=4", ['put the layout in quotes: "tp=8,pp=4"']),
        *(
            (f"production: {ratio}", ["candidates[0].production"])
            for ratio in ("0", "-1", "fast", "{low: 0.9, typical: 0.7, high: 1}")
        ),
    ],
)
def test_a_wrong_layout_or_ratio_is_refused_at_its_line(tmp_path: Path, given: str, parts: list[str]) -> None:
    with pytest.raises(CatalogError) as caught:
        loaded(tmp_path, f"{GPUS}, {given}")
    for part in ("small.yaml:9:", *parts):
        assert part in str(caught.value)


def test_words_of_a_layout_may_be_of_an_object_and_leave_out_layers_of_stages(tmp_path: Path) -> None:
    (written_out,) = loaded(
        tmp_path, f'{GPUS}, layout: "pp=4,dp=2,mbs=1,layers_per_stage=7-6-6-5"'
    ).candidates
    assert written_out.layout_words == "pp=4 dp=2 mbs=1"
    layout = ParallelLayout(tensor=8, micro_batch_size=2, sequence_parallel=True)
    candidate = CandidateSpec(strategy="3d", system=written_out.system, devices=(8,), layout=layout)
    assert "tensor=8 pipeline=1 data=1" in candidate.layout_words
    assert "sequence_parallel=true" in candidate.layout_words


# ------------------------------------------------------------------------------------- side by side
def test_a_list_of_strategies_gives_the_best_of_each(tmp_path: Path) -> None:
    path = written(tmp_path, "strategy: [data, tensor, pipeline, 3d], system: dgx-a100-80gb, devices: [8]")
    result = run_study(load_study(path))
    assert [candidate.strategy for candidate in result.candidates] == ["data", "tensor", "pipeline", "3d"]
    assert result.candidates[1].layout["data"] == 1
    assert len({candidate.label for candidate in result.candidates}) == 4
    times = {candidate.strategy: candidate.step_time_s for candidate in result.candidates}
    assert times["3d"] <= min(times.values()) * 1.001
    command = ["study", path, "--compare", "pipeline,3d", "--json", "--out", str(tmp_path / "out")]
    document = json.loads(CliRunner().invoke(main, command).stdout)
    assert [candidate["strategy"] for candidate in document["candidates"]] == ["pipeline", "3d"]


def test_a_borrowing_strategy_does_not_take_the_layout_and_several_cannot_share_it(tmp_path: Path) -> None:
    spec = loaded(tmp_path, f'{GPUS}, layout: "tp=8,mbs=1"')
    (candidate,) = run_study(spec, ["data"]).candidates
    assert candidate.layout["data"] == 8
    assert candidate.label == "8 A100-80GB (1 DGX), data"
    with pytest.raises(CatalogError, match="several strategies cannot share one layout"):
        loaded(tmp_path, 'strategy: [3d, data], system: dgx-a100-80gb, devices: [8], layout: "dp=8"')


# ------------------------------------------------------------------- failures stay with their candidate
def test_an_illegal_layout_and_one_over_memory_are_listed_and_the_others_are_answered(tmp_path: Path) -> None:
    path = written(tmp_path, f'{GPUS}, layout: "tp=16"', f'{GPUS}, layout: "tp=8,mbs=1"')
    out = CliRunner().invoke(main, ["study", path, "--json", "--out", str(tmp_path / "out")])
    assert out.exit_code == 0
    document = json.loads(out.stdout)
    (unfit,) = document["infeasible"]
    assert unfit["label"] == "8 A100-80GB (1 DGX), 3d, tp=16"
    assert "16 devices, the question has 8" in unfit["reason"]
    assert [candidate["layout"]["tensor"] for candidate in document["candidates"]] == [8]
    spec = loaded(tmp_path, f'{GPUS}, layout: "dp=8,mbs=4"', f'{GPUS}, layout: "tp=8,mbs=1"')
    (over,) = run_study(spec.model_copy(update={"model": default_catalog().model("gpt3_20b")})).infeasible
    assert "GiB" in over.reason


@pytest.mark.parametrize(
    "error", [LayoutError("is at fault"), CatalogError([Problem("is at fault")]), PerfsimError("is at fault")]
)
def test_whatever_fails_in_one_candidate_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: PerfsimError
) -> None:
    spec = loaded(tmp_path, GPUS, WAFER)
    answer = runner_module.answer_point

    def broken(point: Point, *rest: Any, **more: Any) -> Answer:
        if point.candidate.strategy == "3d":
            raise error
        return answer(point, *rest, **more)

    monkeypatch.setattr(runner_module, "answer_point", broken)
    result = run_study(spec)
    assert [candidate.strategy for candidate in result.candidates] == ["weight-streaming"]
    (failed,) = result.infeasible
    assert (failed.label, failed.reason) == ("8 A100-80GB (1 DGX), 3d", "is at fault")
    gpus = spec.model_copy(update={"candidates": spec.candidates[:1]})
    with pytest.raises(PerfsimError, match="is at fault") as caught:
        run_study(gpus)
    assert caught.value.exit_code == error.exit_code


# Studies read from files: what is wrong has its line.


def refusal(folder: Path, *candidates: str, more: str = "", **changes: str) -> list[Problem]:
    """What is wrong with a study of these candidates, after replacements in its head."""
    path = Path(written(folder, *candidates, more=more))
    text = path.read_text(encoding="utf-8")
    for old, new in changes.items():
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CatalogError) as raised:
        load_study(str(path))
    return raised.value.problems


LOSS = """\
recipe: {extends: cerebras_gpt, tokens: null, target_loss: 1.2}
model: cerebras_gpt_13b
convergence: {law: data_law, loss_law: cerebras_gpt}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LOSS, "is used outside its runs for a loss of 1.2"),
        ("energy: {pue: 0.5}", "energy.pue: must be greater than or equal to 1, not 0.5"),
        ("energy: {pue: [1]}", "a number is expected"),
    ],
)
def test_a_wrong_number_is_said_at_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"extends: gpt3_20b\n{text}", encoding="utf-8")
    with pytest.raises(CatalogError, match=rf"study\.yaml:2:.*{message}") as raised:
        load_study(str(path))
    assert len(raised.value.problems) == 1


@pytest.mark.parametrize("verb", [why, lambda name: diff(name, "gpt3_20b")], ids=["why", "diff"])
def test_a_sweep_is_no_study_to_explain(verb: Callable[[str], object]) -> None:
    with pytest.raises(InputError, match="capacity_20b is a sweep, and why and diff take a study of candid"):
        verb("capacity_20b")


def lines_of(problems: list[Problem]) -> list[tuple[int, str]]:
    return [(problem.line, problem.message.split(";")[0]) for problem in problems]


def test_impossible_numbers_of_devices_are_refused_together_at_their_lines(tmp_path: Path) -> None:
    several = "strategy: [3d, data], system: dgx-a100-80gb, devices: [8, 12]"
    said = lines_of(refusal(tmp_path, several, GPUS, GPUS.replace("[8]", "20")))
    of_node = "dgx-a100-80gb has 8 devices a node, so {} would leave the last node partly empty"
    assert said == [(9, of_node.format(12)), (11, of_node.format(20))]


def test_illegal_layouts_are_refused_together_at_their_lines_where_none_can_be_run(tmp_path: Path) -> None:
    illegal = [f'{GPUS}, layout: "{layout}"' for layout in ("tp=2,mbs=5", "tp=16")]
    said = lines_of(refusal(tmp_path, *illegal))
    assert said[0] == (9, "global_batch_size 32 is not a multiple of data 4 × micro_batch_size 5")
    assert {line for line, _ in said} == {9, 10}
    one_number = GPUS.replace("[8]", "16")
    assert [row.devices for row in loaded(tmp_path, *illegal, one_number).candidates] == [(8,), (8,), (16,)]


def test_every_mistake_of_a_file_is_said_at_once_and_once(tmp_path: Path) -> None:
    wrong = [
        f'{GPUS}, layout: "tp=3q"'.replace("[8]", '"8"'),
        f'{GPUS}, layout: "schedule=ZB-H1"',
        GPUS.replace("3d", "fsdp"),
    ]
    changes = {"[32]": "[16, -4, x]", "gpt3_xl": "gpt3_xx"}
    said = refusal(tmp_path, *wrong, more="convergence: {law: cst}", **changes)
    places = [f"{problem.line}:{problem.column}" for problem in said]
    assert places == ["4:8", "6:19", "6:23", "9:52", "10:65", "11:16", "12:20"]
    assert said[3].message == "candidates[0].devices: `8` stands where a list is expected"
    assert said[4].help.startswith("ZB-H1 is called `zb1p` here")
    assert said[5].help.startswith("fsdp is called `zero3` here")


# Perturbations.

PERTURBED = """\
perturbations:
  stragglers: [{rank: 3, factor: 2.0}]
  links:
    - {system: dgx-a100-80gb, link: node0/nic0-leaf0, left: 0.25}
    - {link: memoryx-swarmx/0/0, left: 0.5}
"""


def disturbed(folder: Path, more: str = "") -> StudyResult:
    """The answer of two nodes of GPUs and a wafer under perturbations."""
    return run_study(loaded(folder, GPUS.replace("[8]", "[16]"), WAFER, batches="[96]", more=more))


def test_gpus_and_a_wafer_answer_one_study_with_a_slow_rank_and_slow_links(tmp_path: Path) -> None:
    calm = disturbed(tmp_path).candidates
    gpus, wafer = disturbed(tmp_path, PERTURBED).candidates
    assert gpus.step_time_s > calm[0].step_time_s
    assert wafer.step_time_s > 1.5 * calm[1].step_time_s
    assert gpus.perturbed is not None
    assert gpus.perturbed.text.startswith("rank 3 computes 2 times as long, node0/nic0-leaf0")
    assert "perturbed: rank 3 does not exist; rank 0 is slow instead" in wafer.notes
    assert "perturbed: this system has no link memoryx-swarmx/0/0" in gpus.notes
    assert not any("nic0" in note for note in wafer.notes), "named as another system's"


def test_of_several_stragglers_beyond_the_last_rank_the_slowest_counts(tmp_path: Path) -> None:
    slow = ["{rank: 0, factor: 1.5}", "{rank: 3, factor: 1.2}", "{rank: 9, factor: 2.0}"]
    (_, several), (_, one) = (
        disturbed(tmp_path, f"perturbations: {{stragglers: [{ranks}]}}").candidates
        for ranks in (", ".join(slow), "{rank: 0, factor: 2.0}")
    )
    assert several.step_time_s == one.step_time_s
    assert len([note for note in several.notes if "does not exist" in note]) == 2


def test_a_link_that_no_candidate_has_is_an_error_at_its_line(tmp_path: Path) -> None:
    wrong = PERTURBED.replace("nic0-leaf0", "nicc0-leaf0").replace("{link: m", "{system: cs-3, link: m")
    with pytest.raises(CatalogError) as caught:
        disturbed(tmp_path, wrong)
    link, system = caught.value.problems
    assert (link.line, system.line) == (14, 15)
    assert link.message == "no candidate on dgx-a100-80gb has a link 'node0/nicc0-leaf0'"
    assert link.help.startswith("did you mean `node0/nic0-leaf0")
    assert (system.message, system.help[:19]) == ("no candidate is a system 'cs-3'", "did you mean `cs-2`")


def test_a_candidate_without_a_route_is_named_and_the_other_is_answered(tmp_path: Path) -> None:
    result = disturbed(tmp_path, "perturbations: {links: [{link: memoryx-swarmx/0/0, left: 0.0}]}")
    assert [candidate.system for candidate in result.candidates] == ["dgx-a100-80gb"]
    (cut,) = result.infeasible
    assert cut.reason.startswith("perturbations of 1 CS-2, weight-streaming: ")


# Time in production beside the time of healthy steps: recorded, given, or switched off.


def test_the_record_is_of_the_three_published_runs_and_no_others() -> None:
    runs = yaml.safe_load((data_root() / "studies/production/runs.yaml").read_text(encoding="utf-8"))["runs"]
    assert [run["name"] for run in runs] == ["GPT-NeoX-20B", "OPT-175B", "LLaMA-65B"]
    production = Production.recorded()
    assert 0.5 < production.range[0] <= production.ratio <= production.range[1] < 1.1
    assert all(run["source"] and run["name"] in production.source for run in runs)


def test_the_recorded_ratio_is_the_default_at_every_outlet_and_moves_no_comparison(tmp_path: Path) -> None:
    answer = study(loaded(tmp_path, GPUS, WAFER))
    without = study(loaded(tmp_path, GPUS, WAFER, more="production: none"))
    for label, band in answer.ratio_bands.items():
        assert band == pytest.approx(without.ratio_bands[label], rel=1e-12)
    for candidate, plain in zip(answer.candidates, without.candidates, strict=True):
        assert candidate.production == Production.recorded()
        assert candidate.time_to_accuracy_s == plain.time_to_accuracy_s
        time_s = candidate.time_to_accuracy_s / Production.recorded().ratio
        assert candidate.production_time_s == pytest.approx(time_s, rel=1e-12)
        assert plain.production is plain.production_time_s is plain.production_band_s is None
        assert candidate.production_band_s is not None
        low_s, high_s = candidate.production_band_s
        healthy_low_s, healthy_high_s = candidate.time_to_accuracy_band_s
        assert low_s < time_s < high_s
        assert high_s / low_s > healthy_high_s / healthy_low_s
    assert "of the rate" not in " ".join(study_lines(without))
    assert not [item for item in without.assumptions if item.topic == "production"]
    document = json.loads(json.dumps(answer.document()))
    assert len(document["inputs_digest"]) == 64
    outcomes = document["decision"]["outcomes"]
    for row, outcome, candidate in zip(document["candidates"], outcomes, answer.candidates, strict=True):
        assert set(row["production"]) == {"ratio", "range", "source"}
        assert row["production_time_s"] == pytest.approx(candidate.production_time_s, rel=1e-9)
        assert row["production_band_s"] == [outcome["wall_s"]["low"], outcome["wall_s"]["high"]]
    assert answer.rows()[0]["production_time_s"] == answer.candidates[0].production_time_s
    text = Production.recorded().text
    said = " ".join(study_lines(answer))
    assert f"on the wall: at {text} of the rate of healthy steps, as in published production runs" in said
    page = study_page(answer)
    verdict = next(section for section in page.sections if section.anchor == "verdict")
    assert text in page.note
    assert verdict.table is not None
    walls = [cell.number for cell in verdict.table.rows[0][1:]]
    assert walls == [candidate.production_time_s for candidate in answer.candidates]
    assert [item.kind for item in answer.assumptions if item.topic == "production"] == ["fit", "assumption"]


def test_a_candidate_may_state_its_ratio(tmp_path: Path) -> None:
    stated = [f"{GPUS}, production: {ratio}" for ratio in ("0.5", "{low: 0.6, typical: 0.7, high: 0.9}")]
    first, second, third = run_study(loaded(tmp_path, *stated, WAFER)).candidates
    assert first.production == Production(0.5, (0.5, 0.5), "given by the study")
    assert first.production_time_s == pytest.approx(first.time_to_accuracy_s / 0.5, rel=1e-12)
    assert second.production == Production(0.7, (0.6, 0.9), "given by the study")
    assert third.production == Production.recorded()


def test_band_and_range_combine_as_independent_errors() -> None:
    production = Production(0.8, (0.8 / 1.1, 0.8 * 1.1), "a test")
    low_s, high_s = production.band_s(100.0, (100 / 1.2, 100 * 1.2))
    half = math.exp(math.hypot(math.log(1.2), math.log(1.1)))
    assert (low_s, high_s) == pytest.approx((125 / half, 125 * half), rel=1e-12)


def test_slow_steps_are_counted_once_where_a_wall_clock_is_named(tmp_path: Path) -> None:
    clocked = f"{GPUS}, wall_clock: gpu-cluster"
    (candidate,) = run_study(loaded(tmp_path, clocked)).candidates
    (plain,) = run_study(loaded(tmp_path, clocked, more="production: none")).candidates
    assert candidate.whole_run == plain.whole_run
    assert COVERED_ONCE in candidate.notes
    assert COVERED_ONCE not in plain.notes


# Batches that published laws suggest, and the wall clock of a candidate beside its steps.


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    spec = load_study("gpt3_20b")
    wafer = spec.candidates[1].model_copy(update={"devices": (1,)})
    off = spec.sampling.model_copy(update={"mode": "off"})
    return spec.model_copy(update={"candidates": (wafer,), "sampling": off, "batch_sizes": (48,)})


@pytest.mark.parametrize(("scale", "laws"), [("", 1), ("WebText2", 1), ("C4", 2)])
def test_minicpm_speaks_only_where_the_loss_is_one_of_c4(spec: StudySpec, scale: str, laws: int) -> None:
    recipe = spec.recipe.model_copy(update={"target_loss": 2.062})
    convergence = spec.convergence.model_copy(update={"loss_scale": scale})
    scaled = spec.model_copy(update={"recipe": recipe, "convergence": convergence})
    assert len(Target.of_study(scaled).suggested_batches(scaled)) == laws


def test_a_20b_run_of_20_tokens_a_parameter_is_suggested_what_the_law_gives(
    spec: StudySpec, tmp_path: Path
) -> None:
    """0.2920 C^0.3271 with C = 6 x 19.9e9 x 4e11, without embeddings."""
    result = run_study(spec)
    ((law, tokens),) = result.suggested_batch_tokens.items()
    assert tokens == pytest.approx(0.2920 * (6 * 19.93e9 * 4e11) ** 0.3271, rel=0.01)
    assert study_document(result)["suggested_batch_tokens"][law] == pytest.approx(7.66e6, rel=0.01)
    page = study_page(result).write(tmp_path).read_text("utf-8")
    words = f"{text.large(tokens)} tokens by DeepSeek LLM (arXiv 2401.02954)"
    assert f"Starting points from published laws: {words}" in page


def test_a_wall_clock_stands_beside_the_time_to_the_target_and_is_fair_to_all_machines() -> None:
    spec = load_study("whole_run_20b")
    sampling = spec.sampling.model_copy(update={"mode": "off"})
    spec = spec.model_copy(update={"batch_sizes": (384,), "sampling": sampling})
    unclocked = tuple(candidate.model_copy(update={"wall_clock": None}) for candidate in spec.candidates)
    result = run_study(spec)
    plain = run_study(spec.model_copy(update={"candidates": unclocked}))
    for candidate, other in zip(result.candidates, plain.candidates, strict=True):
        assert candidate.time_to_accuracy_s == other.time_to_accuracy_s
        assert other.whole_run == ()
        assert candidate.whole_run[0].typical_s == candidate.time_to_accuracy_s
        assert candidate.whole_run[-1].typical_s > candidate.time_to_accuracy_s
    assert {outcome.basis for outcome in result.decision.outcomes} == {"the whole run"}
    assert study_document(result)["verdict"] == result.verdict
    for outcome, candidate in zip(result.decision.outcomes, result.candidates, strict=True):
        assert outcome.wall_s.typical == pytest.approx(candidate.whole_run[-1].typical_s)
    assert any(item.topic == "wall_clock cs-2" for item in result.assumptions)
    assert "The whole run" in [section.heading for section in study_page(result).sections]
    assert "The whole run" not in [section.heading for section in study_page(plain).sections]
    # Nobody publishes failures of a CS-2, so no kind of machine is favoured.
    gpus, wafers = (candidate.wall_clock for candidate in spec.candidates)
    assert gpus is not None
    for name in ("failures_per_node_day", "stragglers", "restart", "checkpoint_every"):
        assert getattr(gpus, name) == getattr(wafers, name)
    assert gpus.checkpoint_every == "young"
