"""The one function that draws tables on a terminal."""

from __future__ import annotations

import pytest

from perfsim.report.table import Cell, Table
from perfsim.report.text import COUNT, Unit, terminal_width


def test_columns_line_up_under_their_names_and_figures_flush_right() -> None:
    table = Table.of(
        {"name": None, "value": Unit("s", digits="{:.0f}".format)}, [["a", 44], ["long name", 6144]]
    )
    assert table.lines(80) == [
        "           value",
        "name           s",
        "----------------",
        "a             44",
        "long name   6144",
    ]


def test_the_best_cells_have_a_star_and_a_caption_stands_below() -> None:
    table = Table.of(("name", "x"), [["a", "1"], [Cell("b", mark=True), "2"]], "A caption.")
    assert table.lines(80) == [" name  x", "--------", " a     1", "*b     2", "A caption."]


def test_a_table_without_names_has_no_heading() -> None:
    assert Table.of(("", " "), [["a", "1"]]).lines(80) == ["a  1"]


def test_names_wrap_under_themselves_and_nothing_is_lost() -> None:
    words = [f"word{number}" for number in range(60)]
    lines = Table.of(("name", "source"), [["a", " ".join(words)]]).lines(80)
    assert len(lines) > 3
    assert all(len(line) <= 80 for line in lines)
    assert all(line.startswith("     word") for line in lines[3:])
    assert " ".join(lines[2:]).split() == ["a", *words]


def test_figures_never_wrap_however_narrow_the_terminal_is() -> None:
    table = Table.of({"name": None, "figure": COUNT}, [["n" * 40, "1" * 40]])
    lines = table.lines(72)
    assert "1" * 40 in lines[2]
    assert max(map(len, lines)) <= 72


def test_an_empty_cell_leaves_no_blanks_at_the_end_of_a_line() -> None:
    assert Table.of(("name", "source"), [["a", ""]]).lines(80)[2] == "a"


def test_where_figures_have_no_room_each_row_becomes_lines_of_names_and_values() -> None:
    table = Table.of({"name": None, "step": Unit("s"), "share": COUNT}, [["a", "1" * 30, "x" * 30]])
    assert table.lines(50) == ["a", f"  step {'1' * 30} s; share", f"  {'x' * 30}"]


def test_a_row_with_nothing_but_a_name_is_a_heading_and_may_be_wider_than_the_column() -> None:
    table = Table.of(("name", "x", "y"), [["one group of rows", "", ""], ["  a", "1", "2"]])
    assert table.lines(40)[2:] == ["one group of rows", "  a   1  2"]


def test_a_row_of_two_columns_is_no_heading_and_its_words_wrap_in_their_column() -> None:
    words = "one two three four five six seven eight"
    lines = Table.of(("name", "source"), [[words, ""], ["b", "c " * 30]]).lines(40)
    assert lines[2:4] == ["one two three four", "five six seven eight"]


def test_a_name_that_is_set_in_keeps_its_longest_word_whole() -> None:
    table = Table.of(("name", "source"), [["    abcdefgh", "1" * 30], ["b", "2 " * 30]])
    assert table.lines(43)[2] == f"    abcdefgh {'1' * 30}"
    assert table.lines(42)[0] == "abcdefgh", "else each row becomes lines of names and values"


@pytest.mark.parametrize(("columns", "width"), [("20", 40), ("60", 60), ("80", 80), ("132", 132), ("", 100)])
def test_tables_are_as_wide_as_the_terminal_and_at_least_40(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.__stdout__", None)  # a pipe
    assert terminal_width() == width
