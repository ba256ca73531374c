"""One table and its writers: text for terminal and page, Markdown, CSV and Parquet; and JSON documents."""

import json
import math
import sys
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from perfsim.base.errors import InputError, PerfsimError
from perfsim.report.page import Page, Section
from perfsim.report.table import Cell, Table, document_text, plain, write_table
from perfsim.report.text import COUNT, FEW, NUMBER


def test_markdown_has_headings_leads_and_aligned_tables() -> None:
    table = Table.of({"what": None, "much": COUNT}, [["a\nb", 1]], "A caption.")
    sections = [Section("One", "A lead.", table=table, level=3)]
    assert Page("Title", sections, "Question?", footer="End.").markdown() == (
        "# Title\n\nQuestion?\n\n### One\n\nA lead.\n\n"
        "| what | much |\n| --- | ---: |\n| a b | 1 |\n\nA caption.\n\nEnd.\n"
    )
    assert Table.of(("x",), [["a|b"]]).markdown().endswith("| a\\|b |")


def test_another_suffix_or_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"written as .csv or .parquet"):
        write_table([{"name": "a"}], tmp_path / "rows.xlsx")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PerfsimError, match=r"perfsim\[parquet\]"):
        write_table([{"name": "a"}], tmp_path / "rows.parquet")


def test_a_document_has_sorted_keys_and_every_digit_and_what_is_not_finite_is_null() -> None:
    document = {"y": [math.nan, math.inf, -math.inf], "x": 0.1 + 0.2}
    assert json.loads(document_text(document)) == {"x": 0.1 + 0.2, "y": [None] * 3}
    assert document_text(document) == document_text(dict(reversed(document.items())))


def test_values_of_numpy_and_read_only_mappings_are_plain_json() -> None:
    value = MappingProxyType({"a": np.float64(0.5), "b": np.arange(3), "c": (np.int64(7), True, None)})
    assert json.dumps(plain(value)) == '{"a": 0.5, "b": [0, 1, 2], "c": [7, true, null]}'


def test_a_band_is_narrow_and_digits_of_large_numbers_stay_apart() -> None:
    table = Table.of(
        {"what": None, "days": NUMBER}, [["a", Cell(value, (value, value))] for value in (1450, 5.64e6)]
    )
    said = [["1450", "(1450-1450)"], ["5,640,000", "(5,640,000-5,640,000)"]]
    assert [line.split()[1:] for line in table.lines()[-2:]] == said
    assert [FEW.text(value) for value in (0.4321, 18615.2)] == ["0.432", "18,615"]


def test_a_layout_that_is_too_wide_breaks_between_its_settings() -> None:
    layout = "tp=4,pp=2,dp=16,vpp=11,schedule=interleaved,mbs=4,recompute=selective"
    lines = Table.of({"layout": None, "s": COUNT}, [[layout, 1]]).lines(50)[2:]
    parts = [line.split()[0] for line in lines]
    assert "".join(parts) == layout
    assert all(part.endswith(",") for part in parts[:-1])
