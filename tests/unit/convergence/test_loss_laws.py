"""Loss laws against their worked examples."""

from __future__ import annotations

import pytest

from perfsim.convergence.critical_batch import kaplan_tokens
from perfsim.convergence.loss_laws import BESIROGLU
from perfsim.errors import InputError, PlanError


def test_the_chinchilla_budget_is_spent_best_on_the_published_model() -> None:
    """72.25 billion parameters, 18.4 tokens each: a larger or smaller one ends at a higher loss."""

    def loss(params: float) -> float:
        return BESIROGLU.loss(params, 5.76e23 / (6 * params))

    assert loss(7.225e10) < min(loss(7.225e10 * 1.01), loss(7.225e10 / 1.01))


def test_loss_of_the_20b_run_and_its_inverse() -> None:
    loss = BESIROGLU.loss(20e9, 4e11)
    assert loss == pytest.approx(2.0621, rel=1e-4)
    assert BESIROGLU.tokens_to_loss(loss, 20e9) == pytest.approx(4e11, rel=1e-9)


def test_a_model_too_small_for_the_loss_is_refused_with_the_least_it_reaches() -> None:
    with pytest.raises(PlanError, match=r"too small for a loss of 1\.9: .* approaches 1\.9432") as refusal:
        BESIROGLU.tokens_to_loss(1.9, 20e9)
    assert refusal.value.exit_code == 3


def test_the_least_loss_itself_is_refused() -> None:
    with pytest.raises(PlanError, match="too small"):
        BESIROGLU.tokens_to_loss(BESIROGLU.smallest_loss(1e9), 1e9)


def test_kaplan_batch_of_one_to_two_million_tokens_holds_for_these_losses_only() -> None:
    assert kaplan_tokens(3.04) == pytest.approx(1.05e6, rel=0.06)
    assert kaplan_tokens(2.63) == pytest.approx(2.1e6, rel=0.06)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_arguments_are_refused_by_name(bad: float) -> None:
    with pytest.raises(InputError, match="params must be positive"):
        BESIROGLU.loss(bad, 1e9)
    with pytest.raises(InputError, match="tokens must be positive"):
        BESIROGLU.loss(1e9, bad)
