"""Files with thousands of mistakes: each is counted, few are shown, and no step compares all with all."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from perfsim.base.errors import CatalogError
from perfsim.catalog import reader
from perfsim.catalog.yaml_tree import Node
from perfsim.studies.loading import load_study

MANY = 2_000


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[str], CatalogError]:
    """How a study of this text is refused."""

    def refused(text: str) -> CatalogError:
        path = tmp_path / "study.yaml"
        path.write_text(text)
        with pytest.raises(CatalogError) as caught:
            load_study(str(path))
        return caught.value

    return refused


def test_thousands_of_unknown_keys_are_counted_and_only_the_shown_get_a_suggestion(
    refusal: Callable[[str], CatalogError], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr(reader, "did_you_mean", lambda word, _: looked_up.append(word) or "")
    error = refusal("extends: gpt3_20b\n" + "".join(f"key_{number}: 1\n" for number in range(MANY)))
    assert len(error.problems) == MANY
    assert str(error).endswith(f"\nand {MANY - 20:,} more")
    assert len(looked_up) == 20


def test_names_are_looked_up_until_a_file_has_a_thousand_problems(
    refusal: Callable[[str], CatalogError],
) -> None:
    candidate = "  - {strategy: 3d, system: nowhere, devices: [8]}\n"
    error = refusal("extends: gpt3_20b\ncandidates:\n" + candidate * MANY)
    assert 1_000 <= len(error.problems) <= 1_002


def test_a_refused_entry_of_a_list_is_one_complaint(refusal: Callable[[str], CatalogError]) -> None:
    problems = refusal("extends: gpt3_20b\nbatch_sizes: [many]\n").problems
    messages = [problem.message for problem in problems]
    assert "batch_sizes[0]: `many` is text, a number is expected" in messages
    assert not [message for message in messages if "at least 1" in message]


def test_a_description_extends_another_key_by_key() -> None:
    parent, _ = Node.parsed("a: {b: 1, c: {d: 2}}\ne: 3\n7: 4\nsources: {a: x, a.c: y, e: z, 7: w}")
    child, _ = Node.parsed("a: {c: 5}\nsources: {a.c: own}")
    merged = reader._extend(child, parent)
    assert merged.plain() == {
        "a": {"b": 1, "c": 5},
        "e": 3,
        7: 4,
        "sources": {"a.b": "x", "e": "z", "a.c": "own"},
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("extends: " + "x" * 3_000, r"study\.yaml:1:10: extends: unknown study"),
        ("extends: " + "x" * 3_000 + ".yaml", r"study\.yaml:1:10: extends: there is no file"),
        ("extends: gpt3_20b\nconvergence: {law: dta_law}", r"study\.yaml:2:20: .*did you mean `data_law`"),
        (
            "extends: gpt3_20b\ncandidates:\n- {strategy: 4d, system: cs-2, devices: [1]}",
            r"study\.yaml:3:14: .*unknown strategy '4d'",
        ),
        (
            "extends: gpt3_20b\nrecipe: {extends: chinchilla, runtime: {software_release: 1 GB}}",
            r"study\.yaml:2:\d+: software_release: .*not of the form r2\.0",
        ),
    ],
    ids=["long name", "long path", "law", "strategy", "release"],
)
def test_what_was_refused_late_is_refused_at_its_line(
    refusal: Callable[[str], CatalogError], line: str, message: str
) -> None:
    assert re.search(message, str(refusal(f"{line}\n")), re.DOTALL)
