"""Where the ranks of a group stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.base.errors import InputError
from perfsim.network import Group


@pytest.mark.parametrize(
    "numbers", [(16, 8, 1, 8), (8, 8, 2, 1), (0, 1, 1, 1), (4, 0, 1, 0), (14, 8, 3, 4), (14, 4, 3, 8)]
)
def test_a_group_that_contradicts_itself_is_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(InputError, match="cannot stand on"):
        Group(*numbers)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=12))
def test_any_number_of_ranks_on_each_node_is_a_group(on_node: list[int]) -> None:
    group = Group(sum(on_node), max(on_node), len(on_node), min(on_node))
    assert group.is_even == (len(set(on_node)) == 1)
    if group.is_even:
        assert group == Group.even(on_node[0], len(on_node))
