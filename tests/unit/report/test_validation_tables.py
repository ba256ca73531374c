"""Tables of the accuracy page."""

from __future__ import annotations

import pytest

from perfsim.report.validation.tables import _quantity


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
    assert _quantity(name, value) == shown
