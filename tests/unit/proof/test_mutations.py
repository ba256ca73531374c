"""Faults that are put into right graphs are found, each with its task and its tensor."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfsim.catalog import default_catalog
from perfsim.cli import main
from perfsim.proof.executor import Outcome
from perfsim.proof.faults import (
    KINDS,
    _explained,
    _Mutation,
    _Tried,
    _unexplained,
    mutations,
    try_all,
    try_plans,
)
from perfsim.proof.program import FaultError
from perfsim.proof.prove import Case, Request, Subject, plans_of
from perfsim.specs.layout import ParallelLayout, StreamingLayout, parsed_settings, text_of

FEW = {
    "zero 2, overlapped": Case("3d", ParallelLayout(tensor=2, data=2, zero_stage=2), 2, overlap=True),
    "zero 3": Case("zero3", ParallelLayout(data=2, zero_stage=3), 2),
    "zero bubble": Case("pipeline", ParallelLayout(pipeline=2, schedule="zb2p"), 3),
    "experts": Case("3d", ParallelLayout(tensor=2, sequence_parallel=True, expert=2), 1),
    "weight streaming": Case("weight-streaming", StreamingLayout(data=2, micro_batch_size=2), 2),
}
GROUPS_OF_FOUR = Case("weight-streaming", StreamingLayout(data=4, recompute="full", recompute_layers=4), 1)
THREE_WAFERS = Case("weight-streaming", StreamingLayout(data=3, micro_batch_size=2), 2)
IN_A_V = ParallelLayout(pipeline=2, data=2, virtual_pipeline=2, schedule="zbv", zero_stage=2)
EVERY = 9
"""One fault of so many is tried in the default suite."""
FEW_OF_ALL = 61
"""And so many in the slow one, of every case; `make mutations` tries more."""


def subject(case: Case, model: str = "gpt3_20b") -> Subject:
    catalog = default_catalog()
    experts = isinstance(case.layout, ParallelLayout) and case.layout.expert > 1
    return Subject.of(case.plan(catalog.model("mixtral_8x7b" if experts else model), catalog))


def faults(case: Case, pattern: str, model: str = "gpt3_20b") -> list[_Mutation]:
    """The faults of a case whose kind and description have a pattern."""
    every = mutations(subject(case, model))
    return [fault for fault in every if re.search(pattern, f"{fault.kind}: {fault.description}")]


def test_faults_of_every_kind_are_made() -> None:
    made = {mutation.kind for name in FEW for mutation in mutations(subject(FEW[name]))}
    assert made == set(KINDS)
    assert len(KINDS) == 7


@pytest.mark.parametrize("name", FEW)
def test_a_sample_of_all_faults_is_caught(name: str) -> None:
    assert subject(FEW[name]).faults() == []
    assert not any(fault.missed for fault in try_all(subject(FEW[name]), EVERY))


def test_a_missing_wait_is_named_with_both_tasks_and_the_buffer() -> None:
    text = str(faults(FEW["zero 3"], "buffer reused too early")[0].subject.faults()[0])
    assert "data.all_gather" in text
    assert "slot of gathered weights" in text
    assert "may overwrite it before" in text


@pytest.mark.parametrize(
    "layout",
    [ParallelLayout(tensor=2), ParallelLayout(data=2, zero_stage=1), ParallelLayout(pipeline=2, tensor=2)],
    ids=text_of,
)
def test_an_update_that_does_not_wait_for_the_norm_of_all_gradients_is_named(layout: ParallelLayout) -> None:
    early = faults(
        Case("3d", layout, 2), r"data dependency removed: optimizer.* does not wait for gradients\.norm"
    )
    assert len(early) >= 2 * layout.pipeline - 1
    for mutation in early:
        named = [fault for fault in mutation.subject.faults() if "norm" in fault.tensor]
        assert any("optimizer" in fault.task for fault in named)


@pytest.mark.parametrize(
    ("text", "sums"),
    [
        ("tp=2,dp=2", 1),
        ("tp=2,dp=2,zero=1", 1),
        ("dp=4,zero=3,shard_group=2", 1),
        ("dp=4,ep=2,zero=2", 1),
        ("dp=2,pp=2", 1),
        ("tp=2,pp=2,zero=1", 3),
    ],
)
def test_a_norm_reduction_left_out_over_a_wrong_group_or_priced_wrong_is_found(text: str, sums: int) -> None:
    layout = ParallelLayout(**parsed_settings(text, ParallelLayout))
    found = faults(
        Case("3d", layout, 2), r"(wrong group|gradient skipped|bytes priced wrong): gradients\.norm"
    )
    kinds = Counter(mutation.kind for mutation in found)
    assert kinds["wrong group"] >= 2 * sums
    assert kinds["gradient skipped"] >= 2 * sums
    assert kinds["bytes priced wrong"] >= 1
    for mutation in found:
        assert mutation.subject.is_wrong, mutation.description


def test_a_removed_dependency_shows_in_random_orders_too() -> None:
    wrong = faults(FEW["zero bubble"], "data dependency removed")[0].subject
    executor = wrong.executor()
    caught = Counter[str]()
    for order in wrong.random_orders(30, seed=0):
        try:
            executor.run(order, outcome := Outcome())
            caught["wrong" if outcome.faults else "right"] += 1
        except FaultError as error:
            caught[error.fault.kind] += 1
    assert caught["order"] > 0


@pytest.mark.parametrize(
    ("case", "model", "pattern", "least"),
    [
        # The table that embedding and head share is updated with both gradients: case 59 of the catalogue.
        (GROUPS_OF_FOUR, "gpt3_20b", r": head\.reduce", 1),
        # Nothing multiplies by the weights of an embedding's backward, but their slot is taken until it ends.
        (THREE_WAFERS, "deepseek_v3", r"does not wait for embedding\.backward|embedding\.broadcast", 10),
        # One rank has both, so the next reduction takes the other's gradients as well.
        (Case("3d", IN_A_V, 3, True), "gpt3_20b", "gradient skipped: .*embedding and LM head", 1),
    ],
)
def test_each_fault_at_embedding_and_head_is_caught(case: Case, model: str, pattern: str, least: int) -> None:
    found = faults(case, pattern, model)
    assert len(found) >= least
    for mutation in found:
        assert mutation.subject.is_wrong, mutation.description


def test_the_page_says_what_was_put_in_and_found(tmp_path: Path) -> None:
    page = tmp_path / "mutations.md"
    arguments = ["prove", "gpt3_20b", "--layout", "dp=2,zero=1", "--mutations", str(page), "--every", "3"]
    run = CliRunner().invoke(main, arguments)
    assert run.exit_code == 0, run.output
    assert "detected (100.0%), each with its task and tensor" in run.output
    text = page.read_text()
    assert "one fault in 3 was tried" in text
    assert "| gradient skipped |" in text
    assert "| 3d | dp=2,zero=1" in text


def test_a_survivor_is_explained_or_ends_with_code_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Subject, "is_wrong", False)
    page = tmp_path / "mutations.md"
    run = CliRunner().invoke(main, ["prove", "gpt3_20b", "--layout", "dp=2", "--mutations", str(page)])
    assert run.exit_code == 1
    assert "a fault was missed" in run.output
    assert "- **missed**: " in page.read_text()


def test_explained_survivors_are_told_by_class() -> None:
    name = "buffer reused too early: layer.forward[0] of layer 3 does not wait for layer (dense).spill[0]"
    tried = [_Tried("buffer reused too early", name)]
    assert _unexplained(tried) == []
    assert [row["count"] for row in _explained(tried)] == [1]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "least"), [("gpt3_20b", 500), ("deepseek_v3", 250)])
def test_every_fault_in_a_spread_of_the_catalogue_is_caught(model: str, least: int) -> None:
    """A few of all faults in every case, each begun elsewhere; what is left has a reason."""
    tally = try_plans(model, plans_of(Request(model)), FEW_OF_ALL)
    assert tally["injected"] > least
    assert tally["unexplained"] == []


@pytest.mark.slow
def test_in_a_v_a_wait_for_the_own_table_is_found_missing_and_one_for_the_other_table_frees_nothing() -> None:
    """The exception for embedding and LM head must not hide a wait that protects a buffer."""
    layout = replace(IN_A_V, tensor=2, recompute="full")
    waits = {
        mutation.description.partition(" of ")[0]: mutation.subject.is_wrong
        for mutation in faults(
            Case("3d", layout, 3, overlap=True), "buffer reused too early.*of embedding and LM head on gpu0"
        )
    }
    own = {"head.wgrad[1]", "embedding.backward[2]"}
    assert {name for name, caught in waits.items() if caught} == own
    assert set(waits) - own == {"embedding.backward[0]", "head.wgrad[2]", "embedding.backward[1]"}


def test_a_last_all_gather_over_other_ranks_is_caught() -> None:
    """No later task reads what it gathers: the updated weights themselves are compared."""
    layout = ParallelLayout(data=4, zero_stage=2, shard_group=2)
    last = faults(Case("3d", layout, 1), r"wrong group: data\.all_gather.* in step 2 over stride 2")
    assert len(last) == 1
    assert any("weights" in fault.detail and fault.task for fault in last[0].subject.faults())


OFFLOADED = ParallelLayout(data=2, zero_stage=3, offload_optimizer="cpu")
OFFLOADS = {
    "gradients": (Case("3d", OFFLOADED, 2), set()),
    "gradients, zero 2": (
        Case("3d", replace(OFFLOADED, zero_stage=2), 2),
        {("mlp.backward", 0, "offload.gradients")},
    ),
    "gradients, zero 2, overlapped": (Case("3d", replace(OFFLOADED, zero_stage=2), 2, overlap=True), set()),
    "parameters": (
        Case("zero3", replace(OFFLOADED, offload_param="cpu"), 1),
        {("offload.parameters", 1, "mlp.forward"), ("offload.parameters", 2, "mlp.forward")},
    ),
    "activations": (
        Case("3d", ParallelLayout(tensor=2, offload_activations="cpu"), 1),
        {("offload.activations", 1, "tensor.all_reduce")},
    ),
}
"""Layouts with offload, and the waits in them that free no buffer: task, layer and what it waits for."""


@pytest.mark.parametrize("name", OFFLOADS)
def test_a_missing_wait_for_a_buffer_of_offload_is_caught(name: str) -> None:
    case, delays = OFFLOADS[name]
    waits = set()
    missed = set()
    for mutation in mutations(subject(case), "buffer reused too early"):
        parts = re.match(r"(\S+)\[\d\] of (?:layer (\d))?.* does not wait for (\S+)\[", mutation.description)
        if parts is None or "offload" not in mutation.description:
            continue
        wait = parts[1], int(parts[2] or -1), parts[3]
        waits.add(wait)
        if not mutation.subject.is_wrong:
            missed.add(wait)
    assert missed == delays
    assert len(waits - missed) >= 2
