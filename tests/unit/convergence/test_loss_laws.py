"""Loss laws against their worked examples."""

from __future__ import annotations

import pytest

from perfsim.convergence.critical_batch import kaplan_tokens
from perfsim.convergence.loss_laws import (
    BESIROGLU,
    DEFAULT_LOSS_LAW,
    HOFFMANN,
    LOSS_LAWS,
    ChinchillaLaw,
)
from perfsim.errors import InputError, PlanError


@pytest.mark.parametrize(
    ("law", "params", "tokens", "tokens_per_param"),
    [(BESIROGLU, 7.225e10, 1.3287e12, 18.4), (HOFFMANN, 3.219e10, 2.982e12, 92.6)],
    ids=["besiroglu", "hoffmann"],
)
def test_optimum_at_the_chinchilla_budget(
    law: ChinchillaLaw, params: float, tokens: float, tokens_per_param: float
) -> None:
    best = law.optimum(5.76e23)
    assert best.params == pytest.approx(params, rel=5e-3)
    assert best.tokens == pytest.approx(tokens, rel=5e-3)
    assert best.tokens / best.params == pytest.approx(tokens_per_param, rel=5e-3)


@pytest.mark.parametrize("law", LOSS_LAWS.values(), ids=LOSS_LAWS)
def test_no_neighbour_at_the_same_compute_beats_the_optimum(law: ChinchillaLaw) -> None:
    best = law.optimum(1e22)
    least = law.loss(best.params, best.tokens)
    for factor in (0.9, 1.1):
        assert law.loss(best.params * factor, best.tokens / factor) > least


def test_only_the_rounded_law_carries_a_warning_and_it_is_not_the_default() -> None:
    assert DEFAULT_LOSS_LAW is BESIROGLU
    assert BESIROGLU.warning == ""
    assert "rounded" in HOFFMANN.warning


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


@pytest.mark.parametrize(
    ("params", "percent"), [(1.3e9, 8.5), (6.7e9, 15), (13e9, 20), (20e9, 23), (175e9, 51)]
)
def test_a_hundredth_of_a_nat_in_tokens(params: float, percent: float) -> None:
    assert -BESIROGLU.log_tokens_per_nat(20 * params) == pytest.approx(percent, rel=0.03)


def test_slope_agrees_with_a_small_change_of_loss() -> None:
    loss, step = BESIROGLU.loss(20e9, 4e11), 1e-6
    moved = BESIROGLU.tokens_to_loss(loss + step, 20e9)
    assert (moved / 4e11 - 1) / step == pytest.approx(BESIROGLU.log_tokens_per_nat(4e11), rel=1e-3)


def test_kaplan_batch_of_one_to_two_million_tokens_holds_for_these_losses_only() -> None:
    assert kaplan_tokens(3.04) == pytest.approx(1.05e6, rel=0.06)
    assert kaplan_tokens(2.63) == pytest.approx(2.1e6, rel=0.06)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_arguments_are_refused_by_name(bad: float) -> None:
    with pytest.raises(InputError, match="params must be positive"):
        BESIROGLU.loss(bad, 1e9)
    with pytest.raises(InputError, match="tokens must be positive"):
        BESIROGLU.loss(1e9, bad)
