"""Faults that are put into right graphs are found, each with its task and its tensor."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from perfsim.catalog import default_catalog
from perfsim.numerics.execution.faults import FaultError
from perfsim.study.proving.catalogue import Case, catalogue_cases
from perfsim.study.proving.mutations import mutations, try_all
from perfsim.study.proving.proof import Subject, subject_of
from perfsim.study.proving.prove import plan_of_case
from perfsim.workload import ParallelLayout

KINDS = {
    "data dependency removed",
    "buffer reused too early",
    "wrong group",
    "gradient skipped",
    "update before reduction",
}
FEW = {
    "zero 2, overlapped": Case("3d", ParallelLayout(tensor=2, data=2, zero_stage=2), 2, overlap=True),
    "zero 3": Case("zero3", ParallelLayout(data=2, zero_stage=3), 2),
    "zero bubble": Case("pipeline", ParallelLayout(pipeline=2, schedule="zb2p"), 3),
    "weight streaming": Case("weight-streaming", ParallelLayout(data=2, micro_batch_size=2), 2),
}
EXPLAINED = (
    r"buffer reused too early: layer\.fetch.* does not wait for head\.",
    r"buffer reused too early: layer\.forward.* does not wait for layer\.spill",
)
"""Waits that free no buffer: what comes back first finds its room empty, and is only not fetched early;
the last layer's output waits for room like the others, though it never leaves the wafer."""
EVERY = 9
"""One fault of so many is tried in the default suite."""


def subject(case: Case) -> Subject:
    catalog = default_catalog()
    return subject_of(plan_of_case(case, catalog.model("gpt3_20b"), catalog))


def test_faults_of_every_kind_are_made() -> None:
    made = {mutation.kind for name in FEW for mutation in mutations(subject(FEW[name]))}
    assert made == KINDS


@pytest.mark.parametrize("name", FEW)
def test_a_sample_of_all_faults_is_caught(name: str) -> None:
    assert subject(FEW[name]).faults() == []
    result = try_all(subject(FEW[name]), EVERY)
    assert result.survivors == ()
    assert result.share == 1.0


def test_a_missing_wait_is_named_with_both_tasks_and_the_buffer() -> None:
    right = subject(FEW["zero 3"])
    found = next(each for each in mutations(right) if each.kind == "buffer reused too early").found()
    text = str(found[0])
    assert "data.all_gather" in text
    assert "slot of gathered weights" in text
    assert "may overwrite it before" in text


def test_a_removed_dependency_shows_in_random_orders_too() -> None:
    right = subject(FEW["zero bubble"])
    wrong = next(each for each in mutations(right) if each.kind == "data dependency removed").subject
    machine, caught = wrong.machine(), Counter[str]()
    for order in wrong.random_orders(30, seed=0):
        try:
            caught["right" if not machine.run(order).faults else "wrong"] += 1
        except FaultError as error:
            caught[error.fault.kind] += 1
    assert caught["order"] > 0


@pytest.mark.slow
def test_every_fault_in_a_spread_of_the_catalogue_is_caught(tmp_path: Path) -> None:
    """A fifth of all faults in a seventh of the catalogue; what is left is listed by name."""
    report = {}
    for number, case in enumerate(catalogue_cases()):
        if case.layout is None or number % 7:
            continue
        result = try_all(subject(case), 5)
        report[f"{number} {case.strategy} {case.layout.schedule}"] = result
    text = {name: [each.injected, each.caught, each.survivors] for name, each in report.items()}
    (tmp_path / "mutations.json").write_text(json.dumps(text, indent=2))
    assert sum(sum(each.injected.values()) for each in report.values()) > 500
    survivors = [survivor for each in report.values() for survivor in each.survivors]
    assert [each for each in survivors if not any(re.match(why, each) for why in EXPLAINED)] == []
