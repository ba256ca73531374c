"""Distinct numbers, by a mark for each possible one or by sorting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfsim.base.arrays import distinct


@given(st.lists(st.integers(0, 99), min_size=1, max_size=40), st.sampled_from([100, 10**12]))
def test_few_of_very_many_numbers_are_found_as_few_of_few_are(numbers: list[int], size: int) -> None:
    codes = np.array(numbers)
    found, place = distinct(codes, size)
    assert found.tolist() == sorted(set(numbers))
    assert found[place].tolist() == numbers
