"""Errors: of arithmetic, of many problems at once, and with the nearest name that exists."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perfsim.base.errors import InputError, PerfsimError, Problem, within_floats
from perfsim.base.text import did_you_mean, nearest


@pytest.mark.parametrize(
    "overflow",
    [
        lambda: np.float64(1e300) * np.array([1e300]),
        lambda: np.array([1.0]) / np.array([0.0]),
        lambda: np.array([np.inf]) - np.array([np.inf]),
        lambda: np.array([1e300]).astype(np.int64),
        lambda: 1.0 / 0.0,
        lambda: 10.0**400,
    ],
)
def test_arithmetic_without_a_result_is_an_error(overflow: Callable[[], object]) -> None:
    with pytest.raises(PerfsimError, match="leave the range of floating point"):
        within_floats(overflow)()


def test_arithmetic_with_a_result_is_left_alone() -> None:
    assert within_floats(lambda: float(np.float64(1e-300) * np.float64(1e-300)))() == 0.0


def test_an_error_shows_the_first_problems_and_counts_the_others() -> None:
    error = InputError([Problem(f"problem {number}") for number in range(16_000)])
    assert len(error.problems) == 16_000
    assert str(error).splitlines()[19:] == ["problem 19", "and 15,980 more"]


def test_help_holds_the_nearest_what_others_call_it_and_all_names() -> None:
    for word, names, said in (
        ("tpp", ["tp", "pp"], "did you mean `tp`? known: tp, pp"),
        ("q", ["tp", "pp"], "known: tp, pp"),
        ("q", [], ""),
        ("RoPE", ["learned", "rotary"], "RoPE is called `rotary` here; known: learned, rotary"),
        ("rope", ["rope", "none"], "did you mean `rope`? known: rope, none"),
        ("fsdp", ["tp"], "known: tp"),
    ):
        assert did_you_mean(word, names) == said


def test_a_name_that_begins_with_the_word_or_holds_it_comes_before_one_that_is_spelled_alike() -> None:
    systems = ["b200-sxm-180gb", "dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100", "gb200-nvl72"]
    assert nearest("b200", systems) == "b200-sxm-180gb"
    assert nearest("h100", systems) == "dgx-h100"
    assert nearest("GPT3_20BB", ["gpt3_20b", "GPT3_XL"]) == "gpt3_20b"
    assert nearest("llama", ["gpt3_20b"]) == ""
    assert did_you_mean("dgx_a100", systems).startswith("did you mean `dgx-a100-40gb`? known: ")
    several = did_you_mean("a100", ["dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100", "memoryx-a100"])
    assert several.startswith("did you mean `memoryx-a100`, `dgx-a100-40gb` or `dgx-a100-80gb`? known: ")
    many = [f"model-{number}" for number in range(41)]
    assert did_you_mean("model_40", many) == "did you mean `model-40`? 41 names are known"
    assert did_you_mean("model_39", many[:40]).endswith("known: " + ", ".join(many[:40]))
