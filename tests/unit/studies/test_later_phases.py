"""A recipe of several phases: sparse pre-training and dense fine-tuning, whose times add up."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.catalog import default_catalog
from perfsim.studies.answers import Answer
from perfsim.studies.runner import run_study
from perfsim.studies.spec import StudySpec

DENSE_TOKENS = 1e9
BATCH = 48
SPARSE = {"weight_sparsity": 0.75}
WAFER = {"strategy": "weight-streaming", "system": "cs-2", "devices": [1]}
Make = Callable[..., StudySpec]


def answered(study_of: Make, candidate: dict[str, object] = WAFER, **changes: object) -> Answer:
    study = study_of(name="phases", candidates=[candidate], batch_sizes=[BATCH], sampling={"tasks": 0})
    recipe = default_catalog().override(study.recipe, changes)
    (row,) = run_study(study.model_copy(update={"recipe": recipe})).candidates
    return row


def test_phases_alike_are_one_longer_run(study_of: Make) -> None:
    one = answered(study_of, later=[{"tokens": 4e9}])
    four = answered(study_of, later=[{"tokens": DENSE_TOKENS}] * 4)
    assert four.time_to_accuracy_s == pytest.approx(one.time_to_accuracy_s)
    alone = answered(study_of)
    more = 4e9 / (BATCH * alone.run.plan.job.seq_length) / alone.steps
    assert one.time_to_accuracy_s == pytest.approx((1 + more) * alone.time_to_accuracy_s)


def test_what_a_billion_tokens_take_counts_those_of_later_phases(study_of: Make) -> None:
    row = answered(study_of, later=[{"tokens": 4e9}])
    whole = row.outcome.energy_kwh.typical / (row.time.examples_tokens + 4e9) * 1e9
    assert row.outcome.energy_kwh_per_1e9_tokens == pytest.approx(whole)


def test_the_factors_of_why_make_the_ratio_with_phases_and_a_ramp(study_of: Make) -> None:
    gpus = {"strategy": "3d", "system": "dgx-a100-80gb", "devices": [8]}
    ramp = {"ramp": [{"share": 0.5, "batch": 0.0625}]}
    study = study_of(candidates=[WAFER, gpus], batch_sizes=[512], convergence=ramp, sampling={"tasks": 0})
    recipe = default_catalog().override(study.recipe, {"later": [{"tokens": 4e9}], **SPARSE})
    result = run_study(study.model_copy(update={"recipe": recipe}))
    assert "times by the pace of a batch ramp and of later phases" in result.grounds["why"]
    factors = map(float, re.findall(r"([\d.]+) times by", result.grounds["why"]))
    assert math.prod(factors) == pytest.approx(result.decision.ratio.typical, rel=0.02)


def test_gpus_gain_nothing_from_the_sparse_phase(study_of: Make) -> None:
    gpus = {"strategy": "3d", "system": "dgx-a100-80gb", "devices": [8]}
    dense, sparse = (answered(study_of, gpus, weight_sparsity=zeros) for zeros in (0.0, 0.75))
    assert sparse.time_to_accuracy_s == pytest.approx(dense.time_to_accuracy_s)


def test_a_stored_point_keeps_its_time_of_phases(write_sweep: Callable[[str], Path], tmp_path: Path) -> None:
    changes = {"recipe.later": [{"tokens": DENSE_TOKENS}]}
    path = str(write_sweep("  devices: [1]"))
    runs = [ps.sweep(path, changes=changes, folder=tmp_path / "kept") for _ in range(2)]
    (first,), (again,) = (run.points for run in runs)
    assert sum(first.prediction.time.later_s) > 0
    assert first.prediction.time_to_accuracy_s == again.prediction.time_to_accuracy_s
