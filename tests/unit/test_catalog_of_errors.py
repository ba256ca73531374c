"""Files with thousands of mistakes: each is counted, few are shown, and no step compares all with all."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.catalog import Catalog, complaints, compose, data_root
from perfsim.catalog.nodes import parse_yaml
from perfsim.errors import CatalogError
from perfsim.studies.loading import load_study

MANY = 2_000


def test_thousands_of_unknown_keys_are_counted_and_only_the_shown_get_a_suggestion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(complaints, "did_you_mean", lambda word, _: asked.append(word) or "")
    path = tmp_path / "study.yaml"
    path.write_text("extends: gpt3_20b\n" + "".join(f"key_{number}: 1\n" for number in range(MANY)))
    with pytest.raises(CatalogError) as caught:
        load_study(str(path), Catalog([data_root()]))
    assert len(caught.value.problems) == MANY
    assert str(caught.value).endswith(f"\nand {MANY - 20:,} more")
    assert len(asked) == 20


def test_names_are_looked_up_until_a_file_has_a_thousand_problems(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    candidate = "  - {strategy: 3d, system: nowhere, devices: [8]}\n"
    path.write_text("extends: gpt3_20b\ncandidates:\n" + candidate * MANY)
    with pytest.raises(CatalogError) as caught:
        load_study(str(path), Catalog([data_root()]))
    assert 1_000 <= len(caught.value.problems) <= 1_002


def test_a_description_extends_another_key_by_key() -> None:
    parent, _ = parse_yaml("a: {b: 1, c: {d: 2}}\ne: 3\n7: 4\nsources: {a: x, a.c: y, e: z, 7: w}")
    child, _ = parse_yaml("a: {c: 5}\nsources: {a.c: own}")
    merged = compose.extend(child, parent)
    assert merged.plain() == {
        "a": {"b": 1, "c": 5},
        "e": 3,
        7: 4,
        "sources": {"a.b": "x", "e": "z", "a.c": "own"},
    }
