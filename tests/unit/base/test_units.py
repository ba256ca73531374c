import math
from typing import Annotated, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from perfsim.base import units

DIMENSIONS = get_args(units.Dimension)


class Memory(BaseModel):
    capacity: units.Bytes
    bandwidth: units.BytesPerSecond


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("1.2 Tb/s", "bytes_per_s", 1.5e11),
        ("2.0 Tb/s", "bytes_per_s", 2.5e11),
        ("200 Gbit/s", "bytes_per_s", 2.5e10),
        ("200 Gbps", "bytes_per_s", 2.5e10),
        ("2039 GB/s", "bytes_per_s", 2.039e12),
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("80GiB", "bytes", 80 * 2**30),
        (" 80 GiB ", "bytes", 80 * 2**30),
        ("8 b", "bytes", 1.0),
        ("8 bit", "bytes", 1.0),
        ("2.4 PB", "bytes", 2.4e15),
        ("312 TFLOP/s", "flop_per_s", 312e12),
        ("312 TFLOPS", "flop_per_s", 312e12),
        ("7.48 PFLOP/s", "flop_per_s", 7.48e15),
        ("10 us", "seconds", 1e-5),
        ("10 µs", "seconds", 1e-5),
        ("5 min", "seconds", 300.0),
        ("2 h", "seconds", 7200.0),
        ("1 d", "seconds", 86400.0),
        ("0 s", "seconds", 0.0),
        ("15 kW", "watts", 15e3),
    ],
)
def test_quantity_is_read_in_si(text: str, dimension: units.Dimension, value: float) -> None:
    assert units.parse_quantity(text, dimension) == value


@given(value=st.floats(1e-9, 1e21), dimension=st.sampled_from(DIMENSIONS))
def test_what_is_written_reads_back_to_six_digits_or_all(value: float, dimension: units.Dimension) -> None:
    written = units.format_quantity(value, dimension)
    assert math.isclose(units.parse_quantity(written, dimension), value, rel_tol=6e-6)
    assert units.parse_quantity(units.format_quantity(value, dimension, None), dimension) == value


def test_python_code_may_pass_si_floats_and_strings() -> None:
    assert Memory(capacity=80e9, bandwidth="2 TB/s") == Memory(capacity="80 GB", bandwidth=2e12)


@pytest.mark.parametrize(
    ("value", "context"),
    [(value, units.YAML_CONTEXT) for value in (80e9, 80, True, None, [1])]
    + [(value, {}) for value in (True, -1.0, math.inf, math.nan, None)],
)
def test_yaml_passes_no_bare_number_and_python_only_amounts(value: object, context: dict[str, bool]) -> None:
    with pytest.raises(ValidationError) as caught:
        Memory.model_validate({"capacity": value, "bandwidth": "2 TB/s"}, context=context)
    assert [(error["loc"], error["type"]) for error in caught.value.errors()] == [
        (("capacity",), "value_error")
    ]


class Kernel(BaseModel):
    latency: Annotated[float, *units.quantity("seconds", most=10.0)]
    rounds: Annotated[int, *units.number(1, 100)] = 1
    traffic: units.BytesPerSecond = 1.0
    rate: units.FlopPerSecond = 1.0


@pytest.mark.parametrize(
    ("given", "message", "help_text"),
    [
        ({"latency": "1e30 s"}, "'1e30 s' is too large: 0 s to 10 s is possible", "did you mean '10 s'?"),
        ({"latency": "1 s", "traffic": "0.9 B/s"}, "is too small: 1 B/s to 1000 EB/s", "mean '1 B/s'?"),
        ({"latency": "1 s", "rate": "0.9 FLOP/s"}, "is too small: 1 FLOP/s to 1000000 EFLOP/s", ""),
        ({"latency": "1 s", "rate": "2 TFLOPs/s"}, "unknown unit 'TFLOPs/s'", "mean '2 TFLOP/s'?"),
        ({"latency": "2 seconds"}, "unknown unit 'seconds'", "mean '2 s'?"),
        ({"latency": 1e30}, "'1e+30' is too large", "did you mean '10 s'?"),
        ({"latency": 10**400}, "'inf' is too large", "units: "),
        ({"latency": "1 s", "rounds": "12"}, "`12` is text, a number is expected", "without quotes: 12"),
        ({"latency": "1 s", "rounds": "inf"}, "`inf` is text, a number is expected", ""),
    ],
)
def test_a_field_refuses_what_is_out_of_range(given: dict[str, object], message: str, help_text: str) -> None:
    of_a_file = units.YAML_CONTEXT if isinstance(given["latency"], str) else None
    with pytest.raises(ValidationError) as caught:
        Kernel.model_validate(given, context=of_a_file)
    (problem,) = caught.value.errors()[0]["ctx"]["error"].problems
    assert message in problem.message
    assert help_text in problem.help


@pytest.mark.parametrize("text", ["12", "1.2e1", "+12.0"])
def test_a_number_of_the_command_line_is_a_number_where_no_unit_is_lacking(text: str) -> None:
    assert Kernel.model_validate({"latency": "1 s", "rounds": text}).rounds == 12
    with pytest.raises(ValidationError, match="12 has no unit; a time is expected"):
        Kernel.model_validate({"latency": text})
