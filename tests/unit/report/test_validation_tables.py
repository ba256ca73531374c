"""Tables of the accuracy page."""

from __future__ import annotations

from collections import Counter

import pytest

from perfsim.catalog import Catalog
from perfsim.evidence.step_fit import FittedConstant
from perfsim.report.validation import constants_table, quantity


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("host_s_per_kernel", 3.9e-5, "39 µs"),
        ("partial_node_rank_bytes_per_s", 7.9e9, "7.9 GB/s"),
        ("attention_half_length", 1554.2, "1,554"),
        ("sustained_fraction", 0.7741, "0.77"),
    ],
)
def test_a_constant_is_shown_in_the_unit_of_its_name(name: str, value: float, shown: str) -> None:
    assert quantity(name, value) == shown


def test_every_constant_of_whole_steps_stands_with_its_value_and_its_standard_error() -> None:
    constants = FittedConstant.recorded(Catalog())
    rows = {row[0]: row[1:] for row in constants_table(constants).shown()}
    exposed = next(each for each in constants if each.name == "exchange_slowdown of megatron-core-te")
    assert rows["exchange slowdown, megatron-core-te"][0] == f"{exposed.value:.2f}"
    assert rows["host, a kernel, megatron-2021"][0].endswith("µs")
    assert all(0.0 < each.standard_error < 0.5 for each in constants)
    owners = Counter(each.name.partition(" of ")[2] for each in constants)
    assert max(owners.values()) <= 4
