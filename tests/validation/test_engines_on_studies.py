"""SimPy and the compiled core give the steps of every study's candidates and of published runs to the bit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from perfsim.catalog import default_catalog
from perfsim.engine.limits import Limits, limited
from perfsim.evidence.cases import CaseRows, StepCase, public_cases
from perfsim.prediction.run import Evaluation
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study

STUDIES = sorted(
    path.stem
    for path in Path(__file__).parents[2].glob("studies/*.yaml")
    if "\ncandidates:" in path.read_text(encoding="utf-8")  # the others are sweeps
)
STEPS = [path for path in public_cases() if path.stem != "convergence"]
MOST_TASKS = 1_000_000
"""Of a winner's graph; SimPy follows so many in some seconds."""
MOST_OF_OTHERS = 100_000


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_the_winner_and_its_rivals_take_the_same_bits_with_either_engine(name: str) -> None:
    undisturbed = [row for row in run_study(load_study(name)).candidates if row.run.disturbed is None]
    winner, *rivals = sorted(undisturbed, key=lambda row: row.time_to_accuracy_s)
    assert is_followed_alike(winner.run, MOST_TASKS, winner.strategy)
    for rival in rivals:
        is_followed_alike(rival.run, MOST_OF_OTHERS, rival.strategy)


@pytest.mark.slow
@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_published_runs_take_the_same_bits_with_either_engine(path: Path) -> None:
    """A tenth of the rows of a file, always the same ones."""
    cases = CaseRows.read(path, StepCase).cases
    drawn = random.Random(path.stem).sample(cases, -(-len(cases) // 10))
    followed = sum(
        is_followed_alike(case.evaluated(default_catalog()), MOST_OF_OTHERS, case.id) for case in drawn
    )
    assert followed > len(drawn) / 2


def is_followed_alike(evaluation: Evaluation, most_tasks: int, name: str) -> bool:
    """Whether the step is small enough to be followed by both engines, which then must agree."""
    if len(evaluation.step.placed.graph) > most_tasks:
        return False
    ends = []
    for engine in ("simpy", "fast"):
        with limited(Limits(engine=engine)):
            trace = evaluation.step.run()
        ends.append((trace.start_s.tobytes(), trace.end_s.tobytes()))
    assert ends[0] == ends[1], name
    return True
