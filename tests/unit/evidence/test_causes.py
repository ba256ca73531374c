"""Likely causes: rules over a run's fields and the parts of its predicted step."""

from __future__ import annotations

from typing import Any

import pytest

from perfsim.evidence.accuracy_page import Facts
from perfsim.evidence.cases import StepCase
from perfsim.testing.toys import published_run


def facts(
    error: float,
    shares: dict[str, float],
    *,
    family_bias: float = 0.0,
    tensor_across_nodes: bool = False,
    **changes: Any,
) -> Facts:
    case = StepCase.model_validate(published_run(**changes))
    return Facts(case, shares, error=error, family_bias=family_bias, tensor_across_nodes=tensor_across_nodes)


def test_a_factor_makes_the_prediction_right() -> None:
    given = facts(0.25, {"attention core": 0.5})
    step_s, part_s = 1.25, 0.625  # measured 1 s
    assert step_s - part_s + part_s * given.factor("attention core") == pytest.approx(1.0)


def test_the_heaviest_mechanism_that_could_explain_the_error_alone_is_named_first() -> None:
    cause = facts(0.1, {"attention core": 0.2, "host-launch floor": 0.4, "optimizer": 0.03}).likely_cause
    assert cause.startswith("host-launch floor (40 % of the step, right at 0.77 times); attention core")


@pytest.mark.parametrize("error", [0.5, -0.5])
def test_a_mechanism_too_light_for_the_error_is_not_named(error: float) -> None:
    assert "optimizer" not in facts(error, {"optimizer": 0.05}).likely_cause


def test_weak_evidence_comes_first_with_what_the_notes_say_of_it() -> None:
    notes = "1F1B; weak: twice its neighbours"
    cause = facts(-0.1, {"attention core": 0.5}, evidence="C", notes=notes).likely_cause
    assert cause.startswith("weak evidence (twice its neighbours); attention core")
    assumed = ["vocab", "inter_node: rate not printed"]
    assert "not printed: vocab, inter_node" in facts(-0.1, {}, evidence="C", assumed=assumed).likely_cause


def test_heads_off_the_fast_path_are_named_where_attention_weighs() -> None:
    model = {"hidden_size": 1728}  # 108 a head
    assert "head size 108" in facts(-0.2, {"attention core": 0.04}, model=model).likely_cause
    assert "head size" not in facts(-0.2, {"attention core": 0.01}, model=model).likely_cause
    assert "head size" not in facts(-0.2, {"attention core": 0.04}).likely_cause


def test_tensor_parallelism_between_nodes_is_named_once() -> None:
    cause = facts(-0.1, {"tensor-parallel collectives": 0.5}, tensor_across_nodes=True).likely_cause
    assert cause == "tensor parallelism between nodes (50 % of the step)"


def test_an_error_that_the_family_shares_is_said_to_be_shared() -> None:
    assert "shared by its family (+8.0 %" in facts(0.1, {}, family_bias=0.08).likely_cause
    assert "shared" not in facts(-0.1, {}, family_bias=0.08).likely_cause


def test_head_and_loss_are_blamed_by_place_in_a_pipeline() -> None:
    shares = {"embedding, head and loss": 0.3}
    assert "on the last stage" in facts(0.1, shares, parallel={"pipeline": 2}).likely_cause
    assert "on the last stage" not in facts(0.1, shares).likely_cause


def test_a_host_that_blocks_is_named_where_it_weighs_enough() -> None:
    training = {"host_blocking": True}
    shares = {"host-launch floor": 0.2}
    assert "waits for every kernel" in facts(-0.1, shares, training=training).likely_cause
    assert "waits for every kernel" not in facts(-0.5, shares, training=training).likely_cause


def test_a_wafer_names_its_release() -> None:
    system = {"device": "cs-2", "num_devices": 1, "software_release": "r2.1"}
    cause = facts(-0.15, {"forward": 0.3, "backward": 0.6}, system=system).likely_cause
    assert cause == "computing (90 % of the step) at one efficiency for all of release r2.1"


def test_without_any_cause_that_is_said() -> None:
    assert facts(0.4, {}).likely_cause.startswith("no single mechanism")


def test_an_assumed_vocabulary_is_named_with_the_rows_that_would_fit() -> None:
    said = facts(0.1, {"embedding, head and loss": 0.25}, assumed=["vocab"]).likely_cause
    rows = round((1 - 0.1 / 1.1 / 0.25) * published_run()["model"]["vocab_size"])
    assert f"{rows:,} rows" in said
