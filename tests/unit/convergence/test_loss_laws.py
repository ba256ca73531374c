"""Loss laws against their worked examples."""

from __future__ import annotations

import math

import pytest

from perfsim.base.errors import InputError, PlanError, UnknownNameError
from perfsim.convergence.laws import (
    BESIROGLU,
    CEREBRAS_GPT,
    KAPLAN,
    SEED_ERROR,
    compute_law,
    loss_law,
)


def test_the_chinchilla_budget_is_spent_best_on_the_published_model() -> None:
    """72.25 billion parameters, 18.4 tokens each: a larger or smaller one ends at a higher loss."""

    def loss(params: float) -> float:
        return BESIROGLU.loss(params, 5.76e23 / (6 * params))

    assert loss(7.225e10) < min(loss(7.225e10 * 1.01), loss(7.225e10 / 1.01))


def test_a_model_too_small_for_the_loss_is_refused_with_the_least_it_reaches() -> None:
    assert BESIROGLU.loss(20e9, 4e11) == pytest.approx(2.0621, rel=1e-4)
    with pytest.raises(PlanError, match=r"too small for a loss of 1\.9: .* approaches 1\.9432") as refusal:
        BESIROGLU.tokens_to_loss(1.9, 20e9)
    assert refusal.value.exit_code == 3
    for law, loss in ((BESIROGLU, BESIROGLU.smallest_loss(1e9)), (KAPLAN, 1.0)):
        with pytest.raises(PlanError, match="too small"):
            law.tokens_to_loss(loss, 1e9)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_arguments_are_refused_by_name(bad: float) -> None:
    with pytest.raises(InputError, match="params must be positive"):
        BESIROGLU.loss(bad, 1e9)
    with pytest.raises(InputError, match="tokens must be positive"):
        BESIROGLU.loss(1e9, bad)


# --------------------------------------------------------------------------------------- the Pile
def test_the_pile_law_of_the_five_smaller_models_predicts_the_two_larger_ones() -> None:
    law = compute_law(CEREBRAS_GPT[:5])
    assert law.params == (111e6, 2.7e9)
    for params, tokens, loss in CEREBRAS_GPT[5:]:
        assert abs(law.loss(params, tokens) - loss) < 0.03


def test_13b_reaches_the_published_loss_on_the_pile_at_the_published_tokens() -> None:
    target = loss_law("cerebras_gpt").target(1.575, 12.85e9, "Pile")
    assert target.tokens / (1 + target.d_min_error) < 2.57e11 < target.tokens * (1 + target.d_min_error)
    assert target.tokens == pytest.approx(2.57e11, rel=0.12)
    assert target.slope == pytest.approx(12.7, abs=0.1)
    assert target.text == "0.01 nat of loss is 13 % of the tokens, and the law is known within 0.038 nat"


def test_hundredths_of_a_nat_are_a_quarter_of_the_tokens_of_20b() -> None:
    target = BESIROGLU.target(2.0621, 20e9)
    assert 0.01 * target.slope == pytest.approx(0.23, abs=0.005)
    assert target.d_min_error == pytest.approx(math.expm1(target.slope * SEED_ERROR))


@pytest.mark.parametrize(
    ("name", "loss", "params", "words"),
    [
        ("besiroglu", 1.95, 20e9, r"tokens, while its runs have 5e\+09 to 5e\+11"),
        ("besiroglu", 2.2, 100e9, "parameters, while its runs have"),
        ("cerebras_gpt", 2.0, 13e9, "tokens a parameter, while its runs have 20"),
        ("cerebras_gpt", 1.43, 40e9, "parameters, while its runs have"),
        ("kaplan", 2.5, 13e9, "parameters, while its runs have 768"),
    ],
)
def test_a_law_is_refused_outside_its_runs_by_name(name: str, loss: float, params: float, words: str) -> None:
    with pytest.raises(InputError, match=f"loss law '{name}' is used outside its runs .*{words}") as refusal:
        loss_law(name).target(loss, params)
    assert "other laws: " in str(refusal.value)


def test_a_law_is_refused_for_another_corpus_and_an_unknown_one_by_name() -> None:
    other = r"'besiroglu' is of MassiveText, not of the Pile.*cerebras_gpt \(the Pile\)"
    with pytest.raises(InputError, match=other):
        BESIROGLU.target(2.1, 13e9, "the Pile")
    assert BESIROGLU.target(2.2, 13e9, "massivetext") == BESIROGLU.target(2.2, 13e9)
    with pytest.raises(UnknownNameError, match="did you mean `hoffmann`"):
        loss_law("hofmann")
