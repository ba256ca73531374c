"""The nearest name that exists."""

from __future__ import annotations

from perfsim.base.text import did_you_mean, nearest


def test_the_nearest_name_ignores_case_and_is_none_where_nothing_is_alike() -> None:
    assert nearest("GPT3_20BB", ["gpt3_20b", "GPT3_XL"]) == "gpt3_20b"
    assert nearest("llama", ["gpt3_20b"]) == ""


def test_help_holds_the_nearest_and_all_names() -> None:
    assert did_you_mean("tpp", ["tp", "pp"]) == "did you mean `tp`? known: tp, pp"
    assert did_you_mean("q", ["tp", "pp"]) == "known: tp, pp"
    assert did_you_mean("q", []) == ""


def test_a_name_that_begins_with_the_word_or_holds_it_comes_before_one_that_is_spelled_alike() -> None:
    systems = ["b200-sxm-180gb", "dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100", "gb200-nvl72"]
    assert did_you_mean("dgx_a100", systems).startswith("did you mean `dgx-a100-40gb`? known: ")
    assert nearest("b200", systems) == "b200-sxm-180gb"
    assert nearest("h100", systems) == "dgx-h100"


def test_several_names_that_hold_the_word_are_all_suggested() -> None:
    systems = ["dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100", "memoryx-a100"]
    said = did_you_mean("a100", systems)
    assert said.startswith("did you mean `memoryx-a100`, `dgx-a100-40gb` or `dgx-a100-80gb`? known: ")


def test_what_others_call_it_is_known() -> None:
    assert (
        did_you_mean("RoPE", ["learned", "rotary"]) == "RoPE is called `rotary` here; known: learned, rotary"
    )
    assert did_you_mean("rope", ["rope", "none"]) == "did you mean `rope`? known: rope, none"
    assert did_you_mean("fsdp", ["tp"]) == "known: tp"
