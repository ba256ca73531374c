"""Every number of every description has a physical range, and a pattern takes what the parser takes."""

import importlib
import math
import pkgutil
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

import perfsim
from perfsim.base.errors import InputError
from perfsim.base.units import YAML_CONTEXT, Dimension, accepted_units, parse_quantity, quantity_pattern

for _module in pkgutil.walk_packages(perfsim.__path__, "perfsim."):
    if not _module.name.endswith("__main__"):
        importlib.import_module(_module.name)

NEVER = (math.inf, -math.inf, math.nan, 1e300, -1e300, 10**400, -1)
"""No field of any description is negative but a residual, which is above -1."""


def _records(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for record in base.__subclasses__():
        if record.__module__.startswith("perfsim."):
            yield record
            yield from _records(record)


def _numbers(annotation: Any, notes: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The annotated numbers inside an annotation, with their own notes."""
    if annotation in (int, float):
        yield Annotated[annotation, *notes] if notes else annotation
    elif get_origin(annotation) is Annotated:
        yield from _numbers(annotation.__origin__, (*annotation.__metadata__, *notes))
    else:
        for part in get_args(annotation):
            yield from _numbers(part)


FIELDS = sorted(
    {
        (f"{record.__name__}.{name}", number)
        for record in dict.fromkeys(_records(BaseModel))
        if record.model_rebuild() is not False
        for name, field in record.model_fields.items()
        for number in _numbers(field.rebuild_annotation())
    },
    key=str,
)


def test_the_walk_reaches_the_numbers_of_descriptions() -> None:
    names = {name for name, _ in FIELDS}
    assert {"TileConstants.efficiency", "MemoryXSpec.servers", "Measured.step_time_s"} <= names
    assert len(names) > 130


@pytest.mark.parametrize(("name", "number"), FIELDS, ids=[name for name, _ in FIELDS])
def test_every_number_of_a_description_has_a_range_and_text_is_none(name: str, number: Any) -> None:
    adapter = TypeAdapter(number)
    for value in (*NEVER, "1", "2.5", "inf", "nan", "1e300 s", "-1 GB"):
        with pytest.raises(ValidationError):
            adapter.validate_python(value, context=YAML_CONTEXT if isinstance(value, str) else None)


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
