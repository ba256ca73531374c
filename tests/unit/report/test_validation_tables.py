"""The constants of whole steps on the accuracy page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perfsim.catalog import Catalog
from perfsim.evidence.accuracy_page import AccuracyPage
from perfsim.evidence.step_fit import FittedConstant
from perfsim.report.validation import write_validation

UNITS = {
    "host_s_per_kernel": (3.9e-5, "39 \N{MICRO SIGN}s"),
    "partial_node_rank_bytes_per_s": (7.9e9, "7.9 GB/s"),
    "attention_half_length": (1554.2, "1,554"),
    "sustained_fraction": (0.7741, "0.77"),
}


def rows_of(constants: Sequence[FittedConstant], folder: Path) -> list[list[str]]:
    """The rows of their table."""
    _, text = write_validation(AccuracyPage([], [], leaves_out=False, constants=constants), folder)
    rows = [line.strip("| ").split(" | ") for line in text.read_text("utf-8").splitlines()]
    return [row for row in rows if len(row) == 4][2:]


def test_a_constant_is_shown_in_the_unit_of_its_name(tmp_path: Path) -> None:
    constants = [FittedConstant(name, value, 0.1, 5) for name, (value, _) in UNITS.items()]
    shown = [row[1:] for row in rows_of(constants, tmp_path)]
    assert shown == [[words, "10.0 %", "5"] for _, words in UNITS.values()]


def test_every_constant_of_whole_steps_stands_with_its_value_and_its_standard_error(tmp_path: Path) -> None:
    constants = FittedConstant.recorded(Catalog())
    rows = {name: cells for name, *cells in rows_of(constants, tmp_path)}
    exposed = next(own for own in constants if own.name == "exchange_slowdown of megatron-core-te")
    assert rows["exchange slowdown, megatron-core-te"][0] == f"{exposed.value:.2f}"
    assert rows["host, a kernel, megatron-2021"][0].endswith("\N{MICRO SIGN}s")
    assert all(0.0 < own.standard_error < 0.5 for own in constants)
    owners = Counter(own.name.partition(" of ")[2] for own in constants)
    assert max(owners.values()) <= 4
