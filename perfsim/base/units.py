"""Quantities: strings with a unit at the edge, floats in SI inside.

GB is 1e9 bytes and GiB is 2**30, b is a bit and B a byte. A number without a unit is refused in YAML and
at the command line, because a reader could not tell what it counts; Python code passes SI floats.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

from perfsim.base.errors import InputError
from perfsim.base.text import nearest

DAY_S = 86_400.0
YEAR_S = 365.25 * DAY_S
TIME_UNITS: tuple[tuple[str, str, float, float], ...] = (
    ("years", "years", YEAR_S, 2 * YEAR_S),
    ("days", "days", DAY_S, 2 * DAY_S),
    ("h", "hours", 3600.0, 2 * 3600.0),
    ("min", "minutes", 60.0, 600.0),
    ("s", "seconds", 1.0, 1.0),
    ("ms", "milliseconds", 1e-3, 1e-3),
    ("µs", "microseconds", 1e-6, 0.0),
)
"""In a table, in a sentence, its seconds, and the smallest duration that people read in it."""
GIB = 2.0**30
"""Bytes of one GiB."""

Dimension = Literal["bytes", "bytes_per_s", "flop_per_s", "seconds", "watts"]

YAML_CONTEXT = {"yaml": True}
"""Validation context of values read from YAML: bare numbers are refused."""

_PREFIXES = {18: "E", 15: "P", 12: "T", 9: "G", 6: "M", 3: "k", 0: "", -3: "m", -6: "u", -9: "n", -12: "p"}
_BINARY_PREFIXES = {10: "Ki", 20: "Mi", 30: "Gi", 40: "Ti", 50: "Pi"}
_POWERS = {prefix: power for power, prefix in _PREFIXES.items()} | {"K": 3, "µ": -6, "μ": -6}
"""Of ten, by prefix; kilo and micro have several spellings."""
_BINARY_POWERS = {prefix: power for power, prefix in _BINARY_PREFIXES.items()}
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_MOST_SHOWN = 60
"""Characters of a text in whose place a number is expected."""
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Units:
    """The units of one dimension."""

    meaning: str
    symbols: Mapping[str, float]
    """Size in SI of each unit without prefix; perfsim writes the first one."""
    usual: str
    """The unit that a bare number most likely lacks."""
    most: float
    """No machine or run comes near it, in SI."""
    exponents: tuple[int, int] = (0, 18)
    """Smallest and largest power of ten written as a prefix."""
    least: float = 0.0
    """Above zero where something would take forever, in SI."""
    unprefixed: Mapping[str, float] = field(default_factory=dict)
    """Units that take no prefix."""
    binary: bool = False

    @property
    def symbol(self) -> str:
        return next(iter(self.symbols))


_UNITS: dict[Dimension, _Units] = {
    "bytes": _Units(
        meaning="a number of bytes",
        symbols={"B": 1.0, "b": 0.125, "bit": 0.125},
        usual="GB",
        binary=True,
        most=1e21,
    ),
    "bytes_per_s": _Units(
        meaning="bytes a second",
        symbols={"B/s": 1.0, "b/s": 0.125, "bit/s": 0.125, "Bps": 1.0, "bps": 0.125},
        usual="GB/s",
        binary=True,
        most=1e21,
        least=1.0,
    ),
    "flop_per_s": _Units(
        meaning="floating-point operations a second",
        symbols={"FLOP/s": 1.0, "FLOPS": 1.0},
        usual="TFLOP/s",
        most=1e24,
        least=1.0,
    ),
    "seconds": _Units(
        meaning="a time",
        symbols={"s": 1.0},
        usual="us",
        exponents=(-12, 0),
        unprefixed={"min": 60.0, "h": 3600.0, "d": DAY_S},
        most=1e10,
    ),
    "watts": _Units(meaning="a power", symbols={"W": 1.0}, usual="W", exponents=(-3, 9), most=1e12),
}


def accepted_units(dimension: Dimension) -> list[str]:
    """Every unit that `parse_quantity` accepts for `dimension`, by size."""
    units = _UNITS[dimension]
    low, high = units.exponents
    prefixes = [_PREFIXES[exponent] for exponent in sorted(_PREFIXES) if low <= exponent <= high]
    if units.binary:
        prefixes += _BINARY_PREFIXES.values()
    return [prefix + symbol for symbol in units.symbols for prefix in prefixes] + list(units.unprefixed)


def quantity_pattern(dimension: Dimension) -> str:
    """JSON Schema's regular expression for what `parse_quantity` accepts: never a bare number."""
    units = _UNITS[dimension]
    plain = r"(?:\d+\.?\d*|\.\d+)"
    exponent = r"[eE][-+]?\d+"
    # A prefix may have several spellings.
    prefixed = (re.sub("^k", "[kK]", re.sub("^u", "[uµμ]", name)) for name in accepted_units(dimension))
    units_with_prefix = "|".join(prefixed)
    # A number with an exponent takes a unit without prefix: `1e9 B`, not `1e3 MB`.
    without_prefix = "|".join(re.escape(name) for name in (*units.symbols, *units.unprefixed))
    return rf"^\s*\+?{plain}(?:\s*(?:{units_with_prefix})|{exponent}\s*(?:{without_prefix}))\s*$"


def parse_quantity(text: str, dimension: Dimension, usual: str = "") -> float:
    """Turn "1.2 Tb/s" into 1.5e11: the value in SI (bytes, bytes/s, FLOP/s, s, W).

    Raises InputError for a unit that is missing, unknown or of another dimension, and for a value that is
    negative, not finite, or zero for a rate; the error suggests the nearest valid text, which has the
    `usual` unit where one is missing.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _refusal(f"{text!r} is not a quantity: a number and a unit", dimension)
    number, unit = match.groups()
    if not unit:
        raise _bare_number(float(number), dimension, usual)
    value = _value_in(number, unit, dimension)
    if value is not None:
        return _checked(value, text, dimension)
    measured = (
        units.meaning
        for candidate, units in _UNITS.items()
        if candidate != dimension and _value_in(number, unit, candidate) is not None
    )
    said = f"is {meaning}" if (meaning := next(measured, "")) else f"has an unknown unit {unit!r}"
    accepted = accepted_units(dimension)
    base, _, _ = unit.partition("/")
    # Case first; GB for a rate most likely means GB/s; then any unit that begins so, or with which it begins.
    alike = [name for name in accepted if name.casefold() == unit.casefold()]
    alike += [name for name in accepted if name.partition("/")[0] == base]
    alike += [name for name in accepted if name.startswith(base)]
    alike += sorted(filter(base.startswith, accepted), key=len, reverse=True)
    meant = [*alike, nearest(unit, accepted) or usual or _UNITS[dimension].usual][0]
    message = f"{text!r} {said}; {_UNITS[dimension].meaning} is expected"
    raise _refusal(message, dimension, f"{number} {meant}")


def _bare_number(number: float, dimension: Dimension, usual: str = "") -> InputError:
    """The error for a number without a unit; it suggests the most likely quantity."""
    meant = f"{number:g} {usual or _UNITS[dimension].usual}"
    odd = abs(number) >= 1e6 or (dimension == "seconds" and 0 < number < 1)
    if odd and not usual and math.isfinite(number):
        meant = format_quantity(abs(number), dimension)
    return _refusal(f"{number:g} has no unit; {_UNITS[dimension].meaning} is expected", dimension, meant)


def format_quantity(value: float, dimension: Dimension, precision: int | None = 6) -> str:
    """Format an SI value for people: 2.039e12 bytes/s becomes "2.039 TB/s".

    `precision` counts significant digits; None writes every digit, so that `parse_quantity` gives
    the same float back. Bytes that are round in KiB, MiB, GiB, ... but not in kB use those units, and
    times that would be hard to read in seconds are in hours or days.
    """
    units = _UNITS[dimension]
    if not math.isfinite(value) or value == 0:
        return f"{value:g} {units.symbol}"
    if dimension == "bytes":
        power = max((power for power in _BINARY_PREFIXES if value % 2**power == 0), default=0)
        if power and value % 1000 and abs(value) < 10000 * 2**power:
            return f"{int(value) >> power} {_BINARY_PREFIXES[power]}B"
    if dimension == "seconds" and precision is not None and value >= 7200:
        size, unit = (DAY_S, "d") if value >= 2 * DAY_S else (3600.0, "h")
        return f"{_digits(Decimal(value / size), precision)} {unit}"
    low, high = units.exponents
    exponent = min(max(3 * math.floor(math.log10(abs(value)) / 3), low), high)
    scaled = Decimal(repr(float(value))).scaleb(-exponent)
    return f"{_digits(scaled, precision)} {_PREFIXES[exponent]}{units.symbol}"


def dimension_of(name: str) -> Dimension | None:
    """The dimension that the suffix of a constant's name tells; None for a plain number."""
    if name.endswith("_bytes_per_s"):
        return "bytes_per_s"
    return "seconds" if name.endswith("_s") or "_s_per_" in name else None


def _value_in(number: str, unit: str, dimension: Dimension) -> float | None:
    """The value in SI, or None where `unit` does not measure `dimension`."""
    units = _UNITS[dimension]
    if unit in units.unprefixed:
        return float(number) * units.unprefixed[unit]
    symbol = next((symbol for symbol in units.symbols if unit.endswith(symbol)), None)
    if symbol is None:
        return None
    size = units.symbols[symbol]
    prefix = unit.removesuffix(symbol)
    if not prefix:
        return float(number) * size
    if "e" in number.lower():  # 1e3 MB: two exponents are one too many
        return None
    if units.binary and prefix in _BINARY_POWERS:
        return float(number) * 2.0 ** _BINARY_POWERS[prefix] * size
    low, high = units.exponents
    power = _POWERS.get(prefix)
    # As text, 2.039 TB is the float nearest to 2.039e12, which 2.039 * 1e12 may miss.
    return None if power is None or not low <= power <= high else float(f"{number}e{power}") * size


def _checked(value: float, text: str, dimension: Dimension) -> float:
    if not math.isfinite(value):
        raise _refusal(f"{text!r} is too large", dimension)
    if value < 0:
        raise _refusal(f"{text!r} is negative", dimension, text.strip().lstrip("-"))
    if value == 0 and _UNITS[dimension].least:
        raise _refusal(f"{text!r} is zero: nothing would ever finish", dimension)
    return value


def _within(value: float, text: str, dimension: Dimension, least: float | None, most: float | None) -> float:
    """The value, if it is in the range of its field; None stands for the end of its dimension's range."""
    low = _UNITS[dimension].least if least is None else least
    high = _UNITS[dimension].most if most is None else most
    if low <= value <= high:
        return value
    smallest = format_quantity(low, dimension, None)
    largest = format_quantity(high, dimension, None)
    size, nearest_text = ("small", smallest) if value < low else ("large", largest)
    raise _refusal(f"{text!r} is too {size}: {smallest} to {largest} is possible", dimension, nearest_text)


def _refusal(message: str, dimension: Dimension, meant: str = "") -> InputError:
    """An error with the accepted units; where there are many, with the usual prefixes only."""
    units = _UNITS[dimension]
    if units.binary:
        per = units.symbol.removeprefix("B")
        names = ["B", "kB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB"]
        shown = [name + per for name in names] + [f"bits: Gb{per}, Tb{per}"]
    else:
        endings = (units.symbol, *units.unprefixed)
        shown = [name for name in accepted_units(dimension) if name.endswith(endings)]
    help_text = f"did you mean {meant!r}? " if meant else ""
    return InputError(message, f"{help_text}units: {', '.join(shown)}")


def _digits(number: Decimal, precision: int | None) -> str:
    if precision is not None:
        number = Decimal(f"{number:.{precision}g}")
    return f"{number.normalize():f}" if abs(number.adjusted()) < 25 else f"{number.normalize():e}"


def _without_bits(text: str, dimension: Dimension) -> None:
    """Refuse a quantity in bits, where the bytes of the same prefix are meant."""
    match = _QUANTITY.fullmatch(text)
    unit = match[2] if match else ""
    symbols = _UNITS[dimension].symbols
    symbol = next((symbol for symbol in symbols if unit.endswith(symbol)), "")
    if match is None or not symbol or symbols[symbol] == 1.0:
        return
    meant = f"{match[1]} {unit.removesuffix(symbol)}{_UNITS[dimension].symbol}"
    value = format_quantity(parse_quantity(text, dimension), dimension)
    raise _refusal(
        f"{text!r} counts bits, and is {value}; data sheets give memories in bytes", dimension, meant
    )


def quantity(
    dimension: Dimension, least: float | None = None, most: float | None = None, *, bits: bool = True
) -> tuple[BeforeValidator, WithJsonSchema]:
    """Annotations that let a pydantic float field accept quantities of `dimension`, from `least` to `most`.

    The range is in SI units, by default the one of the dimension. Without `bits`, only bytes are accepted.
    A quantity is text with its unit; Python code, but not YAML, may also pass a number.
    """
    units = _UNITS[dimension]

    def read(value: Any, info: ValidationInfo) -> float:
        if isinstance(value, str):
            if not bits:
                _without_bits(value, dimension)
            return _within(parse_quantity(value, dimension), value, dimension, least, most)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refusal(f"{value!r} is not a quantity", dimension)
        try:
            plain = float(value)
        except OverflowError:  # an integer that no float holds
            plain = math.inf if value > 0 else -math.inf
        if info.context and info.context.get("yaml"):
            raise _bare_number(plain, dimension)
        text = f"{plain:g}"
        return _within(_checked(plain, text, dimension), text, dimension, least, most)

    schema = {
        "type": "string",
        "description": f"{units.meaning}, with its unit",
        "pattern": quantity_pattern(dimension),
        "examples": [f"10 {units.usual}"],
    }
    return BeforeValidator(read), WithJsonSchema(schema, mode="validation")


def number(least: float, most: float) -> tuple[Any, BeforeValidator]:
    """Annotations of an int or float field without a unit, from `least` to `most`."""
    return Field(ge=least, le=most), BeforeValidator(_number)


def _number(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    # The command line passes numbers as text; in YAML a number has no quotes.
    is_number = re.fullmatch(_NUMBER, value.strip())
    if is_number and not info.context:
        return int(value) if value.isdigit() else float(value)
    message = f"`{value[:_MOST_SHOWN]}` is text, a number is expected"
    help_text = f"write it without quotes: {value.strip()}" if is_number else ""
    raise InputError(message, help_text)


Bytes = Annotated[float, *quantity("bytes")]
BytesPerSecond = Annotated[float, *quantity("bytes_per_s")]
FlopPerSecond = Annotated[float, *quantity("flop_per_s")]
Seconds = Annotated[float, *quantity("seconds")]
Watts = Annotated[float, *quantity("watts")]
