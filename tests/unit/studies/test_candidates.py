"""Candidates with a fixed layout, strategies side by side, and failures that stay with their candidate."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from perfsim.api.answers import study
from perfsim.base.errors import CatalogError, LayoutError, PerfsimError, Problem
from perfsim.catalog import data_root
from perfsim.report.study import study_lines, study_page
from perfsim.specs.layout import ParallelLayout
from perfsim.studies import runner as runner_module
from perfsim.studies.answers import Answer, Production, StudyResult
from perfsim.studies.batches import Target
from perfsim.studies.loading import load_study, load_sweep
from perfsim.studies.runner import refusals, run_study
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


def test_runtimes_of_one_machine_are_told_apart_in_a_study_and_in_a_sweep(tmp_path: Path) -> None:
    other = f"{GPUS}, runtime: {{extends: megatron_2021, name: fused, attention: flash}}"
    path = written(tmp_path, GPUS, other, more="runtime: {extends: megatron_2021, name: plain}")
    plain, fused = study(path).candidates
    assert fused.label == f"{plain.label}, fused"
    assert fused.step_time_s < plain.step_time_s
    grid = tmp_path / "grid.yaml"
    swept = "{runtime.overlap_tensor: [false, true]}"
    grid.write_text(f"title: t\nstudy: small.yaml\ngrid: {swept}\n", encoding="utf-8")
    points = load_sweep(str(grid)).points
    assert [tuple(point.settings.items()) for point in points] == [
        (("runtime", name), ("runtime.overlap_tensor", overlaps))
        for name in ("plain", "fused")
        for overlaps in (False, True)
    ]
    runtimes = [(point.runtime.attention, point.runtime.overlap_tensor) for point in points]
    assert runtimes == [
        (attention, overlaps) for attention in ("standard", "flash") for overlaps in (False, True)
    ]


def test_batches_that_a_layout_cannot_run_are_left_out_with_the_reason(tmp_path: Path) -> None:
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
        ('layout: "schedule=zb2"', ["unknown schedule 'zb2'", "known: 1f1b"]),
        ("layout: {tensr: 8}", ["'tensr=8': unknown name", "did you mean `tensor`"]),
        ('layout: "tp=8,pp=2"', ["is 16 devices, the question has 8"]),
        ("layout: 8", ["8 is a number, a text is expected"]),
        ("layout: tp=8,pp=4", ['put the layout in quotes: "tp=8,pp=4"']),
        *(
            (f"production: {ratio}", ["candidates[0].production"])
            for ratio in ("0", "-1", "fast", "{low: 0.9, typical: 0.7, high: 1}")
        ),
    ],
)
@pytest.mark.parametrize("batches", ["[32]", "auto"])
def test_a_wrong_layout_or_ratio_is_refused_at_its_line(
    tmp_path: Path, given: str, parts: list[str], batches: str
) -> None:
    with pytest.raises(CatalogError) as caught:
        loaded(tmp_path, f"{GPUS}, {given}", batches=batches)
    for part in ("small.yaml:9:", *parts):
        assert part in str(caught.value)


def test_words_of_a_layout_may_be_of_an_object_and_leave_out_layers_of_stages(tmp_path: Path) -> None:
    words = "pp=4,dp=2,mbs=1,layers_per_stage=7-6-6-5"
    (written_out,) = loaded(tmp_path, f'{GPUS}, layout: "{words}"').candidates
    assert written_out.layout_words == "pp=4 dp=2 mbs=1"
    layout = ParallelLayout(tensor=8, micro_batch_size=2, sequence_parallel=True)
    candidate = CandidateSpec(strategy="3d", system=written_out.system, devices=(8,), layout=layout)
    assert "tensor=8 pipeline=1 data=1" in candidate.layout_words
    assert "sequence_parallel=true" in candidate.layout_words


def test_a_borrowing_strategy_does_not_take_the_layout_and_several_cannot_share_it(tmp_path: Path) -> None:
    spec = loaded(tmp_path, f'{GPUS}, layout: "tp=8,mbs=1"')
    (candidate,) = run_study(spec, ["data"]).candidates
    assert candidate.layout["data"] == 8
    assert candidate.label == "8 A100-80GB (1 DGX), data"
    with pytest.raises(CatalogError, match="several strategies cannot share one layout"):
        loaded(tmp_path, 'strategy: [3d, data], system: dgx-a100-80gb, devices: [8], layout: "dp=8"')


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
        ("prices: {pue: 0.5}", "pue: must be greater than or equal to 1, not 0.5"),
        ("prices: {pue: [1]}", "a number is expected"),
        ("convergence: {law: dta_law}", r"law 'dta_law'\n.*\n.*did you mean `data_law`"),
        ("candidates: [{strategy: 4d, system: cs-2, devices: [1]}]", "unknown strategy '4d'"),
        ("recipe: {extends: chinchilla, runtime: {software_release: 1 GB}}", r"not of the form r2\.0"),
    ],
)
def test_a_wrong_value_is_said_at_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"extends: gpt3_20b\n{text}", encoding="utf-8")
    with pytest.raises(CatalogError, match=rf"study\.yaml:2:.*{message}") as raised:
        load_study(str(path))
    assert len(raised.value.problems) == 1


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
    wrong = [f'{GPUS}, layout: "tp=3q"'.replace("[8]", '"8"'), f'{GPUS}, layout: "schedule=ZB-H1"']
    wrong.append(GPUS.replace("3d", "fsdp"))
    changes = {"[32]": "[16, -4, x]", "gpt3_xl": "gpt3_xx"}
    said = refusal(tmp_path, *wrong, more="convergence: {law: cst}", **changes)
    places = [f"{problem.line}:{problem.column}" for problem in said]
    assert places == ["4:8", "6:19", "6:23", "9:52", "10:65", "11:16", "12:20"]
    (half,) = refusal(tmp_path, GPUS.replace("[8]", "8.5"))
    assert half.message == "candidates[0].devices: a whole number is expected, not 8.5"
    (many,) = refusal(tmp_path, GPUS.replace("[8]", "[2000000]"))
    assert many.help == "the nearest possible value is 1048576"
    (fast,) = refusal(tmp_path, f"{GPUS}, production: 3")
    assert fast.message == "candidates[0].production: must be less than or equal to 2, not 3"
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


# The recorded rate of production.


def test_the_record_is_of_the_three_published_runs_and_no_others() -> None:
    runs = yaml.safe_load((data_root() / "studies/production/runs.yaml").read_text(encoding="utf-8"))["runs"]
    assert [run["name"] for run in runs] == ["GPT-NeoX-20B", "OPT-175B", "LLaMA-65B"]
    production = Production.recorded()
    assert 0.5 < production.range[0] <= production.ratio <= production.range[1] < 1.1
    assert all(run["source"] and run["name"] in production.source for run in runs)


def test_terminal_and_page_say_the_rate_of_production_and_the_parts_of_a_wall_clock(tmp_path: Path) -> None:
    answer = run_study(loaded(tmp_path, GPUS, f"{WAFER}, wall_clock: cs-2"))
    rate = f"at {Production.recorded().text} of the rate of healthy steps, as in published production runs"
    assert f"on the wall: the whole run where a wall clock is named; {rate}" in " ".join(study_lines(answer))
    page = study_page(answer)
    assert rate in page.note
    assert "The whole run" in [section.heading for section in page.sections]
    assert any("Starting points from published laws: " in section.lead for section in page.sections)
    queue = "wall_clock: {queue: {low: 1 h, typical: 1 d, high: 60 d}}"
    own = run_study(loaded(tmp_path, GPUS, f"{WAFER}, {queue}"))
    assert "queue of the study's own wall clock" in {lever.name for lever in own.decision.levers}
    plain = run_study(loaded(tmp_path, WAFER, more="production: none"))
    assert "of the rate" not in " ".join(study_lines(plain))
    assert "The whole run" not in [section.heading for section in study_page(plain).sections]


# Batches that published laws suggest, and wall clocks.


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


def test_a_given_length_tries_batches_up_to_the_suggested_one_and_is_checked(spec: StudySpec) -> None:
    law = spec.convergence.model_copy(update={"law": "given_length"})
    wafers = spec.candidates[0].model_copy(update={"devices": (1, 16)})
    given = {"batch_sizes": "auto", "convergence": law, "candidates": (wafers,)}
    study = spec.model_copy(update=given)
    assert refusals(study) == ()
    answer = run_study(study)
    (suggested,) = answer.suggested_batch_tokens.values()
    tried = [point.batch_tokens for row in answer.candidates for point in row.batch_curve]
    assert suggested / 2 < max(tried) <= suggested, (
        "past it a larger batch is only faster, and its loss worse"
    )
    assert "batch-at-edge" not in {caveat.code for caveat in answer.caveats}, "so none is advised"


def test_no_kind_of_machine_is_favoured_by_a_wall_clock() -> None:
    """Nobody publishes failures of a CS-2."""
    gpus, wafers = (candidate.wall_clock for candidate in load_study("whole_run_20b").candidates)
    for name in ("failures_per_node_day", "stragglers", "restart", "checkpoint_every"):
        assert getattr(gpus, name) == getattr(wafers, name)
    assert gpus.checkpoint_every == "young"
