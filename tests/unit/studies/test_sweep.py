"""A sweep answers every point once, keeps what is finished, and says the same each time."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfsim.base.errors import CatalogError, LayoutError, LimitError, PerfsimError, Problem
from perfsim.base.limits import Limits, limited
from perfsim.catalog import default_catalog
from perfsim.cli import main
from perfsim.specs.perturbations import PerturbationSpec
from perfsim.studies import runner as sweep_module
from perfsim.studies import spec
from perfsim.studies import store as store_module
from perfsim.studies.answers import Answer
from perfsim.studies.loading import load_study, load_sweep
from perfsim.studies.runner import SweepInterrupted, answer_text, plan_sweep, run_study, run_sweep
from perfsim.studies.spec import ConvergenceSpec, Point, StudySpec, digests
from perfsim.studies.store import Store, Stored

Write = Callable[[str], Path]
Make = Callable[..., StudySpec]

GRID = "  devices: [1, 2, 4]\n  recipe.global_batch_size: [2, 8]"
"""Four systems get nothing of two sequences: one point without a plan."""


@pytest.fixture
def path(write_sweep: Write) -> Path:
    return write_sweep(GRID)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "points.sqlite"


def answers_until(count: int, error: BaseException) -> Callable[[Point], Stored]:
    """Answers so many points and then raises."""
    answered = []

    def answer(point: Point) -> Stored:
        if len(answered) == count:
            raise error
        answered.append(point)
        return answer_text(point)

    return answer


def test_a_point_says_what_a_study_of_it_says(write_sweep: Write, store: Path) -> None:
    path = write_sweep("  batch_sizes: [[8]]")
    result = run_sweep(load_sweep(str(path)), store, jobs=1)
    (document,) = result.documents()
    (candidate,) = run_study(load_study(str(path.parent / "study.yaml"))).candidates
    for name in ("step_time_s", "mfu", "steps", "time_to_accuracy_s", "global_batch_size", "layout"):
        assert document[name] == getattr(candidate, name)
    assert result.points[0].target_time == candidate.time


def test_only_damaged_points_are_recomputed(path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = load_sweep(str(path))
    told = list[str]()
    first = run_sweep(sweep, store, jobs=1)
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("UPDATE points SET answer = replace(answer, '1', '2') WHERE answer LIKE '%mfu%'")
    assert run_sweep(sweep, store, jobs=1, tell=told.append) == first
    assert told[0] == f"{store}: 5 stored points are damaged and are computed again"
    told.clear()
    monkeypatch.setattr(sweep_module, "answer_text", answers_until(0, AssertionError("computed again")))
    assert run_sweep(sweep, store, jobs=1, tell=told.append) == first
    assert told == []


def test_a_complete_sweep_on_read_only_media_is_answered_and_an_incomplete_one_is_not(
    write_sweep: Write, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = load_sweep(str(write_sweep(GRID)))
    first = run_sweep(sweep, store, jobs=1)
    more = load_sweep(str(write_sweep("  devices: [1, 2, 4, 8]\n  recipe.global_batch_size: [8]")))
    monkeypatch.setattr(store_module.os, "access", lambda *_: False)
    before = (sorted(store.parent.iterdir()), store.read_bytes())
    assert run_sweep(sweep, store, jobs=1) == first
    with pytest.raises(PerfsimError, match="cannot be written to, and 1 points are not in it"):
        run_sweep(more, store, jobs=1)
    with Store(store) as readonly, pytest.raises(PerfsimError, match="readonly"):
        readonly.put("a", Stored("1", 0.0))
    assert (sorted(store.parent.iterdir()), store.read_bytes()) == before


def test_only_new_points_are_run(write_sweep: Write, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(load_sweep(str(write_sweep(GRID))), store, jobs=1)
    larger = load_sweep(str(write_sweep("  devices: [1, 2, 4]\n  recipe.global_batch_size: [8, 16, 2]")))
    assert plan_sweep(larger, store).stored == 6
    monkeypatch.setattr(sweep_module, "answer_text", answers_until(3, AssertionError("too many")))
    assert len(run_sweep(larger, store, jobs=1).points) == 9


def test_an_interrupt_keeps_finished_points(path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "answer_text", answers_until(2, KeyboardInterrupt()))
    with pytest.raises(SweepInterrupted, match="interrupted: 2 of 6 points are finished and kept") as caught:
        run_sweep(load_sweep(str(path)), store, jobs=1)
    assert caught.value.exit_code == 130
    assert plan_sweep(load_sweep(str(path)), store).stored == 2


@pytest.mark.parametrize(
    "error", [PerfsimError("is broken"), LayoutError("is broken"), CatalogError([Problem("is broken")])]
)
def test_a_point_that_fails_keeps_its_reason_and_loses_no_other(
    path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, error: PerfsimError
) -> None:
    answer_point = sweep_module.answer_point

    def answer(point: Point, *rest: Any, **more: Any) -> Answer:
        if point.num_devices == 2:
            raise error
        return answer_point(point, *rest, **more)

    monkeypatch.setattr(sweep_module, "answer_point", answer)
    points = run_sweep(load_sweep(str(path)), store, jobs=1).points
    assert [point.reasons for point in points if point.num_devices == 2] == [("is broken",)] * 2
    assert [point.feasible for point in points if point.num_devices == 1] == [True] * 2
    assert plan_sweep(load_sweep(str(path)), store).stored == 6


def test_a_point_without_a_plan_has_its_reason_and_planning_writes_nothing(path: Path, store: Path) -> None:
    sweep = load_sweep(str(path))
    before = plan_sweep(sweep, store, jobs=2)
    assert not store.exists()
    assert (before.points, before.stored) == (6, 0)
    assert before.estimated_s > 0
    run_sweep(sweep, store, jobs=1)
    after = plan_sweep(sweep, store, jobs=2)
    assert (after.stored, after.estimated_s) == (6, 0.0)
    result = run_sweep(load_sweep(str(path)), store, jobs=1)
    (without,) = (answer for answer in result.points if not answer.feasible)
    assert without.num_devices == 4
    (reason,) = without.reasons
    assert reason == "global_batch_size 2 gives some of 4 systems nothing; nearest: 4 sequences, or 2 systems"
    assert list(result.documents())[4]["reasons"] == list(without.reasons)


def test_without_any_plan_the_report_is_written_with_code_3(write_sweep: Write, tmp_path: Path) -> None:
    path = write_sweep("  devices: [4]\n  recipe.global_batch_size: [2]")
    run = CliRunner().invoke(main, ["sweep", str(path), "--out", str(tmp_path / "out"), "--jobs", "1"])
    assert run.exit_code == 3
    assert "No point of the grid has a feasible plan" in run.stdout
    assert (tmp_path / "out" / "index.html").exists()


@pytest.mark.slow
def test_processes_give_what_one_gives_and_share_a_limit_of_events(path: Path, tmp_path: Path) -> None:
    sweep = load_sweep(str(path))
    with limited(Limits()) as alone:
        whole = run_sweep(sweep, tmp_path / "alone.sqlite", jobs=1)
    assert alone.events > len(sweep.points)
    with limited(Limits(max_events=alone.events)) as exact:
        shared = run_sweep(sweep, tmp_path / "exact.sqlite", jobs=2)
    assert json.dumps(list(shared.documents())) == json.dumps(list(whole.documents()))
    assert exact.events == alone.events
    with limited(Limits(max_events=alone.events - 1)), pytest.raises(LimitError, match="finished and kept"):
        run_sweep(sweep, tmp_path / "less.sqlite", jobs=2)


def test_a_scheduler_that_does_not_answer_leaves_what_was_stored_before(path: Path, store: Path) -> None:
    pytest.importorskip("distributed")
    sweep = load_sweep(str(path))
    with pytest.raises(PerfsimError, match="no Dask scheduler answers at"):
        run_sweep(sweep, store, scheduler="tcp://127.0.0.1:1")
    assert not store.exists()
    point = sweep.points[0]
    with Store(store) as before:
        before.put(digests([point.study])[0], answer_text(point))
    with pytest.raises(PerfsimError, match="no Dask scheduler answers at"):
        run_sweep(sweep, store, scheduler="tcp://127.0.0.1:1")
    assert plan_sweep(sweep, store).stored == 1


# Finished points are kept under a digest of what decides them.


def test_an_answer_is_found_again_by_a_later_reader(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "points.sqlite"
    with Store(path) as writer:
        writer.put("a", Stored("earlier", 0.0))
        writer.put("a", Stored('{"x": 1}', 0.5))
        with Store(path) as reader:  # before the writer is closed
            assert dict(reader.find(["a", "b", "a"])) == {"a": Stored('{"x": 1}', 0.5)}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_text("somebody's notes, and not a database\n" * 20), "is not a store"),
        (lambda path: sqlite3.connect(path).execute("PRAGMA user_version = 99").close(), "another release"),
        (lambda path: path.mkdir(), "cannot be used"),
    ],
    ids=["no database", "another layout", "a folder"],
)
def test_what_is_no_store_is_left_alone(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    path = tmp_path / "points.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(PerfsimError, match=rf"points\.sqlite.*{said}"):
        Store(path)
    assert before == (path.read_bytes() if path.is_file() else None)


def test_what_decides_an_answer_changes_the_digest(study_of: Make) -> None:
    base = study_of()
    system = base.candidates[0].system
    slow = PerturbationSpec.model_validate({"stragglers": [{"rank": 0, "factor": 2.0}]})
    candidates = [
        {"system": system.with_(**{"memoryx.server.bandwidth": "75 GB/s"})},
        {"system": system.with_(**{"device.calibration.row_s": "9 ns"})},
        {"system": system.with_(software_release="r1.7")},
        {"devices": (4,)},
    ]
    changes: list[dict[str, object]] = [
        *({"candidates": (base.candidates[0].model_copy(update=change),)} for change in candidates),
        {"batch_sizes": (16,)},
        {"model": default_catalog().model("gpt3_13b")},
        {"convergence": ConvergenceSpec(law="constant", critical_batch_tokens=1e6)},
        {"perturbations": slow},
    ]
    changed = [base.model_copy(update=change) for change in changes]
    assert len(set(digests([base, *changed]))) == 1 + len(changed)


def test_the_digest_has_the_version_but_no_words(study_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    base = study_of()
    before = digests([base])
    model = base.model.model_copy(update={"description": "other words", "sources": {}})
    assert digests([study_of(title="Another", question="Why?", name="other", model=model)]) == before
    monkeypatch.setattr(spec, "model_version", lambda: "0.0.0+other")
    assert digests([base]) != before


ANSWERS = {f"{number:064x}": Stored(f'{{"step_time_s": {number}.25}}', 0.5) for number in range(40)}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "points.sqlite"
    with Store(path) as store:
        for digest, answer in ANSWERS.items():
            store.put(digest, answer)
    return path


def test_no_flipped_bit_changes_an_answer_or_ends_in_anything_but_a_store_error(filled: Path) -> None:
    whole = filled.read_bytes()
    damaged = refused = 0
    for bit in range(5, 8 * len(whole), 8 * len(whole) // 200):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        filled.write_bytes(flipped)
        try:
            with Store(filled) as store:
                kept = dict(store.find(ANSWERS))
                damaged += len(store.damaged)
        except PerfsimError:
            refused += 1
            continue
        assert all(ANSWERS[digest] == answer for digest, answer in kept.items())
    assert damaged > 5
    assert refused > 0


def test_a_damaged_row_is_no_answer_and_is_named(filled: Path) -> None:
    first, second, third = list(ANSWERS)[:3]
    with closing(sqlite3.connect(filled, isolation_level=None)) as connection:
        connection.execute("UPDATE points SET answer = '{}' WHERE digest = ?", (first,))
        connection.execute("UPDATE points SET seconds = 1e9 WHERE digest = ?", (second,))
        connection.execute("UPDATE points SET answer = CAST(x'ff' AS TEXT) WHERE digest = ?", (third,))
    with Store(filled) as store:
        assert set(dict(store.find(ANSWERS))) == set(ANSWERS) - {first, second, third}
        assert store.damaged == {first, second, third}
