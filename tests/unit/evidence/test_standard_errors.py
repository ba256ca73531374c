"""Standard errors of fits: right where a closed form exists, and honest where nothing was measured."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.evidence.fitting import Loss, account, cluster_of, log_jacobian, profile


def least_squares(error: np.ndarray, cluster: np.ndarray) -> Loss:
    return Loss(error, np.ones_like(error), cluster)


def test_the_error_of_a_mean_is_the_spread_over_the_root_of_the_rows() -> None:
    error = np.random.default_rng(0).normal(0, 0.1, 400)
    error -= error.mean()
    found = account(["scale"], np.ones((400, 1)), least_squares(error, np.arange(400)))
    assert found.errors["scale"] == pytest.approx(error.std(ddof=1) / 20, rel=0.01)
    assert not found.assumed


def test_rows_that_err_together_count_once() -> None:
    error = np.random.default_rng(0).normal(0, 0.1, 100)
    error -= error.mean()
    alone = account(["scale"], np.ones((100, 1)), least_squares(error, np.arange(100)))
    cluster = np.repeat(np.arange(100), 9)
    repeated = account(["scale"], np.ones((900, 1)), least_squares(np.repeat(error, 9), cluster))
    assert repeated.errors == alone.errors


def test_of_two_constants_that_rows_cannot_tell_apart_one_is_held() -> None:
    error = np.random.default_rng(0).normal(0, 0.1, 400)
    first = np.ones(400)
    jacobian = np.stack([first, first + 1e-4 * error[::-1]], axis=1)
    found = account(["one", "other"], jacobian, least_squares(error, np.arange(400)))
    assert len(found.errors) == 1
    assert next(iter(found.errors.values())) < 0.01
    assert "not determined" in next(iter(found.assumed.values()))


def test_a_constant_that_no_row_depends_on_is_an_assumption() -> None:
    jacobian = np.stack([np.ones(50), np.zeros(50)], axis=1)
    error = np.random.default_rng(0).normal(0, 0.1, 50)
    found = account(["used", "idle"], jacobian, least_squares(error, np.arange(50)))
    assert list(found.errors) == ["used"]
    assert found.assumed["idle"].startswith("no row of the table depends on it")


def test_the_jacobian_of_a_power_law_is_its_exponents() -> None:
    def predict(logs: np.ndarray) -> np.ndarray:
        return np.array([2 * logs[0] - logs[1], 0.5 * logs[1]])

    found = log_jacobian(predict, np.array([0.3, 0.7]))
    assert found == pytest.approx(np.array([[2.0, -1.0], [0.0, 0.5]]), abs=1e-9)


def test_a_profile_is_wide_where_the_loss_does_not_change() -> None:
    cluster = np.arange(100)
    noise = np.random.default_rng(0).normal(0, 0.1, 100)
    assert profile(lambda step: (noise + step) ** 2, cluster) <= 0.05
    assert profile(lambda step: noise**2, cluster) == float("inf")


def test_rows_equal_in_all_columns_are_one_cluster() -> None:
    found = cluster_of(np.array([1.0, 1.0, 2.0, 1.0]), np.array([5.0, 6.0, 5.0, 5.0]))
    assert found[0] == found[3]
    assert len(set(found.tolist())) == 3
