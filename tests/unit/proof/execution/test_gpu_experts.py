"""Executed expert layouts against serial training, and the routing that both share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfsim.catalog import default_catalog
from perfsim.proof import interpreter
from perfsim.proof.exchange import EXCHANGES
from perfsim.proof.faults import mutations
from perfsim.proof.operations import PARTS, Node, Tape
from perfsim.proof.prove import Request, Subject, catalogue_cases, plans_of, prove_all, prove_plan
from perfsim.proof.ranks import Ranks
from perfsim.proof.serial import MAX_NORM, _drawn_routing
from perfsim.report.terminal import proof_lines
from perfsim.specs.model import Experts, RecomputeKeeps
from perfsim.strategies.three_d.data import Replicas
from perfsim.work import WAIT_OF_EXPERTS

CASES = catalogue_cases(experts=True)
EXPERTS = Experts(num_experts=4, top_k=2, ffn_hidden_size=8)


@pytest.mark.parametrize("number", range(0, len(CASES), 5))
@pytest.mark.parametrize("model", ["mixtral_8x7b", "deepseek_v3"])
def test_expert_layouts_compute_what_serial_training_does(model: str, number: int) -> None:
    """DeepSeek-V3 has shared experts and a dense layer before them."""
    plan = CASES[number].plan(default_catalog().model(model), default_catalog())
    proof = prove_plan(plan, orders=1, seed=number)
    assert proof.faults == ()
    assert proof.max_relative_error <= 1e-10


def test_rows_that_come_back_to_the_wrong_token_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = EXCHANGES["experts.combine"]

    def wrong(*given: Any) -> list[tuple[Any, ...]]:
        return [(rows | {"rows": np.roll(rows["rows"], 1, axis=0)},) for (rows,) in right.run(*given)]

    monkeypatch.setitem(EXCHANGES, "experts.combine", right._replace(run=wrong))
    result = prove_all(Request("mixtral_8x7b", layout="dp=2,ep=2", orders=1))
    assert not result.passed


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mixtral_8x7b", "deepseek_v3", "gpt_oss_120b", "llama4_maverick"])
def test_every_expert_layout_is_proven(model: str) -> None:
    """One of them drops tokens beyond a capacity."""
    assert sum(case.capacity is not None for case in CASES) == 1
    result = prove_all(Request(model, orders=3))
    latents = default_catalog().model(model).latent_attention is not None
    assert len(result.proofs) == len(catalogue_cases(experts=True, latents=latents))
    assert result.passed


@pytest.mark.parametrize("wrong", ["parts", "positions"])
def test_what_tensor_peers_make_is_summed_and_joined(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """A fault is named without the sum of the router's gradients, or with one peer's positions on both."""
    if wrong == "parts":
        monkeypatch.setattr(interpreter, "summed", lambda parts: parts[0].copy())
    else:
        right = Ranks.own
        monkeypatch.setattr(Ranks, "own", lambda ranks, _, values: right(ranks, 0, values))
    result = prove_all(Request("mixtral_8x7b", layout="tp=2,sp=true,ep=2", batch=1, orders=0))
    assert not result.passed


@pytest.mark.parametrize("layout", ["dp=2,ep=2", "tp=2,sp=true,recompute=full", "pp=2,schedule=zb1p"])
def test_blocks_whose_end_waits_for_the_host_compute_what_serial_training_does(
    subject_of: Callable[..., Subject], layout: str
) -> None:
    """What shared experts made is told from the host's wait, and a block that does not wait is found."""
    subject = subject_of("deepseek_v3", layout, batch=4, framework="megatron-core-te")
    assert WAIT_OF_EXPERTS in {work.name for work in subject.graph.works}
    assert subject.faults() == []
    removed = mutations(subject, "data dependency removed")
    early = [fault for fault in removed if f"does not wait for {WAIT_OF_EXPERTS}" in fault.description]
    assert early
    assert all(mutation.subject.is_wrong for mutation in early[:2])


@pytest.mark.parametrize(
    "layout", ["dp=2,ep=2", "tp=2,sp=true,dp=2,ep=2,etp=2,zero=1", "tp=2,sp=true,pp=2,dp=2,ep=4,etp=1"]
)
def test_the_norm_reaches_the_ranks_with_other_experts(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    (plan,) = plans_of(Request("gpt_oss_120b", layout=layout, batch=2))
    subject = Subject.of(plan)
    assert subject.training.max_norm == MAX_NORM
    assert subject.faults() == []
    alone = property(lambda part: part.ranks.stride * (part.shards if part.zero_stage else 1))
    monkeypatch.setattr(Replicas, "holders", alone)
    faults = Subject.of(plan).faults()
    differs = any("differs from serial training" in fault.detail for fault in faults)
    assert differs == (plan.layout.zero_stage == 0)


@pytest.mark.parametrize(
    ("layout", "keeps"), [("tp=2,sp=true", "qkv"), ("tp=2,sp=true", "nothing"), ("cp=2", "qkv")]
)
def test_a_full_recompute_may_keep_what_the_products_before_the_core_made(
    monkeypatch: pytest.MonkeyPatch, subject_of: Callable[..., Subject], layout: str, keeps: RecomputeKeeps
) -> None:
    """Those products run once a layer and micro-batch and once more where nothing is kept."""
    again = list[bool]()
    right = PARTS["heads"]

    def counted(tape: Tape, x: Node) -> Any:
        again.append("pair" in tape.kept)
        return right.run(tape, x)

    monkeypatch.setitem(PARTS, "heads", right._replace(run=counted))
    small = subject_of("deepseek_v3", f"{layout},recompute=full", batch=1, recompute_keeps=keeps)
    assert small.faults() == []
    assert any(again) == (keeps == "qkv")


def test_a_proof_says_what_of_its_model_it_does_not_execute() -> None:
    answer = prove_all(Request("deepseek_v3", layout="tp=2,sp=true", batch=1, orders=0)).as_dict()
    left_out = ["multi-token prediction over tensor peers"]
    assert answer["strategies"]["3d"]["layouts"][0]["not_executed"] == left_out
    said = " ".join(proof_lines(answer))
    assert "Not executed: multi-token prediction over tensor peers." in said
    answer = prove_all(Request("gpt_oss_120b", layout="dp=1", batch=1, orders=0)).as_dict()
    assert "Not executed" not in " ".join(proof_lines(answer))


def test_every_expert_has_equally_many_tokens_of_a_sequence_and_half_its_capacity_keeps_the_first() -> None:
    routing = _drawn_routing(EXPERTS, 3, 4, None, (0,))
    assert [np.bincount(part.ravel()).tolist() for part in routing.expert] == [[2] * 4] * 3
    assert all(len(set(slots)) == 2 for token in routing.expert for slots in token.tolist())
    assert routing.keeps.all()
    assert not np.array_equal(routing.expert[0], routing.expert[1])
    half = _drawn_routing(EXPERTS, 2, 4, 0.5, (0,)).keeps
    assert half.sum() == 2 * 4
    assert half[:, :2].all()
    assert not half[:, 2:].any()
