"""Rows as a table on a terminal."""

from __future__ import annotations

import pytest

from perfsim.report.listing import listing


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_columns_line_up_under_their_names() -> None:
    rows = [
        {"name": "a", "value": "44", "source": "x"},
        {"name": "long name", "value": "6144", "source": "y"},
    ]
    assert listing(rows, "models").splitlines() == [
        "name       value  source",
        "a          44     x",
        "long name  6144   y",
    ]


def test_the_last_column_wraps_under_itself_and_nothing_is_lost() -> None:
    words = [f"word{number}" for number in range(60)]
    lines = listing([{"name": "a", "source": " ".join(words)}], "x").splitlines()
    assert len(lines) > 3
    assert all(len(line) <= 80 for line in lines)
    assert all(line.startswith("      word") for line in lines[2:])
    assert " ".join(lines[1:]).split() == ["a", *words]


def test_wide_first_columns_leave_the_last_one_room() -> None:
    lines = listing([{"name": "n" * 90, "source": "several words " * 5}], "x").splitlines()
    assert max(len(line) for line in lines) <= 92 + 30


def test_an_empty_cell_leaves_no_blanks_at_the_end_of_a_line() -> None:
    assert listing([{"name": "a", "source": ""}], "x").splitlines()[1] == "a"


def test_no_rows_are_said_to_be_none() -> None:
    assert listing([], "models") == "models: nothing"
