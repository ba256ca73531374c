"""Tables of today in words: a terminal's lines at every width, Markdown, figures' words, CSV and Parquet."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfsim.report.table import Cell, Table, write_table
from perfsim.report.text import COUNT, SHARE, TIME, Unit, terminal_width

DAYS = Unit("days", 86400.0)
MACHINES = Table.of(
    {"machine": None, "how it is fed": None, "time": DAYS, "share of all": SHARE, "devices": COUNT},
    [
        ("16 A100", "over trees of multi-node link", Cell(2764800.0, (86400.0, 6.4e6), mark=True), 0.5, 1024),
        ("16 A100", "alone", Cell(33 * 86400.0, (9e4, 6.3e6)), Cell(0.25, note="of most_of_the_[steps]"), 8),
        ("heading", "", "", "", ""),
        ("* wafer", "https://a.org/an-address-of-much", None, Cell(0.1, mark=True), Cell(9.0, unit=TIME)),
        ("3 x <b>", "a|b *c* `d`", Cell(float("inf")), None, Cell(None, note="none fits")),
    ],
    "A caption that is longer than a narrow terminal, with a_name and one more sentence. It ends here.",
)  # fmt: skip
TABLES = {
    "machines": MACHINES,
    "words": Table.of(("", " "), [("a name of some length", "one-two three"), ("b", "pre-trained x")]),
    "one column": Table.of(("name",), [["one"], ["an extraordinarily-long-compound-word-that-does-not-end"]]),
    "figures": Table.of({"step of 1,024": TIME, "b": COUNT}, [(0.5, 2), (Cell(1.5, mark=True), 1)]),
    "many": Table.of({"name": None, "x": COUNT}, [(f"r{row}", row) for row in range(14)]),
    "part named": Table.of({"": None, "x": COUNT}, [("a name that says it all", ""), ("b" * 40, 5)]),
    "gaps": Table.of({"name": None, "b": None, "x": DAYS}, [("a longer one", "bb", None), ("c", "", 86400)]),
    "no rows": Table.of({"name": None, "x": COUNT}, []),
    "headings": Table.of({"name": None, "x": COUNT, "y": COUNT}, [("a long heading of them", "", "")] * 2),
}
WIDTHS = (16, 24, 33, 40, 48, 56, 57, 64, 72, 79, 80, 88, 96, 104, 105, 120, 160)
"""Of a large table; a small one is laid out in each up to 60."""
SCORED = SimpleNamespace(name="a", score={"mape": 0.1}, at=None)
PLACED = SimpleNamespace(name="b", score=None, at=SimpleNamespace(x=3))
ROWS: list[dict[str, Any]] = [
    {"name": 'a, "b"', "s": 0.1 + 0.2, "n": 3, "fits": True, "note": None, "mix": 1, "or": True, "2": 1},
    {"name": "=cmd()", "s": None, "n": 10**12, "fits": False, "note": None, "mix": "x", "or": "x", "2": 0.5},
    {"name": "-1", "s": 1e-30, "n": 0, "fits": None, "note": "@x", "mix": None, "or": False, "2": None},
]  # fmt: skip


def laid_out(table: Table) -> dict[str, list[str]]:
    """The lines at every width that changes them."""
    said: dict[str, list[str]] = {}
    for width in WIDTHS if len(table.columns) > 3 else range(12, 61):
        for whole in (False, True):
            lines = table.lines(width, whole_names=whole)
            if lines not in said.values():
                said[f"{width} {whole}"] = lines
    return said


def told(table: Table) -> dict[str, Any]:
    """What a table says in every form."""
    names = [column.name for column in table.columns]
    figures = [column.name for column in table.columns if column.unit]
    kinds = {name: {type(cell.value) for cell in table.column(name)} for name in figures}
    numbers = [name for name in figures if kinds[name] <= {int, float}]
    with_gaps = [name for name in figures if kinds[name] <= {int, float, type(None)}]
    return {
        "lines": [table.lines(33), laid_out(table)],
        "turned": [table.turned().heads(), table.turned().shown()],
        "markdown": table.markdown(),
        "hovers": [table.hovers(), table.hovers(names[-1])],
        "texts": {name: table.texts(name) for name in names},
        "words": [table.words(*figures), *(table.words(names[-1], most=most) for most in (1, 2, 5))],
        "units": {name: table.unit(name).name for name in names},
        "bands": {name: table.bands(name) for name in numbers},
        "values": {name: table.values(name) for name in with_gaps},
        "sorted": {name: table.sorted(name).shown() for name in numbers},
        "by": {value: part.shown() for value, part in table.by(names[0]).items()},
    }


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_told_as_it_was(name: str, recorded: Callable[..., None]) -> None:
    recorded(f"table_{name.replace(' ', '_')}", told(TABLES[name]))


def test_parts_of_tables_and_what_cells_read_are_what_they_were(recorded: Callable[..., None]) -> None:
    timed = MACHINES.only("time", "machine")
    kept = Table(timed.columns, timed.rows[:2])
    columns = {"name": (None, "name"), "mape": (SHARE, "score.mape"), "x": (COUNT, "at.x"), "2": (None, both)}
    parts = {
        "two columns": timed,
        "groups": MACHINES.grouped(),
        "of items": Table.each([SCORED, PLACED], columns, "Of items."),
        "bands": kept,
    }
    said: dict[str, Any] = {}
    for name, part in parts.items():
        said[name] = [part.heads(), part.shown(), laid_out(part)]
    said["numbers"] = [kept.values("time"), kept.bands("time"), kept.sorted("time").shown()]
    said["at the width of a terminal"] = MACHINES.lines() == MACHINES.lines(terminal_width())
    with pytest.raises(TypeError, match="no number"):
        _ = MACHINES.rows[0][0].number
    recorded("table_parts", said)


def both(item: Any) -> str:
    return f"{item.name} {item.at}"


def test_files_of_rows_are_what_they_were(tmp_path: Path, recorded: Callable[..., None]) -> None:
    said: dict[str, Any] = {}
    for name, rows in {"rows": ROWS, "one": ROWS[:1], "none": []}.items():
        said[f"{name}.csv"] = write_table(rows, tmp_path / f"{name}.csv").read_text("utf-8")
        read = pq.read_table(write_table(rows, tmp_path / f"{name}.parquet"))
        said[f"{name}.parquet"] = [str(read.schema.types), read.to_pylist()]
    recorded("table_files", said)
