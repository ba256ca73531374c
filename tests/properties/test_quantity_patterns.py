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


@given(st.data(), st.sampled_from(DIMENSIONS), numbers, st.sampled_from(["", " "]))
def test_every_unit_that_the_parser_knows_is_taken_by_both(
    data: st.DataObject, dimension: Dimension, number: str, space: str
) -> None:
    text = number + space + data.draw(st.sampled_from(accepted_units(dimension)))
    assert takes(text, dimension)
    assert re.search(quantity_pattern(dimension), text)


@given(st.data(), st.sampled_from(DIMENSIONS), st.sampled_from(DIMENSIONS), numbers)
def test_what_the_pattern_takes_the_parser_takes(
    data: st.DataObject, dimension: Dimension, other: Dimension, number: str
) -> None:
    exponent = data.draw(st.sampled_from(["", "e3", "E-2"]))
    text = f"{number}{exponent} {data.draw(st.sampled_from(accepted_units(other)))}"
    assert bool(re.search(quantity_pattern(dimension), text)) == takes(text, dimension)


@pytest.mark.parametrize("dimension", DIMENSIONS)
@given(numbers)
def test_a_bare_number_is_never_a_quantity(dimension: Dimension, number: str) -> None:
    assert not re.search(quantity_pattern(dimension), number)
