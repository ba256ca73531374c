"""Where the ranks of a group stand."""

from __future__ import annotations

import pytest

from perfsim.collectives import Group
from perfsim.errors import InputError


@pytest.mark.parametrize("numbers", [(16, 8, 1), (8, 8, 2), (0, 1, 1), (4, 0, 1)])
def test_a_group_that_contradicts_itself_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="cannot stand on"):
        Group(*numbers)
