import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import yaml

import perfsim as ps

STUDY: dict[str, Any] = {
    "name": "small",
    "model": "cerebras_gpt_111m",
    "recipe": "gpt3_20b_chinchilla",
    "candidates": [
        {"strategy": "3d", "system": "dgx-a100-80gb", "devices": 8},
        {"strategy": "weight-streaming", "system": "cs-2", "devices": [1, 2]},
    ],
    "batch_sizes": [64, 128],
    "sampling": {"tasks": 2},
}


@pytest.fixture(scope="module")
def answer() -> ps.StudyAnswer:
    shown = StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        answer = ps.study(STUDY)
    assert shown.getvalue() == "", "the functions print nothing"
    return answer


@pytest.mark.parametrize("name", ["2 CS-2", "2 x cs-2", "2 x cs-2, weight-streaming"])
def test_a_candidate_is_named_as_people_write_it(answer: ps.StudyAnswer, name: str) -> None:
    assert answer.verdict.startswith(answer.best.machine)
    ratio = answer.ratio(name, over="8 dgx-a100-80gb")
    times = {c.num_devices: c.time_to_accuracy_s for c in answer.candidates}
    assert ratio.typical == pytest.approx(times[2] / times[8])
    assert ratio.low <= ratio.typical <= ratio.high


def test_a_study_may_extend_another_and_be_changed(answer: ps.StudyAnswer) -> None:
    fields = {**STUDY, "candidates": STUDY["candidates"][:1]}
    extending = {"extends": "gpt3_20b", **fields}
    with_an_object = {**fields, "model": ps.Catalog().model("cerebras_gpt_111m")}
    for study in (extending, with_an_object):
        again = ps.study(study)
        assert again.candidates[0].step_time_s == answer.candidates[0].step_time_s
        assert (again.title, again.question) == ("cerebras_gpt_111m on A100-80GB", ""), "no words of another"


def test_a_machine_and_a_copy_with_other_links_share_the_error_of_their_device() -> None:
    copy = {"extends": "dgx-h100", "name": "thin", "node": {"nics": 2}}
    candidates = [{"strategy": "3d", "system": system, "devices": 16} for system in ("dgx-h100", copy)]
    recipe = {"extends": "llm_2024", "tokens": 1e10, "global_batch_size": 64}
    study = ps.study({"name": "links", "model": "llama31_8b", "recipe": recipe, "candidates": candidates})
    whole, thin = study.candidates
    assert thin.machine == "16 devices of thin", "as in a file"
    assert thin.time.unshared_error < thin.time.step_time_error / 2, "the runtime is not named"
    for band in (study.decision.ratio, study.ratio(thin.machine, over=whole.machine)):
        assert band.high / band.low < (1 + thin.time.unshared_error) ** 3
        assert band.typical == pytest.approx(thin.wall_s / whole.wall_s)


def test_a_part_of_a_mapping_may_extend_a_description_as_in_a_file(tmp_path: Path) -> None:
    changed = {
        "recipe": {"extends": "llm_2021", "tokens": 1e10},
        "model": {"extends": "gpt3_xl", "num_layers": 12},
        "candidates": [
            {
                "strategy": "3d",
                "system": {"extends": "dgx-a100-80gb", "fabric": {"oversubscription": 2.0}},
                "devices": [8],
                "wall_clock": {"queue": {"low": "0 s", "typical": "1 h", "high": "2 h"}},
            }
        ],
    }
    fields = {"extends": "gpt3_20b", **changed, "batch_sizes": [64], "sampling": {"tasks": 0}}
    path = tmp_path / "same.yaml"
    path.write_text(yaml.safe_dump(fields), encoding="utf-8")
    asked, written = (ps.study(study) for study in (fields, path))
    assert asked.candidates[0].wall_s == written.candidates[0].wall_s
    with pytest.raises(ps.PerfsimError, match=r"model: unknown key `num_layer`\n.*`num_layers`"):
        ps.study({**fields, "model": {"extends": "gpt3_xl", "num_layer": 12}})


def test_frames_have_all_rows_or_need_pandas(answer: ps.StudyAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(answer.to_pandas()["num_devices"]) == [8, 1, 2]
    curve = answer.batch_curve.to_pandas()
    assert len(curve) == sum(len(candidate.batch_curve) for candidate in answer.candidates)
    assert set(curve["global_batch_size"]) == {64, 128}
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ps.PerfsimError, match=r"pip install 'perfsim\[pandas\]'"):
        answer.to_pandas()


def test_figures_are_not_empty_and_save_writes_all_files(answer: ps.StudyAnswer, tmp_path: Path) -> None:
    shown = answer.figures
    figures = [shown.memory(), shown.step_time(), shown.time_to_accuracy()]
    for figure in (*figures, shown.timeline(1)):
        assert isinstance(figure, go.Figure)
        assert len(figure.data) > 0
    page = answer.save(tmp_path)
    assert page == tmp_path / "index.html"
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["verdict"] == answer.verdict
    assert len(list(tmp_path.glob("trace_*.json.gz"))) == 3


def test_a_notebook_shows_verdict_and_caveats_name_their_machines(answer: ps.StudyAnswer) -> None:
    shown = answer._repr_html_()
    assert answer.verdict in shown
    assert shown.count("<tr>") == 1 + len(answer.candidates)
    hostile = ps.study({**STUDY, "model": ps.Catalog().model("cerebras_gpt_111m").with_(name="<b>x</b>")})
    assert "<b>" not in hostile._repr_html_()
    edge = next(caveat for caveat in answer.caveats if caveat.code == "batch-at-edge")
    assert edge.systems == ("dgx-a100-80gb", "cs-2")
    assert edge.machines[-1] == "1 and 2 CS-2"


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda answer: answer.ratio(3), "is named by text"),
        (lambda answer: answer.ratio("4 CS-2"), "no candidate is called '4 CS-2'"),
        (lambda answer: answer.figures.timeline(99), "the candidates are 0 to 2"),
        (lambda answer: ps.study(STUDY, compare=[3]), "names such as"),
        (lambda answer: ps.study(STUDY, compare=3), "names such as"),
        (lambda answer: ps.study(STUDY, verify="some"), "off, sample, full"),
        (lambda answer: ps.plan(objective="speed"), "step-time, time-to-accuracy, cost"),
        (lambda answer: ps.plan(shown=0), "1 or more"),
        (lambda answer: ps.validate(3), "a path is expected"),
        (lambda answer: ps.validate("absent.yaml"), "there is no such file"),
        (lambda answer: ps.sweep("capacity_20b", jobs=-1), "whole number of processes"),
        (lambda answer: ps.sweep({"study": STUDY}), "the path of a file"),
        (lambda answer: ps.solve({**STUDY, "batch_size": [8]}, find="devices"), "batch_size"),
        (lambda answer: answer.save(__file__), "test_studies.py"),
        (lambda answer: ps.study({**STUDY, "batch_size": [8]}), "batch_size"),
        (lambda answer: ps.study({**STUDY, "candidates": []}), "candidates"),
    ],
)
def test_nonsense_is_refused_in_words(answer: ps.StudyAnswer, ask: Callable[..., object], said: str) -> None:
    with pytest.raises(ps.PerfsimError, match=said):
        ask(answer)


def test_a_sweep_has_a_row_a_point(
    write_sweep: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sweep("  batch_sizes: [[8], [16]]")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert len(ps.sweep(path).feasible) == 2
    assert sorted(tmp_path.rglob("*")) == before, "without a folder nothing is kept"
    told: list[str] = []
    first = ps.sweep(path, folder=tmp_path / "kept", progress=told.append)
    frame = first.to_pandas()
    assert list(frame["global_batch_size"]) == [8, 16]
    assert list(frame["time_to_accuracy_s"]) == [point.target_time.time_s for point in first.points]
    again = ps.sweep(path, folder=tmp_path / "kept", progress=told.append)
    assert again.to_pandas().equals(frame)
    assert told[:1] == ["2 points, 0 of them stored"]
    assert not any("2 of them stored" in line for line in told)
    assert again.verdict in again._repr_html_()


def test_validation_gives_summary_and_cases() -> None:
    (file,) = (path for path in ps.published_cases() if path.name == "weight_streaming.yaml")
    validation = ps.validate(file)
    assert validation.summary["n"] == 12
    assert validation.summary["median_ape"] < validation.baseline["median_ape"]
    frame = validation.to_pandas()
    scored = frame[frame["error"].notna()]
    assert ((scored["predicted_s"] / scored["measured_s"] - 1) - scored["error"]).abs().max() < 1e-9
