"""One table and its writers: text for terminal and page, Markdown, CSV and Parquet; and JSON documents."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfsim.api.questions import Rows
from perfsim.base.errors import InputError, PerfsimError
from perfsim.report.document import document_text, plain
from perfsim.report.page import Page, Section
from perfsim.report.table import Cell, Table, write_table
from perfsim.report.text import COUNT, SHARE, TIME, Unit

DAYS = Unit("days", 86400.0)
TABLE = Table.of(
    {"machine": None, "time": DAYS, "share": SHARE, "devices": COUNT},
    [
        ("one", Cell(32 * 86400.0, (86400.0, 64 * 86400.0), mark=True), Cell(0.5, note="of all"), 1024),
        ("two", None, None, Cell(90.0, unit=TIME)),
    ],
)
ROWS: list[dict[str, Any]] = [
    {"name": 'a, "b"', "seconds": 0.1 + 0.2, "steps": 3, "fits": True, "note": None, "mixed": 1, "or": True},
    {
        "name": "=cmd()",
        "seconds": None,
        "steps": 10**12,
        "fits": False,
        "note": None,
        "mixed": "x",
        "or": "x",
    },
]


def test_a_unit_stands_in_the_heading_and_a_cell_may_have_its_own() -> None:
    assert TABLE.heads() == ["machine", "time (days)", "share", "devices"]
    assert TABLE.shown() == [
        ["one", "32.0 (1.00 to 64.0)", "50.0 % of all", "1,024"],
        ["two", "\N{EN DASH}", "\N{EN DASH}", "90.0 s"],
    ]


def test_turned_columns_are_rows_that_keep_units_and_marks() -> None:
    turned = TABLE.turned()
    assert turned.heads() == ["", "one", "two"]
    assert turned.shown()[0] == ["time", "32.0 days (1.00 to 64.0)", "\N{EN DASH}"]
    assert turned.rows[0][1].mark
    assert turned.shown()[2] == ["devices", "1,024", "90.0 s"]
    assert Table.of({"share": SHARE, "devices": COUNT}, [(0.5, 2)]).turned().heads() == ["", "50.0 %"]


def test_groups_are_headings_above_rows_that_are_named_by_the_second_column() -> None:
    rows = [("a", "one", 1), ("a", "two", 2), ("b", "three", 3)]
    grouped = Table.of({"group": None, "name": None, "x": COUNT}, rows).grouped()
    assert grouped.shown() == [["a", ""], ["  one", "1"], ["  two", "2"], ["b", ""], ["  three", "3"]]


def test_at_the_pointer_only_what_a_row_has_is_told() -> None:
    assert TABLE.hovers("time", "devices") == [
        "<b>one</b><br>time: 32.0 days (1.00 to 64.0)<br>devices: 1,024",
        "<b>two</b><br>devices: 90.0 s",
    ]


def test_some_columns_in_another_order_are_a_table_too() -> None:
    assert TABLE.only("devices", "machine").shown() == [["1,024", "one"], ["90.0 s", "two"]]
    assert [cell.value for cell in TABLE.column("devices")] == [1024, 90.0]
    with pytest.raises(TypeError, match="no number"):
        _ = TABLE.rows[0][0].number


def test_in_words_marked_rows_are_told_else_the_first() -> None:
    assert TABLE.words("time", "devices") == "one: time 32.0 days (1.00 to 64.0), devices 1,024"
    assert TABLE.words("devices", most=1) == "one: 1,024; and 1 more"
    assert TABLE.words("time", most=1) == "one: 32.0 days (1.00 to 64.0)"
    many = Table.of({"name": None, "x": COUNT}, [(f"r{row}", row) for row in range(13)])
    assert many.words("x").endswith("r11: 11; and 1 more")


def test_gaps_of_a_plain_table_close_where_two_spaces_do_not_fit() -> None:
    table = Table.of({"name": None, "x": COUNT, "y": COUNT}, [("abcdef", 10, 20)])
    wide, narrow = (table.lines(width)[-1] for width in (14, 13))
    assert wide == "abcdef  10  20"
    assert narrow == "abcdef 10 20"


def test_markdown_has_headings_leads_and_aligned_tables() -> None:
    table = Table.of({"what": None, "much": COUNT}, [["a\nb", 1]], "A caption.")
    sections = [Section("One", "A lead.", table=table, level=3)]
    assert Page("Title", sections, "Question?", footer="End.").markdown() == (
        "# Title\n\nQuestion?\n\n### One\n\nA lead.\n\n"
        "| what | much |\n| --- | ---: |\n| a b | 1 |\n\nA caption.\n\nEnd.\n"
    )
    assert Table.of(("x",), [["a|b"]]).markdown().endswith("| a\\|b |")


def test_a_csv_file_has_every_digit_and_no_formula(tmp_path: Path) -> None:
    path = Rows(tuple(ROWS)).save(tmp_path / "rows.csv")
    with path.open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["name"], float(first["seconds"]), first["note"]) == ('a, "b"', 0.1 + 0.2, "")
    assert (second["name"], second["steps"], second["seconds"]) == ("'=cmd()", "1000000000000", "")


def test_a_parquet_file_reads_back_as_the_rows_and_no_rows_as_none(tmp_path: Path) -> None:
    path = write_table(ROWS, tmp_path / "rows.parquet")
    read = pq.read_table(path).to_pylist()
    assert read == [row | {"mixed": str(row["mixed"]), "or": str(row["or"])} for row in ROWS]
    assert write_table([], tmp_path / "none.csv").read_text("utf-8").strip() == ""
    assert pq.read_table(write_table([], tmp_path / "none.parquet")).num_rows == 0


def test_another_suffix_is_refused_and_a_missing_library_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"written as .csv or .parquet"):
        write_table(ROWS, tmp_path / "rows.xlsx")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PerfsimError, match=r"perfsim\[parquet\]"):
        write_table(ROWS, tmp_path / "rows.parquet")


def test_a_document_has_sorted_keys_and_every_digit_and_what_is_not_finite_is_null() -> None:
    document = {"y": [math.nan, math.inf, -math.inf], "x": 0.1 + 0.2}
    assert json.loads(document_text(document)) == {"x": 0.1 + 0.2, "y": [None] * 3}
    assert document_text(document) == document_text(dict(reversed(document.items())))


def test_values_of_numpy_and_read_only_mappings_are_plain_json() -> None:
    value = MappingProxyType({"a": np.float64(0.5), "b": np.arange(3), "c": (np.int64(7), True, None)})
    assert json.dumps(plain(value)) == '{"a": 0.5, "b": [0, 1, 2], "c": [7, true, null]}'
