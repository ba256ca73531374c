"""Unquoted YAML scalars, read by the core schema of YAML 1.2 without its traps.

PyYAML follows YAML 1.1, where `3e8` is a string, `on` is True, `12:30:00` is 45000, `010` is 8 and
a date becomes an object. Here a scalar that looks like a number is one, and any other is a string.
"""

from __future__ import annotations

import math
import re

Scalar = str | int | float | bool | None

_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LONG_NUMBER = re.compile(rf"(?:{_OTHER_BASE.pattern}|{_FLOAT.pattern})$")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_MAX_DIGITS = 400


class ScalarError(ValueError):
    """A scalar that YAML versions read differently, or an unusable number; `help` says what to write."""

    def __init__(self, message: str, help_text: str = "") -> None:
        super().__init__(message)
        self.help = help_text


def resolve_plain(text: str) -> Scalar:
    """Turn an unquoted scalar into None, bool, int, float or str.

    Raises ScalarError for a number with a leading zero (8 in YAML 1.1, 10 in YAML 1.2), for a
    number that is not finite, and for one of absurd length.
    """
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if len(text) > _MAX_DIGITS and _LONG_NUMBER.match(text):
        raise ScalarError(f"a number of {len(text)} characters")
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _NOT_FINITE.fullmatch(text):
        raise ScalarError(f"{text} is not a finite number")
    if not _FLOAT.fullmatch(text):
        return text
    return _number(text)


def _number(text: str) -> int | float:
    if _LEADING_ZERO.match(text):
        meant = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", text)
        raise ScalarError(
            f"{text} begins with a zero: some readers take it for an octal number",
            f'write {meant} for the number, "{text}" in quotes for the text',
        )
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        raise ScalarError(f"{text} is not a finite number")
    return number
