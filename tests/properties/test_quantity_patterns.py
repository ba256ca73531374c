"""The pattern of JSON Schema for a quantity against the parser that decides."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsim.base.errors import InputError
from perfsim.base.units import Dimension, accepted_units, parse_quantity, quantity_pattern

DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
numbers = st.one_of(st.integers(1, 10**6).map(str), st.floats(0.01, 1e4).map(lambda value: f"{value:.3f}"))


def takes(text: str, dimension: Dimension) -> bool:
    try:
        parse_quantity(text, dimension)
    except InputError:
        return False
    return True


@given(st.data(), st.sampled_from(DIMENSIONS), st.sampled_from(DIMENSIONS), numbers)
def test_pattern_and_parser_take_the_same_and_every_unit_of_a_dimension(
    data: st.DataObject, dimension: Dimension, other: Dimension, number: str
) -> None:
    exponent = data.draw(st.sampled_from(["", "e3", "E-2"]))
    space = data.draw(st.sampled_from(["", " "]))
    text = f"{number}{exponent}{space}{data.draw(st.sampled_from(accepted_units(other)))}"
    assert bool(re.search(quantity_pattern(dimension), text)) == takes(text, dimension)
    assert takes(text, dimension) or other != dimension or exponent


@pytest.mark.parametrize("dimension", DIMENSIONS)
@given(numbers)
def test_a_bare_number_is_never_a_quantity(dimension: Dimension, number: str) -> None:
    assert not re.search(quantity_pattern(dimension), number)
