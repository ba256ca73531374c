"""SimPy and the compiled core give the step of every study's candidates to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.engine.limits import Limits, limited
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study

STUDIES = sorted(
    path.stem
    for path in Path(__file__).parents[2].glob("studies/*.yaml")
    if "\ncandidates:" in path.read_text(encoding="utf-8")  # the others are sweeps
)
MOST_TASKS = 1_000_000
"""Of a graph; SimPy follows so many in some seconds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_the_winner_and_its_rivals_take_the_same_bits_with_either_engine(name: str) -> None:
    followed = 0
    for candidate in run_study(load_study(name)).candidates:
        evaluation = candidate.run
        if evaluation.disturbed is not None or len(evaluation.step.placed.graph) > MOST_TASKS:
            continue
        ends = []
        for engine in ("simpy", "fast"):
            with limited(Limits(engine=engine)):
                trace = evaluation.step.run()
            ends.append((trace.start_s.tobytes(), trace.end_s.tobytes()))
        assert ends[0] == ends[1], candidate.strategy
        followed += 1
    assert followed
