"""Where the ranks of a group stand."""

from __future__ import annotations

import pytest

from perfsim.collectives import Group
from perfsim.errors import InputError


def test_consecutive_ranks_fill_a_node_first() -> None:
    assert Group.strided(8, 1, 8) == Group.inside_node(8)
    assert Group.strided(16, 1, 8) == Group(16, 8, 2)


def test_strided_ranks_share_fewer_to_a_node() -> None:
    assert Group.strided(16, 2, 8) == Group(16, 4, 4)
    assert Group.strided(4, 8, 8) == Group(4, 1, 4)
    assert Group.strided(4, 64, 8) == Group(4, 1, 4)


def test_the_last_node_may_hold_fewer() -> None:
    assert Group.strided(12, 1, 8) == Group(12, 8, 2)


@pytest.mark.parametrize("numbers", [(16, 8, 1), (8, 8, 2), (0, 1, 1), (4, 0, 1)])
def test_a_group_that_contradicts_itself_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="cannot stand on"):
        Group(*numbers)


def test_a_stride_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        Group.strided(4, 0, 8)
