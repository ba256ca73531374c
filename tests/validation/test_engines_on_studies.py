"""Steps are the same to the bit with either engine, and folded or with every rank written."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from perfsim.base.limits import Limits, limited
from perfsim.catalog import default_catalog
from perfsim.costs.price import price
from perfsim.engine import simulate
from perfsim.evidence.cases import CaseRows, StepCase, published_cases
from perfsim.machines import network_of
from perfsim.machines.placement import SharedLinks, rank_classes
from perfsim.prediction.planner import plan_of
from perfsim.prediction.question import question_of
from perfsim.prediction.run import Evaluation
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.work import unfold

STUDIES = sorted(
    path.stem
    for path in Path(__file__).parents[2].glob("studies/*.yaml")
    if "\ncandidates:" in path.read_text(encoding="utf-8")  # the others are sweeps
)
STEPS = [path for path in published_cases() if path.stem != "convergence"]
MOST_TASKS = 1_000_000
"""Of a winner's graph; SimPy follows so many in some seconds."""
MOST_OF_OTHERS = 100_000


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_the_winner_and_its_rivals_take_the_same_bits_with_either_engine(name: str) -> None:
    undisturbed = [row for row in run_study(load_study(name)).candidates if row.run.perturbed is None]
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
    steps = [(case.placed(default_catalog()).evaluation, case.id) for case in drawn]
    followed = sum(is_followed_alike(step, MOST_OF_OTHERS, name) for step, name in steps)
    assert followed > len(drawn) / 2


def is_followed_alike(evaluation: Evaluation, most_tasks: int, name: str) -> bool:
    """Whether the step is small enough to be followed by both engines, which then must agree."""
    if len(evaluation.step.placed.graph) > most_tasks:
        return False
    ends = set()
    for engine in ("simpy", "fast"):
        with limited(Limits(engine=engine)):
            trace = evaluation.step.run()
        ends.add((trace.start_s.tobytes(), trace.end_s.tobytes()))
    assert len(ends) == 1, name
    return True


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_175b_on_1024_ranks_with_contention_is_its_folded_run(overlap: bool) -> None:
    machine = {"system": "dgx-a100-80gb", "devices": 1024, "layout": "tp=8,pp=16,dp=8,sp=true"}
    recipe = {"recipe": "gpt3_pretraining", "runtime.overlap_grad_reduce": overlap, "batch": 8 * 20}
    question = replace(question_of({"model": "gpt3_175b", **recipe, **machine}), must_fit=False)
    graph = plan_of(question).graph()
    topology = question.topology
    costs = question.costs
    classes = rank_classes(graph, network_of(topology), {}, shares_links=True)
    assert not classes.any(), "all ranks of a stage stand alike, so they may be folded"
    links = SharedLinks.of(graph, network_of(topology), peers=classes)
    folded = simulate(graph, price(graph, costs), links.flows, links.capacities)
    unfolded = unfold(graph)
    assert len(unfolded.graph) >= 600_000
    links = SharedLinks.of(unfolded.graph, network_of(topology))
    assert links.flows
    run = simulate(unfolded.graph, price(unfolded.graph, costs), links.flows, links.capacities)
    assert run.start_s.tobytes() == folded.start_s[unfolded.task].tobytes()
    assert run.end_s.tobytes() == folded.end_s[unfolded.task].tobytes()
