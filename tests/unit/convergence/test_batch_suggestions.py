"""Suggested batches against the comparison table at 20 tokens a parameter."""

from __future__ import annotations

import pytest

from perfsim.convergence.batch_suggestions import deepseek_tokens, minicpm_tokens
from perfsim.errors import InputError


@pytest.mark.parametrize(
    ("compute_flop", "loss", "deepseek", "minicpm"),
    [
        (2.03e20, 2.466, 1.28e6, 4.33e6),
        (5.39e21, 2.179, 3.75e6, 9.38e6),
        (2.03e22, 2.103, 5.78e6, 11.7e6),
        (4.8e22, 2.062, 7.66e6, 13.2e6),
        (3.67e24, 1.930, 31.7e6, 20.0e6),
    ],
)
def test_suggested_batches_of_the_comparison_table(
    compute_flop: float, loss: float, deepseek: float, minicpm: float
) -> None:
    assert deepseek_tokens(compute_flop) == pytest.approx(deepseek, rel=5e-3)
    assert minicpm_tokens(loss) == pytest.approx(minicpm, rel=5e-3)


def test_impossible_arguments_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="compute_flop"):
        deepseek_tokens(0.0)
    with pytest.raises(InputError, match="loss"):
        minicpm_tokens(-1.0)
