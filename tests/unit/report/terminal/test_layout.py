"""The one function that draws tables on a terminal."""

from __future__ import annotations

import pytest

from perfsim.report.table import Cell, Table
from perfsim.report.text import COUNT, Unit, terminal_width

WHOLE = Unit("s", digits="{:.0f}".format)


@pytest.mark.parametrize(
    ("table", "width", "body"),
    [
        pytest.param(
            Table.of({"name": None, "value": WHOLE}, [["a", 44], ["long name", 6144]]),
            80,
            [
                "           value",
                "name           s",
                "----------------",
                "a             44",
                "long name   6144",
            ],
            id="figures stand flush right under their names",
        ),
        pytest.param(
            Table.of(("name", "x"), [["a", "1"], [Cell("b", mark=True), "2"]], "A caption."),
            80,
            [" name  x", "--------", " a     1", "*b     2", "A caption."],
            id="the best cells have a star and a caption stands below",
        ),
        pytest.param(
            Table.of(("name", "x"), [["a", "1"]]),
            7,
            ["name  x", "-------", "a     1"],
            id="two blanks just fit",
        ),
        pytest.param(
            Table.of(("name", "x"), [["a", "1"]]), 6, ["name x", "------", "a    1"], id="else one is left"
        ),
        pytest.param(Table.of(("", " "), [["a", "1"]]), 80, ["a  1"], id="without names there is no heading"),
        pytest.param(
            Table.of(("name", "x", "y"), [["one group of rows", "", ""], ["  a", "1", "2"]]),
            40,
            ["name  x  y", "----------", "one group of rows", "  a   1  2"],
            id="a row with nothing but a name is a heading without blanks at its end, wider than its column",
        ),
        pytest.param(
            Table.of({"name": None, "step": Unit("s"), "share": COUNT}, [["a", "1" * 30, "x" * 30]]),
            50,
            ["a", f"  step {'1' * 30} s; share", f"  {'x' * 30}"],
            id="where figures have no room each row becomes lines of names and values",
        ),
    ],
)
def test_a_table_is_drawn_as_agreed(table: Table, width: int, body: list[str]) -> None:
    assert table.lines(width) == body


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
