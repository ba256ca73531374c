"""The tool of `make mutations`: what it changes, and that tests find nearly every change of a room."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SEED = 2
SECONDS = 75.0
"""Mutants begin within so many seconds; the last may take as long as the tests of its room."""

SOURCE = '''
"""A module."""

LIMIT = 3


def held(stage: int, number: int = 2) -> int:
    """Not this 4."""
    if number < 0:
        raise ValueError(f"{number + 1} is below 0")
    return min(stage, LIMIT) + number
'''


@pytest.fixture(scope="module")
def mutants(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", repository / "tests/mutation/mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


def test_a_mutant_differs_in_one_place_and_never_in_a_message_or_a_docstring(mutants: ModuleType) -> None:
    made = mutants.mutants_of("perfsim/costs/some.py", SOURCE.strip())
    assert {mutant.change for mutant in made} == {
        "`LIMIT = 3` becomes `LIMIT = 4`",
        "`stage: int, number: int=2` becomes `stage: int, number: int=3`",
        "`if number < 0:` becomes `if number <= 0:`",
        "`number < 0` becomes `number < 1`",
        "`min(stage, LIMIT) + number` becomes `min(stage, LIMIT) - number`",
        "`return min(stage, LIMIT) + number` becomes `return min(stage, LIMIT)`",
        "`min(stage, LIMIT) + number` becomes `max(stage, LIMIT) + number`",
    }
    assert len({ast.unparse(mutant.tree) for mutant in made}) == len(made)
    assert {mutant.room for mutant in made} == {"costs"}


@pytest.mark.slow
def test_the_same_seed_draws_the_same_mutants_of_every_room(mutants: ModuleType) -> None:
    drawn = mutants.sample(SEED, 33)
    assert [mutant.name for mutant in drawn] == [mutant.name for mutant in mutants.sample(SEED, 33)]
    assert {mutant.room for mutant in drawn} == {room.partition("/")[0] for room in mutants.ROOMS}


def test_every_explanation_is_of_a_module_that_exists(mutants: ModuleType, repository: Path) -> None:
    assert {
        name for name in mutants.explained() if not (repository / name.partition(": ")[0]).exists()
    } == set()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="every mutant has a process of its own")
def test_most_mutants_of_a_slice_are_found(repository: Path, tmp_path: Path) -> None:
    """In fresh interpreters, because a mutant must be imported before the module that it replaces."""
    data = str(tmp_path / "coverage")
    tests = ["tests/unit/network", "tests/properties/test_collectives.py", "tests/records/test_networks.py"]
    covered = ["pytest", "-q", "--cov=perfsim/network", "--cov-context=test", "--cov-report=", *tests]
    asked = ["--seed", str(SEED), "--count", "40", "--seconds", str(SECONDS), "--rooms", "network"]
    environment = os.environ | {"COVERAGE_FILE": data}
    subprocess.run([sys.executable, "-m", *covered], cwd=repository, env=environment, check=True)
    tool = [sys.executable, "tests/mutation/mutants.py", "--reach", data, *asked]
    run = subprocess.run(tool, cwd=repository, capture_output=True, text=True, timeout=600, check=True)
    counts = re.search(r"(\d+) of (\d+) mutants are found", run.stdout)
    assert counts is not None, run.stdout
    found, tried = map(int, counts.groups())
    assert tried, "a slow machine tries few in the time"
    assert found >= 0.8 * tried - 1, run.stdout
