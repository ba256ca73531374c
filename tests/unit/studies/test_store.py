"""Finished points are kept under a digest of what decides them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from perfsim.catalog import Catalog, data_root
from perfsim.specs.perturbations import PerturbationSpec
from perfsim.studies import spec
from perfsim.studies import store as store_module
from perfsim.studies.spec import CandidateSpec, ConvergenceSpec, Digests, StudySpec
from perfsim.studies.store import Store, Stored, StoreError

CATALOG = Catalog([data_root()])


def a_study(**changes: object) -> StudySpec:
    candidate = CandidateSpec(strategy="weight-streaming", system=CATALOG.system("cs-2"), devices=(2,))
    study = StudySpec(
        name="tiny",
        title="A title",
        question="Which?",
        model=CATALOG.model("gpt3_xl"),
        recipe=CATALOG.recipe("gpt3_20b_chinchilla"),
        candidates=(candidate,),
        batch_sizes=(8,),
    )
    return study.model_copy(update=changes)


def on_system(**changes: object) -> StudySpec:
    system = CATALOG.system("cs-2", **changes)
    return a_study(candidates=(a_study().candidates[0].model_copy(update={"system": system}),))


def test_an_answer_is_found_again_by_a_later_reader(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "points.sqlite"
    with Store(path) as store:
        store.put("a", Stored("earlier", 0.0))
        store.put("a", Stored('{"x": 1}', 0.5))
    with Store(path) as store:
        assert dict(store.find(["a", "b", "a"])) == {"a": Stored('{"x": 1}', 0.5)}


def test_an_answer_is_seen_by_others_before_the_writer_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "points.sqlite"
    with Store(path) as writer, Store(path) as reader:
        writer.put("a", Stored("1", 0.0))
        assert "a" in dict(reader.find(["a"]))


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "points.sqlite"
    path.write_text("these are somebody's notes, and not a database\n" * 20)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"points\.sqlite: is not a store"):
        Store(path)
    assert path.read_bytes() == before


def test_a_store_of_another_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "points.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="another release"):
        Store(path)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path)


CHANGES: dict[str, Callable[[], StudySpec]] = {
    "link": lambda: on_system(**{"memoryx.server.bandwidth": "75 GB/s"}),
    "fitted constant": lambda: on_system(**{"device.calibration.link_s_per_element": "9 ns"}),
    "release": lambda: on_system(software_release="r1.7"),
    "batch": lambda: a_study(batch_sizes=(16,)),
    "model": lambda: a_study(model=CATALOG.model("gpt3_13b")),
    "law": lambda: a_study(convergence=ConvergenceSpec(law="constant", critical_batch_tokens=1e6)),
    "perturbation": lambda: a_study(
        perturbations=PerturbationSpec.model_validate({"stragglers": [{"rank": 0, "factor": 2.0}]})
    ),
    "devices": lambda: a_study(candidates=(a_study().candidates[0].model_copy(update={"devices": (4,)}),)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_decides_an_answer_changes_the_digest(what: str) -> None:
    assert Digests().of(CHANGES[what]()) != Digests().of(a_study())


def test_what_only_explains_leaves_the_digest_alone() -> None:
    model = CATALOG.model("gpt3_xl").model_copy(update={"description": "other words", "sources": {}})
    reworded = a_study(title="Another", question="Why?", name="other", model=model)
    assert Digests().of(reworded) == Digests().of(a_study())


def test_another_version_of_the_model_is_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Digests().of(a_study())
    monkeypatch.setattr(spec, "model_version", lambda: "0.0.0+other")
    assert Digests().of(a_study()) != before


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
        except StoreError:
            refused += 1
            continue
        assert all(ANSWERS[digest] == answer for digest, answer in kept.items())
    assert damaged > 5
    assert refused > 0


def test_a_damaged_row_is_no_answer_and_is_named(filled: Path) -> None:
    connection = sqlite3.connect(filled)
    first, second, third = list(ANSWERS)[:3]
    connection.execute("UPDATE points SET answer = '{}' WHERE digest = ?", (first,))
    connection.execute("UPDATE points SET seconds = 1e9 WHERE digest = ?", (second,))
    connection.execute("UPDATE points SET answer = CAST(x'ff' AS TEXT) WHERE digest = ?", (third,))
    connection.commit()
    connection.close()
    with Store(filled) as store:
        assert set(dict(store.find(ANSWERS))) == set(ANSWERS) - {first, second, third}
        assert store.damaged == {first, second, third}


def test_a_store_that_cannot_be_written_can_be_read(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module.os, "access", lambda *_: False)
    before = sorted(filled.parent.iterdir()), filled.read_bytes()
    with Store(filled) as store:
        assert store.readonly
        assert dict(store.find(ANSWERS)) == ANSWERS
        with pytest.raises(StoreError, match="readonly"):
            store.put("a", Stored("1", 0.0))
    assert (sorted(filled.parent.iterdir()), filled.read_bytes()) == before
