"""Utilisation of a sparse model: FLOPs that are needed or executed, never those of zeros that are skipped."""

from __future__ import annotations

import pytest

from perfsim.catalog import default_catalog
from perfsim.machines import build_topology, costs_for
from perfsim.prediction.planner import best_plan
from perfsim.prediction.run import Evaluation
from perfsim.specs.recipe import Job
from perfsim.strategies import strategy
from perfsim.testing import toys


def run(system: str, sparsity: float, harvest: float = 0.9) -> Evaluation:
    catalog = default_catalog()
    spec = catalog.system(system, **{"streaming.sparse_harvest": harvest})
    recipe = catalog.override(catalog.recipe("gpt3_pretraining"), {"weight_sparsity": sparsity})
    job = Job(catalog.model("gpt3_20b"), recipe, 48)
    topology = build_topology(spec, 1)
    return best_plan(toys.question(strategy("weight-streaming"), job, topology, costs_for(topology, recipe)))


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("system", ["cs-2", "cs-2-peak"])
def test_no_sparsity_makes_a_wafer_exceed_its_peak(system: str, sparsity: float) -> None:
    found = run(system, sparsity)
    assert 0 < found.mfu <= found.hfu <= 1
    assert sparsity or found.mfu * 4 / 3 == pytest.approx(found.hfu, rel=0.02), "a dense one recomputes"


def test_zeros_that_nothing_skips_are_executed_and_not_needed() -> None:
    dense = run("cs-2", 0.0)
    wasted = run("cs-2", 0.75, harvest=0.0)
    assert wasted.hardware_flop == pytest.approx(dense.hardware_flop)
    assert 0.25 < wasted.model_flop / dense.model_flop < 0.4, "attention and the head stay dense"
