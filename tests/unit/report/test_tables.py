"""Tables in files: CSV and Parquet hold the rows that they were given."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfsim.api.questions import Rows
from perfsim.base.errors import InputError, PerfsimError
from perfsim.report.table import write_table

ROWS: list[dict[str, Any]] = [
    {"name": 'a, "b"', "seconds": 0.1 + 0.2, "steps": 3, "fits": True, "note": None, "mixed": 1},
    {"name": "=cmd()", "seconds": None, "steps": 10**12, "fits": False, "note": None, "mixed": "x"},
]


def test_a_csv_file_has_every_digit_and_no_formula(tmp_path: Path) -> None:
    path = Rows(tuple(ROWS)).save(tmp_path / "rows.csv")
    with path.open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["name"], float(first["seconds"]), first["note"]) == ('a, "b"', 0.1 + 0.2, "")
    assert (second["name"], second["steps"], second["seconds"]) == ("'=cmd()", "1000000000000", "")


def test_a_parquet_file_reads_back_as_the_rows(tmp_path: Path) -> None:
    path = write_table(ROWS, tmp_path / "rows.parquet")
    read = pq.read_table(path).to_pylist()
    assert read == [row | {"mixed": str(row["mixed"])} for row in ROWS]


def test_no_rows_are_an_empty_table(tmp_path: Path) -> None:
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
