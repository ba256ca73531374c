"""Scores of the published runs take minutes: each is worked out once a session, whoever asks first."""

import fcntl
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfsim.evidence.ablation import StepAccuracy, accuracy_of
from perfsim.evidence.cases import published_cases
from perfsim.evidence.score import validate_file
from perfsim.prediction.bands import recorded_errors

Once = Callable[[str, Callable[[], Any]], Any]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """The answer kept under a name; the processes of one session share it, and wait for the first."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def answer(name: str, work: Callable[[], Any]) -> Any:
        kept = folder / f"{name}.pickle"
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_bytes(pickle.dumps(work()))
        return pickle.loads(kept.read_bytes())  # noqa: S301 - written above

    return answer


@pytest.fixture(scope="session")
def scores(once: Once) -> Callable[[Path], dict[str, Any]]:
    """`validate_file` of a public file."""
    return lambda path: once(f"scores of {path.name}", lambda: validate_file(path))


@pytest.fixture(scope="session")
def results(scores: Callable[[Path], dict[str, Any]]) -> list[dict[str, Any]]:
    """The scores of all public files."""
    return [scores(path) for path in published_cases()]


@pytest.fixture(scope="session")
def page(once: Once, results: list[dict[str, Any]]) -> list[StepAccuracy]:
    """The files of the accuracy page, with every group of runs left out of a fit."""
    return once("accuracy page", lambda: accuracy_of(published_cases(), results, leaves_out=True))


@pytest.fixture(scope="session")
def must_be_recorded() -> Callable[[list[dict[str, Any]]], None]:
    """Compares entries without runs left out with those on record."""

    def compare(entries: list[dict[str, Any]]) -> None:
        known = {entry["family"]: entry for entry in recorded_errors()}
        for entry in json.loads(json.dumps(entries)):
            kept = known[entry["family"]]
            assert entry == {key: kept[key] for key in entry} | {"families": entry["families"]}
            for family, row in zip(entry["families"], kept["families"], strict=True):
                assert family == {key: row[key] for key in family}

    return compare
