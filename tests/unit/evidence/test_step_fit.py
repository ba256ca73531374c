"""Fits of global constants to whole steps: slopes, and who owns a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfsim.catalog import Catalog
from perfsim.evidence.cases import StepCase
from perfsim.evidence.plans import PlacedCase, place_case
from perfsim.evidence.step_fit import STEP, StepProblem, recorded_constants
from perfsim.testing.toys import published_run

CATALOG = Catalog()


def run(name: str, device: str, **training: Any) -> PlacedCase:
    row = published_run(
        id=name,
        family=name,
        system={"device": device, "num_devices": 8, "devices_per_node": 8},
        model={"num_layers": 2, "hidden_size": 2048, "ffn_hidden_size": 8192, "seq_length": 2048},
        parallel={"tensor": 2, "data": 4},
        training={"global_batch_size": 8, "micro_batch_size": 2, **training},
    )
    return place_case(StepCase.model_validate(row), CATALOG)


def test_slopes_are_those_of_the_errors_and_zero_for_constants_of_others() -> None:
    runs = (
        run("old", "a100-sxm4-80gb"),
        run("new", "h100-sxm5-80gb", precision="bf16", attention="flash", overlap_grad_reduce=True),
    )
    problem = StepProblem(runs)
    logs = np.log(list(problem.start.values()))
    names = list(problem.start)
    slopes = problem.jacobian(logs)
    for column, name in enumerate(names):
        step = np.zeros(len(names))
        step[column] = STEP
        expected = (problem.residuals(logs + step) - problem.residuals(logs)) / STEP
        assert slopes[:, column] == pytest.approx(expected, abs=1e-9), name
    others = [
        [column for column, name in enumerate(names) if name not in recorded_constants(placed)]
        for placed in runs
    ]
    assert all(others)
    assert all(not slopes[row, columns].any() for row, columns in enumerate(others))
