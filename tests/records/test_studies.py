"""Studies of today, and all that is asked of several answers: each figure and each sentence."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

import perfsim as ps
from perfsim.api.tools import diff, why, why_measured
from perfsim.report.plan import plan_lines
from perfsim.report.solve import solve_lines
from perfsim.report.study import study_lines
from perfsim.report.sweep import sweep_lines
from perfsim.report.table import plain
from perfsim.report.terminal import difference_lines, gap_lines, why_lines
from perfsim.report.validation import comparison_lines
from perfsim.studies.solve import Condition
from perfsim.studies.timeline import grouped
from perfsim.studies.variants import Change

ASKED = yaml.safe_load(Path(__file__).with_name("studies.yaml").read_text(encoding="utf-8"))
# Rounding of matrix products (`worst_relative_error`) is that of the machine and its BLAS.
MOVING = ("version", "perfsim", "inputs_digest", "worst_relative_error")
Recorded = Callable[..., None]


@pytest.fixture(autouse=True)
def _where_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(kind: str, name: str) -> str:
    """The file of a study or a sweep; answers have its path in their command."""
    document = {"name": name, "question": "Which?", **ASKED[kind][name]}
    Path(f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return f"{name}.yaml"


def still(value: Any) -> Any:
    """A document without what differs between equal answers."""
    if isinstance(value, dict):
        return {key: still(item) for key, item in value.items() if key not in MOVING}
    return [still(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def told(recorded: Recorded, shown: Callable[[Path], dict[str, Any]]) -> Recorded:
    """Compares what is told of an answer: its lines on a terminal, its page, and its figures."""

    def compare(name: str, answer: Any, lines: list[str]) -> None:
        recorded(f"told_{name}", {"terminal": lines, **shown(answer.save("out"))})

    return compare


@pytest.mark.parametrize("name", ASKED["studies"])
def test_a_study_answers_as_it_did(name: str, recorded: Recorded, told: Recorded) -> None:
    answer = ps.study(written("studies", name))
    timelines = {}
    for row in answer.candidates:
        bars = (*row.timeline[:6], *grouped(row.timeline, 60)[-12:])
        timelines[row.label] = [len(row.timeline), [asdict(bar) for bar in bars]]
    rows = list(answer.rows())
    recorded(f"study_{name}", plain(still(answer.document() | {"timelines": timelines, "rows": rows})))
    told(f"study_{name}", answer, study_lines(answer))


def of(change: Change) -> list[Any]:
    return [change.base.named, change.point.named, change.ratio, change.policy]


@pytest.mark.parametrize("name", ASKED["sweeps"])
def test_a_sweep_answers_as_it_did(name: str, recorded: Recorded, told: Recorded) -> None:
    answer = ps.sweep(written("sweeps", name), **ASKED["priced"].get(name, {}))
    series = [
        {
            "label": one.label,
            "sentence": one.sentence,
            "fastest": one.at(one.fastest),
            "knee": one.knee and one.knee.named,
            "losses": one.losses(one.last),
            "efficiency": [one.efficiency(point) for point in one.points],
            "in throughput": [one.throughput_efficiency(point) for point in one.points],
        }
        for one in answer.series
    ]
    more = {
        "series": series,
        "targets": [len(group) for group in answer.targets],
        "changes": {name: [of(change) for change in row] for name, row in answer.changes.items()},
        "successions": {name: [of(change) for change in row] for name, row in answer.successions.items()},
        "differences": answer.differences,
        "rows": list(answer.rows()),
    }
    recorded(f"sweep_{name}", plain(still(answer.document() | more)))
    told(f"sweep_{name}", answer, sweep_lines(answer))


@pytest.mark.parametrize(
    ("study", "name"), [(study, name) for study, asked in ASKED["solves"].items() for name in asked]
)
def test_an_inverse_question_is_as_it_was(study: str, name: str, recorded: Recorded, told: Recorded) -> None:
    answer = ps.solve(written("studies", study), **ASKED["solves"][study][name])
    recorded(f"solve_{name}", found(answer))
    told(f"solve_{name}", answer, solve_lines(answer))


@pytest.mark.parametrize("name", ASKED["machines"])
def test_a_question_asked_backwards_answers_as_it_did(name: str, recorded: Recorded) -> None:
    recorded(f"solve_{name}", found(ps.solve(**ASKED["machines"][name])))


def found(answer: ps.SolveAnswer) -> Any:
    """The document of a solution, the legal values, and the first point in full."""
    unknowns = []
    for one in answer.unknowns.values():
        shown = (*one.values[:3], *one.values[-3:])
        unknowns.append([one.path, len(one.values), [one.text(value) for value in shown]])
    points = list(answer.sweep.documents())[:1]
    return still(answer.document() | {"points": points, "unknowns": unknowns})


def refusal(ask: Callable[..., Any], *given: Any, **asked: Any) -> Any:
    """What is answered, or the words of the refusal."""
    try:
        return plain(asdict(ask(*given, **asked)))
    except ps.PerfsimError as error:
        return str(error)


def test_conditions_are_read_and_refused_as_they_were(recorded: Recorded) -> None:
    read = {text: refusal(Condition.read, text, "USD") for text in ASKED["conditions"]}
    path = written("studies", "of_one_layout")
    asked = [refusal(ps.solve, path, **asked) for asked in ASKED["refused"]]
    recorded("conditions", {"read": read, "refused": asked})


def test_changes_that_are_tried_answer_as_they_did(recorded: Recorded) -> None:
    first = written("studies", "of_one_layout")
    changed = {"recipe.tokens": 5e9, "batch": 512}
    answers = {"before": ps.study(first), "after": ps.study(first, changes=changed, prices={"cs-2": 20.0})}
    for name, answer in answers.items():
        Path(f"{name}.json").write_text(json.dumps(answer.document()), encoding="utf-8")
    second = written("studies", "of_other_inputs")
    differences = [diff(first, second), diff("before.json", "after.json")]
    explained = why(first)
    recorded("changes", plain({"why": explained, "diff": differences}))
    said = {"why": why_lines(explained), "diff": [difference_lines(one) for one in differences]}
    recorded("told_changes", said)


@pytest.mark.parametrize("name", ASKED["plans"])
def test_a_plan_answers_as_it_did(name: str, recorded: Recorded, told: Recorded) -> None:
    answer = ps.plan(**ASKED["plans"][name])
    document = answer.document()
    told(f"plan_{name}", answer, plan_lines(answer))
    recorded(f"plan_{name}", still(document | {"rows": plain(list(answer.rows()))}))


@pytest.mark.parametrize("name", ASKED["comparisons"])
def test_a_comparison_answers_as_it_did(name: str, recorded: Recorded) -> None:
    answer = ps.comparison(name)
    recorded(f"comparison_{name}", plain(asdict(answer)))
    recorded(f"told_comparison_{name}", comparison_lines(answer))


@pytest.mark.parametrize("name", ASKED["gaps"])
def test_a_measured_step_is_explained_as_it_was(name: str, recorded: Recorded) -> None:
    asked = dict(ASKED["gaps"][name])
    steps = asked.pop("measured")
    gaps = {measured: why_measured(measured, **asked) for measured in steps}
    said = {measured: {**plain(gap), "terminal": gap_lines(gap)} for measured, gap in gaps.items()}
    recorded(f"gap_{name}", said)
