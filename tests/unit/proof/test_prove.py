"""`perfsim prove`: what it covers, what it says, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfsim.base.errors import InputError
from perfsim.catalog import default_catalog
from perfsim.cli import main
from perfsim.proof import prove
from perfsim.proof.faults import _with_work
from perfsim.proof.program import Fault
from perfsim.proof.provers import prover
from perfsim.report.terminal import proof_lines

CASES = prove.catalogue_cases()
MODEL = "gpt3_20b"


@pytest.mark.parametrize("number", range(0, len(CASES), 5))
def test_a_part_of_the_catalogue_computes_what_serial_training_does(number: int) -> None:
    plan = CASES[number].plan(default_catalog().model(MODEL), default_catalog())
    proof = prove.prove_plan(plan, orders=2, seed=number)
    assert proof.faults == ()
    assert 0.0 < proof.max_relative_error <= 1e-10
    assert proof.compared > 0
    assert proof.orders == 2


@pytest.mark.parametrize("number", [3, 40, -1])
def test_orders_of_the_same_reads_have_the_same_numbers(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = CASES[number].plan(default_catalog().model(MODEL), default_catalog())
    followed = prove.prove_plan(plan, orders=5, seed=1)
    monkeypatch.setattr(prove, "EXECUTED", 7)
    executed = prove.prove_plan(plan, orders=5, seed=1)
    assert replace(executed, compared=followed.compared) == followed
    assert executed.compared > followed.compared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "orders"), [("gpt3_20b", 10), ("llama2_70b", 2), ("gptj_6b", 2), ("bert_large", 2)]
)
def test_the_whole_catalogue_is_proven_in_random_orders(model: str, orders: int) -> None:
    result = prove.prove_all(prove.Request(model, orders=orders))
    assert [str(fault) for proof in result.proofs for fault in proof.faults] == []
    assert result.as_dict()["max_relative_error"] <= 1e-10
    assert all(proof.orders == orders for proof in result.proofs)


def test_a_layout_keeps_its_ranks_uneven_stages_and_micro_batches() -> None:
    layout = "tp=4,pp=3,dp=2,zero=2,mbs=8,schedule=1f1b,layers_per_stage=0-92-4"
    (plan,) = prove.plans_of(prove.Request("gpt3_175b", layout=layout, batch=16 * 7))
    assert plan.topology.num_devices == 24
    assert plan.num_microbatches == 7
    assert (plan.layout.tensor, plan.layout.pipeline, plan.layout.zero_stage) == (4, 3, 2)
    assert plan.layout.layers_per_stage == (0, 2, 2)
    assert plan.job.model.hidden_size < 100
    assert plan.job.seq_length < 10


@pytest.mark.parametrize(
    ("model", "layout", "batch", "said"),
    [
        ("llama31_8b", "tp=3,dp=2", 4, "num_attention_heads 32 is not a multiple of tensor 3"),
        (MODEL, "tp=8,pp=8,dp=8", 8 * 64, "tasks on all ranks are too many to execute"),
        ("mixtral_8x7b", "dp=4,zero=1,shard_group=2", 4, "experts are not executed with shard_group 2"),
    ],
)
def test_what_is_not_executed_is_refused(model: str, layout: str, batch: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        prove.prove_all(prove.Request(model, layout=layout, batch=batch, orders=1))


def test_a_strategy_may_be_asked_for_alone() -> None:
    assert {plan.strategy for plan in prove.plans_of(prove.Request(MODEL, strategy="zero3"))} == {"zero3"}


def test_an_operation_that_nobody_knows_is_named_with_those_that_are_known() -> None:
    plan = CASES[0].plan(default_catalog().model(MODEL), default_catalog())
    subject = prove.Subject.of(plan)
    _, strange = _with_work(subject, subject.graph.task(0), "is strange", op="strange.forward")
    (fault,) = strange.faults()
    assert "knows no operation 'strange.forward'; known: embedding.forward" in str(fault)


def test_an_error_is_a_number_only_where_something_was_compared() -> None:
    assert prove._finite(None) is None
    assert prove._finite(float("inf")) is None
    assert prove._finite(0.0) == 0.0
    proofs = (prove.Proof("3d", "dp2", 2, 1, 0, 0, 0, None, (Fault("refused", "a", "b", "c"),)),)
    answer = prove.ProofResult("m", 1, proofs).as_dict()
    assert answer["max_relative_error"] is None
    assert answer["strategies"]["3d"]["max_relative_error"] is None
    right = prove.Proof("data", "dp2", 2, 1, 1, 1, 1, 1e-12, ())
    several = prove.ProofResult("m", 1, (*proofs, right))
    assert (several.passed, several.as_dict()["max_relative_error"]) == (False, 1e-12)
    assert "1 of 1 layout WRONG" in " ".join(proof_lines(answer))


def test_the_document_has_what_was_promised_and_the_table_ends_in_a_sentence() -> None:
    document, text = (
        CliRunner().invoke(main, ["prove", MODEL, "--layout", "dp=2,zero=1", "--orders", "1", *form])
        for form in (["--json"], [])
    )
    assert document.exit_code == text.exit_code == 0, document.output + text.output
    answer = json.loads(document.output)
    assert answer["passed"] is True
    assert answer["max_relative_error"] <= 1e-10
    assert answer["orders"] == 1
    assert answer["tasks"] > 0
    (layout,) = answer["strategies"]["3d"]["layouts"]
    assert layout["faults"] == []
    said = " ".join(text.output.split())
    for words in ("1 layout proven", "no dependency is missing", "in 1 random order and"):
        assert words in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt3_20bb"], "did you mean"),
        ([MODEL, "--strategy", "dta"], "did you mean `data`"),
        ([MODEL, "--layout", "tp=3,zero=3,pp=2"], "pipeline must be 1"),
        ([MODEL, "--strategy", "weight-streaming", "--layout", "dp=2,tp=2"], "'tp=2': unknown name"),
        ([MODEL, "--devices", "3", "--batch", "7"], "--devices and --batch are for a --layout"),
        (["studies/gpt3_20b.yaml", "--batch", "7"], "--batch is for a --layout"),
        ([MODEL, "--every", "7"], "--every belongs to --mutations"),
        ([MODEL, "--mutations", "x.md", "--seed", "7"], "--orders and --seed belong to proofs"),
        ([MODEL, "--mutations", "."], "is a folder; the name of a file is expected"),
        (["csx_scaling"], "this is a sweep; a study is expected"),
        (["studies/csx_scaling.yaml"], "this is a sweep; a study is expected"),
    ],
)
def test_bad_questions_are_refused_in_words(arguments: list[str], said: str) -> None:
    run = CliRunner().invoke(main, ["prove", *arguments])
    assert run.exit_code == 2
    assert said in run.output


MANY_PASSES = """
name: passes
extends: gpt3_20b
candidates: [{strategy: weight-streaming, system: cs-2, devices: [2]}]
batch_sizes: [300]
assumed: {candidates: two systems, batch_sizes: more than a wafer takes at once}
"""
FLASH = ("memoryx.weights_in=flash", "memoryx.optimizer_state_in=flash")


SUMS = [(f"streaming.accumulate_at={where}", "device.memory.capacity=1 TB") for where in ("wafer", "swarmx")]


@pytest.mark.parametrize("changes", [FLASH, FLASH[1:], *SUMS])
def test_states_and_sums_move_in_order_wherever_they_are(changes: tuple[str, ...], tmp_path: Path) -> None:
    """The words of the study's model are shared by embedding and LM head, whose flash is the embedding's."""
    options = [word for change in changes for word in ("--set", f"system.{change}")]
    study = tmp_path / "passes.yaml"
    study.write_text(MANY_PASSES)
    run = CliRunner().invoke(main, ["prove", str(study), "--orders", "3", *options])
    assert run.exit_code == 0, run.output
    assert "1 layout proven" in " ".join(run.output.split())


@pytest.mark.slow
def test_a_study_is_proven_with_the_layouts_that_it_answers_with() -> None:
    result = prove.prove_all(prove.Request("studies/gpt3_20b.yaml", orders=0))
    assert result.passed
    assert {proof.strategy for proof in result.proofs} == {"3d", "weight-streaming"}


def test_graphs_of_an_unknown_machine_are_not_executed() -> None:
    with pytest.raises(InputError, match="graphs on a ring-cluster cannot be executed"):
        prover("ring-cluster")
